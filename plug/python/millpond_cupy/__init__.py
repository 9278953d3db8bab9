"""CuPy on millpond: `import millpond_cupy; millpond_cupy.install()`, before streams are used.

CuPy does not tell an allocator which streams use an array, but it has to make a stream current before it launches on it. So the
package watches `use` and `with` of CuPy's streams, and a freed array's bytes come back behind every stream that was ever current on
its device: no annotation is needed. `uses` says what a free waits for:

    "known"  (the default) all streams that were ever current, the null stream among them, and those that ended since
    "own"    the array's own stream, and those of `record_use`: for programs that keep to one stream, or record every other use
    "any"    everything that the array's device holds, whoever queued it: it serves again when the device was synchronized, as below

What "known" does not see: work on a stream that was never current, such as a launch by another library on an array that it
was given, or a copy with `stream=` of a stream that was never used otherwise. Call `pool.record_use(array, stream)` before the array is
dropped. No `uses` sees the work of another device's streams, as where an array is copied to that device and dropped, or pinned memory that was
made on one device is copied to another: say `record_use` behind it, of the pinned memory too. CuPy's own pool does not see it either, and a free that
waited for all streams of all devices would let each device's memory wait for the others' work. Nor does "known" see streams that other threads
made current before the pool was made, or those of `with` blocks around the innermost one that it was made in, until the thread that has it current allocates or
enters a `with` block of another stream there. The stream of an ExternalStream must
live as long as that object. Per-thread default streams cannot be named by another thread: where two threads have used theirs, or where they are
CuPy's default, every free is as with "any".

An array cannot be made on a stream that captures a graph: millpond.CapturingError. Make before the capture what the graph uses, and keep it as
long as the graph. While a stream that is known captures, freed arrays stay where they are and are freed by the next call to the
pool behind its end; `held_frees` says how many wait so. What was freed behind streams that cannot be named at the free ("any", "own"
with `record_use`, streams that ended while they could not be waited for) is held back: `report` shows it. So is an array that outlives
the stream it was made on, from when it is dropped: a stream that has ended cannot be marked. And behind a stream that
ended and could not be waited for, because it captured or the driver failed, every free is as with "any" until the device was synchronized once.

`pool.allocator().synchronize()` has all of it again: it waits for the device, which ends graph captures in progress, so call it when nothing is
being captured. No other call of the pool does that unless the program requests it: a request that does not fit, and not when Python's collector has run either, raises
out of memory and says how much is held back, and `free_all_blocks` gives back what is known to be idle. With `may_synchronize=True` these two
synchronize the device by themselves when something is held back, unless a stream that began its capture by CuPy captures. Of an ExternalStream that is gone by then the capture counts
until CuPy ends it or `synchronize()` has waited. Captures that other libraries began in this process are not
seen then, and are ended. And where a library begins a capture, or has a stream wait for an event of one, otherwise than by CuPy on a stream that a call
of the pool names just then, or any thread begins one on a stream on which another thread makes an array just then, or on a blocking stream while the legacy
default stream is in use, it may be lost. At the interpreter's exit nothing is freed: the driver takes everything.
"""

import collections
import ctypes
import gc
import itertools
import os
import sys
import threading
import weakref

try:
    import cupy
except ImportError as _why:
    raise ImportError("millpond_cupy needs CuPy, which cannot be imported: install cupy-cuda12x or its like") from _why
import millpond

_LEGACY = (0, 1)
_PER_THREAD = 2


# What the package knows stays if it is loaded again: CuPy's streams report to it by the same names.
_kept = globals().get
# Held by each thread that names streams to a free, or changes which there are. One lock for all devices: a collection inside a free of one device may
# free an array of another, on whichever thread, so that several would be taken in any order.
_naming_streams = _kept("_naming_streams") or threading.RLock()


