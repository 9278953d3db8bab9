"""Row D2 at two peers: an array made on one stream is read by a slow kernel on another, dropped, and its first stream makes
and fills the next one.

Both pools know the stream of an allocation, and the reader is not recorded: the next array is the same memory, with
nothing to order it behind the reader. PyTorch has a call for it (record_stream): with it nothing is wrong. What is missing is
said; ends with 77 where both are. testkit/src/suite/requirements.rs does the same to millpond, with nothing annotated; benches/gpu.sh
demos prints both.
    d02.py [RUNS]
"""

import sys

from both import absent

WORDS = 1 << 22
RUNS = int(sys.argv[1]) if len(sys.argv) > 1 else 40


def report(who, once):
    """Prints what so many runs of (same memory, elements read wrong) came to."""
    once()
    seen = [once() for _ in range(RUNS)]
    same, wrong = sum(1 for run in seen if run[0]), sum(1 for run in seen if run[1])
    worst = max(run[1] for run in seen)
    print(
        f"D2 {who}: {RUNS} arrays dropped under a reader; the same memory given away {same} times; wrong in {wrong} runs, at "
        f"worst {worst} of {WORDS} elements",
        flush=True,
    )


def with_cupy():
    from holding import cupy, hold, stream

    def once():
        first, second = stream(), stream()
        with first:
            array = cupy.full(WORDS, 1, cupy.float32)
        first.synchronize()
        address = array.data.ptr
        with second:
            read = cupy.zeros(WORDS, cupy.float32)
            hold()
            cupy.add(array, 0, out=read)
        del array
        with first:
            other = cupy.empty(WORDS, cupy.float32)
            same = other.data.ptr == address
            other.fill(7)
        cupy.cuda.Device().synchronize()
        return same, int((read != 1).sum())

    report(f"CuPy {cupy.__version__}", once)


def with_torch():
    import torch

    first, second = torch.cuda.Stream(), torch.cuda.Stream()

    def once(recorded):
        with torch.cuda.stream(first):
            array = torch.full((WORDS,), 1.0, device="cuda")
        with torch.cuda.stream(second):
            read = torch.zeros(WORDS, device="cuda")
        torch.cuda.synchronize()
        address = array.data_ptr()
        with torch.cuda.stream(second):
            # Cycles: 20 ms and more on every GPU of these years.
            torch.cuda._sleep(50_000_000)
            torch.add(array, 0, out=read)
        if recorded:
            array.record_stream(second)
        del array
        with torch.cuda.stream(first):
            other = torch.empty(WORDS, device="cuda")
            same = other.data_ptr() == address
            other.fill_(7)
        torch.cuda.synchronize()
        return same, int((read != 1).sum())

    for recorded in (False, True):
        how = "with record_stream" if recorded else "without record_stream"
        report(f"PyTorch {torch.__version__} {how}", lambda: once(recorded))


if __name__ == "__main__":
    sys.exit(77 if absent({"CuPy": with_cupy, "PyTorch": with_torch}) == 2 else 0)
