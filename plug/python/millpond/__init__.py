"""millpond: a stream-ordered caching GPU memory allocator.

This module holds an allocator by its C interface: `Allocator(device, limit="40%")` makes one, `millpond_torch.install()` and
`millpond_cupy.install()` give one to PyTorch and to CuPy. Sizes are bytes, streams are CUDA handles as numbers (0 is the
legacy default stream), pointers are addresses on the device. Nothing here waits for the device unless it says so.

Arguments are checked before the library is called: what is no whole number is a TypeError, a negative one a ValueError, one
that does not fit a machine word an OverflowError.

At the end of the process nothing is freed or waited for: the driver takes everything back, work pending or not. In a process that
was forked from one with an allocator every call raises ForkedError and touches nothing of the parent's: workers that need a
GPU are started by "spawn" or "forkserver".
"""

import ctypes
import functools
import glob
import itertools
import json
import numbers
import operator
import os
import sys

__all__ = [
    "Allocator",
    "BadArgumentError",
    "CapturingError",
    "DriverError",
    "Error",
    "ForkedError",
    "NoDeviceError",
    "OutOfMemoryError",
    "UnknownAllocatorError",
    "UnknownPointerError",
    "WrongAllocatorError",
    "__version__",
    "library_path",
    "version",
]


class Error(RuntimeError):
    """What went wrong, in words: what was requested, what was found, what to do."""


class OutOfMemoryError(Error, MemoryError):
    """Out of memory; the words end with what the pools hold. A request for more than one allocation can ever hold too, and the words have the most."""


class UnknownPointerError(Error, ValueError):
    """No live allocation begins at the pointer: freed, never ours, or inside one."""


class WrongAllocatorError(Error, ValueError):
    """The allocation, or the stream, is another allocator's or on another device."""


class BadArgumentError(Error, ValueError):
    """An option that is none, one allocator too many, or a stream that was declared permanent and is gone."""


class UnknownAllocatorError(Error):
    """The allocator was destroyed."""


class CapturingError(Error):
    """The stream captures a graph."""


class NoDeviceError(Error):
    """No driver, too old a driver, or no such device."""


class DriverError(Error):
    """The driver failed."""


class ForkedError(Error):
    """This process was forked from one that had an allocator: CUDA does not work here."""


_ERRORS = {
    1: OutOfMemoryError,
    2: UnknownPointerError,
    3: WrongAllocatorError,
    4: BadArgumentError,
    5: UnknownAllocatorError,
    6: CapturingError,
    7: NoDeviceError,
    8: DriverError,
    9: Error,
    10: ForkedError,
}


def library_path():
    """Where the C library is that was opened at the import: named by MILLPOND_LIBRARY then, or in this package."""
    return _path


def _find():
    named = os.environ.get("MILLPOND_LIBRARY")
    if named:
        return named
    here = os.path.dirname(os.path.abspath(__file__))
    found = glob.glob(os.path.join(here, "_library*.so")) + glob.glob(os.path.join(here, "libmillpond*.so"))
    if not found:
        raise ImportError(
            f"millpond's C library is not in the package at {here}: install the package with pip, or name the library by MILLPOND_LIBRARY"
        )
    return found[0]


def _not_loaded(path, why):
    if os.environ.get("MILLPOND_LIBRARY"):
        advice = "MILLPOND_LIBRARY names it: let that be the path of libmillpond.so as plug/build makes it, or unset it to use the package's own"
    else:
        advice = "install the package anew with pip"
    return ImportError(f"millpond's C library at {path} cannot be used: {why}. {advice}", path=path)


def _open():
    """The library, and where it is, whatever becomes of the variable and of the working directory."""
    path = _find()
    # A name alone is the loader's to find.
    path = os.path.abspath(path) if os.sep in path else path
    try:
        return _declared(ctypes.CDLL(path)), path
    except OSError as why:
        raise _not_loaded(path, why) from why
    except AttributeError as why:
        raise _not_loaded(path, f"it is no library of millpond's, or not of this version ({why})") from why


