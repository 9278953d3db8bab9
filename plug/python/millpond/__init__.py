"""millpond: a stream-ordered caching GPU memory allocator.

This module holds an allocator by its C interface: `Allocator(device, limit="40%")` makes one, `millpond_torch.install()` and
`millpond_cupy.install()` give one to PyTorch and to CuPy. Sizes are bytes, streams are CUDA handles as numbers (0 is the
legacy default stream), pointers are addresses on the device. Nothing here waits for the device unless it says so.
"""

import ctypes
import glob
import json
import os

__all__ = [
    "Allocator",
    "CapturingError",
    "DriverError",
    "Error",
    "NoDeviceError",
    "OutOfMemoryError",
    "UnknownAllocatorError",
    "UnknownPointerError",
    "WrongAllocatorError",
    "library_path",
    "version",
]


class Error(RuntimeError):
    """What went wrong, in words: asked, found, what to do."""


class OutOfMemoryError(Error, MemoryError):
    """Out of memory; the words end with what the pools hold."""


class UnknownPointerError(Error, ValueError):
    """No live allocation begins at the pointer: freed, never ours, or inside one."""


class WrongAllocatorError(Error, ValueError):
    """The allocation, or the stream, is another allocator's or on another device."""


class UnknownAllocatorError(Error):
    """The allocator was destroyed."""


class CapturingError(Error):
    """The stream captures a graph."""


class NoDeviceError(Error):
    """No driver, too old a driver, or no such device."""


class DriverError(Error):
    """The driver failed."""


_ERRORS = {
    1: OutOfMemoryError,
    2: UnknownPointerError,
    3: WrongAllocatorError,
    4: ValueError,
    5: UnknownAllocatorError,
    6: CapturingError,
    7: NoDeviceError,
    8: DriverError,
    9: Error,
}


def library_path():
    """Where the C library is: named by MILLPOND_LIBRARY, or in this package."""
    named = os.environ.get("MILLPOND_LIBRARY")
    if named:
        return named
    here = os.path.dirname(os.path.abspath(__file__))
    found = glob.glob(os.path.join(here, "_library*.so")) + glob.glob(os.path.join(here, "libmillpond*.so"))
    if not found:
        raise ImportError("millpond's C library is not in the package: install it with pip, or name it by MILLPOND_LIBRARY")
    return found[0]


