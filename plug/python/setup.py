"""What pyproject.toml cannot say: where the Rust code is, and which Pythons a wheel is for."""

import glob
import os
import re
import shutil

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.sdist import sdist
from setuptools_rust import Binding, RustExtension

HERE = os.path.dirname(os.path.abspath(__file__))
# In a source package the repository's own folders stand in this one.
INSIDE = "rust"
# What cargo needs to build the library. It loads every member of the workspace, so all of them are taken along, with each program that a manifest names.
FILES = ["Cargo.toml", "Cargo.lock", "LICENSE-*", "README.md", "docs/ordering.md", "tests/*.rs", "plug/*.*", "plug/build", "plug/tests/planted_under_a_call.rs", "plug/tests/soak.rs"]
FOLDERS = ["src", "kernels", "examples", "plug/src", "plug/examples"]


def members(root):
    """The folders of the workspace's other packages; of the root package and of this one FOLDERS says what is needed."""
    with open(os.path.join(root, "Cargo.toml"), encoding="utf-8") as manifest:
        listed = re.search(r"^members = \[(.*?)\]", manifest.read(), re.MULTILINE | re.DOTALL).group(1)
    return [folder for folder in re.findall(r'"([^"]+)"', listed) if folder not in (".", "plug")]


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
        for folder in FOLDERS + members(root):
            skipped = shutil.ignore_patterns("target", "__pycache__")
            shutil.copytree(os.path.join(root, folder), os.path.join(base_dir, INSIDE, folder), ignore=skipped, dirs_exist_ok=True)
        for pattern in FILES:
            for path in filter(os.path.isfile, glob.glob(os.path.join(root, pattern))):
                there = os.path.join(base_dir, INSIDE, os.path.relpath(path, root))
                os.makedirs(os.path.dirname(there), exist_ok=True)
                shutil.copy(path, there)


class Wheel(bdist_wheel):
    def get_tag(self):
        # A C library that ctypes opens: any Python 3 that requires-python allows, on this platform.
        return "py3", "none", super().get_tag()[2]


setup(
    cmdclass={"sdist": SourcePackage, "bdist_wheel": Wheel},
    # No module of Python's: a C library, opened by the package.
    rust_extensions=[RustExtension("millpond._library", path=library(), binding=Binding.NoBinding, debug=False)],
)