class _Known:
    """The streams of a device that may use its arrays.

    A CuPy stream is one of them from the first time that it is current until it ends. Before it ends, a stream of our own, which
    is never destroyed, waits for it, and is named in its place. No finalizer runs on a stream that a free is about to name:
    `_naming_streams` keeps other threads' away, and the own thread's, which the collector may start anywhere, are put off until the call
    is over.
    """

    def __init__(self, device):
        self.device = device
        # The stream that waits for those that ended, once one did. It is made with the pool's memory of the device, as is an event of the device: a
        # finalizer makes nothing of the driver's, where that might fail. By device, the events that are not in use.
        self.join, self._spare, self._events = None, None, {}
        # So many streams ever ended and could not be waited for, and so many of them a wait for the device has seen to the end since.
        self._lost, self._quieted = 0, 0
        # A stream cannot be named from here, ever.
        self.nameless = False
        # By handle, the ids of the objects that have it; None of what never ends. One whose finalizer was cut short stays, and its id may be
        # another's: its handle is named once too often then, and no other one's too rarely.
        self._handles = {0: None}
        # The handles as they were, and as C has them.
        self._list = (), None
        self._thread = None
        self._naming = 0
        self._late = []

    @property
    def lost(self):
        """So many streams ended and could not be waited for, since the device was last synchronized."""
        return self._lost - self._quieted

    def note(self, stream, pointer):
        """The stream is current, or is about to be."""
        if pointer in _LEGACY or id(stream) in (self._handles.get(pointer) or ()):
            return
        with _naming_streams:
            if pointer == _PER_THREAD:
                thread = _this_thread()
                self.nameless = self.nameless or self._thread not in (None, thread)
                self._thread = thread
                self._handles[_PER_THREAD] = None
            else:
                self._handles.setdefault(pointer, {id(stream)}).add(id(stream))

    def naming(self, free):
        """Runs `free` with the streams' handles as C has them, or None if they are not enough. All are alive until it returns."""
        with _naming_streams:
            self._naming += 1
            try:
                return free(self._names())
            finally:
                self._naming -= 1
                while self._late and not self._naming:
                    self._end(*self._late.pop())

    def _names(self):
        if self.lost or self.nameless or self._thread not in (None, _this_thread()):
            return None
        # A finalizer or a signal's handler may note one, or end one, between any two lines.
        handles = tuple(self._handles)
        listed, names = self._list
        if handles != listed:
            names = (ctypes.c_void_p * len(handles))(*handles)
            self._list = handles, names
        return names

    def end(self, stream, finish):
        """A stream's finalizer: `finish` destroys it."""
        with _naming_streams:
            if self._naming:
                self._late.append((stream, finish))
            else:
                self._end(stream, finish)

    def _end(self, stream, finish):
        """In this order, so that an interrupt leaves a name too many, and never one of a stream that is gone."""
        waited = False
        try:
            self._wait_for(stream, self.device)
            waited = True
        except Exception:  # It captures, or the driver fails: it cannot be known when its work is complete.
            pass
        finally:
            if not waited:
                self._lost += 1
            objects = self._handles.get(stream.ptr) or set()
            objects.discard(id(stream))
            # Who ends a stream of CuPy's own ends it for all.
            if not objects or not _is_foreign(stream):
                self._handles.pop(stream.ptr, None)
            finish(stream)

    def prepare(self):
        """Makes what the end of a stream needs: before there is memory that may be used on one."""
        if self._spare is None:
            before = cupy.cuda.runtime.getDevice()
            try:
                cupy.cuda.runtime.setDevice(self.device)
                self._events[self.device] = collections.deque((cupy.cuda.Event(disable_timing=True),))
                self._spare = cupy.cuda.Stream(non_blocking=True)
            finally:
                cupy.cuda.runtime.setDevice(before)

    def _wait_for(self, stream, device):
        if self._spare is None:  # No pool has memory of this device that it may have used.
            return
        if stream.is_capturing():
            raise millpond.CapturingError("the stream captures a graph: its work cannot be waited for")
        before = cupy.cuda.runtime.getDevice()
        try:
            cupy.cuda.runtime.setDevice(device)
            events = self._events.setdefault(device, collections.deque())
            try:
                # No other call may take it meanwhile: the collector may end another stream between the record and the wait.
                event = events.pop()
            except IndexError:
                event = cupy.cuda.Event(disable_timing=True)
            event.record(stream)
            if stream.is_capturing():
                raise millpond.CapturingError("the stream began to capture a graph: who waits for the event becomes a part of it")
            if self.join is None:
                spare = self._spare
                self._handles[spare.ptr] = None
                self.join = spare
            self.join.wait_event(event)
            # Not one that failed: it may be a capture's.
            events.append(event)
        finally:
            cupy.cuda.runtime.setDevice(before)

    def stands_for(self, stream, device):
        """A stream of this device that waits for all that another one's holds."""
        self.prepare()
        with _naming_streams:
            self._wait_for(stream, device)
            return self.join.ptr

    def quiet(self, synchronize):
        """Waits for the device: streams that were lost before have nothing left that may use an array."""
        with _naming_streams:
            lost = self._lost
        synchronize()
        with _naming_streams:
            self._quieted = max(self._quieted, lost)

    def has(self, stream):
        """Whether it was current once."""
        objects = self._handles.get(getattr(stream, "ptr", None))
        return objects is not None and (id(stream) in objects or not _is_foreign(stream))


