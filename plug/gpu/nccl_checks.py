"""NCCL over millpond's memory: all-reduces of two GPUs, of memory as it comes and of memory that is registered with the communicator.

    nccl_checks.py [--allocators NAMES] [--rounds N]

A process for each GPU, started anew for each allocator, through PyTorch's distributed package:

    native               PyTorch's own allocator, which the others are compared with
    plain                segments from the driver's plain allocations
    windows              virtual memory beneath the pools: an array may lie on several handles
    one-handle           virtual memory, arrays from 1 MiB on have a handle each, which can be exported and may be accessed by other devices (GPU-direct RDMA)

Each allocator's two processes reduce arrays of 4 bytes to 256 MiB; then, for some hundred rounds, arrays of random sizes on two streams while others come and go, so that
memory is reused and moved beside NCCL's kernels; then 64 MiB that both have registered (ncclCommRegister), in which NCCL may write directly. Every element of
every result is compared with the sum that it has to be; the elements are whole numbers, whose sums are exact in any order.

Prints the bytes a second of one GPU, with those of the native allocator beside, and ends with 1 if a sum was wrong or a process failed, with 77 without PyTorch, NCCL or two GPUs.
Whether registering is refused is printed and does not count: it is NCCL's to say.
MILLPOND_LIBRARY names the library where the package is not installed.
"""

import argparse
import ctypes
import json
import os
import random
import socket
import subprocess
import sys

KIB, MIB = 1 << 10, 1 << 20
SIZES = (4, 4 * KIB, MIB + 4, 16 * MIB, 64 * MIB, 256 * MIB)
REGISTERED = 64 * MIB
REPEATED = 20
WORLD = 2
# A run that takes longer hangs.
SECONDS = 120
ALLOCATORS = {
    "native": None,
    "plain": {"virtual": "never"},
    "windows": {"virtual": "always"},
    "one-handle": {"virtual": "always", "one_handle": "1MiB", "export": "fd", "rdma": "1"},
}


class Wrong(Exception):
    pass


def reduced(torch, dist, count, times):
    """An array whose elements say where they are, reduced: the seconds of one of so many all-reduces, of which the first alone is checked."""
    numbers = torch.arange(count, device="cuda", dtype=torch.float32) % 251
    array = numbers + dist.get_rank()
    dist.all_reduce(array)
    if not torch.equal(array, WORLD * numbers + sum(range(WORLD))):
        raise Wrong(f"an all-reduce of {4 * count} bytes has a wrong sum")
    return seconds_of(torch, dist, array, times)


def seconds_of(torch, dist, array, times):
    # What is reduced again and again grows: zeros stay.
    array.zero_()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    dist.barrier()
    begin.record()
    for _ in range(times):
        dist.all_reduce(array)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1000 / times


def churn(torch, dist, rounds):
    """Arrays of random sizes, the same in all processes, on two streams that do not wait for each other, while others come and go on each."""
    dice, streams = random.Random(1), [torch.cuda.Stream() for _ in range(2)]
    kept, bad = ([], []), [torch.zeros((), device="cuda", dtype=torch.int64) for _ in streams]
    torch.cuda.synchronize()
    for at in range(rounds):
        mine, count = kept[at % 2], int(2 ** dice.uniform(8, 23))
        with torch.cuda.stream(streams[at % 2]):
            numbers = torch.arange(count, device="cuda", dtype=torch.float32) % 241
            array = numbers + dist.get_rank()
            work = dist.all_reduce(array, async_op=True)
            mine.append(torch.full((int(2 ** dice.uniform(8, 22)),), float(at), device="cuda"))
            work.wait()
            bad[at % 2] += (array != WORLD * numbers + sum(range(WORLD))).sum()
            if len(mine) > 12:
                left = mine.pop(dice.randrange(len(mine)))
                bad[at % 2] += (left != left[0]).sum()
    torch.cuda.synchronize()
    if any(count.item() for count in bad):
        raise Wrong(f"{[count.item() for count in bad]} elements were wrong in {rounds} rounds")


