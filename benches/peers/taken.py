"""What a recorded workload takes of the device: ours, beside PyTorch's allocators and the driver's.

The same calls to each, in a process of its own: those of the trace, on one stream, or dealt over four in runs of 1 to 24 allocations as
`millpond replay --streams 4` deals them, with runs that are drawn by another generator. Nothing is queued on the streams, so that
what is freed is complete. Ours is called through the C interface. A line for each: bytes
asked for that were live at once, at most; bytes that the driver says are in use, at most, less those before the first call, read every 64th call
and once the trace is over; and their ratio.
    taken.py [--streams 1,4] [--who WORD] TRACE.csv.gz...      with MILLPOND_LIBRARY, or the built library where the package looks for it
Ends with 77 where PyTorch or the library is missing.
"""

import argparse
import csv
import gzip
import os
import random
import subprocess
import sys

MIB = 1 << 20
STREAMS = (1, 4)
RUN_MOST = 24
EVERY = 64
OURS = (
    ("millpond, latency, segments", "latency never"),
    ("millpond, footprint, segments", "footprint never"),
    ("millpond, latency, windows", "latency auto"),
    ("millpond, footprint, windows", "footprint auto"),
    # Streams that live as long as the process are marked in any call, others only in those that name them.
    ("millpond, footprint, windows, permanent streams", "footprint auto permanent"),
    ("millpond, the same, moves of any cost", "footprint auto permanent unbounded"),
)
TORCHS = (
    ("PyTorch, native", ""),
    ("PyTorch, expandable segments", "expandable_segments:True"),
    ("PyTorch, cudaMallocAsync", "backend:cudaMallocAsync"),
)


def calls(trace, streams):
    """Each call: whether it allocates, the block, its bytes, the stream; and the most that was live."""
    dice, now, left = random.Random(1), 0, 0
    found, sizes, live, peak = [], {}, 0, 0
    with gzip.open(trace, "rt", newline="") as lines:
        for row in csv.DictReader(lines):
            block, size = row["Pointer"], int(row["Size"])
            if row["Action"] == "allocate":
                if left == 0:
                    now, left = dice.randrange(streams), 1 + dice.randrange(RUN_MOST)
                left -= 1
                sizes[block] = size
                live += size
                peak = max(peak, live)
                found.append((True, block, size, now))
            else:
                live -= sizes.pop(block)
                found.append((False, block, 0, 0))
    return found, peak


def run(work, handles, allocate, free, in_use):
    """Makes the calls; returns the bytes that the driver says are in use at most, less those before."""
    held, before = {}, in_use()
    most = before
    for number, (allocates, block, size, stream) in enumerate(work):
        if allocates:
            held[block] = allocate(size, handles[stream])
        else:
            free(held.pop(block))
        if number % EVERY == 0:
            most = max(most, in_use())
    return max(most, in_use()) - before


def with_ours(how, work, streams):
    import ctypes

    import millpond

    policy, virtual, *more = how.split()
    options = {"move_time": "0"} if "unbounded" in more else {}
    # As the package finds it.
    cuda = ctypes.CDLL(os.environ.get("MILLPOND_LIBCUDA", "libcuda.so.1"))
    with millpond.Allocator(0, policy=policy, virtual=virtual, **options) as gpu:
        context, handles = ctypes.c_void_p(), []
        if cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) or cuda.cuCtxSetCurrent(context):
            raise RuntimeError("no context")
        for _ in range(streams):
            stream = ctypes.c_void_p()
            if cuda.cuStreamCreate(ctypes.byref(stream), 1):
                raise RuntimeError("no stream")
            handles.append(stream.value)
            if "permanent" in more:
                gpu.declare_permanent(stream.value)

        def in_use():
            free, total = ctypes.c_size_t(), ctypes.c_size_t()
            if cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)):
                raise RuntimeError("the driver does not say what is free")
            return total.value - free.value

        return run(work, handles, gpu.alloc, gpu.free, in_use)


def with_torch(work, streams):
    import torch

    handles = [torch.cuda.Stream() for _ in range(streams)]
    torch.cuda.empty_cache()

    def in_use():
        free, total = torch.cuda.mem_get_info()
        return total - free

    allocate, free = torch._C._cuda_cudaCachingAllocator_raw_alloc, torch._C._cuda_cudaCachingAllocator_raw_delete
    return run(work, [h.cuda_stream for h in handles], allocate, free, in_use)


def one(who, how, trace, streams):
    work, peak = calls(trace, streams)
    taken = with_ours(how, work, streams) if who.startswith("millpond") else with_torch(work, streams)
    name = os.path.basename(trace).split(".")[0]
    print(f"{name:22} {streams} {who:48} live {peak // MIB:7} MiB  taken {taken // MIB:7} MiB  {taken / peak:.3f}", flush=True)


def main(arguments):
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=lambda text: [int(n) for n in text.split(",")], default=list(STREAMS))
    parser.add_argument("--who", default="", help="only those with this in their names")
    parser.add_argument("traces", nargs="+")
    asked = parser.parse_args(arguments)
    missing = 0
    for trace in asked.traces:
        for streams in asked.streams:
            for who, how in OURS + TORCHS:
                if asked.who not in who:
                    continue
                env = dict(os.environ, PYTORCH_CUDA_ALLOC_CONF=how, PYTORCH_ALLOC_CONF=how) if who.startswith("PyTorch") else os.environ
                done = subprocess.run([sys.executable, __file__, "--one", who, how, trace, str(streams)], env=env, check=False)
                missing += done.returncode != 0
    return 77 if missing else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]))
    else:
        sys.exit(main(sys.argv[1:]))
