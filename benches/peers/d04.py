"""Row D4 at a peer: the target of a copy to the host is read before the copy is done.

PyTorch's to("cpu", non_blocking=True) gives a tensor that the host can read at once. First the tutorial's array, 100 x 999,999
doubles whose mean must be 500000 (row P7); most attempts look right, because the same bytes come back to the same memory. Then
values that change by one from attempt to attempt, and the last element is read. With a synchronise between, as the control,
nothing is wrong. Says which attempts were. Needs PyTorch; says so and ends with 77 where it is missing. At millpond the data can be reached behind the wait only:
testkit/src/suite/requirements.rs; benches/gpu.sh demos prints both.
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
    """The attempts whose mean is wrong."""
    wrong = []
    for attempt in range(attempts):
        host = array.to("cpu", non_blocking=True)
        if waits:
            torch.cuda.synchronize()
        if not torch.isclose(host.mean(), torch.tensor(500_000.0, dtype=torch.double)):
            wrong.append(attempt)
        torch.cuda.synchronize()
    return wrong


def changing(array, attempts, waits):
    """The attempts whose last element is wrong, of values that change."""
    wrong = []
    for attempt in range(attempts):
        array.add_(1)
        torch.cuda.synchronize()
        host = array.to("cpu", non_blocking=True)
        if waits:
            torch.cuda.synchronize()
        early = float(host[-1, -1])
        torch.cuda.synchronize()
        if early != float(host[-1, -1]):
            wrong.append(attempt)
    return wrong


def main():
    attempts = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    array = torch.arange(1, COLUMNS + 1, dtype=torch.double, device="cuda").expand(ROWS, COLUMNS).clone()
    torch.cuda.synchronize()
    few = max(attempts // 10, 3)
    for what, find, tries in (("means", means, attempts), ("last elements of changing values", changing, 30)):
        wrong, control = find(array, tries, False), find(array, few, True)
        said = ", ".join(map(str, wrong[:12])) + (" ..." if len(wrong) > 12 else "")
        print(
            f"D4 PyTorch {torch.__version__}: {array.numel() * 8} bytes to the host, read at once: {len(wrong)} of {tries} {what} "
            f"wrong{', at attempts ' + said if wrong else ''}; read behind a synchronise: {len(control)} of {few}",
            flush=True,
        )


main()
