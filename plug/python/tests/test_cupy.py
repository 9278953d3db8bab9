"""millpond_cupy over a CuPy of our own (stub_cupy) and the stand-in driver, whose oracle says whether bytes were another's too early."""

import ctypes
import gc
import importlib
import os
import signal
import sys
import threading
import traceback
import unittest
import weakref
from types import SimpleNamespace
from unittest import mock

import millpond
import stand_in
import stub_cupy
from stand_in import MIB, alone, order, write

# One segment, so that freed bytes are the next owner's if they may be.
TIGHT = {"limit": "2MiB", "growth": "exact"}
# A pool that may wait for the device to have again what is held back.
WAITS = {**TIGHT, "may_synchronize": True}
SIZE = 2 * MIB


class Test(unittest.TestCase):
    def make(self, uses="known", options=TIGHT, **stub):
        self.cupy, self.door = stub_cupy.install(**stub)
        self.pool = self.door.install(uses, **options)
        return self.cupy.cuda

    def streams(self, count=2):
        made = [self.cupy.cuda.Stream(non_blocking=True) for _ in range(count)]
        return made

    def empty(self, stream, size=SIZE):
        with stream:
            return self.pool.malloc(size)

    def on_another_thread(self, does):
        done = []

        def runs():
            try:
                done.append((does(), None))
            except BaseException as why:
                done.append((None, why))

        thread = threading.Thread(target=runs)
        thread.start()
        thread.join()
        result, why = done[0]
        if why:
            raise why
        return result

    def next_owner_writes(self, stream, former):
        """What the bytes' next owner does; they must be the same bytes, or nothing is shown."""
        x = self.empty(stream)
        self.assertEqual(x.mem.ptr, former)
        write(stream.ptr, x.mem.ptr, SIZE, 2)
        return x


