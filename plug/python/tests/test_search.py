"""Random lawful programs over millpond_cupy: threads with streams of their own, streams that come and go, captures, arrays that the
collector frees, and signals in the middle. What is wrong is an early reuse, which the stand-in's oracle sees, a capture that is lost, memory
that is, and a name of a stream that is gone. Bugs that are planted in the package must be found by the same programs.

MILLPOND_CASES=1000 asks for more programs, MILLPOND_SEED for one.
"""

import gc
import os
import random
import unittest
from concurrent.futures import ThreadPoolExecutor

import stand_in
import stub_cupy
from stand_in import MIB, alone, write
from test_interrupts import interrupted

OPTIONS = {"limit": "4MiB", "growth": "exact", "may_synchronize": True}
STEPS = 80
CASES = int(os.environ.get("MILLPOND_CASES", 25))


class Array:
    """An array of the program's own, with an event behind its last use."""

    def __init__(self, memory, size):
        self.memory, self.size, self.used = memory, size, None


class Program:
    def __init__(self, seed, plant=lambda door: None):
        self.dice = random.Random(seed)
        self.cupy, self.door = stub_cupy.install()
        plant(self.door)
        self.cuda = self.cupy.cuda
        stand_in.bind()
        self.pool = self.door.install(**OPTIONS)
        # The main thread, which alone has signals, and two more.
        self.threads = [ThreadPoolExecutor(1, initializer=stand_in.bind) for _ in range(2)]
        self.streams, self.arrays, self.captures = [], [], {}

    def on(self, thread, does):
        return self.threads[thread].submit(does).result() if thread < len(self.threads) else does()

    def somewhere(self, does, lone=True):
        """On some thread, or on the main one with a signal in the middle of it."""
        if lone and self.dice.random() < 0.25:
            # Early ones are in what begins, which has fewer places than what follows.
            interrupted(does, int(70 ** self.dice.random()))
        else:
            self.on(self.dice.randrange(3), does)

    def free_streams(self):
        return [s for s in self.streams if s not in self.captures]

    def step(self):
        getattr(self, self.dice.choices(*zip(*self.STEPS))[0])()

    def makes(self):
        if len(self.streams) < 6:
            self.on(self.dice.randrange(3), lambda: self.streams.append(self.cuda.Stream(non_blocking=True)))

    def ends(self):
        # One that captures too, alone: it cannot be known when what it did before is complete.
        able = [s for s in self.streams if self.captures.get(s, []) == []]
        if len(self.streams) > 2 and able:
            gone = [self.dice.choice(able)]
            self.streams.remove(gone[0])
            # One whose finalizer is cut short stays as it is for ever, and so would its capture.
            lone = self.captures.pop(gone[0], None) is None
            del able
            if self.dice.random() < 0.3:
                gone.append(gone)
                del gone
                self.somewhere(gc.collect, lone)
            else:
                self.somewhere(gone.clear, lone)

    def allocates(self):
        able = self.free_streams()
        if not able:
            return
        stream, size = self.dice.choice(able), MIB * self.dice.choice((1, 1, 2))

        def does():
            with stream:
                array = Array(self.pool.malloc(size), size)
                self.arrays.append(array)

        try:
            self.somewhere(does)
        except MemoryError:
            return
        # The next owner writes at once: behind all of the last one's uses, or it is seen.
        for array in [a for a in self.arrays if a.used is None]:
            self.uses_on(array, stream)

    def uses_on(self, array, stream):
        def does():
            with stream:
                if array.used is not None:
                    stream.wait_event(array.used)
                write(stream.ptr, array.memory.mem.ptr, array.size, self.dice.randrange(1, 200))
                array.used = self.cuda.Event()
                array.used.record(stream)

        self.on(self.dice.randrange(3), does)

    def uses(self):
        able = self.free_streams()
        if able and self.arrays:
            self.uses_on(self.dice.choice(self.arrays), self.dice.choice(able))

    def drops(self):
        if self.arrays:
            gone = [self.arrays.pop(self.dice.randrange(len(self.arrays)))]
            if self.dice.random() < 0.3:
                gone.append(gone)
                if self.dice.random() < 0.5:
                    self.collects()
            else:
                self.somewhere(gone.clear)

    def pinned(self):
        self.somewhere(lambda: self.pool.malloc_pinned(512))

    def collects(self):
        self.somewhere(gc.collect)

    def trims(self):
        self.somewhere(self.pool.free_all_blocks)

    def captures_one(self):
        able = self.free_streams()
        if len(able) > 1:
            stream = self.dice.choice(able)
            self.on(self.dice.randrange(3), stream.begin_capture)
            self.captures[stream] = []

    def abandons(self):
        """A stream ends in a capture: what it did before may be pending, and cannot be waited for."""
        able = self.free_streams()
        if len(able) > 2:
            gone = self.dice.choice(able)
            self.streams.remove(gone)
            gone.begin_capture()

    def joins(self):
        able, origins = self.free_streams(), [s for s in self.captures if self.captures[s] is not None]
        if len(able) > 1 and origins:
            origin, stream = self.dice.choice(origins), self.dice.choice(able)
            event = self.cuda.Event()
            event.record(origin)
            stream.wait_event(event)
            self.captures[origin].append(stream)
            # It is no origin, and cannot be used or end.
            self.captures[stream] = None

    def finishes(self):
        origins = [s for s in self.captures if self.captures[s] is not None]
        if origins:
            self.finish(self.dice.choice(origins))

    def finish(self, origin):
        for stream in self.captures.pop(origin):
            event = self.cuda.Event()
            event.record(stream)
            origin.wait_event(event)
            del self.captures[stream]
        if not origin.end_capture():
            raise AssertionError("a capture was lost")

    STEPS = [
        ("makes", 6),
        ("ends", 5),
        ("allocates", 20),
        ("uses", 16),
        ("drops", 16),
        ("pinned", 2),
        ("collects", 2),
        ("trims", 2),
        ("captures_one", 2),
        ("abandons", 1),
        ("joins", 2),
        ("finishes", 4),
    ]

    def is_right(self):
        if stand_in.verdict() is not None:
            raise AssertionError(stand_in.verdict())
        known = self.door._known_of(0)
        for name in known.naming(lambda names: list(names or ())):
            # Refused by the driver if there is no such stream.
            self.cuda.ExternalStream(name or 0).is_capturing()

    def run(self):
        gc.disable()
        try:
            for _ in range(STEPS):
                self.step()
                self.is_right()
            for origin in [s for s in self.captures if self.captures[s] is not None]:
                self.finish(origin)
            self.arrays.clear()
            gc.collect()
            known = self.door._known_of(0)
            left = self.pool.used_bytes(), self.pool.held_frees(), self.pool.lost_frees(), known._naming, self.door._captures()
            pinned = self.pool.allocator().stats()["pinned"]
            if any(left) or pinned and pinned["live"]:
                raise AssertionError(f"left behind: {left}, {pinned}")
            self.is_right()
        finally:
            gc.enable()
            for thread in self.threads:
                thread.shutdown()
        self.pool.allocator().close()