def _declared(lib):
    number, pointer, size = ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t
    out = ctypes.POINTER
    signatures = {
        "millpond_create": [ctypes.c_int, ctypes.c_char_p, out(number)],
        "millpond_destroy": [number],
        "millpond_release": [number],
        "millpond_alloc": [number, size, pointer, out(pointer)],
        "millpond_free": [number, pointer],
        "millpond_free_on": [number, pointer, pointer],
        "millpond_free_unknown": [number, pointer],
        "millpond_free_after": [number, pointer, pointer, size],
        "millpond_record_use": [number, pointer, pointer],
        "millpond_declare_permanent": [number, pointer],
        "millpond_alloc_pinned": [number, size, out(pointer)],
        "millpond_free_pinned": [number, pointer],
        "millpond_free_pinned_unknown": [number, pointer],
        "millpond_record_pinned_use": [number, pointer, pointer],
        "millpond_find": [number, pointer, out(pointer), out(size)],
        "millpond_trim": [number, out(size)],
        "millpond_set_limit": [number, ctypes.c_char_p],
        "millpond_synchronize": [number],
        "millpond_reset_peaks": [number],
        "millpond_stats_json": [number, ctypes.c_char_p, size, out(size)],
        "millpond_report": [number, ctypes.c_char_p, size, out(size)],
        "millpond_torch_allocator": [ctypes.c_int, ctypes.c_char_p, out(number)],
    }
    for name, arguments in signatures.items():
        function = getattr(lib, name)
        function.argtypes, function.restype = arguments, ctypes.c_int
    for name in ("millpond_last_error", "millpond_version"):
        getattr(lib, name).argtypes, getattr(lib, name).restype = [], ctypes.c_char_p
    lib.millpond_torch_untold.argtypes, lib.millpond_torch_untold.restype = [], ctypes.c_uint64
    return lib


_lib, _path = _open()


def version():
    """The library's version."""
    return _lib.millpond_version().decode()


__version__ = version()


def _must(function, *arguments):
    """Calls the library, and raises what it refuses. The loop's own step calls it, behind which no signal's handler and no finalizer comes that
    might call for something else, and be refused: so the words are this call's."""
    for code in itertools.starmap(function, (arguments,)):
        if code:
            words = _lib.millpond_last_error()
            raise _ERRORS.get(code, Error)(words.decode(errors="replace"))


_WORD = (1 << 8 * ctypes.sizeof(ctypes.c_size_t)) - 1
_INT = (1 << 8 * ctypes.sizeof(ctypes.c_int) - 1) - 1


def _whole(value, what, most=_WORD):
    """A whole number from 0 to `most`: ctypes would take any, and cut it off."""
    if type(value) is not int:
        if isinstance(value, bool):
            raise TypeError(f"{what} is {value}: it must be a whole number, not a truth value")
        try:
            value = operator.index(value)
        except TypeError:
            raise TypeError(f"{what} is of type {type(value).__name__}: it must be a whole number") from None
    if value < 0:
        raise ValueError(f"{what} is {value}: it cannot be negative")
    if value > most:
        raise OverflowError(f"{what} is {value}: it can be {most} at most")
    return value


def _bytes(value):
    return _whole(value, "the size in bytes")


def _pointer(value):
    """An address; None and a ctypes.c_void_p are what ctypes itself has for one."""
    if isinstance(value, ctypes.c_void_p):
        value = value.value
    return 0 if value is None else _whole(value, "the pointer")


def _stream(value):
    if isinstance(value, ctypes.c_void_p):
        return value.value or 0
    try:
        return _whole(value, "the stream")
    except TypeError:
        raise TypeError(
            f"the stream is of type {type(value).__name__}: it must be a CUDA handle as a whole number, as stream.ptr of CuPy, "
            "stream.cuda_stream of PyTorch, or 0 for the legacy default stream"
        ) from None


def _device(value):
    """A device's number: 1, "cuda:1", or an object that PyTorch or CuPy has for it."""
    if not isinstance(value, str) and hasattr(value, "type") and hasattr(value, "index"):
        value = str(value)
    if isinstance(value, str):
        kind, _, number = value.partition(":")
        if kind != "cuda" or not (number.isascii() and number.isdigit()):
            raise ValueError(f'the device is {value!r}: it must be a number from 0 on, or as "cuda:0"')
        value = int(number)
    elif not hasattr(value, "__index__"):
        value = getattr(value, "id", value)
    return _whole(value, "the device", _INT)


def _limit(value, what="the limit"):
    """A limit in the library's words."""
    if value is None:
        return "none"
    if isinstance(value, str):
        return value
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral):
        if not 0 <= value <= 1:
            raise ValueError(f"{what} is {value}: a share lies between 0 and 1; bytes are whole numbers")
        return f"{float(value) * 100:.10f}%"
    return str(_whole(value, what))


def _words(options):
    said = []
    for name, value in options.items():
        if value is None:
            continue
        if name.endswith("limit") or name in ("slack", "move_time"):
            value = _limit(value, name)
        elif isinstance(value, bool):
            if name not in ("deterministic", "scrub"):
                raise TypeError(f"{name} is {value}: it is no switch")
            value = int(value)
        elif not isinstance(value, str):
            value = _whole(value, name)
        text = str(value)
        if "," in text or "\0" in text:
            raise ValueError(f"{name} is {text!r}: an option has neither commas nor zero bytes")
        said.append(f"{name}={text}")
    return ",".join(said).encode()