class TestOrder(Test):
    def on_two_streams(self, uses, between=lambda one, two: None):
        """An array of one stream is used on another, dropped, and written by its next owner."""
        self.make(uses, WAITS)
        one, two = self.streams()
        x = self.empty(one)
        write(one.ptr, x.mem.ptr, SIZE)
        order(one.ptr, two.ptr)
        with two:
            write(two.ptr, x.mem.ptr, SIZE)
        between(one, two)
        former = x.mem.ptr
        del x
        self.next_owner_writes(one, former)
        return stand_in.verdict()

    @alone()
    def test_a_stream_that_was_current_is_waited_for(self):
        self.assertIsNone(self.on_two_streams("known"))

    @alone()
    def test_any_waits_too(self):
        self.assertIsNone(self.on_two_streams("any"))

    @alone()
    def test_the_oracle_sees_a_use_that_was_not_recorded(self):
        self.assertIsNotNone(self.on_two_streams("own"))

    def used_and_ended(self, spoil=lambda: None, options=TIGHT):
        """The other stream ends before the array does, with work pending."""
        self.make(options=options)
        one, two = self.streams()
        x = self.empty(one)
        order(one.ptr, two.ptr)
        with two:
            write(two.ptr, x.mem.ptr, SIZE)
        spoil()
        destroyed = stand_in.calls("cuStreamDestroy_v2")
        del two
        self.assertEqual(stand_in.calls("cuStreamDestroy_v2"), destroyed + 1, "a known stream ends when its owner wants")
        former = x.mem.ptr
        del x
        self.next_owner_writes(one, former)
        return stand_in.verdict()

    @alone()
    def test_a_stream_that_ended_is_waited_for(self):
        self.assertIsNone(self.used_and_ended())

    @alone()
    def test_without_the_stream_that_stands_for_it_the_oracle_convicts(self):
        self.assertIsNotNone(self.used_and_ended(lambda: setattr(self.door._Known, "_wait_for", lambda *_: None)))

    @alone()
    def test_a_stream_that_cannot_be_waited_for_makes_frees_unknown(self):
        lost = []

        def spoil():
            known = self.door._Known
            waits = known.quiet
            known.quiet = lambda self, synchronize: (lost.append(self.lost), waits(self, synchronize))
            stand_in.fail_next("cuEventRecord", 999)

        self.assertIsNone(self.used_and_ended(spoil, WAITS))
        self.assertEqual(lost, [1], "until the device was waited for")

    @alone()
    def test_a_stream_in_a_cycle_is_waited_for(self):
        self.make()
        one, two = self.streams()
        x = self.empty(one)
        order(one.ptr, two.ptr)
        two.use()
        write(two.ptr, x.mem.ptr, SIZE)
        one.use()
        # The collector ends all of it in one go, in an order of its own.
        two.cycle = [x.mem.owner, two]
        former = x.mem.ptr
        gc.disable()
        del x, two
        gc.enable()
        gc.collect()
        self.next_owner_writes(one, former)
        self.assertIsNone(stand_in.verdict())

    @alone(MILLPOND_FAKE_DEVICES=2)
    def test_streams_that_were_current_before(self):
        """Of another device; and of another thread, when one inside ends."""
        self.cupy, self.door = stub_cupy.install(devices=2)
        cuda = self.cupy.cuda
        (one,), made = self.streams(1), []

        cuda.runtime.setDevice(1)
        there = cuda.Stream(non_blocking=True).use()
        cuda.runtime.setDevice(0)
        within, begin, over = cuda.Stream(non_blocking=True), threading.Event(), threading.Event()

        def before():
            with within:
                begin.set()
                over.wait(30)
                with one:
                    pass
                made.append(within.ptr in self.door._known_of(0).naming(list))

        thread = threading.Thread(target=before)
        thread.start()
        begin.wait(30)
        self.pool = self.door.install()
        self.assertIn(there.ptr, self.door._known_of(1).naming(list))
        over.set()
        thread.join()
        self.assertEqual(made, [True])

    def external(self, enter):
        self.make()
        (one,) = self.streams(1)
        handle = stand_in.stream()
        x = self.empty(one)
        order(one.ptr, handle)
        enter(self.cupy.cuda.ExternalStream(handle), lambda: write(handle, x.mem.ptr, SIZE), one)
        former = x.mem.ptr
        del x
        self.next_owner_writes(one, former)
        return stand_in.verdict()

    @alone()
    def test_an_external_stream(self):
        def enter(stream, work, one):
            with stream:
                work()

        self.assertIsNone(self.external(enter))

    @alone()
    def test_an_external_stream_that_is_used(self):
        def enter(stream, work, one):
            stream.use()
            work()
            one.use()

        self.assertIsNone(self.external(enter))

    @alone()
    def test_a_stream_that_was_never_current_must_be_recorded(self):
        self.assertIsNotNone(self.external(lambda stream, work, one: work()))

    @alone()
    def test_a_use_that_is_recorded(self):
        self.make(options=WAITS)
        one, two = self.streams()
        x = self.empty(one)
        order(one.ptr, two.ptr)
        write(two.ptr, x.mem.ptr, SIZE)
        array = SimpleNamespace(base=None, data=x, device=SimpleNamespace(id=0))
        self.pool.record_use(array, two)
        former = x.mem.ptr
        del x, array
        self.next_owner_writes(one, former)
        self.assertIsNone(stand_in.verdict())

    @alone(MILLPOND_FAKE_DEVICES=2)
    def test_a_use_of_nothing(self):
        """An empty array has no memory, and a batch may be one."""
        cuda = self.make(options={}, devices=2)
        (one,) = self.streams(1)
        x, pinned = self.empty(one, 0), self.pool.malloc_pinned(0)
        array = SimpleNamespace(base=None, data=x, device=SimpleNamespace(id=0))
        cuda.runtime.setDevice(1)
        there = cuda.Stream(non_blocking=True)
        cuda.runtime.setDevice(0)
        for stream in (one, None, there):
            self.pool.record_use(array, stream)
            self.pool.record_use(pinned, stream)
        del x, pinned, array
        self.assertEqual((self.pool.used_bytes(), self.pool.lost_frees()), (0, 0))

    def used_on_another_device(self, uses, recorded, null):
        """An array and pinned memory that a stream of device 1 uses."""
        cuda = self.make(uses, WAITS, devices=2)
        (one,) = self.streams(1)
        x, pinned, had = self.empty(one), self.pool.malloc_pinned(MIB), cuda.Event()
        had.record(one)
        cuda.runtime.setDevice(1)
        stand_in.bind(1)
        there = cuda.Stream.null if null else cuda.Stream(non_blocking=True)
        there.wait_event(had)
        with there:
            write(there.ptr, x.mem.ptr, SIZE)
            copy = "cuMemcpyHtoDAsync_v2"
            stand_in.call(copy, ctypes.c_uint64(x.mem.ptr), ctypes.c_void_p(pinned.mem.ptr), ctypes.c_size_t(MIB), ctypes.c_void_p(there.ptr))
            if recorded:
                self.pool.record_use(SimpleNamespace(base=None, data=x, device=SimpleNamespace(id=0)))
                with mock.patch.object(self.pool.allocator(0), "record_pinned_use") as use:
                    self.pool.record_use(pinned, there)
                use.assert_called_once_with(pinned.mem.ptr, self.door._known_of(0).join.ptr)
        self.assertEqual(cuda.runtime.getDevice(), 1)
        cuda.runtime.setDevice(0)
        stand_in.bind(0)
        former = x.mem.ptr
        del x, pinned
        self.next_owner_writes(one, former)
        return stand_in.verdict()

    @alone(MILLPOND_FAKE_DEVICES=2)
    def test_a_use_on_another_device_that_is_recorded(self):
        self.assertIsNone(self.used_on_another_device("known", True, False))

    @alone(MILLPOND_FAKE_DEVICES=2)
    def test_a_use_on_another_device_s_null_stream_that_is_recorded(self):
        self.assertIsNone(self.used_on_another_device("known", True, True))

    @alone(MILLPOND_FAKE_DEVICES=2)
    def test_a_use_on_another_device_that_is_recorded_with_own(self):
        self.assertIsNone(self.used_on_another_device("own", True, False))

    @alone(MILLPOND_FAKE_DEVICES=2)
    def test_a_use_on_another_device_that_is_recorded_with_any(self):
        self.assertIsNone(self.used_on_another_device("any", True, False))

    @alone(MILLPOND_FAKE_DEVICES=2)
    def test_a_use_on_another_device_must_be_recorded(self):
        self.assertIsNotNone(self.used_on_another_device("known", False, False))

    def on_the_null_stream(self, uses):
        """The null stream is current from the beginning; the array's own does not wait for it by itself."""
        cuda = self.make(uses)
        (one,) = self.streams(1)
        x = self.empty(one)
        order(one.ptr, 0)
        self.assertEqual(cuda.get_current_stream().ptr, 0)
        write(0, x.mem.ptr, SIZE)
        former = x.mem.ptr
        del x
        self.next_owner_writes(one, former)
        return stand_in.verdict()

    @alone()
    def test_the_null_stream_is_waited_for(self):
        self.assertIsNone(self.on_the_null_stream("known"))

    @alone()
    def test_the_null_stream_is_not_waited_for_by_own(self):
        self.assertIsNotNone(self.on_the_null_stream("own"))

    def per_thread(self, elsewhere):
        cuda = self.make(options=WAITS)
        (one,) = self.streams(1)
        x = self.empty(one)
        # Nothing is pending on the array's own stream but its birth.
        one.synchronize()

        def work():
            stand_in.bind()
            with cuda.Stream.ptds:
                write(2, x.mem.ptr, SIZE)

        if elsewhere:
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        else:
            work()
        former = x.mem.ptr
        del x
        self.next_owner_writes(one, former)
        return stand_in.verdict()

    @alone()
    def test_this_thread_s_default_stream(self):
        self.assertIsNone(self.per_thread(False))
        self.assertIn(2, self.door._known_of(0).naming(list), "it is named")

    @alone()
    def test_another_thread_s_default_stream(self):
        self.assertIsNone(self.per_thread(True))
        self.assertIsNone(self.door._known_of(0).naming(lambda handles: handles), "it cannot be named from here")

    @alone()
    def test_two_threads_default_streams_cannot_both_be_named(self):
        self.test_this_thread_s_default_stream.__wrapped__(self)
        known, named = self.door._known_of(0), []

        def use():
            self.cupy.cuda.Stream.ptds.use()
            named.append(known.naming(lambda handles: handles))

        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
        named.append(known.naming(lambda handles: handles))
        self.assertEqual(named, [None, None])

    @alone()
    def test_per_thread_streams_as_the_default(self):
        self.make(per_thread=True)
        self.assertIsNone(self.door._known_of(0).naming(lambda handles: handles))

    def on_two_threads_own_streams(self, uses):
        """Where per-thread streams are the default, CuPy launches on the thread's own while the null stream is current."""
        cuda = self.make(uses, WAITS, per_thread=True)
        stand_in.bind()
        with cuda.Stream.null:
            x = self.pool.malloc(SIZE)
            self.assertEqual(cuda.get_current_stream().ptr, 0)
            write(2, x.mem.ptr, SIZE)
        former = x.mem.ptr
        del x

        def other():
            stand_in.bind()
            with cuda.Stream.null:
                y = self.pool.malloc(SIZE)
                self.assertEqual(y.mem.ptr, former)
                write(2, y.mem.ptr, SIZE, 2)
                del y

        self.on_another_thread(other)
        return stand_in.verdict()

    @alone()
    def test_the_null_stream_where_threads_have_their_own(self):
        self.assertIsNone(self.on_two_threads_own_streams("own"))

    @alone()
    def test_the_null_stream_where_threads_have_their_own_with_known(self):
        self.assertIsNone(self.on_two_threads_own_streams("known"))

    @alone()
    def test_a_use_on_the_null_stream_where_threads_have_their_own(self):
        """And an array cannot be made while the thread's own captures."""
        for said in (True, False):
            cuda = self.make("own", WAITS, per_thread=True)
            one, two = self.streams()
            x = self.empty(one)
            order(one.ptr, 2)
            array = SimpleNamespace(base=None, data=x, device=SimpleNamespace(id=0))
            with cuda.Stream.null:
                write(2, x.mem.ptr, SIZE)
                self.pool.record_use(array, cuda.Stream.null if said else None)
                cuda.Stream.ptds.begin_capture()
                with self.assertRaises(millpond.CapturingError):
                    self.pool.malloc(512)
                self.assertIsNotNone(cuda.Stream.ptds.end_capture(), "it lives")
            former = x.mem.ptr
            del x, array
            x = self.next_owner_writes(one, former)
            self.assertIsNone(stand_in.verdict())
            del x
            self.pool.allocator().close()

    @alone()
    def test_pinned_memory(self):
        cuda = self.make(options={})
        (one,) = self.streams(1)
        target = self.empty(one)
        held = self.pool.malloc_pinned(MIB)
        self.assertEqual((held.mem.size, held.offset, int(held.mem) % 512), (MIB, 0, 0))
        with one:
            copy = "cuMemcpyHtoDAsync_v2"
            stand_in.call(copy, ctypes.c_uint64(target.mem.ptr), ctypes.c_void_p(held.mem.ptr), ctypes.c_size_t(MIB), ctypes.c_void_p(one.ptr))
        former = held.mem.ptr
        del held
        self.assertEqual(self.pool.allocator().stats()["pinned"]["live"], 0)
        other = self.pool.malloc_pinned(MIB)
        self.assertNotEqual(other.mem.ptr, former, "a copy reads it still")
        self.pool.allocator().synchronize()
        again = [self.pool.malloc_pinned(MIB) for _ in range(3)]
        self.assertIn(former, [a.mem.ptr for a in again])