def _forgets(door):
    door._Known.note = lambda self, stream, pointer: None


def _stale(door):
    """The list is kept when streams became current behind it."""
    names = door._Known._names

    def listed(self):
        if not hasattr(self, "kept"):
            self.kept = names(self)
        return self.kept

    # Without those that have ended, so that the driver takes it.
    door._Known._names = lambda self: type(listed(self))(*(h for h in listed(self) if (h or 0) in self._handles)) if names(self) else None


def _ends_unwaited(door):
    door._Known._wait_for = lambda self, stream, device: None


def _lost_uncounted(door):
    door._Known.lost = property(lambda self: 0)


def _named_when_gone(door):
    end = door._Known._end

    def ends(self, stream, finish):
        handle = stream.ptr
        end(self, stream, finish)
        self._handles[handle] = None

    door._Known._end = ends


def _captured_frees_lost(door):
    again = door._Frees.again

    def drops(self):
        again(self)
        self.waiting.clear()

    door._Frees.again = drops


def _captures_unseen(door):
    door._captures = lambda: False


def _finalizer_cut_short(door):
    """An array goes to the queue by lines of Python, which a signal cuts short: under a name by which they are the package's."""
    source = """
class Owner(_Owner):
    def __init__(self, frees):
        super().__init__(frees)
        self._dropped = None
        frees.waiting.remove(self.cell)

    def __del__(self):
        self._frees.waiting.append(self.cell)
        self._frees.again()

_Owner = Owner
"""
    exec(compile(source, "millpond, planted", "exec"), vars(door))


PLANTED = [
    _forgets,
    _stale,
    _ends_unwaited,
    _lost_uncounted,
    _named_when_gone,
    _captured_frees_lost,
    _captures_unseen,
    _finalizer_cut_short,
]


class TestSearch(unittest.TestCase):
    @alone()
    def test_random_programs(self):
        one = os.environ.get("MILLPOND_SEED")
        for seed in range(CASES) if one is None else [int(one)]:
            with self.subTest(MILLPOND_SEED=seed):
                Program(seed).run()

    def finds(self, plant):
        for seed in range(100):
            try:
                Program(seed, plant).run()
            except (AssertionError, RuntimeError):
                return
        self.fail("it is not found")


def _finds(plant):
    def test(self):
        self.finds(plant)

    test.__name__ = f"test_it_finds{plant.__name__}"
    return alone()(test)


for _plant in PLANTED:
    _test = _finds(_plant)
    setattr(TestSearch, _test.__name__, _test)


if __name__ == "__main__":
    unittest.main()
