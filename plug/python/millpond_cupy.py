"""CuPy on millpond: `import millpond_cupy; millpond_cupy.install()`.

CuPy does not tell an allocator which streams use an array, so by default a freed array's bytes come back behind everything
that its device holds at that moment: right without any annotation. A program that keeps to one stream, or that calls
`record_use`, says `install(uses="own")` and gets bytes back in the order of the array's own stream.
"""

import threading

import cupy
import millpond

_pools = {}
_lock = threading.Lock()


class _Owner:
    """Ends an allocation when CuPy has forgotten it."""

    __slots__ = ("_free", "pointer")

    def __init__(self, free, pointer):
        self._free = free
        self.pointer = pointer

    def __del__(self):
        try:
            self._free(self.pointer)
        except Exception:  # At the end of the process there may be nothing left to call.
            pass


class _Pinned:
    """Pinned memory as CuPy's pointers hold it. Nobody told which copies use it, so it comes back behind everything."""

    __slots__ = ("_free", "ptr", "size")

    def __init__(self, allocator, size):
        self._free = allocator.free_pinned_unknown
        self.ptr = allocator.alloc_pinned(size)
        self.size = size

    def __int__(self):
        return self.ptr

    def __del__(self):
        try:
            self._free(self.ptr)
        except Exception:  # At the end of the process there may be nothing left to call.
            pass


class MemoryPool:
    """Shaped as cupy.cuda.MemoryPool, for every device: an allocator each, made when it is first asked for something."""

    def __init__(self, uses="any", **options):
        if uses not in ("any", "own"):
            raise ValueError(f"uses is {uses!r}; it may be 'any' (whoever used it) or 'own' (its own stream, and recorded uses)")
        self._any = uses == "any"
        self._options = options
        self._allocators = {}
        self._frees = {}
        self._making = threading.Lock()

    def allocator(self, device=None):
        """millpond's own view of a device's allocator."""
        device = cupy.cuda.runtime.getDevice() if device is None else int(device)
        found = self._allocators.get(device)
        if found is None:
            with self._making:
                found = self._allocators.get(device)
                if found is None:
                    found = millpond.Allocator(device, **self._options)
                    self._frees[device] = found.free_unknown if self._any else found.free
                    self._allocators[device] = found
        return found

    def malloc(self, size):
        """A cupy.cuda.MemoryPointer, for the current stream of the current device."""
        device = cupy.cuda.runtime.getDevice()
        allocator = self.allocator(device)
        size = int(size)
        try:
            pointer = allocator.alloc(size, cupy.cuda.get_current_stream().ptr)
        except millpond.OutOfMemoryError as why:
            stats = allocator.stats()
            refused = cupy.cuda.memory.OutOfMemoryError(size, stats["taken"], stats.get("limit") or 0)
            raise refused from why
        if not pointer:
            return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(0, 0, None, device), 0)
        owner = _Owner(self._frees[device], pointer)
        return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(pointer, size, owner, device), 0)

    def malloc_pinned(self, size):
        """A cupy.cuda.PinnedMemoryPointer: its memory serves again when all that the current device holds at its end is complete."""
        return cupy.cuda.PinnedMemoryPointer(_Pinned(self.allocator(), int(size)), 0)

    def record_use(self, array, stream=None):
        """Work on the stream (the current one) uses the array: its bytes come back behind that."""
        stream = cupy.cuda.get_current_stream() if stream is None else stream
        base = array.base if array.base is not None else array
        self.allocator(array.device.id).record_use(base.data.mem.ptr, stream.ptr)

    def used_bytes(self):
        """Bytes of live arrays on the current device, rounded."""
        return self.allocator().stats()["total"]["allocated"]

    def total_bytes(self):
        """Bytes taken from the current device."""
        return self.allocator().stats()["taken"]

    def free_bytes(self):
        """Bytes taken and not used: cached, or freed and still in flight."""
        return self.total_bytes() - self.used_bytes()

    def n_free_blocks(self):
        """Free chunks, and ranges in flight, which will be."""
        total = self.allocator().stats()["total"]
        return total["free_chunks"] + total["in_flight_ranges"]

    def free_all_blocks(self, stream=None):
        """Gives idle memory of the current device back. The stream is for CuPy's sake: one's part cannot be told apart."""
        self.allocator().trim()

    def free_all_free(self):
        """As free_all_blocks."""
        self.free_all_blocks()

    def set_limit(self, size=None, fraction=None):
        """How much may be taken of the current device, in bytes or as a share; 0 is no limit, as with CuPy."""
        if size is not None and fraction is not None:
            raise ValueError("size and fraction cannot both be given")
        if fraction is not None:
            if not 0 <= fraction <= 1:
                raise ValueError(f"a fraction of {fraction}: it lies between 0 and 1")
            size = float(fraction) or None
        elif size is not None and size < 0:
            raise ValueError(f"a limit of {size} bytes: it cannot be negative")
        self.allocator().set_limit(size or None)

    def get_limit(self):
        """The limit of the current device in bytes; 0 for none."""
        return self.allocator().stats().get("limit") or 0

    def report(self):
        """What the current device's pools hold, for people."""
        return self.allocator().report()


def install(uses="any", pinned=True, **options):
    """Makes millpond CuPy's allocator, of pinned memory too if wanted, with the options of millpond.Allocator. Returns the pool."""
    pool = MemoryPool(uses, **options)
    cupy.cuda.set_allocator(pool.malloc)
    if pinned:
        cupy.cuda.set_pinned_memory_allocator(pool.malloc_pinned)
    return pool
