"""Ctrl-C at every place where the interpreter looks for it: nothing is lost, nothing is freed twice, and nothing named too little."""

import _thread
import dis
import os
import signal
import sys
import threading
import time
import unittest
from unittest import mock

import millpond
import stand_in
from stand_in import MIB, alone, order, write
from test_cupy import SIZE, WAITS, Test


class _Trip:
    """An operator sends it: no line of Python more that it might fall into."""

    __neg__ = _thread.interrupt_main


# What looks for signals, beside the beginning of a function: calls and loops' ends; in Python 3.10 whatever jumps.
_LOOKS = [
    code
    for name, code in dis.opmap.items()
    if name.startswith("CALL") or "JUMP_BACKWARD" in name or sys.version_info < (3, 11) and name.startswith(("POP_JUMP", "JUMP_ABSOLUTE"))
]


def interrupted(program, at):
    """Runs a program with a signal at the nth place in the packages where it looks for signals. How many it came to."""
    trip, ran = _Trip(), 0

    def trace(frame, event, arg):
        nonlocal ran
        # By its folder's name, whatever the checkout's is.
        file = frame.f_code.co_filename
        if not (os.path.basename(os.path.dirname(file)) or file).startswith("millpond"):
            return None
        frame.f_trace_opcodes = True
        if event == "call" or event == "opcode" and frame.f_code.co_code[frame.f_lasti] in _LOOKS:
            ran += 1
            if ran == at:
                sys.settrace(None)
                -trip
        return trace

    # Not what a shell that ran this in the background left, by which nothing is interrupted.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    # An interrupt inside a finalizer is reported to the hook, and goes no further.
    with mock.patch.object(sys, "unraisablehook", lambda unraisable: unraisable.exc_type is KeyboardInterrupt or sys.__unraisablehook__(unraisable)):
        try:
            sys.settrace(trace)
            program()
            # What fell at a branch that was not taken comes at the next call.
            time.sleep(0)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
            signal.signal(signal.SIGINT, before)
    return ran


def every_interrupt(program, behind):
    """Runs `program`, and `behind`, once with a signal at each such place. How many there are."""
    at = 1
    while interrupted(program, at) >= at:
        behind()
        at += 1
    behind()
    return at - 1