_known = _kept("_known", {})
_making = _kept("_making") or threading.RLock()
# By handle, the capture that was begun on it. A thread that begins one, or waits for the device, holds the lock.
_captured, _beginning = _kept("_captured", {}), _kept("_beginning") or threading.RLock()
# And of threads that are there, whose own default stream did: its handle means the calling thread's.
_own_captures = _kept("_own_captures", weakref.WeakSet())
_local = _kept("_local") or threading.local()
# A pool of this process has had an allocator; and in a child that was forked from such a process, which has no CUDA.
_begun, _child = _kept("_begun", False), _kept("_child", False)


def _forked():
    """A lock that another thread held at the fork is never released in the child: no finalizer may wait for it."""
    global _child, _making, _beginning, _naming_streams
    _child, _making = _begun, threading.RLock()
    _beginning, _naming_streams = threading.RLock(), threading.RLock()
    for known in list(_known.values()):
        known._naming = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _this_thread():
    """What stands for this thread and never for a later one."""
    try:
        return _local.thread
    except AttributeError:
        _local.thread = object()
        return _local.thread


class _OwnCaptures:
    """A thread's own default streams that began a capture and were not seen to end it, by device. They go with the thread, as captures do."""

    def __init__(self):
        self.streams = {}


def _own_captures_here():
    try:
        return _local.captures
    except AttributeError:
        _local.captures = made = _OwnCaptures()
        _own_captures.add(made)
        return made


def _device_of(stream):
    return cupy.cuda.runtime.getDevice() if stream.device_id < 0 else stream.device_id


def _is_in_capture(stream):
    """One that was invalidated, of which CuPy raises, is a capture until it is ended."""
    try:
        return stream.is_capturing()
    except Exception:
        return True


def _captures():
    """Whether a stream captures that began its capture by CuPy. Another thread's own stream cannot be queried: it counts as capturing until it is
    seen to end."""
    here = _own_captures_here()
    if any(own.streams for own in list(_own_captures) if own is not here):
        return True
    device = cupy.cuda.runtime.getDevice()
    if device in here.streams and not _is_in_capture(here.streams[device]):
        del here.streams[device]
    for capture in list(_captured.values()):
        if not capture.goes_on():
            capture.over()
    return bool(here.streams or _captured)


def _is_foreign(stream):
    """Whether the object's end is not the stream's."""
    return isinstance(stream, getattr(cupy.cuda, "ExternalStream", ())) or getattr(stream, "_foreign_stream_ref", None) is not None


