"""The Python door over the stand-in driver: MILLPOND_LIBCUDA names it. `.ci/plug` runs this in a fresh environment."""

import ctypes
import os
import pathlib
import sys
import tempfile
import threading
import types
import unittest
from collections import namedtuple
from unittest import mock

import millpond
import stand_in

MIB = 1 << 20


class TestFresh(unittest.TestCase):
    def test_a_library_older_than_its_sources_is_refused(self):
        with tempfile.TemporaryDirectory() as room:
            one, two, library = (pathlib.Path(room, name) for name in ("one", "two", "library.so"))
            for package, manifest in (
                (one, '[package]\nname = "one"\n[dependencies]\nof = { package = "two", path = "../two" }\n[dev-dependencies]\nx = { path = "../three" }\n'),
                (two, '[package]\nname = "two"\n'),
            ):
                (package / "src/tests").mkdir(parents=True)
                (package / "Cargo.toml").write_text(manifest)
                for name in ("lib.rs", "tests/some.rs"):
                    (package / "src" / name).write_text("")
                    os.utime(package / "src" / name, (1000, 1000))
            packages = stand_in._packages(one)
            self.assertEqual([p.name for p in packages], ["one", "two"])
            library.write_text("")
            os.utime(library, (1000, 1000))
            stand_in.is_fresh(library, packages)
            os.utime(two / "src/tests/some.rs", (2000, 2000))
            stand_in.is_fresh(library, packages)
            os.utime(two / "src/lib.rs", (1001, 1001))
            with self.assertRaisesRegex(RuntimeError, "older than .*two/src/lib.rs"):
                stand_in.is_fresh(library, packages)


@unittest.skipUnless(stand_in.there(), "MILLPOND_LIBCUDA names no stand-in driver")
class TestAllocator(unittest.TestCase):
    def setUp(self):
        self.gpu = millpond.Allocator(0, limit="64MiB", policy="footprint")

    def tearDown(self):
        self.gpu.destroy()

    def test_memory_comes_and_goes(self):
        a = self.gpu.alloc(MIB)
        b = self.gpu.alloc(MIB)
        self.assertNotEqual(a, b)
        self.assertEqual(a % 512, 0)
        self.assertEqual(self.gpu.find(a + 1000), (a, MIB))
        self.assertEqual(self.gpu.stats()["total"]["live"], 2)
        self.gpu.record_use(a, 0)
        self.gpu.free(a)
        self.gpu.free_on(b, 0)
        self.gpu.synchronize()
        self.assertEqual(self.gpu.stats()["total"]["live"], 0)
        self.assertGreater(self.gpu.trim(), 0)
        self.assertEqual(self.gpu.stats()["reserved"], 0)
        self.assertEqual(self.gpu.alloc(0), 0)
        self.gpu.free(0)

    def test_mistakes_are_typed(self):
        a = self.gpu.alloc(MIB)
        other = millpond.Allocator(0)
        with self.assertRaises(millpond.WrongAllocatorError):
            other.free(a)
        other.destroy()
        with self.assertRaises(millpond.UnknownAllocatorError):
            other.alloc(1)
        self.gpu.free(a)
        for wrong in (a, a + 512, 12345):
            with self.assertRaises(millpond.UnknownPointerError) as caught:
                self.gpu.free(wrong)
            self.assertIsInstance(caught.exception, ValueError)
        with self.assertRaises(millpond.OutOfMemoryError) as caught:
            self.gpu.alloc(65 * MIB)
        self.assertIsInstance(caught.exception, MemoryError)
        self.assertIn("above the limit of 64.0 MiB", str(caught.exception))
        with self.assertRaises(millpond.NoDeviceError):
            millpond.Allocator(63)
        for options in ({"policy": "best"}, {"size": 3}, {"limit": "much"}):
            with self.assertRaises(ValueError, msg=str(options)):
                millpond.Allocator(0, **options)

    def test_pinned_memory(self):
        a = self.gpu.alloc_pinned(MIB)
        self.assertEqual(a % 512, 0)
        ctypes.memset(a, 0x5A, MIB)
        self.assertEqual(ctypes.string_at(a + MIB - 2, 2), b"ZZ")
        self.gpu.record_pinned_use(a, 0)
        self.gpu.free_pinned(a)
        for free in (self.gpu.free_pinned, self.gpu.free_pinned_unknown):
            with self.assertRaises(millpond.UnknownPointerError):
                free(a)
        b = self.gpu.alloc_pinned(MIB)
        self.gpu.free_pinned_unknown(b)
        self.gpu.synchronize()
        self.assertEqual(self.gpu.stats()["pinned"]["live"], 0)
        self.assertEqual(self.gpu.alloc_pinned(0), 0)

    def test_cupys_pinned_pointer(self):
        """The part of the door for CuPy that needs no CuPy: its pointer type asks for an address and a size."""
        pointer = namedtuple("PinnedMemoryPointer", "mem offset")
        runtime = types.SimpleNamespace(getDevice=lambda: 0)
        cuda = types.SimpleNamespace(PinnedMemoryPointer=pointer, runtime=runtime)
        with mock.patch.dict(sys.modules, cupy=types.SimpleNamespace(cuda=cuda)):
            sys.modules.pop("millpond_cupy", None)
            import millpond_cupy

            pool = millpond_cupy.MemoryPool("any")
        held = pool.malloc_pinned(MIB)
        self.assertEqual((held.mem.size, held.offset, held.mem.ptr % 512), (MIB, 0, 0))
        live = lambda: pool.allocator().stats()["pinned"]["live"]
        self.assertEqual(live(), 1)
        del held
        self.assertEqual(live(), 0)
        pool.allocator().destroy()

    def test_limits(self):
        total = self.gpu.stats()["capacity"]
        for limit, expected in ((None, None), ("1MiB", MIB), (MIB, MIB), (0.5, total // 2), ("50%", total // 2)):
            self.gpu.set_limit(limit)
            self.assertEqual(self.gpu.stats().get("limit"), expected, limit)

    def test_the_report_is_for_people(self):
        self.gpu.free(self.gpu.alloc(MIB))
        self.assertIn("cached", self.gpu.report())
        self.assertTrue(millpond.version()[0].isdigit())

    def test_threads(self):
        wrong = []

        def churn():
            try:
                for i in range(500):
                    self.gpu.free(self.gpu.alloc(1000 * (i % 20 + 1)))
            except Exception as why:
                wrong.append(why)

        threads = [threading.Thread(target=churn) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(wrong, [])
        self.assertEqual(self.gpu.stats()["total"]["counters"]["allocations"], 2000)


if __name__ == "__main__":
    unittest.main()