class TestCaptures(Test):
    @alone()
    def test_a_capture_lives_and_the_memory_comes_back_behind_it(self):
        self.make()
        one, two = self.streams()
        x, pinned = self.empty(one), self.pool.malloc_pinned(512)
        with two:
            two.begin_capture()
            former = x.mem.ptr
            del x, pinned
            self.assertEqual(self.pool.held_frees(), 2)
            self.assertEqual(self.pool.used_bytes(), SIZE)
            self.assertIsNotNone(two.end_capture())
        self.assertEqual(self.pool.held_frees(), 2)
        self.next_owner_writes(one, former)
        self.assertEqual(self.pool.held_frees(), 0)
        self.assertEqual(self.pool.allocator().stats()["pinned"]["live"], 0)
        self.assertIsNone(stand_in.verdict())

    @alone()
    def test_what_waits_outlives_its_pool(self):
        self.make()
        one, two = self.streams()
        x = self.empty(one)
        number = self.pool.allocator()._number
        self.pool = self.door.MemoryPool()
        self.cupy.cuda.allocators.clear()
        with two:
            two.begin_capture()
            del x
            self.assertIsNotNone(two.end_capture(), "it lives")
        former = millpond.Allocator._named(number)
        self.assertEqual(former.stats()["total"]["live"], 1)
        self.pool.free_all_blocks()
        self.assertEqual(former.stats()["total"]["live"], 0)
        self.assertEqual(self.door._left, {})
        with self.assertRaises(millpond.UnknownAllocatorError):
            former.alloc(0)

    @alone()
    def test_what_is_held_back_waits_for_the_end_of_a_capture(self):
        for uses in ("any", "own"):
            with self.subTest(uses):
                pool = self.held_back_beside_a_capture(uses)
                self.assertIsNone(stand_in.verdict())
                pool.allocator().close()

    def held_back_beside_a_capture(self, uses):
        self.make(uses, WAITS)
        one, two, three = self.streams(3)
        x = self.empty(one)
        write(one.ptr, x.mem.ptr, SIZE)
        order(one.ptr, two.ptr)
        if uses == "own":
            self.pool.allocator().record_use(x.mem.ptr, two.ptr)
        three.begin_capture()
        del x
        self.assertEqual(self.pool.allocator().stats()["total"]["held_back"], SIZE)
        with self.assertRaises(self.cupy.cuda.memory.OutOfMemoryError):
            self.empty(one)
        self.pool.free_all_blocks()
        self.assertEqual(self.pool.total_bytes(), SIZE)
        self.assertIsNotNone(three.end_capture(), "it lives")
        y = self.empty(one)
        self.assertEqual(self.pool.allocator().stats()["total"]["held_back"], 0)
        del y
        return self.pool

    @alone()
    def test_an_array_on_a_stream_that_captures_is_refused(self):
        self.make()
        (one,) = self.streams(1)
        with one:
            one.begin_capture()
            with self.assertRaises(millpond.CapturingError):
                self.pool.malloc(512)
            self.assertIsNotNone(one.end_capture(), "it lives")
            self.assertTrue(self.pool.malloc(512).mem.ptr)

    def beside_a_free(self, does):
        """What a capture comes by waits for a free that may be about to ask who a stream is."""
        (known,) = self.door._known.values()
        inside, over = threading.Event(), threading.Event()
        free = threading.Thread(target=known.naming, args=(lambda _: (inside.set(), over.wait(30)),))
        free.start()
        self.assertTrue(inside.wait(30))
        threading.Timer(0.2, over.set).start()
        does()
        self.assertTrue(over.is_set(), "it did not wait")
        free.join()

    @alone()
    def test_no_capture_begins_while_a_free_names_streams(self):
        self.make()
        one, two = self.streams()
        self.empty(one)
        self.beside_a_free(two.begin_capture)
        self.assertIsNotNone(two.end_capture())

    @alone()
    def test_no_capture_spreads_while_a_free_names_streams(self):
        cuda = self.make()
        one, two = self.streams()
        self.empty(one)
        event, back = cuda.Event(), cuda.Event()
        one.begin_capture()
        event.record(one)
        self.beside_a_free(lambda: two.wait_event(event))
        self.assertTrue(two.is_capturing())
        back.record(two)
        one.wait_event(back)
        self.assertIsNotNone(one.end_capture())

    @alone()
    def test_no_capture_begins_while_a_use_names_its_stream(self):
        self.make()
        one, two = self.streams()
        allocator, x, pinned = self.pool.allocator(), self.empty(one), self.pool.malloc_pinned(512)
        array = SimpleNamespace(base=None, data=x, device=SimpleNamespace(id=0))
        for name, used in (("record_use", array), ("record_pinned_use", pinned)):
            records, seen = getattr(allocator, name), []

            def beside(*what):
                begun = threading.Thread(target=lambda: (stand_in.bind(), two.begin_capture()))
                begun.start()
                begun.join(0.2)
                seen.append(two.is_capturing())
                threads.append(begun)
                records(*what)

            threads = []
            with mock.patch.object(allocator, name, beside):
                self.pool.record_use(used, two)
            threads[0].join()
            self.assertEqual(seen, [False])
            self.assertIsNotNone(two.end_capture(), "it lives")

    @alone(MILLPOND_FAKE_DEVICES=2)
    def test_a_free_inside_another_devices_free_beside_the_begin_of_a_capture(self):
        """The collector frees an array of device 0 while a free of device 1 names streams, and another thread begins a capture."""
        cuda = self.make(devices=2, options={})
        made = []
        for device in (0, 1):
            cuda.runtime.setDevice(device)
            stand_in.bind(device)
            stream = cuda.Stream(non_blocking=True)
            made.append((stream, self.empty(stream, 512)))
        (stream, x), (_, y) = made
        made.clear()

        def begins():
            stand_in.bind(0)
            stream.begin_capture()

        begun = threading.Thread(target=begins, daemon=True)
        arrays = self.pool._devices[1].arrays
        free = arrays.after

        def drops_another(*what):
            nonlocal x
            begun.start()
            # Until it has what it takes before it waits for this free.
            begun.join(0.2)
            del x
            free(*what)

        arrays.after = drops_another

        def drops():
            nonlocal y
            stand_in.bind(1)
            del y

        other = threading.Thread(target=drops, daemon=True)
        other.start()
        other.join(10)
        self.assertFalse(other.is_alive(), "the free waits for the capture, which waits for the free")
        begun.join(30)
        self.assertFalse(begun.is_alive())
        stand_in.bind(0)
        self.assertIsNotNone(stream.end_capture())

    @alone()
    def test_a_request_inside_a_free_beside_the_begin_of_a_capture(self):
        """A finalizer asks for memory that only a wait for the device would bring, while another thread begins a capture."""
        self.make(options=WAITS)
        one, two = self.streams()
        x, allocator = self.empty(one, 512), self.pool.allocator()
        allocator.free_unknown(allocator.alloc(MIB, one.ptr))
        self.assertEqual(allocator.stats()["total"]["held_back"], MIB)

        def begins():
            stand_in.bind()
            two.begin_capture()

        begun = threading.Thread(target=begins, daemon=True)
        arrays, refused = self.pool._devices[0].arrays, []
        free = arrays.after

        def asks(*what):
            begun.start()
            # Until it has what it takes before it waits for this free.
            begun.join(0.2)
            try:
                self.pool.malloc(SIZE)
            except MemoryError as why:
                refused.append(why)
            free(*what)

        arrays.after = asks

        def drops():
            nonlocal x
            stand_in.bind()
            del x

        other = threading.Thread(target=drops, daemon=True)
        other.start()
        other.join(10)
        self.assertFalse(other.is_alive(), "the free waits for the capture, which waits for the free")
        begun.join(30)
        self.assertIsNotNone(two.end_capture(), "it lives")
        self.assertRegex(str(refused), "held back")

    @alone()
    def test_a_trim_looks_again(self):
        self.make()
        one, two = self.streams()
        x = self.empty(one)
        with two:
            two.begin_capture()
            del x
            two.end_capture()
        self.assertEqual(self.pool.held_frees(), 1)
        self.pool.free_all_blocks()
        self.assertEqual((self.pool.held_frees(), self.pool.used_bytes()), (0, 0))
        self.pool.allocator().synchronize()
        self.pool.free_all_blocks()
        self.assertEqual(self.pool.total_bytes(), 0)

    @alone()
    def test_a_stream_that_ends_while_it_captures(self):
        self.make()
        one, two = self.streams()
        x = self.empty(one)
        with two:
            two.begin_capture()
        del two
        del x
        self.assertTrue(self.door._known_of(0).lost)
        self.assertEqual(self.pool.used_bytes(), 0)

    @alone()
    def test_a_capture_by_another_object_of_the_same_stream(self):
        cuda = self.make(options=WAITS)
        (one,) = self.streams(1)
        self.empty(one)
        cuda.ExternalStream(one.ptr).begin_capture()
        self.assertTrue(self.door._captures(), "the object that began it is gone")
        one.end_capture()
        self.assertFalse(self.door._captures())
        # Equal ones, of which the first is gone.
        same = cuda.ExternalStream(one.ptr)
        same.begin_capture()
        same.end_capture()
        one.begin_capture()
        with self.assertRaises(RuntimeError):
            one.begin_capture()
        del same
        self.assertTrue(self.door._captures())
        one.end_capture()
        self.assertEqual(self.door._captured, {})
        # One that cannot begin is none.
        with self.assertRaises(RuntimeError):
            cuda.Stream.null.begin_capture()
        self.assertEqual(self.door._captured, {})

    @alone()
    def test_a_capture_by_a_stream_from_another_library(self):
        cuda = self.make("any", WAITS)
        (one,) = self.streams(1)
        x = self.empty(one)
        foreign = SimpleNamespace(handle=stand_in.stream())
        foreign.__cuda_stream__ = lambda: (0, foreign.handle)
        cuda.Stream.from_external(foreign).begin_capture()
        del x
        self.assertTrue(self.door._captures(), "the object that began it is gone")
        self.pool.free_all_blocks()
        cuda.Stream.from_external(foreign).end_capture()
        self.assertFalse(self.door._captures())

    def after_a_capture_of_another_owner_s_stream(self, ends):
        """Its owner destroys the stream when the object is gone, as is allowed: nothing names or asks it from there on."""
        for uses in ("known", "any"):
            with self.subTest(uses):
                cuda = self.make(uses, WAITS)
                (one,) = self.streams(1)
                x = self.empty(one)
                handle = stand_in.stream()
                stream = cuda.ExternalStream(handle)
                with stream:
                    stream.begin_capture()
                    ends(stream)
                gone = weakref.ref(stream)
                del stream
                self.assertIsNone(gone(), "it is kept alive")
                stand_in.call("cuStreamDestroy_v2", ctypes.c_void_p(handle))
                del x
                self.assertEqual(self.door._captured, {})
                self.assertTrue(self.empty(one).mem.ptr)
                self.assertFalse([k for k in self.door._known.values() if handle in k._handles])
                self.assertIsNone(stand_in.verdict())
                self.pool.allocator().close()

    @alone()
    def test_a_capture_of_another_owner_s_stream_that_failed(self):
        def fails(stream):
            with self.assertRaises(RuntimeError):
                stand_in.call("cuCtxSynchronize")
            with self.assertRaises(RuntimeError):
                stream.end_capture()
            self.assertFalse(self.door._captures())

        self.after_a_capture_of_another_owner_s_stream(fails)

    @alone()
    def test_a_capture_of_another_owner_s_stream_that_its_owner_ends(self):
        self.after_a_capture_of_another_owner_s_stream(lambda stream: stand_in.end_capture(stream.ptr))

    @alone()
    def test_a_capture_of_another_owner_s_stream_that_is_left_to_its_owner(self):
        """It is one until CuPy ends it, or the device was waited for."""
        for uses in ("known", "any"):
            cuda = self.make(uses, WAITS)
            (one,) = self.streams(1)
            x = self.empty(one)
            handle = stand_in.stream()
            stream = cuda.ExternalStream(handle)
            with stream:
                stream.begin_capture()
            gone = weakref.ref(stream)
            del stream
            self.assertIsNone(gone(), "it is kept alive")
            del x
            self.pool.free_all_blocks()
            self.assertTrue(self.door._captures())
            self.assertIsNotNone(stand_in.end_capture(handle), "it lives")
            stand_in.call("cuStreamDestroy_v2", ctypes.c_void_p(handle))
            with self.assertRaises(cuda.memory.OutOfMemoryError):
                self.empty(one)
            self.pool.allocator().synchronize()
            self.assertEqual(self.door._captured, {})
            self.assertTrue(self.empty(one).mem.ptr)
            self.pool.allocator().close()

    @alone()
    def test_a_capture_that_was_invalidated(self):
        """CuPy raises where it is asked whether such a stream captures. It is one until it is ended, and a request is out of memory beside it."""
        cuda = self.make("any", WAITS)
        one, two = self.streams()
        x = self.empty(one)
        del x
        with mock.patch.object(self.cupy.cuda.Stream.__mro__[1], "is_capturing", side_effect=RuntimeError("an error has invalidated the capture sequence")):
            for stream in (two, cuda.Stream.ptds):
                stream.begin_capture()
                with self.assertRaises(cuda.memory.OutOfMemoryError):
                    self.empty(one)
                self.pool.free_all_blocks()
                self.assertEqual(self.pool.total_bytes(), SIZE)
                self.assertIsNotNone(stream.end_capture(), "it lives")
        self.assertEqual(self.door._captured, {})
        self.pool.free_all_blocks()
        self.assertEqual(self.pool.total_bytes(), 0)

    @alone()
    def test_a_lost_stream_is_forgotten_by_one_of_two_waits(self):
        """Two threads wait for the device at once, and the next lost stream is one."""
        self.make()
        (one,) = self.streams(1)
        known = self.door._known_of(0)

        def lose():
            (stream,) = self.streams(1)
            with stream:
                stream.begin_capture()

        x = self.empty(one)
        lose()
        self.assertTrue(known.lost)
        known.quiet(lambda: known.quiet(lambda: None))
        self.assertFalse(known.lost)
        lose()
        self.assertTrue(known.lost)
        del x

    @alone()
    def test_a_stream_that_ends_inside_the_end_of_another(self):
        """The collector ends a stream between the record and the wait of another's end: both are waited for."""
        cuda = self.make(options={**TIGHT, "limit": "4MiB"})
        one, two, three = self.streams(3)
        x, y = self.empty(one), self.empty(one)
        order(one.ptr, two.ptr)
        order(one.ptr, three.ptr)
        with two:
            write(two.ptr, x.mem.ptr, SIZE)
        with three:
            write(three.ptr, y.mem.ptr, SIZE)
        record, events = cuda.Event.record, []

        def records(event, stream):
            nonlocal three
            events.append(event.ptr)
            record(event, stream)
            three = None

        with mock.patch.object(cuda.Event, "record", records):
            del two
        self.assertEqual((len(set(events)), three), (2, None), "each has an event of its own")
        self.assertFalse(self.door._known_of(0).lost)
        former = {x.mem.ptr, y.mem.ptr}
        del x, y
        kept = [self.empty(one), self.empty(one)]
        self.assertEqual({k.mem.ptr for k in kept}, former)
        for k in kept:
            write(one.ptr, k.mem.ptr, SIZE, 2)
        self.assertIsNone(stand_in.verdict())

    @alone(MILLPOND_FAKE_DEVICES=2)
    def test_the_end_of_a_stream_makes_nothing(self):
        """Where the driver may have no room for it. What it needs is made with the pool's memory of the device."""
        cuda = self.make(options={}, devices=2)
        calls = ["cuStreamCreate", "cuEventCreate", "cuEventDestroy_v2", "cuStreamDestroy_v2", "cuStreamWaitEvent"]
        made = [self.streams(3)]
        arrays = [self.empty(stream, 512) for stream in made[0]]
        before = [stand_in.calls(name) for name in calls]
        made.clear()
        self.assertEqual([stand_in.calls(name) - n for name, n in zip(calls, before)], [0, 0, 0, 3, 3])
        cuda.runtime.setDevice(1)
        streams = self.streams(3)
        # One that nothing of ours may have been used on.
        for stream in streams:
            stream.use()
        cuda.Stream.null.use()
        before = [stand_in.calls(name) for name in calls]
        del stream, streams
        self.assertEqual([stand_in.calls(name) - n for name, n in zip(calls, before)], [0, 0, 0, 3, 0])
        self.assertFalse(self.door._known_of(1).lost)
        del arrays

    @alone()
    def test_a_capture_that_begins_while_its_stream_ends(self):
        """Otherwise than by CuPy. Who waited for an event of it would be a part of it."""
        cuda = self.make(options=WAITS)
        one, two = self.streams()
        x = self.empty(one)
        with two:
            write(two.ptr, x.mem.ptr, SIZE)
        # It is dropped, and its stream has another owner.
        handle, record = two.ptr, cuda.Event.record
        two._foreign_stream_ref = two.__class__

        def records(event, stream):
            stand_in.begin_capture(stream.ptr)
            record(event, stream)

        with mock.patch.object(cuda.Event, "record", records):
            del two
        known = self.door._known_of(0)
        self.assertEqual(known.lost, 1)
        self.assertFalse(known._spare.is_capturing())
        self.assertTrue(stand_in.end_capture(handle), "it lives")
        former = x.mem.ptr
        del x
        self.next_owner_writes(one, former)
        self.assertIsNone(stand_in.verdict())

    @alone()
    def test_a_stream_whose_end_is_interrupted(self):
        """It is gone all the same, and it cannot be known when its work is complete."""
        self.make(options={})
        (one,) = self.streams(1)
        x = self.empty(one, 512)
        known = self.door._known_of(0)
        with mock.patch.object(known, "_wait_for", side_effect=KeyboardInterrupt), self.assertRaises(KeyboardInterrupt):
            known.end(one, lambda stream: None)
        self.assertTrue(known.lost)
        self.assertFalse(known.has(one))
        del x

    @alone()
    def test_a_finalizer_that_is_cut_short(self):
        """Another stream's object comes to lie in the place of the one that is gone, whose work is pending."""
        cuda = self.make()
        one, two, three = self.streams(3)
        x = self.empty(one)
        order(one.ptr, two.ptr)
        with two:
            write(two.ptr, x.mem.ptr, SIZE)
        handle, place = two.ptr, id(two)
        with mock.patch.object(cuda.Stream, "__del__", lambda stream: None):  # As an interrupt where it begins.
            del two
        # As many as it takes: where the interpreter puts an object is its affair, and a place that is free comes to be used.
        made = []
        while not made or id(made[-1]) != place:
            self.assertLess(len(made), 100_000, "no object came to lie there")
            made.append(cuda.ExternalStream(three.ptr))
        other = made.pop()
        del made
        with other:
            pass
        self.assertLessEqual({handle, three.ptr}, set(self.door._known_of(0).naming(list)))
        former = x.mem.ptr
        del x
        self.next_owner_writes(one, former)
        self.assertIsNone(stand_in.verdict())
        del other
        self.assertNotIn(three.ptr, self.door._known_of(0).naming(list))

    @alone()
    def test_a_stream_s_end_is_its_end_for_all_objects(self):
        """Also for one whose own end was cut short, and where the stream's own object was never seen current."""
        cuda = self.make()
        for seen in (True, False):
            (two,) = self.streams(1)
            handle, known = two.ptr, self.door._known_of(0)
            other = cuda.ExternalStream(handle)
            with other:
                pass
            if seen:
                with two:
                    pass
            with mock.patch.object(cuda.ExternalStream, "__del__", lambda stream: None):
                del other
            self.assertIn(handle, known.naming(list))
            del two
            self.assertNotIn(handle, known.naming(list), "it is gone")

    @alone()
    def test_a_stream_that_was_lost_is_so_until_the_device_was_quiet(self):
        self.make(options=WAITS)
        known = self.door._known_of(0)
        for by_itself in (True, True, False, False):
            one, two = self.streams()
            x = self.empty(one)
            with two:
                pass
            stand_in.fail_next("cuEventRecord", 999)
            del two
            del x
            self.assertEqual(known.lost, 1)
            self.assertIsNone(known.naming(lambda handles: handles), "who may use an array cannot be said")
            if not by_itself:
                self.pool.allocator().synchronize()
                self.assertEqual(known.lost, 0, "the program's own wait counts too")
            self.pool.free_all_blocks()
            self.assertEqual((known.lost, self.pool.total_bytes()), (0, 0))
            self.assertIsNotNone(known.naming(lambda handles: handles))
        # One that is lost while the device is waited for may have had work behind that.
        known._lost += 1

        def synchronize():
            known._lost += 1

        known.quiet(synchronize)
        self.assertEqual(known.lost, 1)

    @alone()
    def test_an_array_that_outlives_its_stream_is_held_back(self):
        self.make(options=WAITS)
        one, two = self.streams()
        x = self.empty(one)
        write(one.ptr, x.mem.ptr, SIZE)
        former = x.mem.ptr
        del one
        del x
        waits = stand_in.calls("cuCtxSynchronize")
        self.next_owner_writes(two, former)
        self.assertEqual(stand_in.calls("cuCtxSynchronize"), waits + 1, "the device was waited for")
        self.assertEqual(self.pool.allocator().stats()["total"]["held_back"], 0)
        self.assertIsNone(stand_in.verdict())


    @alone()
    def test_another_thread_s_own_stream_captures(self):
        """Its handle means the asking thread's own stream: whether it captures cannot be asked from another thread."""
        cuda = self.make("any", WAITS)
        (one,) = self.streams(1)
        x = self.empty(one)
        own, held, over = cuda.Stream.ptds, threading.Event(), threading.Event()
        ended = []

        def captures():
            stand_in.bind()
            own.begin_capture()
            held.set()
            over.wait()
            ended.append(own.end_capture())

        thread = threading.Thread(target=captures)
        thread.start()
        held.wait()
        del x
        try:
            self.pool.free_all_blocks()
            with self.assertRaises(cuda.memory.OutOfMemoryError):
                self.empty(one)
        finally:
            over.set()
            thread.join()
        self.assertTrue(ended and ended[0], "it lives")
        # And when it is over, what was held back serves.
        self.pool.free_all_blocks()
        self.assertEqual(self.pool.total_bytes(), 0)

    @alone()
    def test_this_thread_s_own_stream_captures(self):
        cuda = self.make("any", WAITS)
        (one,) = self.streams(1)
        x = self.empty(one)
        own = cuda.Stream.ptds
        own.begin_capture()
        with self.assertRaises(RuntimeError):
            own.begin_capture()
        del x
        self.pool.free_all_blocks()
        self.assertEqual(self.pool.total_bytes(), SIZE)
        # Ended behind the package's back.
        self.assertTrue(stand_in.end_capture(own.ptr), "it lives")
        self.pool.free_all_blocks()
        self.assertEqual(self.pool.total_bytes(), 0)

    @alone()
    def test_a_thread_that_ends_in_its_own_capture(self):
        """That capture cannot be ended any more. The driver refuses to wait then, and that is no error of a trim."""
        cuda = self.make("any", WAITS)
        (one,) = self.streams(1)
        x = self.empty(one)

        def captures():
            stand_in.bind()
            cuda.Stream.ptds.begin_capture()

        self.on_another_thread(captures)
        del x
        gc.collect()
        waits = stand_in.calls("cuCtxSynchronize")
        self.pool.free_all_blocks()
        self.assertEqual(stand_in.calls("cuCtxSynchronize"), waits + 1, "it was asked")
        with self.assertRaises(cuda.memory.OutOfMemoryError):
            self.empty(one)


