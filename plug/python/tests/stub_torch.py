"""What millpond_torch needs of PyTorch, over the stand-in driver: `install()` makes `import torch` give it, with whatever a test
takes away. The calls that PyTorch would get are recorded in `torch.recorded`."""

import sys
import types

import stand_in

HOOKS = ("set_record_stream_fn", "set_reset_fn", "set_memory_fraction_fn", "set_base_alloc_fn")


def make(devices=1, cuda="12.8", hooks=HOOKS, pluggable=True, initialized=False):
    recorded = types.SimpleNamespace(current=None, hooks={}, initialized=initialized)

    class Inner:
        pass

    for hook in hooks:
        setattr(Inner, hook, lambda self, address, hook=hook: recorded.hooks.__setitem__(hook, address))

    class CUDAPluggableAllocator:
        def __init__(self, path, alloc, free):
            self.names = path, alloc, free
            self.inner = Inner()

        def allocator(self):
            return self.inner

    def change_current_allocator(allocator):
        if recorded.initialized or recorded.current:
            raise RuntimeError("an allocator that is in use cannot be changed")
        recorded.current = allocator

    class Stream:
        def __init__(self, device, priority=0):
            # Of pools, as PyTorch's.
            recorded.initialized = True
            key = device, priority
            if key not in recorded.streams:
                stand_in.bind(device)
                recorded.streams[key] = stand_in.stream()
            self.cuda_stream = recorded.streams[key]

    recorded.streams = {}
    memory = types.SimpleNamespace(change_current_allocator=change_current_allocator)
    if pluggable:
        memory.CUDAPluggableAllocator = CUDAPluggableAllocator
    return types.SimpleNamespace(
        __version__="2.8.0",
        version=types.SimpleNamespace(cuda=cuda),
        recorded=recorded,
        cuda=types.SimpleNamespace(
            memory=memory,
            Stream=Stream,
            device_count=lambda: devices,
            current_device=lambda: 0,
            is_initialized=lambda: recorded.initialized,
        ),
    )


def install(**options):
    """`torch`, and millpond_torch on it, both fresh."""
    sys.modules["torch"] = made = make(**options)
    sys.modules.pop("millpond_torch", None)
    import millpond_torch

    return made, millpond_torch