class _Capture:
    """Of a stream for as long as its object is there. One of an external stream may go on behind the object's end, when the stream cannot be queried: its
    owner may have destroyed it. So what went on then does so until it is seen to end, or the device was waited for."""

    def __init__(self, stream):
        self.handle, self.device, self.foreign = stream.ptr, _device_of(stream), _is_foreign(stream)
        self.stream = weakref.ref(stream, self._left)

    def goes_on(self):
        stream = self.stream()
        return self.foreign if stream is None else _is_in_capture(stream)

    def over(self):
        # The handle may be another one's by now.
        if _captured.get(self.handle) is self:
            _captured.pop(self.handle, None)

    def _left(self, _gone, _exiting=sys.is_finalizing):
        """The object goes, and the stream is there until it has."""
        if _exiting() or _child:
            return
        goes_on = False
        if self.foreign and _captured.get(self.handle) is self:
            try:
                goes_on = cupy.cuda.runtime.streamIsCapturing(self.handle)
            except Exception:  # It was invalidated, and is not ended.
                goes_on = True
        if not goes_on:
            self.over()


def _known_of(device):
    return _known.get(device) or _known.setdefault(device, _Known(device))


def _note(stream, device=None):
    pointer = stream.ptr
    if pointer not in _LEGACY:
        _known_of(_device_of(stream) if device is None else device).note(stream, pointer)


def _hook(holder, name, made):
    """Puts `made(what is there)` in place of a method, once."""
    there = getattr(holder, name, None)
    hooked_by = getattr(there, "_millpond", None)
    if hooked_by is None:
        hooked = made(there)
        hooked._millpond = _known
        hooked.__name__, hooked.__doc__ = name, getattr(there, "__doc__", None)
        setattr(holder, name, hooked)
    elif hooked_by is not _known:
        raise RuntimeError("millpond_cupy was imported twice in this process, and only the first one hooks CuPy's streams: use that one, or restart the process")


def _current(there):
    def hooked(self, *arguments, **named):
        _note(self)
        return there(self, *arguments, **named)

    return hooked


def _entered(there):
    def hooked(self):
        # What was current is so again behind the block, and may have been since before there was a pool. Not by a hook of __exit__, which an
        # interrupt could cut short before it leaves the block.
        device = _device_of(self)
        _note(cupy.cuda.get_current_stream(device), device)
        _note(self)
        # By the loop's own step: behind a call an interrupt would leave the block entered, with no code to leave it.
        for entered in map(there, (self,)):
            return entered

    return hooked


def _begin(there):
    def hooked(self, *arguments, **named):
        # No free on another thread names the stream meanwhile: querying its id would end its capture.
        with _beginning, _naming_streams:
            # Before it begins: an interrupt may come right behind.
            if self.ptr == _PER_THREAD:
                _own_captures_here().streams[_device_of(self)] = self
            else:
                _captured[self.ptr] = _Capture(self)
            begun = False
            try:
                result = there(self, *arguments, **named)
                begun = True
                return result
            finally:
                if not begun:
                    _may_be_over(self, _captured.get(self.ptr))

    return hooked


def _finish(there):
    def hooked(self, *arguments, **named):
        capture, refused = _captured.get(self.ptr), True
        try:
            result = there(self, *arguments, **named)
            refused = False
            return result
        finally:
            if refused:
                # One that another thread began goes on, and one that failed is over.
                _may_be_over(self, capture)
            else:
                _over(self, capture)

    return hooked


def _may_be_over(stream, capture):
    if not _is_in_capture(stream):
        _over(stream, capture)


def _over(stream, capture):
    if stream.ptr == _PER_THREAD:
        _own_captures_here().streams.pop(_device_of(stream), None)
    elif capture is not None:
        capture.over()


def _joins(there):
    def hooked(self, *arguments, **named):
        # The event may be a capture's, which the stream is drawn into: as where one begins.
        with _naming_streams:
            return there(self, *arguments, **named)

    return hooked


def _watch_captures():
    """Whether CuPy's captures can be seen from now on."""
    try:
        for kind in filter(None, (cupy.cuda.Stream, getattr(cupy.cuda, "ExternalStream", None))):
            for name, made in (("begin_capture", _begin), ("wait_event", _joins), ("end_capture", _finish)):
                _hook(next(c for c in kind.__mro__ if name in vars(c)), name, made)
    except (AttributeError, StopIteration, TypeError):
        return False
    return True


