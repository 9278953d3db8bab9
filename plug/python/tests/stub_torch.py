"""What millpond_torch needs of PyTorch, over the stand-in driver: `install()` makes `import torch` give it, with whatever a test
takes away. What PyTorch's own allocator would be told is in `torch.told`."""

import sys
import types

import stand_in

HOOKS = ("set_record_stream_fn", "set_reset_fn", "set_memory_fraction_fn", "set_base_alloc_fn")


def make(devices=1, cuda="12.8", hooks=HOOKS, pluggable=True, initialized=False):
    told = types.SimpleNamespace(current=None, hooks={}, initialized=initialized)

    class Inner:
        pass

    for hook in hooks:
        setattr(Inner, hook, lambda self, address, hook=hook: told.hooks.__setitem__(hook, address))

    class CUDAPluggableAllocator:
        def __init__(self, path, alloc, free):
            self.names = path, alloc, free
            self.inner = Inner()

        def allocator(self):
            return self.inner

    def change_current_allocator(allocator):
        if told.initialized or told.current:
            raise RuntimeError("an allocator that is in use cannot be changed")
        told.current = allocator

    class Stream:
        def __init__(self, device, priority=0):
            # Of pools, as PyTorch's.
            told.initialized = True
            key = device, priority
            if key not in told.streams:
                stand_in.bind(device)
                told.streams[key] = stand_in.stream()
            self.cuda_stream = told.streams[key]

    told.streams = {}
    memory = types.SimpleNamespace(change_current_allocator=change_current_allocator)
    if pluggable:
        memory.CUDAPluggableAllocator = CUDAPluggableAllocator
    return types.SimpleNamespace(
        __version__="2.8.0",
        version=types.SimpleNamespace(cuda=cuda),
        told=told,
        cuda=types.SimpleNamespace(
            memory=memory,
            Stream=Stream,
            device_count=lambda: devices,
            current_device=lambda: 0,
            is_initialized=lambda: told.initialized,
        ),
    )


def install(**options):
    """`torch`, and millpond_torch on it, both fresh."""
    sys.modules["torch"] = made = make(**options)
    sys.modules.pop("millpond_torch", None)
    import millpond_torch

    return made, millpond_torch