class _Dropped(functools.partial):
    """Calls its function when its last reference goes: by the interpreter's own code alone, which no signal interrupts."""

    __del__ = functools.partial.__call__


# The numbers of allocators without references: an interrupt may have cut the finalizer short that ends one.
_dropped = []


def _end_dropped():
    try:
        while True:
            number = _dropped.pop()
            if number:
                _lib.millpond_release(number)
    except IndexError:  # There is none, or none any more.
        pass


class Allocator:
    """An allocator on a device: its number, or "cuda:0".

    Options: limit, soft_limit, low_watermark, high_watermark and pinned_limit (bytes, "6GiB", "40%", a share as a float; of pinned memory a share of the host's, by default half), policy ("latency", "footprint"), reuse
    ("never", "ordered", "known", "waits"), growth ("rounded", "exact"), deterministic, scrub, virtual ("auto", "never", "always"), for the policy "footprint" with
    virtual memory slack and move_time (a share), handle (bytes), moves (a number, or "none") and move_credit_ms; export ("none", "fd", "fabric"), rdma, one_handle (bytes, or "none"); wait_ms, staging_threads (of copies of slices, which Rust programs make), captures
    ("expected", "none": graphs are captured only on streams that were declared permanent). Options that are not given come from the
    environment (MILLPOND_LIMIT and so on). A process can have 4096 at one time, ended ones whose memory is not all freed among them, and the next
    one is a BadArgumentError: make one a device and keep it, not one a task.

    It ends by `close()`, at the end of a `with` block, or when its last reference goes; not at the interpreter's exit. The
    first two wait for all that is queued on the device, and give back what is
    not in use. The last is a `release()`, because it comes at any moment: it waits for no stream. None of them ends a graph capture. What
    is complete goes back to the device; the rest goes back at the next create, trim, synchronize or end of any allocator, and what is held
    back at the next synchronize or destroy of one of the same device. Memory that is alive at an end stays valid and is its allocator's:
    the frees still take it, wait for nothing, and leave it to those later calls; `trim` and `synchronize` of the ended one are among
    them. So hold an allocator as long as its memory.

    `synchronize` ends captures of streams that were not declared permanent; no other call ends one, but where another thread begins one on a stream that the call names just then, or on a blocking stream
    while the legacy default stream is in use, it may be lost.
    """

    _number = 0
    # Where the library writes the number: who is interrupted on the way back from there has it still. None if it is not this object's to end.
    _made = None

    def __init__(self, device=0, **options):
        device, options = _device(device), _words(options)
        _end_dropped()
        self._made = number = ctypes.c_uint32()
        self._last = _Dropped(_dropped.append, number)
        _must(_lib.millpond_create, device, options, ctypes.byref(number))
        self._number = number.value

    def close(self):
        """As destroy, and nothing if it was done: waits for the device, and ends no capture. An
        allocator that PyTorch uses is let go, and not ended."""
        if self._made:
            try:
                self.destroy()
            except UnknownAllocatorError:
                self._made = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.close()
        except ForkedError:  # The parent's, and it ends there. A child leaves the block by whatever it leaves it.
            self._made = None

    def __del__(self, _ending=sys.is_finalizing):
        """As release: a graph capture may be in progress."""
        if self._made and not _ending():
            try:
                self._number = self._made.value
                self.release()
            except Exception:  # A finalizer cannot raise.
                pass

    def __reduce__(self):
        raise TypeError("a millpond.Allocator is this process's own: it cannot be copied or pickled; make one in each process")

    @classmethod
    def _named(cls, number):
        self = cls.__new__(cls)
        self._number = number
        return self

    def alloc(self, size, stream=0):
        """The address of so many bytes, for work queued on the stream from now on; 0 for none. Refused while the stream captures a graph: allocate
        before what the graph uses, and keep it as long as the graph."""
        pointer = ctypes.c_void_p()
        self._alloc(_bytes(size), _stream(stream), pointer)
        return pointer.value or 0

    def _alloc(self, size, stream, pointer):
        _must(_lib.millpond_alloc, self._number, size, stream, ctypes.byref(pointer))

    def free(self, pointer):
        """Gives an allocation back, in the order of its own stream and of all recorded uses."""
        _must(_lib.millpond_free, self._number, _pointer(pointer))

    def free_on(self, pointer, stream):
        """As free, and behind what the stream holds."""
        _must(_lib.millpond_free_on, self._number, _pointer(pointer), _stream(stream))

    def free_unknown(self, pointer):
        """As free, and behind everything that any stream of the device holds."""
        _must(_lib.millpond_free_unknown, self._number, _pointer(pointer))

    def free_after(self, pointer, streams):
        """As free, and behind what each of the streams holds: when it is known who may have used it, but not who did. All of
        them are alive. Frees nothing if one of them captures a graph."""
        handles = [_stream(s) for s in streams]
        _must(_lib.millpond_free_after, self._number, _pointer(pointer), (ctypes.c_void_p * len(handles))(*handles), len(handles))

    def record_use(self, pointer, stream):
        """Work on the stream, queued by now or before the free, uses the allocation. None and 0 are nothing."""
        _must(_lib.millpond_record_use, self._number, _pointer(pointer), _stream(stream))

    def alloc_pinned(self, size):
        """The address of pinned host memory; 0 for no bytes."""
        pointer = ctypes.c_void_p()
        self._alloc_pinned(_bytes(size), pointer)
        return pointer.value or 0

    def _alloc_pinned(self, size, pointer):
        _must(_lib.millpond_alloc_pinned, self._number, size, ctypes.byref(pointer))

    def free_pinned(self, pointer):
        """Frees pinned memory: it is handed out again when every recorded use is complete."""
        _must(_lib.millpond_free_pinned, self._number, _pointer(pointer))

    def free_pinned_unknown(self, pointer):
        """As free_pinned, and when everything that any stream of the device holds is complete."""
        _must(_lib.millpond_free_pinned_unknown, self._number, _pointer(pointer))

    def record_pinned_use(self, pointer, stream):
        """A copy on the stream, queued by now or before the free, uses the pinned memory. None and 0 are nothing."""
        _must(_lib.millpond_record_pinned_use, self._number, _pointer(pointer), _stream(stream))

    def declare_permanent(self, stream):
        """The stream is never destroyed while the process lives: no call queries its id."""
        _must(_lib.millpond_declare_permanent, self._number, _stream(stream))

    def find(self, pointer):
        """The live allocation that an address lies in: where it begins, and its length. Slow."""
        begin, size = ctypes.c_void_p(), ctypes.c_size_t()
        _must(_lib.millpond_find, self._number, _pointer(pointer), ctypes.byref(begin), ctypes.byref(size))
        return begin.value, size.value

    def trim(self):
        """Gives idle memory back to the device: how many bytes. May wait for the device. Of an allocator that has ended, what was freed
        since, as far as it is complete."""
        freed = ctypes.c_size_t()
        _must(_lib.millpond_trim, self._number, ctypes.byref(freed))
        return freed.value

    def set_limit(self, limit):
        """How much may be taken: bytes, "6GiB", "40%", a share as a float, None for no limit."""
        words = _limit(limit)
        if "\0" in words:
            raise ValueError(f"the limit is {words!r}: it has no zero bytes")
        _must(_lib.millpond_set_limit, self._number, words.encode())

    def synchronize(self):
        """Waits for the device, and takes back what it is done with, what was held back included. Not while a graph is being captured in
        the context: the driver refuses then, and the capture is lost; a capture on a stream that was declared permanent is looked for
        first, and survives. Of an allocator that has ended, all that was freed since goes back to the device."""
        _must(_lib.millpond_synchronize, self._number)

    def reset_peaks(self):
        """Sets the peaks of the report to the present values."""
        _must(_lib.millpond_reset_peaks, self._number)

    def destroy(self):
        """Waits for the device and gives back what is not in use. What is alive can still be freed, which never waits, and goes back at a
        later trim or synchronize, of this one too. It ends no capture; while it waits, other threads' launches stand."""
        _must(_lib.millpond_destroy, self._number)
        self._made = None

    def release(self):
        """As destroy, and waits for no stream and ends no capture. What is complete goes back to the device; the rest at the next create,
        trim, synchronize or end of any allocator, and what is held back, and all of a deterministic one, at the next
        synchronize or destroy of one of the same device."""
        _must(_lib.millpond_release, self._number)
        self._made = None

    def stats(self):
        """What the pools hold, as a dictionary."""
        return json.loads(self._text(_lib.millpond_stats_json))

    def report(self):
        """What the pools hold, for people."""
        return self._text(_lib.millpond_report)

    def _text(self, function):
        needed = ctypes.c_size_t()
        _must(function, self._number, None, 0, ctypes.byref(needed))
        while True:
            room = needed.value + 64
            text = ctypes.create_string_buffer(room)
            _must(function, self._number, text, room, ctypes.byref(needed))
            if needed.value <= room:
                return text.value.decode()

    def __repr__(self):
        return f"<millpond.Allocator {self._number}>"
