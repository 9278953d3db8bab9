"""PyTorch on millpond: `import millpond_torch; millpond_torch.install()`, before anything is allocated on a GPU.

Everything that PyTorch asks of an allocator goes to millpond from there on: record_stream, empty_cache,
set_per_process_memory_fraction and base addresses included. `record_stream` takes a stream of another device: but a default stream's
handle is the same on every device, and means the one of the tensor's. A device is a number, "cuda:0" or a torch.device, and the current
one if it is not said.

An allocation that finds no memory raises torch.OutOfMemoryError with millpond's report in it; one that is refused for another reason
raises a RuntimeError. On a stream that captures a graph all are: allocate before the capture what the graph uses, and keep it as long
as the graph.

torch.cuda.empty_cache() waits for the device, of each that has an allocator, and then gives everything back that is not in use. It ends no graph capture; nor
does `trim`, which waits for no stream. The `synchronize` of `allocator()` ends captures of streams that are not PyTorch's. No other call ends one, but where another thread begins a capture on a stream that the call names
just then, or on a blocking stream while the legacy default stream is in use, it may be lost.

A process that is forked after `install` has no allocator, as it has no CUDA: start workers that need a GPU by "spawn" or
"forkserver". At the interpreter's exit nothing is freed: the driver takes everything back. An `install` that a Ctrl-C falls into is called again, with the
same options.
"""

import ctypes
import os
import threading
import types
import warnings

try:
    import torch
except ImportError as _why:
    raise ImportError(f"millpond_torch needs PyTorch, which cannot be imported: {_why}") from _why
import millpond

# PyTorch has one allocator, whoever imports this package again: what is known of it is PyTorch's.
_state = vars(torch).setdefault(
    "_millpond",
    types.SimpleNamespace(
        installed=None,
        # What it was installed with.
        words=None,
        # By device: the options that its allocator was requested with, and its number, which the library writes: it is 0 if there is none. The library
        # keeps one a device, for the life of the process.
        made={},
        # Devices whose streams were declared, or cannot be.
        declared=set(),
        pluggable=False,
        # The allocators that PyTorch has: its pools hold an allocator by address alone.
        given=[],
        lock=threading.RLock(),
        switching=threading.Lock(),
    ),
)


def _forked():
    """In a forked child, where the threads that held these locks do not exist."""
    _state.lock, _state.switching = threading.RLock(), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)

# PyTorch hands streams out of pools of 32 a priority and device, and never destroys them.
_POOL = 32
_PRIORITIES = (0, -1, -2, -3)


def _address(name):
    return ctypes.cast(getattr(millpond._lib, name), ctypes.c_void_p).value


def _must_have_cuda():
    """A PyTorch with GPUs and with allocators of others' making: how many GPUs."""
    built = getattr(torch.version, "cuda", None)
    if not built:
        raise millpond.NoDeviceError(f"PyTorch {torch.__version__} was built without CUDA: install a build for CUDA")
    if not hasattr(torch.cuda.memory, "CUDAPluggableAllocator"):
        raise RuntimeError(f"PyTorch {torch.__version__} takes no allocator from elsewhere: it must be 2.0 or newer")
    count = torch.cuda.device_count()
    if not count:
        raise millpond.NoDeviceError(f"PyTorch {torch.__version__} for CUDA {built} sees no GPU")
    return count


def pluggable():
    """The allocator as torch.cuda.memory.CUDAPluggableAllocator, with every hook that this PyTorch has."""
    made = _make_pluggable()
    _state.pluggable = True
    return made


def _make_pluggable():
    _must_have_cuda()
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
    _state.given.append((made, inner))
    return made


