"""Row D3 at a peer: a CuPy stream is dropped with work pending that reads a freed array, and a new stream allocates.

CuPy's pool knows streams by their handle values, and the driver gives a destroyed stream's value to the next one: then
the new stream is handed the bytes with nothing to order it behind the reader. Prints how often the handle value and the
block came back, and how often the reader read the wrong thing. Needs CuPy; says so and ends with 77 where it is missing.
testkit/src/suite/requirements.rs does the same to millpond; benches/gpu.sh demos prints both.
    d03.py [RUNS]
"""

from holding import WORDS, cupy, hold, runs_asked, stream


def once():
    """One stream dropped behind a kernel of 20 ms: (handle value back, same block, elements read wrong)."""
    old = stream()
    value = old.ptr
    with old:
        source = cupy.full(WORDS, 1, cupy.float32)
        target = cupy.zeros(WORDS, cupy.float32)
        old.synchronize()
        hold()
        cupy.add(source, 0, out=target)
    block = source.data.ptr
    del source
    del old
    new = stream()
    back = new.ptr == value
    with new:
        other = cupy.empty(WORDS, cupy.float32)
        same = other.data.ptr == block
        other.fill(7)
    cupy.cuda.Device().synchronize()
    return back, same, int((target != 1).sum())


def main():
    runs = runs_asked(80)
    once()
    seen = [once() for _ in range(runs)]
    back, same, wrong = (sum(1 for run in seen if run[part]) for part in range(3))
    worst = max(run[2] for run in seen)
    print(
        f"D3 CuPy {cupy.__version__}: {runs} streams dropped with work pending; the handle value back {back} times, the "
        f"same block given away {same} times; wrong in {wrong} runs, at worst {worst} of {WORDS} elements"
    )


main()
