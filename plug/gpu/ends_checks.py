"""Forks, workers and exits from Python, with memory alive and work pending: `ends_checks.py` ends with 1 if a part failed.

    fork        children of os.fork: every call is a ForkedError and touches nothing, whether they leave by os._exit or sys.exit; the parent goes on
    workers     multiprocessing by fork, where a call is refused, and by spawn and forkserver, where a worker has an allocator of its own
    exit        the interpreter ends with memory alive, work pending and a thread inside calls: its own code, in time, without a word
    torch fork, torch loaders, torch exit
                the same of PyTorch on millpond: a child of os.fork, DataLoaders whose workers are forked (data of the CPU) and spawned (each uses
                the GPU), tensors alive at the exit
    cupy fork, cupy exit
                the same of CuPy on millpond

Each part is a process of its own. What is not installed is said and left out. MILLPOND_LIBRARY names the library where the package is not
installed, MILLPOND_LIBCUDA another driver: over the stand-in driver the first three run (`plug/python/tests/test_lifetimes.py`). Ends with 77 without
a driver.
"""

import ctypes
import gc
import importlib.util
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

MIB = 1 << 20
CODE = 7


class Driver:
    """The program's own half: a stream, writes and a read."""

    def __init__(self):
        self.library = ctypes.CDLL(os.environ.get("MILLPOND_LIBCUDA", "libcuda.so.1"))
        self.stand_in = hasattr(self.library, "millpond_fake_calls")
        self.context, self.stream, delay = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)
        self.bind()
        self.call("cuStreamCreate", ctypes.byref(self.stream), 1)
        # Over the stand-in, which writes byte by byte and as late as it may, the least is enough.
        self.delay_bytes, self.times = (MIB // 16, 4) if self.stand_in else (1 << 30, 1000)
        self.call("cuMemAlloc_v2", ctypes.byref(delay), ctypes.c_size_t(self.delay_bytes))
        self.delay = delay.value

    def call(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        assert code == 0, f"{name} answered {code}"

    def bind(self):
        self.call("cuCtxSetCurrent", self.context)

    def write(self, at, value, size):
        self.call("cuMemsetD8Async", ctypes.c_uint64(at), ctypes.c_ubyte(value), ctypes.c_size_t(size), self.stream)

    def hold(self):
        """Work of a third of a second or so: nothing behind it is done before that."""
        for n in range(self.times):
            self.write(self.delay, n % 256, self.delay_bytes)

    def is_pending(self):
        return self.library.cuStreamQuery(self.stream) == 600

    def is_all(self, at, value, size):
        read = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoHAsync_v2", read, ctypes.c_uint64(at), ctypes.c_size_t(size), self.stream)
        self.call("cuStreamSynchronize", self.stream)
        return read.raw == bytes([value]) * size


def child_of_fork(body, leave=os._exit):
    """How a child that runs `body` ended."""
    process = os.fork()
    if not process:
        # What hangs is killed, and seen.
        signal.alarm(60)
        code = 1
        try:
            body()
            code = 0
        except BaseException as why:
            sys.stderr.write(f"in the child: {why!r}\n")
        if code:
            os._exit(code)
        leave(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def refused(call, kind):
    try:
        call()
    except kind as why:
        return str(why)
    raise AssertionError("it was not refused")


def part_fork():
    import millpond

    driver, stop = Driver(), threading.Event()
    # Without this library: whether the driver itself survives a child that leaves by the interpreter's exit.
    leaves_by_exit = child_of_fork(lambda: None, sys.exit) == 0
    if not leaves_by_exit:
        print("no child leaves by sys.exit: with the driver alone one did not end well")
    gpu = millpond.Allocator()
    x, pinned, pending = gpu.alloc(4 * MIB, driver.stream.value), gpu.alloc_pinned(MIB), 0

    def churn():
        driver.bind()
        while not stop.is_set():
            gpu.free(gpu.alloc(4096))
            gpu.free_pinned(gpu.alloc_pinned(512))

    def body():
        calls = [gpu.stats, gpu.trim, gpu.synchronize, gpu.release, gpu.destroy, gpu.close, millpond.Allocator]
        calls += [lambda: gpu.alloc(512), lambda: gpu.free(x), lambda: gpu.free_unknown(x), lambda: gpu.record_use(x, 0)]
        calls += [lambda: gpu.alloc_pinned(512), lambda: gpu.free_pinned(pinned)]
        for call in calls:
            assert "spawn" in refused(call, millpond.ForkedError)

    threads = [threading.Thread(target=churn) for _ in range(2)]
    for t in threads:
        t.start()
    try:
        for n in range(8):
            driver.hold()
            driver.write(x, n + 1, 4 * MIB)
            pending += driver.is_pending()
            ended = child_of_fork(body, sys.exit if n % 2 and leaves_by_exit else os._exit)
            assert ended == 0, f"child {n} ended with {ended}"
            assert driver.is_all(x, n + 1, 4 * MIB), f"the parent's bytes behind child {n}"
    finally:
        stop.set()
        for t in threads:
            t.join()
    assert pending, "no child was forked beside work"
    gpu.free(x)
    gpu.free_pinned(pinned)
    gpu.close()
    assert gpu.stats()["reserved"] == 0


def forked_worker(gpu, x):
    import millpond

    refused(lambda: gpu.free(x), millpond.ForkedError)
    refused(millpond.Allocator, millpond.ForkedError)


def fresh_worker(answers, n):
    import millpond

    driver = Driver()
    with millpond.Allocator() as gpu:
        x = gpu.alloc(MIB, driver.stream.value)
        driver.write(x, n + 1, MIB)
        answers.put((n, driver.is_all(x, n + 1, MIB)))
        gpu.free(x)


def part_workers():
    import millpond

    driver, gpu = Driver(), millpond.Allocator()
    x = gpu.alloc(4 * MIB, driver.stream.value)
    driver.hold()
    driver.write(x, 9, 4 * MIB)
    processes = [multiprocessing.get_context("fork").Process(target=forked_worker, args=(gpu, x)) for _ in range(3)]
    for p in processes:
        p.start()
    for p in processes:
        p.join(60)
        assert p.exitcode == 0, f"a forked worker ended with {p.exitcode}"
    for way in ("spawn", "forkserver"):
        context = multiprocessing.get_context(way)
        answers = context.Queue()
        processes = [context.Process(target=fresh_worker, args=(answers, n)) for n in range(2)]
        for p in processes:
            p.start()
        seen = sorted(answers.get(timeout=60) for _ in processes)
        for p in processes:
            p.join(60)
            assert p.exitcode == 0, f"{way}: a worker ended with {p.exitcode}"
        assert seen == [(0, True), (1, True)], (way, seen)
    assert driver.is_all(x, 9, 4 * MIB)
    gpu.free(x)
    gpu.close()


def part_exit():
    import millpond

    driver, gpu = Driver(), millpond.Allocator()
    x, pinned = gpu.alloc(4 * MIB, driver.stream.value), gpu.alloc_pinned(4096)
    began = threading.Event()

    def churn():
        driver.bind()
        while True:
            gpu.free(gpu.alloc(4096))
            began.set()

    threading.Thread(target=churn, daemon=True).start()
    began.wait()
    driver.hold()
    driver.write(x, 1, 4 * MIB)
    driver.call("cuMemcpyDtoHAsync_v2", ctypes.c_void_p(pinned), ctypes.c_uint64(x), ctypes.c_size_t(4096), driver.stream)
    gpu.free(gpu.alloc(4 * MIB, driver.stream.value))
    assert driver.is_pending()


def torch_with_millpond():
    import millpond_torch
    import torch

    if not torch.cuda.is_available():
        print("SKIPPED: PyTorch sees no GPU")
        sys.exit(77)
    millpond_torch.install()
    return torch, millpond_torch


def part_torch_fork():
    import millpond

    torch, millpond_torch = torch_with_millpond()
    x = torch.full((1 << 20,), 3.0, device="cuda")

    def body():
        # PyTorch's own refusal, and ours where it asks us nothing.
        refused(lambda: torch.ones(8, device="cuda"), RuntimeError)
        # Of the two whoever is asked first refuses; that they are refused is what counts.
        refused(millpond_torch.report, (millpond.ForkedError, RuntimeError))
        refused(millpond_torch.trim, (millpond.ForkedError, RuntimeError))

    def drops():
        nonlocal x
        del x
        gc.collect()

    for n, what in enumerate((body, drops, body)):
        torch.cuda._sleep(200_000_000)
        y = x * 2
        ended = child_of_fork(what)
        assert ended == 0, f"child {n} ended with {ended}"
        assert bool((y == 6).all().item()) and bool((x == 3).all().item()), f"the parent's tensors behind child {n}"
        del y
    assert millpond_torch.memory_stats()["untold_failures"] == 0


class OnTheCPU:
    """Batches that no worker needs a GPU for."""

    def __len__(self):
        return 64

    def __getitem__(self, n):
        import torch

        return torch.full((1 << 16,), float(n))


class OnTheGPU(OnTheCPU):
    """Each worker computes on the GPU, by millpond, and hands out what the CPU has of it."""

    installed = False

    def __getitem__(self, n):
        import millpond_torch
        import torch

        if not OnTheGPU.installed:
            millpond_torch.install()
            OnTheGPU.installed = True
        x = torch.full((1 << 16,), float(n), device="cuda")
        result = (x * 2 + 1).cpu()
        assert millpond_torch.memory_stats()["allocated_bytes.all.current"] > 0
        return result


def part_torch_loaders():
    torch, millpond_torch = torch_with_millpond()
    from torch.utils.data import DataLoader

    kept = torch.full((1 << 20,), 5.0, device="cuda")
    for way, data, expected in (("fork", OnTheCPU(), lambda n: n), ("spawn", OnTheGPU(), lambda n: 2 * n + 1)):
        torch.cuda._sleep(200_000_000)
        pending = kept * 2
        seen = []
        loader = DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context=way, pin_memory=True)
        copy = torch.cuda.Stream()
        for _ in range(2):
            for batch in loader:
                with torch.cuda.stream(copy):
                    there = batch.to("cuda", non_blocking=True)
                torch.cuda.current_stream().wait_stream(copy)
                there.record_stream(torch.cuda.current_stream())
                seen.append(there.mean(dim=1))
                del there
        found = torch.cat(seen).tolist()
        assert found == [float(expected(n)) for n in range(64)] * 2, f"{way}: {found[:8]}"
        assert bool((pending == 10).all().item()), way
        del pending, seen
    assert bool((kept == 5).all().item())
    assert millpond_torch.memory_stats()["untold_failures"] == 0


def part_torch_exit():
    torch, _ = torch_with_millpond()
    global kept
    kept = [torch.ones(1 << 20, device="cuda"), torch.ones(1 << 20).pin_memory()]
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(2_000_000_000)
        kept.append(kept[1].to("cuda", non_blocking=True))
    kept[0].record_stream(side)
    del kept[0]
    assert not side.query(), "nothing is pending"


def cupy_with_millpond():
    import cupy

    try:
        cupy.cuda.runtime.getDeviceCount()
    except Exception as why:
        print(f"SKIPPED: CuPy, {why}")
        sys.exit(77)
    import millpond_cupy

    return cupy, millpond_cupy.install()


def part_cupy_fork():
    import millpond

    cupy, pool = cupy_with_millpond()
    x = cupy.full(1 << 20, 3, cupy.float32)

    def body():
        nonlocal x
        refused(lambda: cupy.ones(8), Exception)
        # By CuPy, which asks for its device first, or by us.
        refused(lambda: pool.allocator().stats(), (millpond.ForkedError, cupy.cuda.runtime.CUDARuntimeError))
        # As a worker does that has the parent's objects in its hands.
        del x
        gc.collect()

    for n in range(2):
        y = x * 2
        ended = child_of_fork(body)
        assert ended == 0, f"child {n} ended with {ended}"
        assert bool((y == 6).all()) and bool((x == 3).all()), f"the parent's arrays behind child {n}"
        del y


def part_cupy_exit():
    cupy, _ = cupy_with_millpond()
    driver = Driver()
    global kept
    kept = [cupy.ones(1 << 20, cupy.float32)]
    # CuPy compiles a kernel when it is first needed, which takes longer than what is to be pending.
    kept.append(kept[0] * 2)
    with cupy.cuda.ExternalStream(driver.stream.value):
        driver.hold()
        kept.append(kept[0] * 2)
    del kept[0]
    assert driver.is_pending()


PARTS = ("fork", "workers", "exit", "torch fork", "torch loaders", "torch exit", "cupy fork", "cupy exit")


# Python warns of every fork beside threads, which is what is tried here.
QUIET = ("-W", "ignore::DeprecationWarning")


def main():
    try:
        ctypes.CDLL(os.environ.get("MILLPOND_LIBCUDA", "libcuda.so.1"))
    except OSError as why:
        print(f"SKIPPED: {why}")
        return 77
    failed = False
    for part in PARTS:
        needs = part.split()[0]
        if needs in ("torch", "cupy") and importlib.util.find_spec(needs) is None:
            print(f"SKIPPED {part}: there is no {needs}")
            continue
        begun = time.monotonic()
        try:
            done = subprocess.run([sys.executable, *QUIET, os.path.abspath(__file__), part], capture_output=True, text=True, timeout=150)
        except subprocess.TimeoutExpired as why:
            print(f"FAIL {part}: it hangs\n{why.stdout}\n{why.stderr}")
            failed = True
            continue
        if done.returncode == 77:
            print(done.stdout, end="")
            continue
        print(done.stdout, end="")
        # A word of the interpreter's or the driver's at the end is one too many; what PyTorch warns of is its own.
        quiet = part.startswith("torch") or not done.stderr
        right = done.returncode == CODE and quiet
        print(f"{'PASS' if right else 'FAIL'} {part}, {time.monotonic() - begun:.1f} s" + ("" if right else f", ended with {done.returncode}"))
        if not right or done.stderr:
            print(done.stderr[-3000:])
        failed = failed or not right
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) > 1:
        globals()["part_" + sys.argv[1].replace(" ", "_")]()
        sys.exit(CODE)
    sys.exit(main())