def _ending(there, _exiting=sys.is_finalizing):
    finish = there or (lambda stream: None)

    def hooked(self):
        known = None
        if not _exiting() and not _child:
            known = next((k for k in list(_known.values()) if k.has(self)), None)
        if known is None:
            finish(self)
        else:
            known.end(self, finish)

    return hooked


def _watch():
    """Hooks CuPy's streams."""
    try:
        for kind in filter(None, (cupy.cuda.Stream, getattr(cupy.cuda, "ExternalStream", None))):
            for name, made in (("use", _current), ("__enter__", _entered)):
                # Where it is defined, so that other subclasses have it too.
                _hook(next(c for c in kind.__mro__ if name in vars(c)), name, made)
            _hook(kind, "__del__", _ending)
    except (AttributeError, StopIteration, TypeError) as why:
        raise RuntimeError(f"the streams of this CuPy cannot be watched ({why}): say uses='any', or 'own'") from why


def _default_is_per_thread():
    """What is current on a thread that has chosen nothing."""
    found = []

    def ask():
        try:
            found.append(cupy.cuda.get_current_stream().ptr)
        except Exception:  # No device: the next call that needs one raises.
            pass

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return found == [_PER_THREAD]


class _Owner:
    """Ends an allocation when CuPy has forgotten it. It is made before: the library writes the address into `cell`."""

    __slots__ = ("_dropped", "_frees", "cell")

    def __init__(self, frees):
        self._frees = frees
        self.cell = ctypes.c_void_p()
        self._dropped = millpond._Dropped(frees.waiting.append, self.cell)

    def __del__(self, _exiting=sys.is_finalizing):
        # An interrupt may cut this short where it begins: it waits to be freed all the same, by the next call.
        if not _exiting() and not _child:
            try:
                self._dropped = None
                self._frees.again()
            except Exception:  # What waits does so still, and a finalizer cannot raise.
                pass


class _Pinned(_Owner):
    """Pinned memory as CuPy's pointers hold it. Which copies use it is not reported, so it is reused behind all that may."""

    __slots__ = ("size",)

    def __init__(self, frees, size):
        super().__init__(frees)
        self.size = size

    @property
    def ptr(self):
        return self.cell.value or 0

    @property
    def allocator(self):
        return self._frees.allocator

    def __int__(self):
        return self.ptr


class _Allocator(millpond.Allocator):
    """A pool's, of a device whose streams may be watched."""

    def __init__(self, device, known, **options):
        global _begun
        _begun = True
        self.device, self._known = device, known
        super().__init__(device, **options)

    def synchronize(self):
        # One that has ended may owe nothing, and not wait.
        if not self._made:
            super().synchronize()
            return
        left = [c for c in list(_captured.values()) if c.device == self.device and c.stream() is None]
        if self._known is None:
            super().synchronize()
        else:
            self._known.quiet(super().synchronize)
        # No capture is left behind a wait for the device.
        for capture in left:
            capture.over()

    synchronize.__doc__ = millpond.Allocator.synchronize.__doc__


_CAPTURING = next(code for code, error in millpond._ERRORS.items() if error is millpond.CapturingError)
# Of pools without references, what waits for the ends of captures.
_left = _kept("_left", {})