class TestForeignCaptures(Test):
    """Captures on streams that CuPy never saw and that were not declared: only a wait for the device meets them."""

    def beside(self, request, uses="any", options=TIGHT):
        """What `request` raised, or None, with memory held back and a stream of another library capturing; its waits for the device;
        and whether the capture ended well."""
        self.make(uses, options)
        one, two = self.streams()
        x, pinned = self.empty(one), self.pool.malloc_pinned(SIZE)
        write(one.ptr, x.mem.ptr, SIZE)
        if uses == "own":
            order(one.ptr, two.ptr)
            self.pool.allocator().record_use(x.mem.ptr, two.ptr)
        foreign = stand_in.stream()
        stand_in.begin_capture(foreign)
        if uses == "known":
            del one
        del x, pinned
        if uses != "known":  # That the stream has ended is learned by the request.
            stats = self.pool.allocator().stats()
            self.assertEqual((stats["total"]["held_back"], stats["pinned"]["held_back"]), (SIZE, SIZE))
        waits, raised = stand_in.calls("cuCtxSynchronize"), None
        try:
            request(two)
        except MemoryError as why:
            raised = why
        waits = stand_in.calls("cuCtxSynchronize") - waits
        try:
            lives = bool(stand_in.end_capture(foreign))
        except RuntimeError:
            lives = False
        return raised, waits, lives

    def is_refused(self, request, uses="any", kind=None, what="2,097,152 bytes are held back"):
        raised, waits, lives = self.beside(request, uses)
        self.assertIsInstance(raised, kind or self.cupy.cuda.memory.OutOfMemoryError)
        self.assertRegex(str(raised), f"{what}.*allocator\\(\\).synchronize\\(\\) releases them.*ends graph captures.*may_synchronize=True")
        self.assertEqual((waits, lives), (0, True))

    def array(self, stream):
        self.empty(stream)

    def pinned(self, stream):
        self.pool.malloc_pinned(SIZE)

    def trim(self, stream):
        self.pool.free_all_blocks()

    @alone()
    def test_a_request_out_of_memory_leaves_them_alone(self):
        self.is_refused(self.array)
        # And the call that it names has the memory again.
        self.pool.allocator().synchronize()
        self.array(self.streams(1)[0])

    @alone()
    def test_with_recorded_uses(self):
        self.is_refused(self.array, "own")

    @alone()
    def test_an_array_that_outlived_its_stream(self):
        self.is_refused(self.array, "known")

    @alone(MILLPOND_PINNED_LIMIT="2MiB")
    def test_pinned_memory(self):
        self.is_refused(self.pinned, kind=millpond.OutOfMemoryError)
        self.pool.allocator().synchronize()
        self.pinned(None)

    @alone()
    def test_free_all_blocks_leaves_them_alone(self):
        for trim in (self.trim, lambda stream: self.pool.free_all_free()):
            raised, waits, lives = self.beside(trim)
            self.assertEqual((raised, waits, lives), (None, 0, True))
            self.assertEqual(self.pool.total_bytes(), SIZE, "what is held back stays")
            self.pool.allocator().synchronize()
            self.pool.free_all_blocks()
            self.assertEqual(self.pool.total_bytes(), 0)

    @alone()
    def test_free_all_blocks_gives_back_what_is_idle(self):
        """Also while another library captures and other memory is held back."""
        self.make("any", {"limit": "4MiB", "growth": "exact"})
        one, two = self.streams()
        idle, held = self.empty(one), self.empty(two)
        del idle
        self.pool.allocator().synchronize()
        self.assertEqual(self.pool.total_bytes(), 2 * SIZE)
        foreign = stand_in.stream()
        stand_in.begin_capture(foreign)
        del held
        self.pool.free_all_blocks()
        self.assertTrue(stand_in.end_capture(foreign), "it lives")
        self.assertEqual(self.pool.total_bytes(), SIZE)

    @alone()
    def test_who_asks_for_waits_loses_them(self):
        """As the documentation says: a pool that may synchronize ends them. So the tests above would see an end."""
        for request in (self.array, self.trim):
            raised, waits, lives = self.beside(request, options=WAITS)
            self.assertEqual((waits, lives), (1, False))
        self.assertIsNone(raised)

    @alone(MILLPOND_PINNED_LIMIT="2MiB")
    def test_a_request_with_may_synchronize_is_served_when_no_capture_is_open(self):
        self.make("any", WAITS)
        one, two = self.streams()
        for request in (self.array, self.pinned):
            x, pinned = self.empty(one), self.pool.malloc_pinned(SIZE)
            write(one.ptr, x.mem.ptr, SIZE)
            del x, pinned
            waits = stand_in.calls("cuCtxSynchronize")
            request(two)
            self.assertEqual(stand_in.calls("cuCtxSynchronize"), waits + 1)
            self.pool.allocator().synchronize()
        self.array(two)
        self.trim(None)
        self.assertEqual(self.pool.total_bytes(), 0)
        self.assertIsNone(stand_in.verdict())

    @alone()
    def test_nothing_is_said_or_waited_for_where_nothing_is_held_back(self):
        for options in (TIGHT, WAITS):
            self.make("any", options)
            x = self.pool.malloc(SIZE)
            waits = stand_in.calls("cuCtxSynchronize")
            with self.assertRaises(self.cupy.cuda.memory.OutOfMemoryError) as raised:
                self.pool.malloc(SIZE)
            self.pool.free_all_blocks()
            self.assertNotIn("held back", str(raised.exception))
            self.assertEqual(stand_in.calls("cuCtxSynchronize"), waits)
            self.assertTrue(x.mem.ptr)


