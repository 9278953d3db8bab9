"""What pyproject.toml cannot say: where the Rust code is, and which Pythons a wheel is for."""

import glob
import os
import shutil

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.sdist import sdist
from setuptools_rust import Binding, RustExtension

HERE = os.path.dirname(os.path.abspath(__file__))
# In a source package the repository's own folders stand in this one.
INSIDE = "rust"
# What cargo needs to build the library: of the other members of the workspace, that they are there.
FILES = ["Cargo.toml", "Cargo.lock", "LICENSE-*", "README.md", "benches/*.rs", "plug/*.*", "plug/build"]
FOLDERS = ["src", "kernels", "benches/rivals", "benches/streams", "examples", "cli", "plug/src", "plug/examples", "tests/fake_libcuda"]


def library():
    inside = os.path.join(INSIDE, "plug", "Cargo.toml")
    return inside if os.path.exists(os.path.join(HERE, inside)) else os.path.join("..", "Cargo.toml")


class SourcePackage(sdist):
    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        if os.path.isdir(os.path.join(HERE, INSIDE)):  # A source package of a source package.
            shutil.copytree(os.path.join(HERE, INSIDE), os.path.join(base_dir, INSIDE), dirs_exist_ok=True)
            return
        root = os.path.join(HERE, "..", "..")
        for folder in FOLDERS:
            skipped = shutil.ignore_patterns("target", "__pycache__")
            shutil.copytree(os.path.join(root, folder), os.path.join(base_dir, INSIDE, folder), ignore=skipped)
        for pattern in FILES:
            for path in filter(os.path.isfile, glob.glob(os.path.join(root, pattern))):
                there = os.path.join(base_dir, INSIDE, os.path.relpath(path, root))
                os.makedirs(os.path.dirname(there), exist_ok=True)
                shutil.copy(path, there)


class Wheel(bdist_wheel):
    def get_tag(self):
        # A C library that ctypes opens: any Python 3, on this platform.
        return "py3", "none", super().get_tag()[2]


setup(
    cmdclass={"sdist": SourcePackage, "bdist_wheel": Wheel},
    # No module of Python's: a C library, opened by the package.
    rust_extensions=[RustExtension("millpond._library", path=library(), binding=Binding.NoBinding, debug=False)],
)
