"""Row D4 at a peer: the target of a copy to the host is read before the copy is done.

PyTorch's to("cpu", non_blocking=True) gives a tensor that anybody can read at once. First the tutorial's array, whose mean must
be 500000 (row P7); most attempts look right, because the same bytes come back to the same memory. Then values that
change by one from attempt to attempt, and the last element is read. With a synchronise between, as the control, nothing is
wrong. Needs PyTorch; says so and ends with 77 where it is missing. At millpond the data can be reached behind the wait only:
tests/suite/rows.rs; benches/gpu.sh demos prints both.
    d04.py [ATTEMPTS]
"""

import sys

try:
    import torch
except ImportError as why:
    print(f"SKIPPED: PyTorch, {why}")
    sys.exit(77)

ROWS, COLUMNS = 100, 999_999


def means(array, attempts, waits):
    """How many means are wrong."""
    wrong = 0
    for _ in range(attempts):
        host = array.to("cpu", non_blocking=True)
        if waits:
            torch.cuda.synchronize()
        wrong += not torch.isclose(host.mean(), torch.tensor(500_000.0, dtype=torch.double))
        torch.cuda.synchronize()
    return wrong


def changing(array, attempts, waits):
    """How many last elements are wrong, of values that change."""
    wrong = 0
    for _ in range(attempts):
        array.add_(1)
        torch.cuda.synchronize()
        host = array.to("cpu", non_blocking=True)
        if waits:
            torch.cuda.synchronize()
        early = float(host[-1, -1])
        torch.cuda.synchronize()
        wrong += early != float(host[-1, -1])
    return wrong


def main():
    attempts = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    array = torch.arange(1, COLUMNS + 1, dtype=torch.double, device="cuda").expand(ROWS, COLUMNS).clone()
    torch.cuda.synchronize()
    few = max(attempts // 10, 3)
    for what, count, tries in (("means", means, attempts), ("last elements of changing values", changing, 30)):
        wrong, control = count(array, tries, False), count(array, few, True)
        print(
            f"D4 PyTorch {torch.__version__}: {array.numel() * 8} bytes to the host, read at once: {wrong} of {tries} {what} "
            f"wrong; read behind a synchronise: {control} of {few}",
            flush=True,
        )


main()