class TestDoor(Test):
    @alone()
    def test_what_is_wrong_is_raised_before_cupy_is_touched(self):
        cupy, door = stub_cupy.install()
        before = dict(vars(cupy.cuda))
        wrongs = {"uses": "some"}, {"limit": "banana"}, {"limit": -1}, {"size": 3}, {"policy": True}, {"may_synchronize": "no"}, {"may_synchronize": 1}
        for wrong in wrongs:
            with self.assertRaises((ValueError, TypeError), msg=str(wrong)):
                door.install(**wrong)
            self.assertEqual(cupy.cuda.allocators, [])
        self.assertEqual(vars(cupy.cuda), before)
        pool = door.install(limit="64MiB", pinned=False)
        self.assertEqual(cupy.cuda.allocators, [pool.malloc])

    @alone()
    def test_twice(self):
        cuda = self.make()
        first = vars(cuda.Stream.__mro__[1])["use"], cuda.Stream.__del__
        x = self.pool.malloc(512)
        other = self.door.install(limit="64MiB")
        self.assertEqual((vars(cuda.Stream.__mro__[1])["use"], cuda.Stream.__del__), first, "hooked once")
        self.assertEqual(cuda.allocators[-2:], [other.malloc, other.malloc_pinned])
        used = self.pool.used_bytes()
        del x
        self.assertEqual((used, self.pool.used_bytes()), (512, 0), "an array goes back where it came from")

    @alone()
    def test_the_package_reloaded(self):
        """What it knows stays: the streams of the pool that CuPy has, and who captures."""
        self.make()
        one, two, three = self.streams(3)
        x, pinned = self.empty(one), self.pool.malloc_pinned(512)
        three.begin_capture()
        known = self.door._known_of(0)
        importlib.reload(self.door)
        self.assertIs(self.door._known_of(0), known)
        self.assertTrue(self.door._captures())
        self.assertIsNotNone(three.end_capture())
        self.assertFalse(self.door._captures())
        order(one.ptr, two.ptr)
        with two:
            write(two.ptr, x.mem.ptr, SIZE)
        self.door.MemoryPool().record_use(pinned, two)
        former = x.mem.ptr
        del x, pinned
        x = self.next_owner_writes(one, former)
        handle = two.ptr
        del two
        self.assertNotIn(handle, known.naming(list))
        self.pool = self.door.install(**TIGHT)
        del x
        self.assertTrue(self.empty(one).mem.ptr)
        self.assertIsNone(stand_in.verdict())

    @alone()
    def test_the_package_imported_anew(self):
        """The streams tell the first one alone: the second would free too early."""
        cuda = self.make()
        del sys.modules["millpond_cupy"]
        import millpond_cupy

        self.assertIsNot(millpond_cupy, self.door)
        for uses in ("known", "any"):
            with self.assertRaisesRegex(RuntimeError, "imported twice"):
                millpond_cupy.install(uses)
        self.assertEqual(cuda.allocators, [self.pool.malloc, self.pool.malloc_pinned])
        (one,) = self.streams(1)
        self.assertTrue(self.empty(one).mem.ptr)

    @alone()
    def test_own_and_any_watch_nothing(self):
        cupy, door = stub_cupy.install()
        stream = cupy.cuda.Stream
        before = stream.use, stream.__enter__, stream.__del__
        door.install("own")
        door.install("any")
        self.assertEqual((stream.use, stream.__enter__, stream.__del__), before)

    @alone()
    def test_streams_that_cannot_be_watched(self):
        cupy, door = stub_cupy.install()
        for kind in ("Stream", "ExternalStream"):
            with mock.patch.object(cupy.cuda, kind, int), self.assertRaisesRegex(RuntimeError, "uses='any'"):
                door.install()
        self.assertEqual(cupy.cuda.allocators, [])
        with mock.patch.object(cupy.cuda, "Stream", int), self.assertRaisesRegex(RuntimeError, "captures .* cannot be watched"):
            door.install("any", may_synchronize=True)
        self.assertEqual(cupy.cuda.allocators, [])
        with mock.patch.object(cupy.cuda, "Stream", int):
            door.install("any")

    @alone()
    def test_no_device(self):
        cupy, door = stub_cupy.install(devices=0)
        with self.assertRaisesRegex(millpond.NoDeviceError, "CuPy sees no device"):
            door.install()

        def failing():
            raise RuntimeError("cudaErrorNoDevice")

        cupy.cuda.runtime.getDeviceCount = failing
        with self.assertRaisesRegex(millpond.NoDeviceError, "cudaErrorNoDevice"):
            door.install()
        self.assertEqual(cupy.cuda.allocators, [])

    def test_no_cupy(self):
        done = stand_in.run(["-c", "import sys\nsys.modules['cupy'] = None\nimport millpond_cupy"])
        self.assertRegex(done.stderr, "ImportError: millpond_cupy needs CuPy")

    @alone()
    def test_sizes(self):
        self.make()
        for wrong, kind in ((-1, ValueError), (1 << 64, OverflowError), (1.5, TypeError), (True, TypeError)):
            for malloc in (self.pool.malloc, self.pool.malloc_pinned):
                with self.assertRaises(kind):
                    malloc(wrong)
        self.assertEqual(self.pool.malloc(0).mem.ptr, 0)
        for size in (SIZE + 1, 1 << 50, 1 << 62):
            with self.assertRaises(self.cupy.cuda.memory.OutOfMemoryError):
                self.pool.malloc(size)
        with self.assertRaises(MemoryError):
            self.pool.malloc_pinned(1 << 50)

    @alone()
    def test_limits(self):
        """In bytes, or as a share by its name: a share is none by accident."""
        self.make(options={})
        for wrong, kind in ((0.5, TypeError), (1.0, TypeError), ("50%", TypeError), (True, TypeError), (-1, ValueError), (1 << 64, OverflowError)):
            with self.assertRaises(kind) as refused:
                self.pool.set_limit(size=wrong)
            self.assertIn("the limit is", str(refused.exception))
            self.assertEqual(self.pool.get_limit(), 0)
        for fraction in (-0.1, 1.5, float("nan")):
            with self.assertRaises(ValueError):
                self.pool.set_limit(fraction=fraction)
        self.pool.set_limit(size=4 * MIB)
        self.assertEqual(self.pool.get_limit(), 4 * MIB)
        self.pool.set_limit(fraction=0.5)
        self.assertGreater(self.pool.get_limit(), 4 * MIB)
        self.pool.set_limit(size=0)
        self.assertEqual(self.pool.get_limit(), 0)
        with self.assertRaises(ValueError):
            self.pool.set_limit(1, 0.5)

    @alone(MILLPOND_PINNED_LIMIT="2MiB")
    def test_a_request_has_what_the_collector_brings(self):
        self.make(options=WAITS)
        (one,) = self.streams(1)
        gc.disable()
        for ask in (lambda: self.empty(one), lambda: self.pool.malloc_pinned(SIZE)):
            cycle = [ask()]
            cycle.append(cycle)
            del cycle
            self.assertTrue(ask())

    @alone(MILLPOND_FAKE_DEVICES=2)
    def test_two_devices(self):
        cuda = self.make(devices=2)
        kept = {}
        for device in (0, 1):
            cuda.runtime.setDevice(device)
            stream = cuda.Stream(non_blocking=True)
            kept[device] = stream, self.empty(stream)
        self.assertEqual([self.pool.allocator(d).stats()["total"]["live"] for d in (0, "cuda:1")], [1, 1])
        # The streams of device 0 end, and its array, while device 1 is current.
        former = kept[0][1].mem.ptr
        stand_in.bind(0)
        write(kept[0][0].ptr, former, SIZE)
        stand_in.bind(1)
        del kept[0], stream
        gc.collect()
        self.assertEqual(cuda.runtime.getDevice(), 1)
        self.assertEqual([self.pool.allocator(d).stats()["total"]["live"] for d in (0, 1)], [0, 1])
        self.assertFalse(self.door._known_of(0).lost or self.door._known_of(1).lost)

    @alone()
    def test_a_stream_leaves_when_it_ends(self):
        """However many streams a program makes, a free names those that are there."""
        self.make(options={})
        known = self.door._known_of(0)
        for _ in range(50):
            (stream,) = self.streams(1)
            x = self.empty(stream, 512)
            del stream, x
        # The null stream, and the one that stands for all that ended.
        self.assertEqual(set(known._handles), {0, known.join.ptr})
        self.assertEqual(known.naming(len), 2)
        self.assertIsNone(stand_in.verdict())

    @alone()
    def test_a_stream_that_ended_is_named_no_more(self):
        self.make(options={})
        known = self.door._known_of(0)
        one, two = self.streams()
        handle = two.ptr
        with two:
            x = self.empty(one, 512)
        self.assertIn(handle, known.naming(list))
        del two
        self.assertNotIn(handle, known.naming(list))
        unknown = self.pool._devices[0].arrays.plain = mock.Mock()
        del x
        unknown.assert_not_called()
        self.assertEqual(self.pool.used_bytes(), 0)

    @alone()
    def test_a_stream_that_becomes_current_while_the_names_are_listed(self):
        """By a finalizer that the collector runs there, or a signal's handler."""
        self.make(options={})
        known = self.door._known_of(0)
        one, two = self.streams()

        class Lists(ctypes.Array):
            _type_, _length_ = ctypes.c_void_p, 2

            def __init__(self, *handles):
                with two:
                    pass
                super().__init__(*handles)

        class Handle:
            def __mul__(self, length):
                return Lists if length == 2 else ctypes.c_void_p * length

        with one, mock.patch.object(self.door, "ctypes", SimpleNamespace(c_void_p=Handle())):
            self.assertEqual(known.naming(set), {None, one.ptr})
        self.assertEqual(known.naming(set), {None, one.ptr, two.ptr})

    @alone()
    def test_an_external_stream_that_is_gone(self):
        """Against the rule, its object outlives it: the driver refuses the name, and the free is by unknown streams."""
        cuda = self.make(options={})
        (one,) = self.streams(1)
        x, pinned = self.empty(one, 512), self.pool.malloc_pinned(512)
        handle = stand_in.stream()
        kept = cuda.ExternalStream(handle)
        with kept:
            pass
        stand_in.call("cuStreamDestroy_v2", ctypes.c_void_p(handle))
        self.assertIn(handle, self.door._known_of(0).naming(list))
        del x, pinned
        stats = self.pool.allocator().stats()
        self.assertEqual((stats["total"]["live"], stats["pinned"]["live"]), (0, 0))

    @alone()
    def test_frees_behind_the_allocator_s_end(self):
        """The allocator names no stream any more, and takes what was alive."""
        self.make(options={})
        one, two = self.streams()
        x, pinned = self.empty(one, 512), self.pool.malloc_pinned(512)
        allocator = self.pool.allocator()
        allocator.close()
        # A stream that ended is stood for by one that the allocator does not know.
        with two:
            pass
        del two
        del x, pinned
        stats = allocator.stats()
        self.assertEqual((stats["total"]["live"], stats["pinned"]["live"], self.pool.held_frees()), (0, 0, 0))
        allocator.synchronize()
        self.assertEqual(self.pool.total_bytes(), 0)

    @alone()
    def test_a_stream_in_place_of_those_that_ended_that_cannot_be_declared(self):
        """Its handle was a declared stream's, which is gone against the rule: frees are by unknown streams."""
        cuda = self.make(options={})
        (one,) = self.streams(1)
        x, pinned = self.empty(one, 512), self.pool.malloc_pinned(512)
        handle, known = stand_in.stream(), self.door._known_of(0)
        self.pool.allocator().declare_permanent(handle)
        stand_in.call("cuStreamDestroy_v2", ctypes.c_void_p(handle))
        with mock.patch.object(known, "join", cuda.ExternalStream(stand_in.stream())):
            self.assertEqual(known.join.ptr, handle, "the handle comes back")
            with self.assertRaises(millpond.Error) as refused:
                self.pool.allocator().declare_permanent(handle)
            self.assertIsInstance(refused.exception, ValueError)
            del x, pinned
        stats = self.pool.allocator().stats()
        self.assertEqual((stats["total"]["live"], stats["pinned"]["live"]), (0, 0))

    @alone()
    def test_a_free_that_is_refused_is_counted(self):
        for uses in ("known", "any", "own"):
            self.make(uses, {})
            x, pinned = self.pool.malloc(512), self.pool.malloc_pinned(512)
            self.assertNotIn("refused frees", self.pool.report())
            self.pool.allocator().free(x.mem.ptr)
            self.pool.allocator().free_pinned(pinned.mem.ptr)
            del x, pinned
            self.assertEqual((self.pool.lost_frees(), self.pool.held_frees()), (2, 0))
            self.assertIn("refused frees: 2", self.pool.report())

    @alone(MILLPOND_FAKE_DEVICES=2)
    def test_a_stream_of_another_device_is_current(self):
        """It cannot be a user that a free of this device names: frees are by unknown streams."""
        cuda = self.make(options={}, devices=2)
        (one,) = self.streams(1)
        x, pinned = self.empty(one, 512), self.pool.malloc_pinned(512)
        stand_in.bind(1)
        handle = stand_in.stream()
        stand_in.bind(0)
        kept = cuda.ExternalStream(handle)
        with kept:
            pass
        del x, pinned
        stats = self.pool.allocator().stats()
        self.assertEqual((stats["total"]["live"], stats["pinned"]["live"]), (0, 0))

    @alone()
    def test_a_stream_does_not_end_while_a_free_names_it(self):
        """The collector may end a stream in the middle of a free: not before the call is over."""
        self.make(options={})
        known = self.door._known_of(0)
        one, two = self.streams()
        x = self.empty(one, 512)
        with two:
            pass
        handle, destroyed = two.ptr, stand_in.calls("cuStreamDestroy_v2")
        arrays, seen = self.pool._devices[0].arrays, []
        free = arrays.after

        def ends_one(number, cell, names, codes):
            nonlocal two
            del two
            seen.append((handle in list(names), stand_in.calls("cuStreamDestroy_v2")))
            free(number, cell, names, codes)

        arrays.after = ends_one
        del x
        self.assertEqual(seen, [(True, destroyed)])
        self.assertEqual(stand_in.calls("cuStreamDestroy_v2"), destroyed + 1)
        self.assertNotIn(handle, known._handles)

    @alone()
    def test_threads_with_streams_that_come_and_go(self):
        self.make(options={"limit": "64MiB"})
        wrong, shared = [], []

        def churn(seed):
            try:
                stand_in.bind()
                for i in range(150):
                    (stream,) = self.streams(1)
                    with stream:
                        x = self.pool.malloc(512 * ((seed + i) % 7 + 1))
                        write(stream.ptr, x.mem.ptr, 512)
                    shared.append(x)
                    del x, stream
                    if len(shared) > 4:
                        shared.pop(0)
            except Exception as why:
                wrong.append(why)

        threads = [threading.Thread(target=churn, args=(n,)) for n in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(wrong, [])
        shared.clear()
        gc.collect()
        self.assertEqual(self.pool.used_bytes(), 0)
        self.assertIsNone(stand_in.verdict())

    def test_the_exit_with_arrays_alive(self):
        if not stand_in.there():
            self.skipTest("MILLPOND_LIBCUDA names no stand-in driver")
        program = """
import sys, stand_in, stub_cupy
cupy, door = stub_cupy.install()
pool = door.install()
stream = cupy.cuda.Stream()
with stream:
    x, p = pool.malloc(512), pool.malloc_pinned(512)
    stand_in.write(stream.ptr, x.mem.ptr, 512)
stream.use()
sys.modules["kept"] = [x, p, pool, stream]
"""
        done = stand_in.run(["-X", "dev", "-c", program])
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    @alone()
    def test_a_forked_child_may_drop_its_arrays(self):
        """Also where another thread was in the middle of a free."""
        self.make()
        (stream,) = self.streams(1)
        x, p = self.empty(stream, 512), self.pool.malloc_pinned(512)
        held, over = threading.Event(), threading.Event()

        def hold(handles):
            held.set()
            over.wait()

        thread = threading.Thread(target=self.door._known_of(0).naming, args=(hold,))
        thread.start()
        held.wait()
        process = os.fork()
        if not process:
            # What waits for a lock for ever is ended by the system, with another code.
            signal.alarm(20)
            del x, p, stream
            gc.collect()
            os._exit(5)
        over.set()
        thread.join()
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), 5)
        self.assertEqual(self.pool.used_bytes(), 512)

    @alone()
    def test_a_worker_that_was_forked_before_anything_was_made(self):
        """As a server of forks makes them that has imported the package: in the worker all is as anywhere. And a worker of that one has no CUDA."""
        self.cupy, self.door = stub_cupy.install()

        def works():
            self.pool = self.door.install(**TIGHT)
            one, two = self.streams()
            x = self.empty(one)
            order(one.ptr, two.ptr)
            with two:
                write(two.ptr, x.mem.ptr, SIZE)
            handle = two.ptr
            del two
            self.assertNotIn(handle, self.door._known_of(0).naming(list))
            former = x.mem.ptr
            del x
            self.assertFalse(self.pool._devices[0].arrays.waiting, "it waits for the next call")
            y = self.next_owner_writes(one, former)
            self.assertIsNone(stand_in.verdict())
            calls = stand_in.calls()

            def drops():
                nonlocal y
                del y
                gc.collect()
                self.assertEqual(stand_in.calls(), calls)

            self.in_a_child(drops)

        self.in_a_child(works)

    def in_a_child(self, does):
        process = os.fork()
        if not process:
            signal.alarm(20)
            try:
                does()
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(5)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), 5)


if __name__ == "__main__":
    unittest.main()
