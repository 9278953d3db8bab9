"""What the Python package makes of wrong arguments: errors of Python's own kinds, before the library is called. Most of it needs no
driver at all."""

import copy
import ctypes
import os
import pickle
import tempfile
import unittest
from types import SimpleNamespace

import millpond
import stand_in
from stand_in import MIB

BIG = 1 << 64


class Index:
    """A whole number as NumPy has one."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


def wrong_numbers():
    """What is no machine word, and how that is said."""
    return [
        (-1, ValueError),
        (Index(-7), ValueError),
        (BIG, OverflowError),
        (BIG + 512, OverflowError),
        (True, TypeError),
        (1.0, TypeError),
        ("512", TypeError),
        (b"512", TypeError),
        ([512], TypeError),
        (object(), TypeError),
    ]


class NoLibraryCalls:
    """In place of the library: a call is what must not happen."""

    def __getattr__(self, name):
        def called(*arguments):
            raise AssertionError(f"{name} was called with {arguments}")

        return called


class TestArguments(unittest.TestCase):
    def setUp(self):
        real, millpond._lib = millpond._lib, NoLibraryCalls()
        self.addCleanup(setattr, millpond, "_lib", real)
        self.gpu = millpond.Allocator._named(1)

    def refused(self, function, *arguments, kind):
        with self.assertRaises(kind, msg=f"{function.__name__}{arguments!r}") as caught:
            function(*arguments)
        # Of Python's own kind, and not one of ours that happens to be a ValueError.
        self.assertNotIsInstance(caught.exception, millpond.Error)
        self.assertNotIsInstance(caught.exception, ctypes.ArgumentError)
        self.assertGreater(len(str(caught.exception)), 20)

    def test_sizes_pointers_and_streams(self):
        gpu = self.gpu
        for wrong, kind in wrong_numbers():
            for function in (gpu.alloc, gpu.alloc_pinned, gpu.free, gpu.free_unknown, gpu.free_pinned, gpu.free_pinned_unknown, gpu.find):
                self.refused(function, wrong, kind=kind)
            self.refused(gpu.declare_permanent, wrong, kind=kind)
            self.refused(gpu.alloc, 512, wrong, kind=kind)
            for function in (gpu.free_on, gpu.record_use, gpu.record_pinned_use):
                self.refused(function, 512, wrong, kind=kind)
                self.refused(function, wrong, 0, kind=kind)
            self.refused(gpu.free_after, 512, [0, wrong], kind=kind)
            self.refused(gpu.free_after, wrong, [0], kind=kind)
        for function in (gpu.alloc, gpu.declare_permanent, gpu.alloc_pinned):
            self.refused(function, None, kind=TypeError)
        self.refused(gpu.free_on, 512, None, kind=TypeError)
        self.refused(gpu.free_after, 512, 7, kind=TypeError)

    def test_a_negative_number_is_named_in_words(self):
        for function, what in ((self.gpu.alloc, "the size in bytes"), (self.gpu.free, "the pointer")):
            with self.assertRaises(ValueError) as caught:
                function(-5)
            self.assertEqual(str(caught.exception), f"{what} is -5: it cannot be negative")

    def test_a_stream_object_is_distinguished_from_a_handle(self):
        with self.assertRaisesRegex(TypeError, "stream.cuda_stream of PyTorch"):
            self.gpu.alloc(512, SimpleNamespace(cuda_stream=3))

    def test_devices(self):
        for wrong, kind in wrong_numbers()[:-4]:
            if not isinstance(wrong, str):
                self.refused(millpond.Allocator, wrong, kind=kind)
        self.refused(millpond.Allocator, 1 << 31, kind=OverflowError)
        for wrong in ("cuda", "cuda:", "cuda:-1", "cuda:1.0", "cpu", "0", "", "cuda:²"):
            self.refused(millpond.Allocator, wrong, kind=ValueError)
        for wrong in (None, [0], object()):
            self.refused(millpond.Allocator, wrong, kind=TypeError)

        class TorchDevice:
            type, index = "cuda", 5

            def __str__(self):
                return "cuda:5"

        for device, number in ((3, 3), (Index(4), 4), ("cuda:12", 12), (TorchDevice(), 5), (SimpleNamespace(id=6), 6)):
            self.assertEqual(millpond._device(device), number)

    def test_options(self):
        wrong = [
            ({"limit": True}, TypeError),
            ({"limit": -1}, ValueError),
            ({"limit": 1.5}, ValueError),
            ({"limit": float("nan")}, ValueError),
            ({"limit": BIG}, OverflowError),
            ({"limit": b"1GiB"}, TypeError),
            ({"pinned_limit": [1]}, TypeError),
            ({"limit": "1GiB,policy=footprint"}, ValueError),
            ({"policy": "latency\0"}, ValueError),
            ({"policy": True}, TypeError),
            ({"policy": 1.5}, TypeError),
            ({"wait_ms": 1.5}, TypeError),
            ({"wait_ms": -1}, ValueError),
        ]
        for options, kind in wrong:
            with self.assertRaises(kind, msg=str(options)):
                millpond.Allocator(0, **options)
        for limit in (True, -1, -0.5, 2.0, float("inf"), "1\0", BIG):
            with self.assertRaises((TypeError, ValueError, OverflowError), msg=str(limit)):
                self.gpu.set_limit(limit)
        said = {"limit": 0.5, "pinned_limit": Index(7), "policy": "footprint", "scrub": True, "wait_ms": 20, "reuse": None}
        self.assertEqual(millpond._words(said), b"limit=50.0000000000%,pinned_limit=7,policy=footprint,scrub=1,wait_ms=20")

    def test_an_allocator_is_its_process_s_own(self):
        for copies in (copy.copy, copy.deepcopy, pickle.dumps):
            self.refused(copies, self.gpu, kind=TypeError)


class TestTheLibrary(unittest.TestCase):
    """The errors of a wrong MILLPOND_LIBRARY, and on a machine without a driver."""

    def imported(self, **environment):
        return stand_in.run(["-c", "import millpond"], **environment)

    def test_a_wrong_library(self):
        with tempfile.TemporaryDirectory() as folder:
            text = os.path.join(folder, "libmillpond.so")
            with open(text, "w") as file:
                file.write("no library")
            for wrong, reason in ((text, "invalid ELF header|file too short"), (folder, "directory"), (f"{folder}/none.so", "No such file")):
                done = self.imported(MILLPOND_LIBRARY=wrong)
                self.assertNotEqual(done.returncode, 0)
                self.assertRegex(done.stderr, "ImportError: millpond's C library at")
                for part in (wrong, reason, "plug/build makes it, or unset it"):
                    self.assertRegex(done.stderr, part)

    @unittest.skipUnless(stand_in.there(), "MILLPOND_LIBCUDA names no stand-in driver")
    def test_another_library(self):
        done = self.imported(MILLPOND_LIBRARY=os.environ["MILLPOND_LIBCUDA"])
        self.assertRegex(done.stderr, "ImportError: .* it is no library of millpond's, or not of this version .*millpond_create")

    def test_no_driver(self):
        program = "import millpond\ntry:\n    millpond.Allocator()\nexcept millpond.NoDeviceError as why:\n    print('no device:', why)"
        done = stand_in.run(["-c", program], MILLPOND_LIBCUDA="/nowhere/libcuda.so.1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("no device:", done.stdout)


@unittest.skipUnless(stand_in.there(), "MILLPOND_LIBCUDA names no stand-in driver")
class TestOverTheDriver(unittest.TestCase):
    def test_what_is_right_is_taken(self):
        with millpond.Allocator("cuda:0") as gpu:
            x = gpu.alloc(Index(1000), ctypes.c_void_p(0))
            self.assertEqual(gpu.find(Index(x)), (x, 1000))
            gpu.record_use(ctypes.c_void_p(x), Index(0))
            gpu.free(ctypes.c_void_p(x))
            gpu.free(None)
            gpu.free_after(gpu.alloc(5), [0, 1])
            gpu.free_after(0, [])
            for nothing in (None, 0, gpu.alloc(0), gpu.alloc_pinned(0)):
                gpu.record_use(nothing, 0)
                gpu.record_pinned_use(nothing, 0)
            self.assertEqual(gpu.stats()["total"]["live"], 0)
            with self.assertRaises(millpond.UnknownPointerError):
                gpu.free_after(x, [0])

    def test_every_function_has_every_wrong_pointer(self):
        with millpond.Allocator() as gpu, millpond.Allocator() as other:
            x, gone = gpu.alloc(MIB), gpu.alloc(MIB)
            gpu.free(gone)
            functions = [
                gpu.free,
                gpu.free_unknown,
                gpu.free_pinned,
                gpu.free_pinned_unknown,
                lambda p: gpu.free_on(p, 0),
                lambda p: gpu.free_after(p, [0]),
                lambda p: gpu.record_use(p, 0),
                lambda p: gpu.record_pinned_use(p, 0),
            ]
            before = gpu.stats()["total"]
            for wrong in (gone, x + 512, x + 1, 12345, BIG - 1, BIG - 512):
                for function in functions:
                    with self.assertRaises(millpond.UnknownPointerError):
                        function(wrong)
            for function in (other.free, other.free_unknown, lambda p: other.free_on(p, 0), lambda p: other.free_after(p, [0])):
                with self.assertRaises(millpond.WrongAllocatorError):
                    function(x)
            self.assertEqual(gpu.stats()["total"], before)
            gpu.free(x)

    def test_the_greatest_size_is_no_small_one(self):
        with millpond.Allocator() as gpu:
            for size in (BIG - 1, BIG - 512, 1 << 62, 1 << 50, 1 << 41, 1 << 40):
                for function in (gpu.alloc, gpu.alloc_pinned):
                    with self.assertRaises(MemoryError) as caught:
                        function(size)
                    self.assertIsInstance(caught.exception, millpond.OutOfMemoryError)
            self.assertEqual(gpu.stats()["total"]["live"], 0)


if __name__ == "__main__":
    unittest.main()
