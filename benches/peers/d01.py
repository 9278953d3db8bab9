"""Row D1 at a peer: a pinned source is dropped while its copy waits behind a kernel, and the next pinned buffer is written.

CuPy's pinned pool takes memory back when its last reference goes, whatever copies still read it: the next buffer of the
size is the same memory, and what arrives is what was written there later. With the source kept, as the control, nothing is wrong.
Needs CuPy; says so and ends with 77 where it is missing. testkit/src/suite/requirements.rs does the same to millpond, benches/gpu.sh demos
prints both; plug/gpu/cupy_checks.py does it to CuPy on millpond.
    d01.py [RUNS]
"""

from holding import WORDS, cupy, hold, numpy, runs_asked, stream

OLD, NEW = 0x11111111, 0x22222222


def pinned(word):
    """Pinned memory and an array over it, full of a word."""
    memory = cupy.cuda.alloc_pinned_memory(4 * WORDS)
    array = numpy.frombuffer(memory, numpy.uint32, WORDS)
    array[...] = word
    return memory, array


def once(kept):
    """(same memory, words that arrived wrong)."""
    on = stream()
    target = cupy.zeros(WORDS, cupy.uint32)
    cupy.cuda.Device().synchronize()
    memory, source = pinned(OLD)
    address = memory.ptr
    with on:
        hold()
    target.set(source, stream=on)
    if not kept:
        del memory, source
    other, _ = pinned(NEW)
    same = other.ptr == address
    on.synchronize()
    return same, int((target.get() != OLD).sum())


def main():
    runs = runs_asked(60)
    for kept in (False, True):
        once(kept)
        seen = [once(kept) for _ in range(runs)]
        same, wrong = sum(1 for run in seen if run[0]), sum(1 for run in seen if run[1])
        worst = max(run[1] for run in seen)
        what = "kept, as the control" if kept else "dropped in flight"
        print(
            f"D1 CuPy {cupy.__version__}: {runs} pinned sources {what}; the same memory given away {same} times; wrong in "
            f"{wrong} runs, at worst {worst} of {WORDS} words"
        )


if __name__ == "__main__":
    main()