def _open():
    lib = ctypes.CDLL(library_path())
    number, pointer, size = ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t
    out = ctypes.POINTER
    signatures = {
        "millpond_create": [ctypes.c_int, ctypes.c_char_p, out(number)],
        "millpond_destroy": [number],
        "millpond_alloc": [number, size, pointer, out(pointer)],
        "millpond_free": [number, pointer],
        "millpond_free_on": [number, pointer, pointer],
        "millpond_free_unknown": [number, pointer],
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


_lib = _open()


def version():
    """The library's version."""
    return _lib.millpond_version().decode()


def _must(code):
    if code:
        raise _ERRORS.get(code, Error)(_lib.millpond_last_error().decode(errors="replace"))


def _words(options):
    said = []
    for name, value in options.items():
        if value is None:
            continue
        if isinstance(value, bool):
            value = int(value)
        elif name.endswith("limit") and isinstance(value, float):
            value = f"{value * 100}%"
        said.append(f"{name}={value}")
    return ",".join(said).encode()


class Allocator:
    """An allocator on a device.

    Options: limit and pinned_limit (bytes, "6GiB", "40%", a share as a float), policy ("latency", "footprint"), reuse
    ("never", "ordered", "waits"), growth ("rounded", "exact"), deterministic, scrub, wait_ms. What is not said comes from the
    environment (MILLPOND_LIMIT and so on).
    """

    def __init__(self, device=0, **options):
        number = ctypes.c_uint32()
        _must(_lib.millpond_create(device, _words(options), ctypes.byref(number)))
        self._number = number.value

    @classmethod
    def _named(cls, number):
        self = cls.__new__(cls)
        self._number = number
        return self

    def alloc(self, size, stream=0):
        """The address of so many bytes, for work queued on the stream from now on; 0 for none."""
        pointer = ctypes.c_void_p()
        _must(_lib.millpond_alloc(self._number, size, stream, ctypes.byref(pointer)))
        return pointer.value or 0

    def free(self, pointer):
        """Gives an allocation back, in the order of its own stream and of all recorded uses."""
        _must(_lib.millpond_free(self._number, pointer))

    def free_on(self, pointer, stream):
        """As free, and behind what the stream holds."""
        _must(_lib.millpond_free_on(self._number, pointer, stream))

    def free_unknown(self, pointer):
        """As free, and behind everything that any stream of the device holds."""
        _must(_lib.millpond_free_unknown(self._number, pointer))

    def record_use(self, pointer, stream):
        """Work on the stream, queued by now or before the free, uses the allocation."""
        _must(_lib.millpond_record_use(self._number, pointer, stream))

    def alloc_pinned(self, size):
        """The address of pinned host memory; 0 for no bytes."""
        pointer = ctypes.c_void_p()
        _must(_lib.millpond_alloc_pinned(self._number, size, ctypes.byref(pointer)))
        return pointer.value or 0

    def free_pinned(self, pointer):
        """Frees pinned memory: it is handed out again when every recorded use is complete."""
        _must(_lib.millpond_free_pinned(self._number, pointer))

    def free_pinned_unknown(self, pointer):
        """As free_pinned, and when everything that any stream of the device holds is complete."""
        _must(_lib.millpond_free_pinned_unknown(self._number, pointer))

    def record_pinned_use(self, pointer, stream):
        """A copy on the stream, queued by now or before the free, uses the pinned memory."""
        _must(_lib.millpond_record_pinned_use(self._number, pointer, stream))

    def declare_permanent(self, stream):
        """The stream is never destroyed while the process lives: no call asks the driver who it is."""
        _must(_lib.millpond_declare_permanent(self._number, stream))

    def find(self, pointer):
        """The live allocation that an address lies in: where it begins, and its length. Slow."""
        begin, size = ctypes.c_void_p(), ctypes.c_size_t()
        _must(_lib.millpond_find(self._number, pointer, ctypes.byref(begin), ctypes.byref(size)))
        return begin.value, size.value

    def trim(self):
        """Gives idle memory back to the device: how many bytes. May wait for the device."""
        freed = ctypes.c_size_t()
        _must(_lib.millpond_trim(self._number, ctypes.byref(freed)))
        return freed.value

    def set_limit(self, limit):
        """How much may be taken: bytes, "6GiB", "40%", a share as a float, None for no limit."""
        words = "none" if limit is None else f"{limit * 100}%" if isinstance(limit, float) else str(limit)
        _must(_lib.millpond_set_limit(self._number, words.encode()))

    def synchronize(self):
        """Waits for the device, and takes back what it is done with."""
        _must(_lib.millpond_synchronize(self._number))

    def reset_peaks(self):
        """Sets the peaks of the report to the present values."""
        _must(_lib.millpond_reset_peaks(self._number))

    def destroy(self):
        """Waits for the device and gives back what nobody has. What is alive can still be freed."""
        _must(_lib.millpond_destroy(self._number))

    def stats(self):
        """What the pools hold, as a dictionary."""
        return json.loads(self._text(_lib.millpond_stats_json))

    def report(self):
        """What the pools hold, for people."""
        return self._text(_lib.millpond_report)

    def _text(self, function):
        needed = ctypes.c_size_t()
        _must(function(self._number, None, 0, ctypes.byref(needed)))
        while True:
            room = needed.value + 64
            text = ctypes.create_string_buffer(room)
            _must(function(self._number, text, room, ctypes.byref(needed)))
            if needed.value <= room:
                return text.value.decode()

    def __repr__(self):
        return f"<millpond.Allocator {self._number}>"