def registered(torch, dist):
    """What NCCL says to registering, and the seconds of an all-reduce in it."""
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cuda"))
    if not hasattr(backend, "_comm_ptr"):
        return "PyTorch does not tell its communicator", None
    nccl, comm, handle = ctypes.CDLL("libnccl.so.2"), ctypes.c_void_p(backend._comm_ptr()), ctypes.c_void_p()
    count = REGISTERED // 4
    numbers = torch.arange(count, device="cuda", dtype=torch.float32) % 251
    array = numbers + dist.get_rank()
    torch.cuda.synchronize()
    code = nccl.ncclCommRegister(comm, ctypes.c_void_p(array.data_ptr()), ctypes.c_size_t(REGISTERED), ctypes.byref(handle))
    if code:
        nccl.ncclGetErrorString.restype = ctypes.c_char_p
        return f"refused: {nccl.ncclGetErrorString(code).decode()}", None
    dist.all_reduce(array)
    if not torch.equal(array, WORLD * numbers + sum(range(WORLD))):
        raise Wrong("an all-reduce of registered memory has a wrong sum")
    seconds = seconds_of(torch, dist, array, REPEATED)
    torch.cuda.synchronize()
    code = nccl.ncclCommDeregister(comm, handle)
    return ("registered" if handle.value else "registered, NCCL keeps no handle") + (f", its end gave {code}" if code else ""), seconds


def child(allocator, rank, port, rounds):
    import torch
    import torch.distributed as dist

    options = ALLOCATORS[allocator]
    if options is not None:
        import millpond_torch

        millpond_torch.install(**options)
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD, device_id=torch.device("cuda", rank)
    )
    told = {"nccl": ".".join(map(str, torch.cuda.nccl.version())), "torch": torch.__version__, "device": torch.cuda.get_device_name()}
    told["seconds"] = {size: reduced(torch, dist, size // 4, REPEATED) for size in SIZES}
    churn(torch, dist, rounds)
    told["registered"], told["registered seconds"] = registered(torch, dist)
    if options is not None:
        report = millpond_torch.report(rank)
        told["report"] = report if isinstance(report, str) else str(report)
    torch.cuda.synchronize()
    dist.destroy_process_group()
    print("TOLD " + json.dumps(told), flush=True)


def run(allocator, rounds):
    """What the first process told, or none after a word on why."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = [
        subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "--child", allocator, str(rank), str(port), "--rounds", str(rounds)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(WORLD)
    ]
    told, failed = [], False
    for rank, process in enumerate(children):
        try:
            said = process.communicate(timeout=SECONDS)[0]
        except subprocess.TimeoutExpired:
            for other in children:
                other.kill()
            said = process.communicate()[0] + f"\nwas not over in {SECONDS} s"
        lines = [line for line in said.splitlines() if line.startswith("TOLD ")]
        if process.returncode or not lines:
            print(f"{allocator}, GPU {rank}: ended with {process.returncode}\n{said[-3000:]}", flush=True)
            failed = True
        else:
            told.append(json.loads(lines[0][len("TOLD ") :]))
    return None if failed else told[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--allocators", default=",".join(ALLOCATORS))
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        allocator, rank, port = args.child
        child(allocator, int(rank), int(port), args.rounds)
        return 0
    chosen = args.allocators.split(",")
    unknown = [name for name in chosen if name not in ALLOCATORS]
    if unknown:
        parser.error(f"no allocator {unknown[0]}: there are {', '.join(ALLOCATORS)}")
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        print("SKIPPED: there is no PyTorch")
        return 77
    if torch.cuda.device_count() < WORLD or not dist.is_nccl_available():
        print(f"SKIPPED: {torch.cuda.device_count()} GPUs, and {WORLD} and NCCL are needed")
        return 77
    all_told = {name: run(name, args.rounds) for name in chosen}
    native, status = all_told.get("native"), 0
    for name, told in all_told.items():
        if told is None:
            print(f"FAIL {name}")
            status = 1
            continue
        if name == chosen[0]:
            print(f"{told['device']} x {WORLD}, PyTorch {told['torch']}, NCCL {told['nccl']}")
        rates = []
        for size, seconds in told["seconds"].items():
            beside = f" ({native['seconds'][size] / seconds:.2f})" if native else ""
            rates.append(f"{int(size) / MIB:g} MiB {int(size) / seconds / 1e9:.3g}{beside}")
        print(f"PASS {name}: all sums right; GB/s, and beside the native allocator's: {', '.join(rates)}")
        seconds = told["registered seconds"]
        print(f"     64 MiB {told['registered']}" + (f": {REGISTERED / seconds / 1e9:.3g} GB/s" if seconds else ""))
        if "report" in told:
            print("     " + told["report"].splitlines()[0])
    return status


if __name__ == "__main__":
    sys.exit(main())
