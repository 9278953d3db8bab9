"""millpond_torch over a PyTorch of our own (stub_torch) and the stand-in driver: what is wrong is raised, with a type, before PyTorch
is switched; and what is switched works."""

import ctypes
import gc
import importlib
import os
import signal
import sys
import threading
import time
import unittest
import warnings
import weakref
from unittest import mock

import millpond
import stand_in
import stub_torch
from stand_in import MIB, alone


class Test(unittest.TestCase):
    def refused(self, kind, words, options=None, **stub):
        """`install` raises, and has not touched PyTorch."""
        torch, door = stub_torch.install(**stub)
        with self.assertRaisesRegex(kind, words):
            door.install(**options or {})
        self.assertIsNone(torch.recorded.current)
        self.assertEqual(torch.recorded.initialized, stub.get("initialized", False))
        return torch, door

    @alone()
    def test_a_fault_leaves_pytorch_as_it_is(self):
        self.refused(millpond.NoDeviceError, "built without CUDA", cuda=None)
        self.refused(millpond.NoDeviceError, "sees no GPU", devices=0)
        self.refused(RuntimeError, "2.0 or newer", pluggable=False)
        self.refused(RuntimeError, "set_record_stream_fn", hooks=())
        self.refused(RuntimeError, "before anything uses a GPU", initialized=True)
        self.refused(TypeError, "no switch", {"policy": True})
        self.refused(ValueError, "cannot be negative", {"limit": -1})
        # What only the library knows; and then the right ones, in the same process.
        for options in ({"limit": "banana"}, {"size": 3}, {"policy": "best"}):
            torch, door = self.refused(ValueError, "banana|size|best", options)
            with self.assertRaisesRegex(RuntimeError, "install.. first"):
                door.report(0)
        door.install(limit="64MiB")
        self.assertIsNotNone(torch.recorded.current)
        self.assertEqual(door.allocator().stats()["limit"], 64 * MIB)

    @alone()
    def test_a_device_that_cannot_leaves_pytorch_as_it_is(self):
        """PyTorch says that there are two devices, the driver has one."""
        torch, door = self.refused(millpond.NoDeviceError, "", {"limit": "64MiB"}, devices=2)
        # No allocator of the first device stays behind, with options that were not requested.
        torch.cuda.device_count = lambda: 1
        door.install(limit="32MiB")
        self.assertEqual(door.allocator("cuda:0").stats()["limit"], 32 * MIB)

    def test_an_interrupt_leaves_nothing_that_cannot_be_tried_again(self):
        """With a signal at each place of a first `install`, each in a process of its own: a second one does what the first was asked for."""
        if not stand_in.there():
            self.skipTest("MILLPOND_LIBCUDA names no stand-in driver")
        program = """
import os, traceback, warnings
import stub_torch
from test_interrupts import interrupted
warnings.simplefilter("error")
at = 1
while True:
    process = os.fork()
    if not process:
        code = 1
        try:
            torch, door = stub_torch.install()
            door._POOL = 1
            ran = interrupted(lambda: door.install(limit="64MiB"), at)
            made = door.install(limit="64MiB")
            assert torch.recorded.current is made and door.install() is made
            assert door.allocator().stats()["limit"] == 64 << 20
            assert len(torch.recorded.streams) == 4, torch.recorded.streams
            gpu = door.allocator()
            import stand_in
            before = stand_in.calls("cuStreamGetId")
            for stream in torch.recorded.streams.values():
                gpu.free_on(gpu.alloc(512, stream), stream)
            assert stand_in.calls("cuStreamGetId") == before, "one is not declared"
            code = 5 if ran >= at else 6
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    assert code in (5, 6), (at, code)
    if code == 6:
        break
    at += 1
print(at)
"""
        done = stand_in.run(["-c", program])
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertGreater(int(done.stdout), 25)

    @alone()
    def test_an_interrupt_right_behind_the_making(self):
        torch, door = stub_torch.install()
        must, lib = millpond._must, millpond._lib

        def interrupted(function, *arguments):
            must(function, *arguments)
            if function is lib.millpond_torch_allocator:
                raise KeyboardInterrupt

        with mock.patch.object(millpond, "_must", interrupted), self.assertRaises(KeyboardInterrupt):
            door.install(limit="64MiB")
        self.assertIsNone(torch.recorded.current)
        for others in ({}, {"limit": "32MiB"}):
            with self.assertRaisesRegex(ValueError, "has its allocator already"):
                door.install(**others)
        self.assertIs(door.install(limit="64MiB"), torch.recorded.current)
        self.assertEqual(door.allocator().stats()["limit"], 64 * MIB)

    @alone()
    def test_an_interrupt_in_the_switch(self):
        """PyTorch has the allocator then, and refuses every other one."""
        torch, door = stub_torch.install()
        change = torch.cuda.memory.change_current_allocator

        def interrupted(made):
            change(made)
            signal.raise_signal(signal.SIGINT)
            time.sleep(0.1)

        torch.cuda.memory.change_current_allocator = interrupted
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with self.assertRaises(KeyboardInterrupt):
                door.install(limit="64MiB")
        finally:
            signal.signal(signal.SIGINT, before)
        self.assertIs(door.install(limit="64MiB"), torch.recorded.current)
        self.assertEqual(len(torch.recorded.streams), 4)

    @alone()
    def test_the_package_loaded_again(self):
        """Anew or beside the first: PyTorch has one allocator, which both know."""
        torch, door = stub_torch.install()
        made = door.install(limit="64MiB")
        importlib.reload(door)
        self.assertIs(door.install(), made)
        self.assertEqual(door.allocator().stats()["limit"], 64 * MIB)
        del sys.modules["millpond_torch"]
        import millpond_torch

        self.assertIsNot(millpond_torch, door)
        self.assertIs(millpond_torch.install(), made)
        self.assertIn("64.0 MiB", millpond_torch.report())
        self.assertEqual(millpond_torch.memory_stats()["untold_failures"], 0)
        with self.assertRaisesRegex(RuntimeError, "installed already"):
            millpond_torch.install(limit="32MiB")

    def test_no_torch(self):
        done = stand_in.run(["-c", "import sys\nsys.modules['torch'] = None\nimport millpond_torch"])
        self.assertRegex(done.stderr, "ImportError: millpond_torch needs PyTorch")

    @alone()
    def test_a_switch_that_fails_can_be_tried_again(self):
        torch, door = stub_torch.install()
        change, torch.cuda.memory.change_current_allocator = torch.cuda.memory.change_current_allocator, None
        with self.assertRaises(TypeError):
            door.install(limit="64MiB")
        with self.assertRaisesRegex(ValueError, "has its allocator already"):
            door.install(limit="32MiB")
        torch.cuda.memory.change_current_allocator = change
        door.install(limit="64MiB")
        self.assertEqual(door.allocator().stats()["limit"], 64 * MIB)

    @alone()
    def test_a_capture_by_other_code_survives(self):
        """The allocators that are made for trial are none that wait for the device."""
        torch, door = stub_torch.install()
        stand_in.bind()
        captured = stand_in.stream()
        stand_in.begin_capture(captured)
        door.install(limit="64MiB")
        self.assertTrue(stand_in.end_capture(captured), "it was ended")

    @alone()
    def test_twice(self):
        torch, door = stub_torch.install()
        made = door.install(limit="64MiB")
        self.assertIs(door.install(), made)
        with self.assertRaisesRegex(RuntimeError, "installed already"):
            door.install(limit="32MiB")
        self.assertIs(torch.recorded.current, made)

    @alone()
    def test_an_allocator_that_was_there_before(self):
        """As by the pair of functions alone: no options are none that it could not have."""
        torch, door = stub_torch.install()
        door.pluggable()
        gpu = door.allocator(0)
        with self.assertRaisesRegex(ValueError, "has its allocator already"):
            door.install(limit="64MiB")
        made = door.install()
        self.assertIs(torch.recorded.current, made)
        self.assertEqual(door.allocator(0)._number, gpu._number)

    @alone()
    def test_by_many_threads(self):
        torch, door = stub_torch.install()
        made, begin = [], threading.Barrier(4)

        def install():
            begin.wait()
            made.append(door.install())

        threads = [threading.Thread(target=install) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(len(made), 4)
        self.assertEqual(set(map(id, made)), {id(torch.recorded.current)})

    @alone()
    def test_streams_that_cannot_be_declared_are_a_warning(self):
        torch, door = stub_torch.install()

        def failing(device, priority=0):
            raise RuntimeError("no stream")

        torch.cuda.Stream = failing
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            self.assertIs(door.install(), torch.recorded.current)
        self.assertRegex(str(said[0].message), "device 0 are not declared .* no stream")
        self.assertEqual(said[0].category, RuntimeWarning)

    @alone(MILLPOND_FAKE_DEVICES=2)
    def test_what_is_installed_works(self):
        torch, door = stub_torch.install(devices=2)
        with self.assertRaisesRegex(RuntimeError, r"install\(\) first"):
            door.report()
        made = door.install(limit="64MiB")
        self.assertEqual(made.names[0], millpond.library_path())
        for hook in stub_torch.HOOKS:
            self.assertTrue(torch.recorded.hooks[hook])
        alloc, free = functions(made)
        x = alloc(MIB, 1, torch.recorded.streams[1, 0])
        self.assertEqual([door.memory_allocated(d) for d in (0, "cuda:1")], [0, MIB])
        self.assertEqual([door.memory_allocated(d) for d in (None, "cuda")], [0, 0])
        before = stand_in.calls("cuStreamGetId")
        free(x, MIB, 1, torch.recorded.streams[1, 0])
        self.assertEqual(stand_in.calls("cuStreamGetId"), before, "its streams are declared: their ids are not queried")
        self.assertEqual(door.memory_stats(1)["untold_failures"], 0)
        for wrong, kind in ((-1, ValueError), ("cpu", ValueError), (True, TypeError), (1.5, TypeError)):
            with self.assertRaises(kind):
                door.allocator(wrong)
        # 18 MiB on each of two streams, gone before any look: the peak has two bounds, and no figure stands for it.
        both = [(alloc(MIB, 1, on), on) for on in (torch.recorded.streams[1, 0], torch.recorded.streams[1, -1]) for _ in range(18)]
        for x, on in both:
            free(x, MIB, 1, on)
        stats = door.memory_stats(1)
        bounds = [stats[f"allocated_bytes.all.peak_at_{which}"] for which in ("least", "most")]
        self.assertTrue(bounds[0] < 36 * MIB <= bounds[1], bounds)
        self.assertNotIn("allocated_bytes.all.peak", stats)
        self.assertEqual(door.memory_stats(0)["allocated_bytes.all.peak"], 0)
        # An empty tensor has no memory.
        library = ctypes.CDLL(made.names[0])
        self.assertIsNone(alloc(0, 1, torch.recorded.streams[1, 0]))
        library.millpond_torch_record_stream(None, ctypes.c_void_p(torch.recorded.streams[1, 0]))
        free(None, 0, 1, torch.recorded.streams[1, 0])
        self.assertEqual(door.memory_stats(1)["untold_failures"], 0)
        # A view ends nothing.
        with door.allocator() as view:
            view.free(view.alloc(1))
        del view
        door.trim()


    @alone()
    def test_the_library_is_the_one_that_was_opened(self):
        """PyTorch would open another one beside it, with allocators of its own."""
        torch, door = stub_torch.install()
        opened = os.path.abspath(os.environ["MILLPOND_LIBRARY"]) if "MILLPOND_LIBRARY" in os.environ else millpond.library_path()
        with mock.patch.dict(os.environ, MILLPOND_LIBRARY="/nowhere/libmillpond.so"):
            self.assertEqual(door.install(limit="64MiB").names[0], opened)

    @alone()
    def test_what_pytorch_was_given_lives_on(self):
        """Its pools of memory hold it by address alone."""
        torch, door = stub_torch.install()
        made = door.pluggable()
        gone = weakref.ref(made), weakref.ref(made.inner)
        del made
        gc.collect()
        self.assertTrue(all(of() for of in gone))

    def test_a_library_in_the_working_directory(self):
        folder, name = os.path.split(millpond.library_path())
        program = "import os, sys; os.chdir(sys.argv[1]); import millpond; os.chdir('/'); print(millpond.library_path())"
        done = stand_in.run(["-c", program, folder], MILLPOND_LIBRARY=os.path.join(".", name), PYTHONPATH=os.path.dirname(os.path.dirname(millpond.__file__)))
        self.assertEqual((done.stdout.strip(), done.stderr), (os.path.join(folder, name), ""))


def functions(made):
    """The pair as PyTorch calls it."""
    path, alloc, free = made.names
    library = ctypes.CDLL(path)
    alloc, free = getattr(library, alloc), getattr(library, free)
    alloc.restype = ctypes.c_void_p
    alloc.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
    free.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
    free.restype = None
    return alloc, free


class TestEnds(unittest.TestCase):
    def test_the_exit_with_tensors_alive(self):
        if not stand_in.there():
            self.skipTest("MILLPOND_LIBCUDA names no stand-in driver")
        program = """
import sys, stand_in, stub_torch, test_torch
torch, door = stub_torch.install()
alloc, free = test_torch.functions(door.install(limit="64MiB"))
stream = torch.recorded.streams[0, 0]
x, y = alloc(1 << 20, 0, stream), alloc(1 << 20, 0, stream)
stand_in.write(stream, x, 1 << 20)
stand_in.write(stream, y, 1 << 20)
free(y, 1 << 20, 0, stream)
assert door.memory_allocated() == 1 << 20

class Late:
    # A tensor that dies with the interpreter: PyTorch frees it then.
    def __del__(self, free=free, x=x, stream=stream):
        free(x, 1 << 20, 0, stream)

sys.modules["kept"] = [Late(), door]
"""
        done = stand_in.run(["-X", "dev", "-c", program])
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    @alone()
    def test_a_forked_child_has_no_allocator(self):
        """It may drop the parent's tensors, and what it asks for is an error: also where another thread was installing."""
        torch, door = stub_torch.install()
        made = door.install(limit="64MiB")
        alloc, free = functions(made)
        stream = torch.recorded.streams[0, 0]
        x = alloc(MIB, 0, stream)
        held, over = threading.Event(), threading.Event()

        def hold():
            with door._state.lock:
                held.set()
                over.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        calls = stand_in.calls()
        process = os.fork()
        if not process:
            # What waits for a lock for ever is ended by the system, with another code.
            signal.alarm(20)
            code = 1
            try:
                free(x, MIB, 0, stream)
                refused = 0
                for ask in (door.allocator, door.memory_stats, door.trim, door.report, lambda: door.set_limit("1MiB")):
                    try:
                        ask()
                    except millpond.ForkedError:
                        refused += 1
                # The lock that the other thread holds is not this process's.
                if refused == 5 and door.install() is made and stand_in.calls() == calls:
                    code = 5
            finally:
                os._exit(code)
        over.set()
        thread.join()
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), 5)
        # And the parent's is as it was.
        self.assertEqual(door.memory_allocated(), MIB)
        free(x, MIB, 0, stream)
        self.assertEqual((door.memory_allocated(), door.memory_stats()["untold_failures"]), (0, 0))


if __name__ == "__main__":
    unittest.main()