class _Frees:
    """Arrays, or pinned buffers, of a pool without references: `after` frees one behind streams that are named, `plain` as it is.

    Signals interrupt only where something is called. So one is taken, and what the library answers is kept, by the call that does it:
    nothing that was not freed is forgotten, and nothing is freed twice.
    """

    def __init__(self, allocator, plain, known, after):
        self.allocator, self.plain, self.known, self.after = allocator, plain, known, after
        # The cells that have the addresses.
        self.waiting = collections.deque()
        # So many were refused in finalizers, which cannot raise.
        self.lost = 0
        self._declared = None

    def __del__(self, _exiting=sys.is_finalizing):
        if self.waiting and not _exiting():
            _left[self] = True

    def again(self):
        """Frees what waits, as far as no stream captures whose capture would end by it."""
        taken = codes = ()
        try:
            while self.waiting:
                taken, codes = [], []
                try:
                    taken += map(collections.deque.popleft, (self.waiting,))
                except IndexError:  # Another thread was here.
                    return
                self._free(taken[0], codes)
                if codes[-1] == _CAPTURING:
                    return
                self.lost += 0 not in codes
                taken = ()
        finally:
            if taken and 0 not in codes:
                self.waiting.appendleft(taken[0])

    def _free(self, cell, codes):
        if not cell:  # It was never had.
            codes.append(0)
        elif self.known is None:
            self._plainly(cell, codes)
        else:
            self.known.naming(lambda names: self._behind(cell, names, codes))

    def _behind(self, cell, names, codes):
        if names is not None:
            refused = self._declare()
            if refused:
                codes.append(refused)
            else:
                self.after(self.allocator._number, cell, names, codes)
            if codes[-1] in (0, _CAPTURING):
                return
        # A stream that cannot be named: destroyed by other code, another device's; or the allocator has ended.
        self._plainly(cell, codes)

    def _plainly(self, cell, codes):
        codes += itertools.starmap(self.plain, ((self.allocator._number, cell),))

    def _declare(self):
        """The stream that stands for those that ended is never destroyed."""
        join = self.known.join
        if join is self._declared:
            return 0
        code = millpond._lib.millpond_declare_permanent(self.allocator._number, join.ptr)
        if not code:
            self._declared = join
        return code


def _array_after(number, cell, names, codes):
    codes += itertools.starmap(millpond._lib.millpond_free_after, ((number, cell, names, len(names)),))


def _pinned_after(number, cell, names, codes):
    for handle in names:
        code = millpond._lib.millpond_record_pinned_use(number, cell, handle)
        if code:
            codes.append(code)
            return
    codes += itertools.starmap(millpond._lib.millpond_free_pinned, ((number, cell),))


class _Device:
    """A pool's memory of a device."""

    def __init__(self, allocator, uses, known):
        self.allocator = allocator
        lib = millpond._lib
        self.arrays = _Frees(allocator, lib.millpond_free if uses == "own" else lib.millpond_free_unknown, known, _array_after)
        self.pinned = _Frees(allocator, lib.millpond_free_pinned_unknown, known, _pinned_after)

    def again(self):
        """Frees what waits, of pools that are gone too."""
        for frees in (self.arrays, self.pinned, *_left):
            if frees.waiting:
                frees.again()
            if frees in _left and not frees.waiting:
                _left.pop(frees, None)

    def held_back(self, *kinds):
        """Bytes that only a wait for the device can show to be idle: of the device ("total"), pinned ("pinned")."""
        stats = self.allocator.stats()
        return sum(stats[kind]["held_back"] for kind in kinds if stats[kind])

    def synchronize(self, *kinds):
        """Whether memory that was held back serves again: waits for the device, unless a stream of CuPy's captures. Not for a finalizer that the
        collector runs inside a free: who begins a capture waits for that free, and has what this would wait for."""
        if _naming_streams._is_owned() or not self.held_back(*kinds):
            return False
        with _beginning:
            if _captures():
                return False
            try:
                self.allocator.synchronize()
            except millpond.CapturingError:  # Another library's capture, or one of a thread that has ended.
                return False
        return True


