"""Row T13 at two peers: what one stream has freed does not serve another.

Both pools keep what a stream frees for that stream. As many blocks as before, asked for on a second stream when the first is
done, are taken from the device anew: the pool has twice what the program ever had at once. Prints lines of the table that
benches/gpu/gpu_costs.rs ends with, for the same pieces; benches/gpu.sh costs shows both. What is missing is said on the error
stream; ends with 77 where one of the two is.
    t13.py
"""

import sys

from both import absent

MIB = 1 << 20
ASKED = 1024 * MIB
PIECES = (64 * MIB, 4 * MIB)


def report(who, piece, before, after):
    """One line: bytes taken after the first stream had its blocks, and after the second had."""
    print(
        f"T13\t{who}, the first stream is done\t{ASKED // piece} of {piece // MIB} MiB\t{before // MIB}\t{after // MIB}\t"
        f"{after / ASKED:.3f}\tnot reported",
        flush=True,
    )


def with_cupy():
    import cupy

    first, second = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)

    def blocks(pool, piece, on):
        with on:
            found = [pool.malloc(piece) for _ in range(ASKED // piece)]
            for block in found:
                block.memset_async(1, piece, on)
        return found

    for piece in PIECES:
        pool = cupy.cuda.MemoryPool()
        held = blocks(pool, piece, first)
        del held
        first.synchronize()
        before = pool.total_bytes()
        held = blocks(pool, piece, second)
        after = pool.total_bytes()
        second.synchronize()
        del held
        pool.free_all_blocks()
        report(f"CuPy {cupy.__version__}", piece, before, after)


def with_torch():
    import torch

    def blocks(piece, on):
        with torch.cuda.stream(on):
            found = [torch.empty(piece, dtype=torch.uint8, device="cuda") for _ in range(ASKED // piece)]
            for block in found:
                block.fill_(1)
        return found

    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    for piece in PIECES:
        torch.cuda.empty_cache()
        empty = torch.cuda.memory_reserved()
        held = blocks(piece, first)
        del held
        torch.cuda.synchronize()
        before = torch.cuda.memory_reserved() - empty
        held = blocks(piece, second)
        after = torch.cuda.memory_reserved() - empty
        torch.cuda.synchronize()
        del held
        report(f"PyTorch {torch.__version__}", piece, before, after)


if __name__ == "__main__":
    sys.exit(77 if absent({"CuPy": with_cupy, "PyTorch": with_torch}, sys.stderr) else 0)
