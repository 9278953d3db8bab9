"""What a recorded workload takes of the device: ours, beside PyTorch's native allocator.

The same calls to each, in a process of its own: those of the trace, on one stream, or dealt over four in runs of 1 to 24 allocations as
`millpond replay --streams 4` deals them, with runs that are drawn by another generator. Nothing is queued on the streams, so that
what is freed is complete. A line for each: bytes
asked for that were live at once, at most; bytes taken of the device, at most; and the ratio.
    taken.py TRACE.csv.gz...      with MILLPOND_LIBRARY, or the built library where the package looks for it
Ends with 77 where PyTorch or the library is missing.
"""

import csv
import gzip
import os
import random
import subprocess
import sys

MIB = 1 << 20
STREAMS = (1, 4)
RUN_MOST = 24
OURS = (("millpond, latency", "latency"), ("millpond, footprint", "footprint"))
TORCHS = (("PyTorch, native", ""), ("PyTorch, expandable segments", "expandable_segments:True"))


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


def with_ours(policy, work, streams):
    import ctypes

    import millpond

    # As the package finds it.
    cuda = ctypes.CDLL(os.environ.get("MILLPOND_LIBCUDA", "libcuda.so.1"))
    with millpond.Allocator(0, policy=policy) as gpu:
        context, handles = ctypes.c_void_p(), []
        if cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) or cuda.cuCtxSetCurrent(context):
            raise RuntimeError("no context")
        for _ in range(streams):
            stream = ctypes.c_void_p()
            if cuda.cuStreamCreate(ctypes.byref(stream), 1):
                raise RuntimeError("no stream")
            handles.append(stream.value)
        held = {}
        for allocates, block, size, stream in work:
            if allocates:
                held[block] = gpu.alloc(size, handles[stream])
            else:
                gpu.free(held.pop(block))
        return gpu.stats()["reserved_peak"]


def with_torch(work, streams):
    import torch

    handles = [torch.cuda.Stream() for _ in range(streams)]
    allocate, free = torch._C._cuda_cudaCachingAllocator_raw_alloc, torch._C._cuda_cudaCachingAllocator_raw_delete
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    held = {}
    for allocates, block, size, stream in work:
        if allocates:
            held[block] = allocate(size, handles[stream].cuda_stream)
        else:
            free(held.pop(block))
    return torch.cuda.memory_stats()["reserved_bytes.all.peak"]


def one(who, how, trace, streams):
    work, peak = calls(trace, streams)
    taken = with_ours(how, work, streams) if who.startswith("millpond") else with_torch(work, streams)
    name = os.path.basename(trace).split(".")[0]
    print(f"{name:22} {streams} {who:30} live {peak // MIB:7} MiB  taken {taken // MIB:7} MiB  {taken / peak:.3f}", flush=True)


def main(traces):
    missing = 0
    for trace in traces:
        for streams in STREAMS:
            for who, how in OURS + TORCHS:
                env = dict(os.environ, PYTORCH_CUDA_ALLOC_CONF=how, PYTORCH_ALLOC_CONF=how) if who.startswith("PyTorch") else os.environ
                done = subprocess.run([sys.executable, __file__, "--one", who, how, trace, str(streams)], env=env, check=False)
                missing += done.returncode != 0
    return 77 if missing else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]))
    else:
        sys.exit(main(sys.argv[1:]))