@unittest.skipIf(sys.version_info < (3, 10), "any instruction may be interrupted in Python 3.9, the one before a lock is released too")
class TestInterrupts(Test):
    def every(self, program):
        """None is lost: and the bytes are the next owner's behind all that used them."""
        door, pool, allocator = self.door, self.pool, self.pool.allocator()
        known, device = door._known_of(0), self.cupy.cuda.runtime.getDevice()

        def behind():
            if self.one.is_capturing():
                self.one.end_capture()
            self.assertEqual(self.cupy.cuda.runtime.getDevice(), device)
            self.assertEqual((pool.used_bytes(), pool.held_frees(), known._naming), (0, 0, 0))
            self.assertEqual((allocator.stats()["pinned"] or {"live": 0})["live"], 0)
            free = []

            def takes():
                for lock in (door._naming_streams, door._beginning):
                    free.append(lock.acquire(timeout=10))
                    lock.release()

            thread = threading.Thread(target=takes)
            thread.start()
            thread.join()
            self.assertEqual(free, [True, True], "a lock is held")
            x = self.empty(self.one)
            write(self.one.ptr, x.mem.ptr, SIZE, 3)
            del x
            self.assertIsNone(stand_in.verdict())
            # What is held back, and a stream that was lost, are had again.
            allocator.synchronize()
            self.assertIsNotNone(known.naming(lambda names: names))

        return every_interrupt(program, behind)

    def make(self, *arguments, **named):
        cuda = super().make(*arguments, **named)
        (self.one,) = self.streams(1)
        return cuda

    @alone()
    def test_arrays_and_pinned_memory(self):
        self.make(options=WAITS)

        def program():
            x, pinned = self.empty(self.one), self.pool.malloc_pinned(512)
            write(self.one.ptr, x.mem.ptr, SIZE)
            del pinned, x

        self.assertGreater(self.every(program), 100)

    @alone()
    def test_own_and_any(self):
        for uses in ("own", "any"):
            self.make(uses, WAITS)

            def program():
                x, pinned = self.empty(self.one), self.pool.malloc_pinned(512)
                write(self.one.ptr, x.mem.ptr, SIZE)
                del pinned, x

            self.assertGreater(self.every(program), 50)
            self.pool.allocator().close()

    @alone(MILLPOND_FAKE_DEVICES=2)
    def test_streams_that_end(self):
        """On another device than the current one."""
        self.make(options=WAITS, devices=2)

        def program():
            (two,) = self.streams(1)
            x = self.empty(self.one)
            order(self.one.ptr, two.ptr)
            with two:
                write(two.ptr, x.mem.ptr, SIZE)
            self.cupy.cuda.runtime.setDevice(1)
            try:
                del two
            finally:
                self.cupy.cuda.runtime.setDevice(0)
            del x

        self.assertGreater(self.every(program), 100)

    @alone()
    def test_blocks_are_left(self):
        """A stream is current behind no block that it was entered in."""
        self.make(options=WAITS)

        def program():
            with self.one, self.streams(1)[0]:
                pass

        def behind():
            self.assertIs(self.cupy.cuda.get_current_stream(), self.cupy.cuda.Stream.null)

        self.assertGreater(every_interrupt(program, behind), 20)

    @alone()
    def test_a_capture_begins_and_ends(self):
        """It is known as long as it goes on: no wait for the device ends it."""
        cuda = self.make(options=WAITS)
        for stream in (self.one, cuda.ExternalStream(stand_in.stream()), cuda.Stream.ptds):

            def begins():
                stream.begin_capture()

            def ends():
                stream.end_capture()

            def behind():
                self.assertEqual(self.door._captures(), stream.is_capturing())
                if stream.is_capturing():
                    stream.end_capture()
                self.assertFalse(self.door._captures())
                if program is ends:
                    stream.begin_capture()

            program = begins
            self.assertGreater(every_interrupt(begins, behind), 5)
            program = ends
            behind()
            self.assertGreater(every_interrupt(ends, behind), 3)
            stream.end_capture()

    @alone()
    def test_what_waits_for_a_capture(self):
        self.make(options=WAITS)

        def program():
            x, two = self.empty(self.one), self.streams(1)[0]
            order(self.one.ptr, two.ptr)
            with two:
                write(two.ptr, x.mem.ptr, SIZE)
            with self.one:
                stand_in.begin_capture(self.one.ptr)
                try:
                    del x
                finally:
                    stand_in.end_capture(self.one.ptr)
            self.pool.free_all_blocks()

        self.assertGreater(self.every(program), 100)

    @alone()
    def test_allocators(self):
        last = 0

        def program():
            with millpond.Allocator() as gpu:
                gpu.free(gpu.alloc(MIB))
            millpond.Allocator()

        def behind():
            nonlocal last
            gpu = millpond.Allocator()
            for number in range(last + 1, gpu._number):
                with self.assertRaises(millpond.UnknownAllocatorError, msg="it was never ended"):
                    millpond.Allocator._named(number).alloc(0)
            last = gpu._number
            gpu.close()

        self.assertGreater(every_interrupt(program, behind), 20)

    @alone()
    def test_the_words_of_a_refusal(self):
        """A handler's own call is refused right behind the one that it falls into, as a finalizer's may be."""
        gpu, said = millpond.Allocator(), []

        def handler(*_):
            with self.assertRaises(millpond.UnknownPointerError):
                gpu.free(12345)

        def program():
            with self.assertRaises(millpond.OutOfMemoryError) as refused:
                gpu.alloc(1 << 40)
            said.append(str(refused.exception))

        signal.signal(signal.SIGINT, handler)
        self.assertGreater(every_interrupt(program, lambda: None), 5)
        self.assertEqual([words for words in said if "out of memory: requested" not in words], [])


if __name__ == "__main__":
    unittest.main()
