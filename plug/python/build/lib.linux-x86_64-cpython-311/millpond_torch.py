"""PyTorch on millpond: `import millpond_torch; millpond_torch.install()`, before anything is allocated on a GPU.

Everything that PyTorch asks of an allocator goes to millpond from there on: record_stream, empty_cache,
set_per_process_memory_fraction and base addresses included. An allocation that fails raises torch.OutOfMemoryError with
millpond's report in it.
"""

import ctypes

import millpond
import torch

_installed = None

# PyTorch hands streams out of pools of 32 a priority and device, and never destroys them.
_POOL = 32
_PRIORITIES = (0, -1, -2, -3)


def _address(name):
    return ctypes.cast(getattr(millpond._lib, name), ctypes.c_void_p).value


def pluggable():
    """The allocator as torch.cuda.memory.CUDAPluggableAllocator, with every hook that this PyTorch has."""
    made = torch.cuda.memory.CUDAPluggableAllocator(
        millpond.library_path(), "millpond_torch_alloc", "millpond_torch_free"
    )
    hooks = {
        "set_record_stream_fn": "millpond_torch_record_stream",
        "set_reset_fn": "millpond_torch_empty_cache",
        "set_memory_fraction_fn": "millpond_torch_memory_fraction",
        "set_base_alloc_fn": "millpond_torch_base",
    }
    inner = made.allocator()
    for setter, function in hooks.items():
        if hasattr(inner, setter):
            getattr(inner, setter)(_address(function))
        elif setter == "set_record_stream_fn":
            raise RuntimeError(
                "this PyTorch has no set_record_stream_fn: tensors that several streams use would be reused too early"
            )
    return made


def install(**options):
    """Makes millpond PyTorch's allocator, with the options of millpond.Allocator for every device. Returns it."""
    global _installed
    if _installed is not None:
        if options:
            raise RuntimeError("millpond is installed already: options are for the first call")
        return _installed
    words = millpond._words(options)
    made = pluggable()
    torch.cuda.memory.change_current_allocator(made)
    for device in range(torch.cuda.device_count()):
        number = ctypes.c_uint32()
        millpond._must(millpond._lib.millpond_torch_allocator(device, words, ctypes.byref(number)))
        _declare_streams(device, number.value)
    _installed = made
    return made


def _declare_streams(device, number):
    seen = set()
    for priority in _PRIORITIES:
        for _ in range(_POOL):
            stream = torch.cuda.Stream(device, priority=priority).cuda_stream
            if stream not in seen:
                seen.add(stream)
                millpond._must(millpond._lib.millpond_declare_permanent(number, stream))


def allocator(device=None):
    """millpond's own view of a device's allocator: report(), stats(), trim(), set_limit()."""
    device = torch.cuda.current_device() if device is None else torch.device("cuda", device).index
    number = ctypes.c_uint32()
    millpond._must(millpond._lib.millpond_torch_allocator(device, None, ctypes.byref(number)))
    return millpond.Allocator._named(number.value)


def memory_stats(device=None):
    """The statistics by the names that torch.cuda.memory_stats has, as far as they mean the same here; bytes."""
    stats = allocator(device).stats()
    total = stats["total"]
    counters = total["counters"]
    return {
        "allocated_bytes.all.current": total["allocated"],
        "allocated_bytes.all.peak": total["allocated_peak"],
        "requested_bytes.all.current": total["asked"],
        "reserved_bytes.all.current": stats["taken"],
        "reserved_bytes.all.peak": stats["taken_peak"],
        "inactive_bytes.all.current": total["cached"],
        "in_flight_bytes.all.current": total["in_flight"],
        "allocation.all.current": total["live"],
        "allocation.all.allocated": counters["allocations"],
        "allocation.all.freed": counters["frees"],
        "segment.all.current": stats["segments"],
        "num_device_alloc": stats["growths"],
        "num_device_free": stats["releases"],
        "hits": counters["hits"],
        "waits_inserted": counters["waits_inserted"],
        "untold_failures": millpond._lib.millpond_torch_untold(),
    }


def memory_allocated(device=None):
    """Bytes of live tensors, rounded."""
    return memory_stats(device)["allocated_bytes.all.current"]


def memory_reserved(device=None):
    """Bytes taken from the device."""
    return memory_stats(device)["reserved_bytes.all.current"]


def report(device=None):
    """What the pools hold, for people."""
    return allocator(device).report()


def trim(device=None):
    """Gives idle memory back to the device: how many bytes."""
    return allocator(device).trim()


def set_limit(limit, device=None):
    """As millpond.Allocator.set_limit."""
    allocator(device).set_limit(limit)