def install(**options):
    """Makes millpond PyTorch's allocator, with the options of millpond.Allocator for every device. Returns it.

    What is wrong with the options, the devices or this PyTorch is raised before PyTorch is touched: an allocator is made on each device
    for trial, and released, which waits for nothing and ends no capture. A second call does nothing, but for what an interrupt left undone of the first.
    """
    with _state.lock:
        words = millpond._words(options)
        if _state.installed is not None:
            if words and words != _state.words:
                raise RuntimeError("millpond is installed already: options are for the first call")
            _declare_all()
            return _state.installed
        count = _must_have_cuda()
        if torch.cuda.is_initialized():
            raise RuntimeError("PyTorch has begun with its own allocator: install millpond before anything uses a GPU")
        made = _make_pluggable()
        for device in range(count):
            # Each device supports the options, or none gets an allocator that PyTorch would meet.
            if not _made(device):
                millpond.Allocator(device, **options).release()
        for device in range(count):
            _make(device, words)
        failed = []
        thread = threading.Thread(target=_switch, args=(made, words, failed))
        thread.start()
        thread.join()
        if failed:
            raise failed[0]
        _declare_all()
        return _state.installed


def _switch(made, words, failed):
    """PyTorch is switched once, and it is remembered: on a thread that no signal's handler runs on. A caller that is interrupted while it waits, and
    calls again, finds it done by its own thread, which waits for the first."""
    try:
        with _state.switching:
            if _state.installed is None:
                torch.cuda.memory.change_current_allocator(made)
                _state.words, _state.pluggable, _state.installed = words, True, made
    except BaseException as why:
        failed.append(why)


def _made(device):
    """Whether a call before this one has made a device's allocator."""
    return bool(device in _state.made and _state.made[device][1].value)


def _make(device, words):
    """A device's allocator, with these options, unless a call before this one has made it with them, or it is there and there are none."""
    if not _made(device):
        # Before the call: who is interrupted on the way back from there has the number still.
        _state.made[device] = words, ctypes.c_uint32()
        options = words or None
    else:
        options = None if _state.made[device][0] == words else words
    millpond._must(millpond._lib.millpond_torch_allocator, device, options, ctypes.byref(_state.made[device][1]))


def _declare_all():
    """The streams of every device that have not been."""
    for device, (_, number) in _state.made.items():
        if device not in _state.declared:
            try:
                _declare_streams(device, number.value)
            except Exception as why:  # PyTorch is switched: its streams are followed one by one then.
                warnings.warn(f"the streams of device {device} are not declared to millpond, which costs time: {why}", RuntimeWarning)
            _state.declared.add(device)


def _declare_streams(device, number):
    seen = set()
    for priority in _PRIORITIES:
        for _ in range(_POOL):
            stream = torch.cuda.Stream(device, priority=priority).cuda_stream
            if stream not in seen:
                seen.add(stream)
                millpond._must(millpond._lib.millpond_declare_permanent, number, stream)


def _number(device):
    if device is not None and str(device) != "cuda":
        return millpond._device(device)
    return torch.cuda.current_device()


def allocator(device=None):
    """millpond's own view of a device's allocator: report(), stats(), trim(), set_limit()."""
    if not _state.pluggable:
        raise RuntimeError("PyTorch does not use millpond yet: call millpond_torch.install() first")
    number = ctypes.c_uint32()
    millpond._must(millpond._lib.millpond_torch_allocator, _number(device), None, ctypes.byref(number))
    return millpond.Allocator._named(number.value)


def memory_stats(device=None):
    """The statistics by the names that torch.cuda.memory_stats has, as far as they mean the same here; bytes.

    With several streams the peak of allocated bytes may be known from below and from above only ("...peak_at_least", "...peak_at_most"):
    then there is no "allocated_bytes.all.peak".
    """
    stats = allocator(device).stats()
    total = stats["total"]
    counters = total["counters"]
    named = {
        "allocated_bytes.all.current": total["allocated"],
        "allocated_bytes.all.peak_at_least": stats["allocated_peak"],
        "allocated_bytes.all.peak_at_most": stats["allocated_peak_at_most"],
        "requested_bytes.all.current": total["requested"],
        "reserved_bytes.all.current": stats["reserved"],
        "reserved_bytes.all.peak": stats["reserved_peak"],
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
    if stats["allocated_peak"] == stats["allocated_peak_at_most"]:
        named["allocated_bytes.all.peak"] = stats["allocated_peak"]
    return named


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
