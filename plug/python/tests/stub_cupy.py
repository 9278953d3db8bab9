"""What millpond_cupy needs of CuPy, over the stand-in driver: `install()` makes `import cupy` give it. Streams, events and the
current stream of a thread and device behave as CuPy's do; memory is only addresses."""

import ctypes
import functools
import sys
import threading
import types
from collections import namedtuple

import stand_in


class _Thread(threading.local):
    def __init__(self):
        self.device, self.current, self.stacks = 0, {}, []


def make(devices=1, per_thread=False):
    """A fresh module, with classes of its own."""
    thread = _Thread()
    default = []

    class _BaseStream:
        def __init__(self, ptr, device_id):
            self.ptr, self.device_id = ptr, device_id

        def __eq__(self, other):
            return isinstance(other, _BaseStream) and self.ptr == other.ptr

        def __hash__(self):
            return self.ptr

        def _where(self):
            device = thread.device if self.device_id < 0 else self.device_id
            if device != thread.device:
                raise RuntimeError("the stream is another device's")
            return device

        def use(self):
            thread.current[self._where()] = self
            return self

        def __enter__(self):
            device = self._where()
            thread.stacks.append((device, thread.current.get(device, default[0])))
            thread.current[device] = self
            return self

        def __exit__(self, *_):
            device, before = thread.stacks.pop()
            thread.current[device] = before

        def is_capturing(self):
            state = ctypes.c_int()
            stand_in.call("cuStreamIsCapturing", ctypes.c_void_p(self.ptr), ctypes.byref(state))
            return state.value != 0

        def wait_event(self, event):
            stand_in.call("cuStreamWaitEvent", ctypes.c_void_p(self.ptr), ctypes.c_void_p(event.ptr), 0)

        def synchronize(self):
            stand_in.call("cuStreamSynchronize", ctypes.c_void_p(self.ptr))

        def begin_capture(self):
            stand_in.begin_capture(self.ptr)

        def end_capture(self):
            return stand_in.end_capture(self.ptr)

    class Stream(_BaseStream):
        _foreign_stream_ref = None

        def __init__(self, null=False, non_blocking=False, ptds=False):
            if null or ptds:
                super().__init__(2 if ptds else 0, -1)
            else:
                stand_in.bind(thread.device)
                super().__init__(stand_in.stream(int(non_blocking)), thread.device)


        def __del__(self, ending=sys.is_finalizing):
            if not ending() and getattr(self, "ptr", 0) not in (0, 1, 2) and self._foreign_stream_ref is None:
                stand_in.call("cuStreamDestroy_v2", ctypes.c_void_p(self.ptr))

        @classmethod
        def from_external(cls, foreign):
            # As CuPy 14 has it.
            made = cls.__new__(cls)
            _BaseStream.__init__(made, foreign.__cuda_stream__()[1], thread.device)
            made._foreign_stream_ref = foreign
            return made

    class ExternalStream(_BaseStream):
        def __init__(self, ptr, device_id=-1):
            super().__init__(ptr, device_id)

    class Event:
        def __init__(self, block=False, disable_timing=False, interprocess=False):
            stand_in.bind(thread.device)
            self.ptr = stand_in.made("cuEventCreate", ctypes.c_uint(2 if disable_timing else 0))

        def __del__(self, ending=sys.is_finalizing):
            if not ending() and getattr(self, "ptr", 0):
                stand_in.call("cuEventDestroy_v2", ctypes.c_void_p(self.ptr))

        def record(self, stream):
            stand_in.call("cuEventRecord", ctypes.c_void_p(self.ptr), ctypes.c_void_p(stream.ptr))

    class OutOfMemoryError(MemoryError):
        def __init__(self, size, total, limit=0):
            super().__init__(f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes, limit set to: {limit:,} bytes).")

    Stream.null, Stream.ptds = Stream(null=True), Stream(ptds=True)
    default.append(Stream.ptds if per_thread else Stream.null)
    cuda = types.SimpleNamespace(
        Stream=Stream,
        ExternalStream=ExternalStream,
        Event=Event,
        MemoryPointer=namedtuple("MemoryPointer", "mem offset"),
        UnownedMemory=namedtuple("UnownedMemory", "ptr size owner device_id"),
        PinnedMemoryPointer=namedtuple("PinnedMemoryPointer", "mem offset"),
        memory=types.SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
        # Without a line of Python, where a signal's handler might run: CuPy's have none.
        runtime=types.SimpleNamespace(
            getDevice=functools.partial(getattr, thread, "device"),
            setDevice=functools.partial(setattr, thread, "device"),
            getDeviceCount=lambda: devices,
            streamIsCapturing=lambda handle: ExternalStream(handle).is_capturing(),
        ),
        get_current_stream=lambda device=-1: thread.current.get(thread.device if device < 0 else device, default[0]),
        allocators=[],
    )
    cuda.set_allocator = cuda.allocators.append
    cuda.set_pinned_memory_allocator = cuda.allocators.append
    return types.SimpleNamespace(cuda=cuda)


def install(**options):
    """`cupy`, and millpond_cupy on it, both fresh."""
    sys.modules["cupy"] = made = make(**options)
    sys.modules.pop("millpond_cupy", None)
    import millpond_cupy

    return made, millpond_cupy
