"""What type checkers see of the package: the stubs are those of the modules, a program that is right passes strictly, and what is
wrong in one is found. By mypy, which is no part of the package."""

import importlib.util
import os
import tempfile
import unittest

import stand_in

MODULES = ("millpond", "millpond_torch", "millpond_cupy")

# mypy's stubtest imports what it compares; PyTorch and CuPy are of the tests' own making here.
STUBTEST = """
import sys
import stub_cupy, stub_torch
sys.modules["torch"], sys.modules["cupy"] = stub_torch.make(), stub_cupy.make()
from mypy import stubtest
sys.exit(stubtest.main())
"""

RIGHT = """
import ctypes
from typing import Any

import millpond
import millpond_cupy
import millpond_torch

def use(stream: ctypes.c_void_p) -> dict[str, Any]:
    with millpond.Allocator("cuda:0", limit=0.5, policy="footprint") as gpu:
        x: int = gpu.alloc(512, stream)
        gpu.record_use(x, 0)
        gpu.free_after(x, [0, stream])
        begin, size = gpu.find(x)
        freed: int = gpu.trim()
        return gpu.stats()

def install() -> None:
    millpond_torch.install(limit="6GiB")
    millpond_torch.allocator().set_limit(None)
    pool = millpond_cupy.install(uses="own", pinned=False, reuse="never")
    used: int = pool.used_bytes()
    millpond_cupy.MemoryPool("any", may_synchronize=True).free_all_blocks()
    print(millpond.__version__ + millpond.version())
"""

WRONG = {
    'millpond.Allocator(0, policy="fast")': "typeddict-item|arg-type",
    "millpond.Allocator(0, lmit=5)": "call-arg|typeddict",
    "millpond.Allocator().alloc(1.5)": "arg-type",
    'millpond.Allocator().alloc(512, "0")': "arg-type",
    "millpond.Allocator().free_after(0, 7)": "arg-type",
    'millpond.Allocator().trim() + ""': "operator",
    'millpond_cupy.MemoryPool(uses="all")': "arg-type",
    'millpond_cupy.install(may_synchronize="no")': "arg-type",
    "millpond_torch.report(device=1.5)": "arg-type",
    "millpond_torch.memory_allocated().x": "attr-defined",
}


@unittest.skipUnless(importlib.util.find_spec("mypy"), "mypy is not installed")
class TestTypes(unittest.TestCase):
    def judged(self, program):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "program.py")
            with open(path, "w") as file:
                file.write(program)
            return stand_in.run(["-m", "mypy", "--strict", "--cache-dir", os.path.join(folder, "cache"), path], MYPYPATH="")

    def test_the_stubs_are_the_modules_own(self):
        done = stand_in.run(["-c", STUBTEST, *MODULES])
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        # An installed package has the library too, which looks like a module.
        self.assertRegex(done.stdout, r"no issues found in [34] modules")

    def test_a_program_that_is_right(self):
        done = self.judged(RIGHT)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_what_is_wrong_is_found(self):
        lines = [f"import {module}" for module in MODULES] + list(WRONG)
        said = self.judged("\n".join(lines)).stdout
        for number, (line, kind) in enumerate(WRONG.items(), len(MODULES) + 1):
            self.assertRegex(said, rf"program.py:{number}: error: .*\[({kind})\]", line)


class TestVersion(unittest.TestCase):
    def test_it_is_the_library_s(self):
        import millpond

        self.assertEqual(millpond.__version__, millpond.version())
        self.assertRegex(millpond.__version__, r"^\d+\.\d+\.\d+")


if __name__ == "__main__":
    unittest.main()
