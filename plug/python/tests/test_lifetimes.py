"""When allocators end, and what is left: blocks, collected cycles, threads, forked children, and the interpreter's exit with memory
alive and work pending."""

import gc
import os
import pathlib
import sys
import threading
import unittest
import weakref

import millpond
import stand_in
from stand_in import MIB, alone


def ended(number):
    """Whether the allocator with this number was destroyed."""
    try:
        millpond.Allocator._named(number).alloc(0)
        return False
    except millpond.UnknownAllocatorError:
        return True


@unittest.skipUnless(stand_in.there(), "MILLPOND_LIBCUDA names no stand-in driver")
class TestLifetimes(unittest.TestCase):
    def test_a_block_ends_it(self):
        with millpond.Allocator() as gpu:
            number = gpu._number
            x = gpu.alloc(MIB)
            self.assertFalse(ended(number))
        self.assertTrue(ended(number))
        gpu.close()
        with self.assertRaises(millpond.UnknownAllocatorError):
            gpu.destroy()
        with self.assertRaises(millpond.UnknownAllocatorError):
            gpu.alloc(1)
        # What is alive is its allocator's still.
        self.assertEqual(gpu.stats()["total"]["live"], 1)
        gpu.free(x)
        self.assertEqual(gpu.stats()["total"]["live"], 0)

    @alone()
    def test_what_outlives_the_only_one_goes_back(self):
        """Freed behind the end: no free waits, and the ended one gives the memory back."""
        stand_in.bind()
        waits = lambda: [stand_in.calls(f"cu{what}") for what in ("MemFree_v2", "MemFreeHost", "CtxSynchronize", "EventSynchronize")]
        for way in ("synchronize", "trim"):
            s = stand_in.stream()
            with millpond.Allocator() as gpu:
                x, pinned = gpu.alloc(MIB, s), gpu.alloc_pinned(MIB)
            stand_in.write(s, x, MIB)
            before = waits()
            gpu.free_on(x, s) if way == "trim" else gpu.free_unknown(x)
            gpu.free_pinned(pinned)
            self.assertEqual(waits(), before)
            if way == "trim":
                stand_in.call("cuCtxSynchronize")
                self.assertGreater(gpu.trim(), MIB)
            else:
                gpu.trim()
                self.assertGreater(gpu.stats()["reserved"], 0, "it is held back")
                gpu.synchronize()
            self.assertEqual((gpu.stats()["reserved"], gpu.stats()["pinned"]["reserved"]), (0, 0))
            self.assertEqual(gpu.trim(), 0)
        with self.assertRaises(millpond.UnknownAllocatorError):
            millpond.Allocator._named(4000).trim()
        self.assertIsNone(stand_in.verdict())

    def test_a_block_that_is_left_by_an_error(self):
        with self.assertRaises(KeyError):
            with millpond.Allocator() as gpu:
                raise KeyError
        self.assertTrue(ended(gpu._number))

    def test_the_last_reference_ends_it(self):
        gpu = millpond.Allocator()
        number = gpu._number
        free = gpu.free
        x = gpu.alloc(MIB)
        del gpu
        gc.collect()
        self.assertFalse(ended(number), "a method of it is a reference")
        free(x)
        del free
        self.assertTrue(ended(number))

    def test_a_cycle_ends_it(self):
        gpu = millpond.Allocator()
        number = gpu._number
        gpu.itself = [gpu]
        gone = weakref.ref(gpu)
        del gpu
        gc.collect()
        self.assertIsNone(gone())
        self.assertTrue(ended(number))

    @alone()
    def test_a_stream_without_references_ends_no_capture(self):
        """By its last reference, and as a part of a cycle: beside a capture by other code, with work that is not complete."""
        stand_in.bind()
        s, captured = stand_in.stream(), stand_in.stream()
        waits = lambda: [stand_in.calls(f"cu{what}Synchronize") for what in ("Ctx", "Stream", "Event")]
        for in_a_cycle in (False, True):
            gpu = millpond.Allocator()
            gpu.itself = in_a_cycle and gpu
            number = gpu._number
            x = gpu.alloc(MIB, s)
            stand_in.write(s, x, MIB)
            gpu.free(x)
            before = waits()
            stand_in.begin_capture(captured)
            del gpu
            gc.collect()
            self.assertTrue(ended(number))
            self.assertTrue(stand_in.end_capture(captured), "it lives")
            self.assertEqual(waits(), before)
            self.assertGreater(millpond.Allocator._named(number).stats()["reserved"], 0, "the work is pending")
            with millpond.Allocator() as other:
                other.synchronize()
            self.assertEqual(millpond.Allocator._named(number).stats()["reserved"], 0)
        with self.assertRaises(millpond.UnknownAllocatorError):
            millpond.Allocator._named(number).release()
        self.assertIsNone(stand_in.verdict())

    @alone()
    def test_one_too_many(self):
        """A loop that makes and ends them goes on; as many as there can be at one time, and one more, end in words."""
        names = set()
        for _ in range(5000):
            with millpond.Allocator() as gpu:
                names.add(gpu._number)
        self.assertEqual(len(names), 5000, "none is another's")
        kept = [millpond.Allocator() for _ in range(4096)]
        asked = stand_in.calls()
        with self.assertRaisesRegex(ValueError, "this process has 4096 allocators.* keep it"):
            millpond.Allocator()
        self.assertEqual(stand_in.calls(), asked)
        kept[0].free(kept[0].alloc(512))

    def test_one_that_was_not_made_ends_nothing(self):
        for wrong in ({"device": "cpu"}, {"policy": "best"}, {"device": 63}):
            with self.assertRaises((ValueError, millpond.NoDeviceError)):
                millpond.Allocator(**wrong)
        half = millpond.Allocator.__new__(millpond.Allocator)
        with self.assertRaises(millpond.UnknownAllocatorError):
            half.alloc(1)
        del half
        gc.collect()

    def test_one_of_pytorchs_is_let_go(self):
        gpu = millpond.Allocator()
        with millpond.Allocator._named(gpu._number) as view:
            view.free(view.alloc(1))
        del view
        gc.collect()
        self.assertFalse(ended(gpu._number))

    def test_many_threads_end_it_once(self):
        gpu, wrong = millpond.Allocator(), []
        begin = threading.Barrier(4)

        def end():
            try:
                begin.wait()
                gpu.close()
            except Exception as why:
                wrong.append(why)

        threads = [threading.Thread(target=end) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(wrong, [])
        self.assertTrue(ended(gpu._number))

    def test_errors_are_each_thread_s_own(self):
        wrong = []

        def fail(pointer):
            with millpond.Allocator() as gpu:
                for _ in range(200):
                    try:
                        gpu.free(pointer)
                        wrong.append("freed")
                    except millpond.UnknownPointerError as why:
                        if f"{pointer:#x}" not in str(why):
                            wrong.append(str(why))

        threads = [threading.Thread(target=fail, args=(512 * n,)) for n in range(1, 5)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(wrong, [])


class TestFreeAfter(unittest.TestCase):
    def start(self):
        gpu = millpond.Allocator(limit="2MiB", growth="exact")
        self.addCleanup(gpu.close)
        stand_in.bind()
        own, other = stand_in.stream(), stand_in.stream()
        gpu.declare_permanent(own)
        gpu.declare_permanent(other)
        x = gpu.alloc(2 * MIB, own)
        stand_in.order(own, other)
        stand_in.write(other, x, 2 * MIB)
        return gpu, own, other, x

    def next_owner(self, gpu, own, x):
        self.assertEqual(gpu.alloc(2 * MIB, own), x)
        stand_in.write(own, x, 2 * MIB, 2)
        gpu.free(x)
        return stand_in.verdict()

    @alone()
    def test_the_next_owner_waits_for_all(self):
        gpu, own, other, x = self.start()
        gpu.free_after(x, [own, other])
        self.assertIsNone(self.next_owner(gpu, own, x))

    @alone()
    def test_a_capture_is_found_before_a_use_is_recorded(self):
        gpu, own, other, x = self.start()
        captures = stand_in.stream()
        stand_in.begin_capture(captures)
        with self.assertRaises(millpond.CapturingError):
            gpu.free_after(x, [other, captures])
        self.assertTrue(stand_in.end_capture(captures), "it lives")
        self.assertEqual(gpu.find(x), (x, 2 * MIB))
        # The use on the other stream was not recorded, and so it is not waited for.
        gpu.free(x)
        self.assertIsNotNone(self.next_owner(gpu, own, x))

    @alone(MILLPOND_FAKE_DEVICES=2)
    def test_a_stream_of_another_device(self):
        gpu, own, other, x = self.start()
        stand_in.bind(1)
        there = stand_in.stream()
        stand_in.bind(0)
        with self.assertRaises(millpond.WrongAllocatorError):
            gpu.free_after(x, [own, there])
        gpu.free_after(x, [own, other])
        self.assertIsNone(self.next_owner(gpu, own, x))


class TestTheExit(unittest.TestCase):
    """A process ends with memory alive and work pending: quietly, and with its own code."""

    PROGRAM = """
import atexit, sys, threading, millpond, stand_in
gpu = millpond.Allocator()
stand_in.bind()
s = stand_in.stream()
kept = gpu.alloc(1 << 20, s)
stand_in.write(s, kept, 1 << 20)
freed = gpu.alloc(1 << 20, s)
stand_in.write(s, freed, 1 << 20)
gpu.free(freed)
pinned = gpu.alloc_pinned(4096)
{more}
sys.exit(7)
"""

    def exits(self, more=""):
        if not stand_in.there():
            self.skipTest("MILLPOND_LIBCUDA names no stand-in driver")
        done = stand_in.run(["-X", "dev", "-c", self.PROGRAM.format(more=more)])
        self.assertEqual((done.returncode, done.stderr), (7, ""), done.stdout + done.stderr)
        return done.stdout

    def test_with_memory_alive(self):
        self.exits()

    def test_it_waits_for_nothing(self):
        said = self.exits("atexit.register(lambda: print(stand_in.calls('cuStreamSynchronize'), stand_in.calls('cuCtxSynchronize')))")
        self.assertEqual(said.split(), ["0", "0"])

    def test_it_ends_no_allocator(self):
        """That would wait for the device."""
        said = self.exits(
            "import os\nfor end in ('destroy', 'release'):\n"
            "    setattr(millpond._lib, 'millpond_' + end, lambda number, say=os.write: say(1, b'ended') and 0)\n"
            "sys.modules['kept'] = gpu"
        )
        self.assertEqual(said, "")

    def test_with_a_cycle(self):
        self.exits("gpu.itself = gpu; sys.modules['kept'] = gpu")

    def test_a_free_at_exit(self):
        self.exits("atexit.register(gpu.free, kept); atexit.register(gpu.close)")

    def test_with_threads_that_run_on(self):
        self.exits(
            "def churn():\n    while True:\n        gpu.free(gpu.alloc(512))\n"
            "for _ in range(2):\n    threading.Thread(target=churn, daemon=True).start()"
        )

    def test_objects_that_free_when_modules_are_cleared(self):
        self.exits(
            "class Late:\n    def __del__(self, gpu=gpu, kept=kept):\n        gpu.free(kept)\n        gpu.close()\nlate = Late()\nsys.modules['late'] = late"
        )


@unittest.skipUnless(sys.platform == "linux", "dlclose unloads nothing on Linux, which is what is promised")
class TestDlclose(unittest.TestCase):
    """The library's handle is closed with memory alive and work pending: it stays, and the process ends with its own code."""

    CLOSE = """
import _ctypes, os, threading
def mapped():
    with open('/proc/self/maps') as maps:
        return any(os.path.basename(millpond.library_path()) in line for line in maps)
assert mapped()
_ctypes.dlclose(millpond._lib._handle)
assert mapped(), 'it was unloaded'
"""
    USE = """
gpu.free(kept)
next = gpu.alloc(1 << 20, s)
stand_in.write(s, next, 1 << 20)
def other():
    gpu.free(gpu.alloc(512))
    print('called')
thread = threading.Thread(target=other)
thread.start()
thread.join()
assert gpu.stats()['total']['live'] == 1
assert stand_in.verdict() is None
"""

    exits = TestTheExit.exits
    PROGRAM = TestTheExit.PROGRAM

    def test_with_work_pending_and_memory_alive(self):
        self.exits(self.CLOSE)

    def test_what_was_alive_is(self):
        self.assertEqual(self.exits(self.CLOSE + self.USE).split(), ["called"])

    def test_an_object_that_frees_at_exit(self):
        self.exits(self.CLOSE + "import atexit\natexit.register(gpu.free, kept)\natexit.register(gpu.close)")

    def test_when_the_threads_that_called_have_ended(self):
        """A thread that made calls keeps the library open by its own values: here no thread does."""
        program = """
import os, sys, threading
def calls():
    import millpond, stand_in
    gpu = millpond.Allocator()
    stand_in.bind()
    s = stand_in.stream()
    sys.modules['kept'] = gpu, gpu.alloc(1 << 20, s), millpond
    stand_in.write(s, sys.modules['kept'][1], 1 << 20)
thread = threading.Thread(target=calls)
thread.start()
thread.join()
while len(os.listdir('/proc/self/task')) > 1:
    pass
gpu, kept, millpond = sys.modules['kept']
{close}
gpu.free(kept)
sys.exit(7)
"""
        if not stand_in.there():
            self.skipTest("MILLPOND_LIBCUDA names no stand-in driver")
        done = stand_in.run(["-X", "dev", "-c", program.format(close=self.CLOSE)])
        self.assertEqual((done.returncode, done.stderr), (7, ""), done.stdout + done.stderr)


@unittest.skipUnless(hasattr(os, "fork"), "this system has no fork")
class TestFork(unittest.TestCase):
    def child(self, body):
        """What a forked child came to: its code, once it has run `body`."""
        process = os.fork()
        if not process:
            code = 1
            try:
                body()
                code = 0
            except BaseException as why:
                sys.stderr.write(f"{why!r}\n")
            finally:
                os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])

    @alone()
    def test_a_child_that_leaves_a_block(self):
        """By what it leaves it: an exit stays one."""

        def leaves():
            with self.assertRaises(SystemExit), gpu:
                sys.exit(3)
            with gpu:
                pass

        with millpond.Allocator() as gpu:
            self.assertEqual(self.child(leaves), 0)
            self.assertFalse(ended(gpu._number))

    @alone()
    def test_a_child_of_a_process_that_met_no_device(self):
        """It may try again, and gets the error of its own try; where the driver has begun and only that device is none, it is a forked child."""

        def fails(kind, device=0):
            with self.assertRaises(kind) as refused:
                millpond.Allocator(device)
            return str(refused.exception)

        def works():
            gpu = millpond.Allocator()
            gpu.free(gpu.alloc(512))
            gpu.close()

        # Whoever asks what became of it starts it once more.
        for nth in (1, 2):
            stand_in.fail_next("cuInit", 100, nth)
        fails(millpond.NoDeviceError)
        self.assertEqual(self.child(works), 0)
        fails(millpond.NoDeviceError, 7)
        self.assertEqual(self.child(lambda: self.assertIn("started CUDA", fails(millpond.ForkedError))), 0)
        works()

    def test_a_child_of_a_process_without_a_driver(self):
        program = """
import os, millpond
def fails():
    try:
        millpond.Allocator()
    except millpond.NoDeviceError as why:
        assert "is-none" in str(why), why
        return
    raise AssertionError("it has one")
fails()
process = os.fork()
if not process:
    fails()
    os._exit(5)
assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 5
"""
        done = stand_in.run(["-c", program], MILLPOND_LIBCUDA="/is-none/libcuda.so.1")
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    @alone()
    def test_a_forked_child_gets_an_error_and_touches_nothing(self):
        gpu = millpond.Allocator()
        stand_in.bind()
        s = stand_in.stream()
        x, pinned = gpu.alloc(MIB, s), gpu.alloc_pinned(MIB)
        stand_in.write(s, x, MIB)
        before = gpu.stats()["total"]
        calls = [
            lambda: gpu.alloc(512),
            lambda: gpu.alloc_pinned(512),
            lambda: gpu.free(x),
            lambda: gpu.free(0),
            lambda: gpu.free_on(x, s),
            lambda: gpu.free_after(x, [s]),
            lambda: gpu.free_unknown(x),
            lambda: gpu.record_use(x, s),
            lambda: gpu.free_pinned(pinned),
            lambda: gpu.free_pinned_unknown(pinned),
            lambda: gpu.record_pinned_use(pinned, s),
            lambda: gpu.declare_permanent(s),
            lambda: gpu.find(x),
            lambda: gpu.set_limit("1MiB"),
            gpu.trim,
            gpu.synchronize,
            gpu.reset_peaks,
            gpu.stats,
            gpu.report,
            gpu.release,
            gpu.destroy,
            gpu.close,
            millpond.Allocator,
        ]

        def body():
            asked = stand_in.calls()
            assert asked > 0
            for call in calls:
                try:
                    call()
                except millpond.ForkedError as why:
                    assert "spawn" in str(why), why
                else:
                    raise AssertionError("it did something")
            assert stand_in.calls() == asked, "the driver was called"
            assert millpond.version()

        self.assertEqual(self.child(body), 0)
        # The parent goes on.
        self.assertEqual(gpu.stats()["total"], before)
        gpu.free(x)
        gpu.free_pinned(pinned)
        gpu.close()
        self.assertIsNone(stand_in.verdict())

    def test_a_child_may_collect_and_exit(self):
        """A worker that leaves by Python's own exit, and still has the parent's objects."""
        if not stand_in.there():
            self.skipTest("MILLPOND_LIBCUDA names no stand-in driver")
        program = """
import gc, os, sys, millpond
gpu = millpond.Allocator()
kept = gpu.alloc(512)
for last in (False, True):
    process = os.fork()
    if not process:
        if last:
            del gpu
            gc.collect()
        sys.exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 3
gpu.free(kept)
gpu.destroy()
"""
        done = stand_in.run(["-X", "dev", "-c", program])
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    @alone()
    def test_a_fork_while_other_threads_allocate(self):
        """Locks that another thread held at the fork are never released in the child: no call may wait for them."""
        gpu, stop = millpond.Allocator(), threading.Event()

        def churn():
            while not stop.is_set():
                gpu.free(gpu.alloc(512))
                gpu.free_pinned(gpu.alloc_pinned(512))

        threads = [threading.Thread(target=churn) for _ in range(2)]
        for t in threads:
            t.start()

        def body():
            for call in (lambda: gpu.alloc_pinned(512), gpu.stats, gpu.destroy):
                try:
                    call()
                except millpond.ForkedError:
                    pass
                else:
                    raise AssertionError("it did something")

        codes = [self.child(body) for _ in range(20)]
        stop.set()
        for t in threads:
            t.join()
        self.assertEqual(codes, [0] * 20)

    @alone()
    def test_a_child_may_begin_where_the_parent_has_not(self):
        with self.assertRaises(ValueError):
            millpond.Allocator(0, policy="best")

        def body():
            with millpond.Allocator() as gpu:
                gpu.free(gpu.alloc(512))

        self.assertEqual(self.child(body), 0)
        with millpond.Allocator() as gpu:
            gpu.free(gpu.alloc(512))

    def test_the_ends_for_a_real_driver(self):
        """The program that shows forks, workers and exits on a GPU, as far as there is no PyTorch and no CuPy."""
        program = pathlib.Path(__file__).resolve().parents[2] / "gpu/ends_checks.py"
        if not stand_in.there() or not program.exists():
            self.skipTest("MILLPOND_LIBCUDA names no stand-in driver, or this is no repository")
        done = stand_in.run([str(program)])
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for part in ("fork", "workers", "exit"):
            self.assertIn(f"PASS {part},", done.stdout)


if __name__ == "__main__":
    unittest.main()