class MemoryPool:
    """Shaped as cupy.cuda.MemoryPool, for every device: an allocator each, made at the first request.

    With `may_synchronize` a request that would be out of memory, and `free_all_blocks`, synchronize the device when memory is held back. That ends
    graph captures that other libraries began; without it nothing here ends one, but `allocator().synchronize()` and its end."""

    def __init__(self, uses="known", *, may_synchronize=False, **options):
        if uses not in ("known", "any", "own"):
            raise ValueError(
                f"uses is {uses!r}; it may be 'known' (streams that were current), 'any' (whoever used it) or 'own' (its own stream, and recorded uses)"
            )
        if not isinstance(may_synchronize, bool):
            raise TypeError(f"may_synchronize is {may_synchronize!r}: it must be True or False")
        millpond._words(options)
        self._uses = uses
        self._may_synchronize = may_synchronize
        self._watched = uses == "known"
        self._options = options
        self._devices = {}
        if not _watch_captures() and may_synchronize:
            raise RuntimeError("the captures of this CuPy cannot be watched, and a wait for the device would end them: leave may_synchronize out")
        # What a launch is on while the null stream is current.
        self._null = _PER_THREAD if _default_is_per_thread() else 0
        if self._watched:
            _watch()
            for device in range(cupy.cuda.runtime.getDeviceCount()):
                _note(cupy.cuda.get_current_stream(device), device)

    def _of(self, device):
        found = self._devices.get(device)
        if found is None:
            with _making:
                found = self._devices.get(device)
                if found is None:
                    known = _known_of(device) if self._watched else None
                    if known and self._null:
                        known.nameless = True
                    made = _Allocator(device, known, **self._options)
                    if known:
                        known.prepare()
                    found = self._devices[device] = _Device(made, self._uses, known)
        return found

    def _here(self, device=None):
        found = self._of(cupy.cuda.runtime.getDevice() if device is None else device)
        found.again()
        return found

    def allocator(self, device=None):
        """millpond's own view of a device's allocator: a number, "cuda:0" or a cupy.cuda.Device. Its `synchronize()` has again what is
        held back, for which it waits for the device and ends graph captures; its `close()` and `destroy()` end it, and no capture."""
        return self._here(cupy.cuda.runtime.getDevice() if device is None else millpond._device(device)).allocator

    def malloc(self, size):
        """A cupy.cuda.MemoryPointer, for the current stream of the current device."""
        here = self._here()
        allocator = here.allocator
        device = cupy.cuda.runtime.getDevice()
        size = millpond._bytes(size)
        stream = cupy.cuda.get_current_stream()
        if self._watched:
            _note(stream)
        owner = _Owner(here.arrays)
        try:
            self._again(here, "total", lambda: allocator._alloc(size, stream.ptr or self._null, owner.cell))
        except millpond.OutOfMemoryError as why:
            stats = allocator.stats()
            refused = cupy.cuda.memory.OutOfMemoryError(size, stats["reserved"], stats.get("limit") or 0)
            raise self._with_advice(refused, here, "total") from why
        if not owner.cell:
            return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(0, 0, None, device), 0)
        return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(owner.cell.value, size, owner, device), 0)

    def _again(self, here, kind, request):
        """A request that is out of memory is made once more when the collector has run, as CuPy's own pool does it, and with `may_synchronize` once
        more if something was held back."""
        try:
            return request()
        except millpond.OutOfMemoryError:
            # Other finalizers on other threads may wait for the lock.
            if _naming_streams._is_owned():
                raise
        gc.collect()
        try:
            return request()
        except millpond.OutOfMemoryError:
            if not self._may_synchronize or not here.synchronize(kind):
                raise
        request()

    def _with_advice(self, refused, here, kind):
        """The error, which says how much is held back and what releases it."""
        held = here.held_back(kind)
        if held:
            by_itself = "" if self._may_synchronize else ", and install(may_synchronize=True) has it done on such a request"
            refused.args = (
                f"{refused} {held:,} bytes are held back, because it cannot be known when their last use is complete: pool.allocator().synchronize() "
                f"releases them. It waits for the device and ends graph captures in progress: call it while nothing is being captured{by_itself}.",
            )
        return refused

    def malloc_pinned(self, size):
        """A cupy.cuda.PinnedMemoryPointer: its memory serves again when what may use it at its end is complete, as `uses` says
        it; with "own" as with "any"."""
        here = self._here()
        size = millpond._bytes(size)
        owner = _Pinned(here.pinned, size)
        try:
            self._again(here, "pinned", lambda: here.allocator._alloc_pinned(size, owner.cell))
        except millpond.OutOfMemoryError as why:
            self._with_advice(why, here, "pinned")
            raise
        return cupy.cuda.PinnedMemoryPointer(owner, 0)

    def held_frees(self):
        """How many freed arrays and pinned buffers of the current device wait for the end of a capture."""
        here = self._of(cupy.cuda.runtime.getDevice())
        return len(here.arrays.waiting) + len(here.pinned.waiting)

    def lost_frees(self):
        """How many frees of arrays and pinned buffers of the current device were refused: freed by hand before, or the driver failed."""
        here = self._here()
        return here.arrays.lost + here.pinned.lost

    def record_use(self, array, stream=None):
        """Work on the stream (the current one) uses the array, or the pinned memory as malloc_pinned gives it, whose bytes come back behind
        that. If the stream is another device's, behind what it holds by now: say it after the work is queued."""
        stream = cupy.cuda.get_current_stream() if stream is None else stream
        memory = getattr(array, "mem", None)
        if hasattr(memory, "_frees"):
            allocator = memory.allocator
            use = allocator.record_pinned_use
        else:
            memory = (array if array.base is None else array.base).data.mem
            allocator = self.allocator(array.device.id)
            use = allocator.record_use
        handle, device = stream.ptr or self._null, _device_of(stream)
        if device != allocator.device:
            handle = _known_of(allocator.device).stands_for(stream, device)
            allocator.declare_permanent(handle)
        # No capture begins meanwhile: querying the stream's id would end it.
        with _naming_streams:
            use(memory.ptr, handle)

    def used_bytes(self):
        """Bytes of live arrays on the current device, rounded."""
        return self.allocator().stats()["total"]["allocated"]

    def total_bytes(self):
        """Bytes taken from the current device."""
        return self.allocator().stats()["reserved"]

    def free_bytes(self):
        """Bytes taken and not used: cached, or freed and still in flight."""
        return self.total_bytes() - self.used_bytes()

    def n_free_blocks(self):
        """Free chunks, and ranges in flight, which will be."""
        total = self.allocator().stats()["total"]
        return total["free_chunks"] + total["in_flight_ranges"]

    def free_all_blocks(self, stream=None):
        """Gives memory of the current device back that is known to be idle, and ends no capture. What is held back stays, until
        `allocator().synchronize()`; with `may_synchronize` the device is synchronized for it first, unless a stream of CuPy's captures. The
        stream is for CuPy's sake: one stream's part cannot be distinguished."""
        here = self._here()
        if self._may_synchronize:
            here.synchronize("total", "pinned")
        here.allocator.trim()

    def free_all_free(self):
        """As free_all_blocks."""
        self.free_all_blocks()

    def set_limit(self, size=None, fraction=None):
        """How much may be taken of the current device: `size` in bytes, or `fraction` as a share. 0 is no limit, as with CuPy."""
        if size is not None and fraction is not None:
            raise ValueError("size and fraction cannot both be given")
        if fraction is not None:
            if not 0 <= fraction <= 1:
                raise ValueError(f"a fraction of {fraction}: it lies between 0 and 1")
            size = float(fraction) or None
        elif size is not None:
            size = millpond._whole(size, "the limit")
        self.allocator().set_limit(size or None)

    def get_limit(self):
        """The limit of the current device in bytes; 0 for none."""
        return self.allocator().stats().get("limit") or 0

    def report(self):
        """What the current device's pools hold, for people."""
        lost = self.lost_frees()
        return self.allocator().report() + (f"\nrefused frees: {lost}, whose memory stays as it is\n" if lost else "")


def install(uses="known", pinned=True, *, may_synchronize=False, **options):
    """Makes millpond CuPy's allocator, of pinned memory too if wanted, with the options of millpond.Allocator. Returns the pool.
    What is wrong with the arguments or the device is raised before CuPy is touched. With `may_synchronize` a request that would be out of
    memory, and `free_all_blocks`, synchronize the device when memory is held back, which ends captures that other libraries began."""
    try:
        devices = cupy.cuda.runtime.getDeviceCount()
    except Exception as why:
        raise millpond.NoDeviceError(f"CuPy sees no device: {why}") from why
    if not devices:
        raise millpond.NoDeviceError("CuPy sees no device")
    pool = MemoryPool(uses, may_synchronize=may_synchronize, **options)
    pool.allocator()
    cupy.cuda.set_allocator(pool.malloc)
    if pinned:
        cupy.cuda.set_pinned_memory_allocator(pool.malloc_pinned)
    return pool
