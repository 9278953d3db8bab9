"""CuPy on millpond, beside its own pool, on a GPU: `cupy_checks.py` ends with 1 if a part failed.

    numbers     arrays, reductions, FFT and sorting agree with NumPy, from several threads and streams
    D1          a pinned source dropped while its copy waits, the next pinned buffer written
    D2          an array read by a slow kernel on another stream, dropped, its bytes given out again
    D3          a stream dropped with work pending; its handle value comes back
    use         D2 where streams are current by use() and not by `with`
    external    D2 and D3 with an ExternalStream, whose stream is destroyed by its owner with work pending
    capture     graphs captured on one stream while arrays of others are made and dropped: each capture survives and its graph replays correctly
    captures    the same by two threads at once, each on a stream of its own, the second one's an ExternalStream
    scopes      row C3: using_allocator, one in another, left by an error, beside another thread

Needs CuPy and NumPy; ends with 77 without them or without a GPU.
"""

import gc
import os
import sys
import threading

try:
    import cupy
    import numpy

    cupy.cuda.runtime.getDeviceCount()
except Exception as why:
    print(f"SKIPPED: CuPy, {why}")
    sys.exit(77)

# The row at a peer, and the kernel that holds a stream, are the demonstrations'.
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "benches", "peers"))

import millpond_cupy
from d01 import once as d1
from holding import WORDS, hold, stream

RUNS = 40


def arrays():
    """What a slow reader reads, and where it writes what it read."""
    return cupy.full(WORDS, 1, cupy.float32), cupy.zeros(WORDS, cupy.float32)


def read_slowly(source, target):
    """Queued on the current stream behind a kernel that holds it."""
    hold()
    cupy.add(source, 0, out=target)


def next_owner():
    """Who is given the bytes that the reader may still read, and writes them."""
    other = cupy.empty(WORDS, cupy.float32)
    other.fill(7)
    return other


def is_wrong(target):
    """Whether the reader saw something else than there was."""
    cupy.cuda.Device().synchronize()
    return int((target != 1).sum()) > 0


def d2(one, two):
    """Whether the slow reader on `two` saw the next owner's bytes."""
    with one:
        source, target = arrays()
    one.synchronize()
    with two:
        read_slowly(source, target)
    del source
    with one:
        other = next_owner()
    wrong = is_wrong(target)
    del other
    return wrong


def own():
    """A stream of CuPy's, which ends with its object."""
    return stream(), None


def external():
    """A raw stream without a CuPy object, and its handle: the caller destroys it."""
    handle = cupy.cuda.runtime.streamCreateWithFlags(cupy.cuda.runtime.streamNonBlocking)
    return cupy.cuda.ExternalStream(handle), handle


def destroy(handle):
    """Once no object of CuPy's has it."""
    if handle is not None:
        gc.collect()
        cupy.cuda.runtime.streamDestroy(handle)


def d3(make=own):
    """Whether a stream that took a dropped one's handle was given bytes still in use."""
    old, handle = make()
    with old:
        source, target = arrays()
        old.synchronize()
        read_slowly(source, target)
    del source
    del old
    destroy(handle)
    new, handle = make()
    with new:
        other = next_owner()
    wrong = is_wrong(target)
    del other, target, new
    destroy(handle)
    return wrong


def d2_by_use(one, two):
    """As d2, with streams that stay current until the next is."""
    before = cupy.cuda.get_current_stream()
    try:
        one.use()
        source, target = arrays()
        one.synchronize()
        two.use()
        read_slowly(source, target)
        del source
        one.use()
        other = next_owner()
    finally:
        before.use()
    wrong = is_wrong(target)
    del other
    return wrong


def d2_external(one):
    """As d2, where the slow reader's stream is an external one."""
    two, handle = external()
    wrong = d2(one, two)
    del two
    destroy(handle)
    return wrong


def demos():
    """In how many runs each went wrong; of D1 also with the source kept, as the control."""
    one, two = stream(), stream()
    d1(False)
    d2(one, two)
    d3()
    d2_by_use(one, two)
    d2_external(one)
    d3(external)
    return {
        "D1": sum(d1(False)[1] > 0 for _ in range(RUNS)),
        "D1, the source kept": sum(d1(True)[1] > 0 for _ in range(RUNS)),
        "D2": sum(d2(one, two) for _ in range(RUNS)),
        "D3": sum(d3() for _ in range(RUNS)),
        "use, D2": sum(d2_by_use(one, two) for _ in range(RUNS)),
        "external, D2": sum(d2_external(one) for _ in range(RUNS)),
        "external, D3": sum(d3(external) for _ in range(RUNS)),
    }


def numbers(seed, wrong):
    """What CuPy and NumPy make of the same numbers."""
    try:
        rng = numpy.random.default_rng(seed)
        own = stream()
        with own:
            for round in range(12):
                host = rng.standard_normal(1000 + 7919 * round % 50_000)
                there = cupy.asarray(host)
                pairs = [
                    ("sum", there.sum(), host.sum()),
                    ("arithmetic", (there * 2 + 1).mean(), (host * 2 + 1).mean()),
                    ("sort", cupy.sort(there), numpy.sort(host)),
                    ("fft", cupy.fft.fft(there), numpy.fft.fft(host)),
                    ("cumsum", cupy.cumsum(there), numpy.cumsum(host)),
                    ("matmul", there[:900].reshape(30, 30) @ there[:900].reshape(30, 30), host[:900].reshape(30, 30) @ host[:900].reshape(30, 30)),
                ]
                for what, found, expected in pairs:
                    if not numpy.allclose(cupy.asnumpy(found), expected, rtol=1e-9, atol=1e-9):
                        wrong.append(f"{what}, thread {seed}, round {round}")
    except Exception as why:
        wrong.append(f"thread {seed}: {why!r}")


def capture(pool):
    """What went wrong while one stream captured and arrays of others were made and dropped, in words; how many frees were held at most."""
    captured, others = stream(), [stream(), stream()]
    with captured:
        x, y = cupy.zeros(WORDS, cupy.float32), cupy.zeros(WORDS, cupy.float32)

    def work():
        cupy.add(x, 1, out=x)
        cupy.multiply(x, 2, out=y)

    def beside(round):
        """Arrays of the other streams: some dropped at once, some kept with the value they must have."""
        for n, s in enumerate(others):
            with s:
                first = cupy.full(WORDS >> n, round + n, cupy.float32)
                kept.append((first * 3, 3 * (round + n)))
                del first

    wrong, kept, held = [], [], 0
    # Every kernel is loaded before the first capture.
    with captured:
        work()
    beside(1)
    cupy.cuda.Device().synchronize()
    kept.clear()
    for round in range(1, RUNS + 1):
        captured.begin_capture()
        try:
            with captured:
                work()
            beside(round)
            held = max(held, pool.held_frees())
        finally:
            # Raises if the capture was ended by other code.
            graph = captured.end_capture()
        with captured:
            x.fill(round)
        graph.launch(captured)
        graph.launch(captured)
        captured.synchronize()
        if not (bool((x == round + 2).all()) and bool((y == 2 * (round + 2)).all())):
            wrong.append(f"the graph of round {round} replayed wrong")
        del graph
        # Served by the next call, behind the end of the capture.
        cupy.empty(512, cupy.uint8)
        if pool.held_frees():
            wrong.append(f"round {round}: {pool.held_frees()} frees are held behind the capture's end")
        cupy.cuda.Device().synchronize()
        wrong += [f"round {round}: an array beside the capture is not {value}" for array, value in kept if not bool((array == value).all())]
        kept.clear()
    if not held:
        wrong.append("no free was held: nothing was dropped beside a capture")
    return wrong, held


def captures(wrong, streams):
    """What went wrong while two threads captured at once, in words; how often one captured while the other did."""
    words, capturing, both, ready = WORDS >> 2, [False, False], [0, 0], threading.Barrier(2)

    def thread(n):
        captured = streams[n]
        own = stream()
        with captured:
            x, y = cupy.zeros(words, cupy.float32), cupy.zeros(words, cupy.float32)

        def work():
            cupy.add(x, 1, out=x)
            cupy.multiply(x, 2, out=y)

        def beside(round):
            """On a stream that does not capture; dropped, and its bytes given out again, while this thread captures, and perhaps the other."""
            with own:
                first = cupy.full(words, round, cupy.float32)
                second = first * 3
                del first
                third = cupy.full(words, -1, cupy.float32)
                del third
                return second

        # Every kernel is loaded before the first capture, and what a comparison needs.
        with captured:
            work()
            bool((x == 1).all())
        kept = beside(1)
        with own:
            bool((kept == 3).all())
        captured.synchronize(), own.synchronize()
        ready.wait(60)
        for round in range(1, RUNS + 1):
            captured.begin_capture()
            capturing[n] = True
            try:
                with captured:
                    work()
                kept = beside(round)
                both[n] += capturing[1 - n]
            finally:
                capturing[n] = False
                # Raises if the capture was ended by other code.
                graph = captured.end_capture()
            with captured:
                x.fill(round)
                graph.launch(captured)
                graph.launch(captured)
                right = bool((x == round + 2).all()) and bool((y == 2 * (round + 2)).all())
            if not right:
                wrong.append(f"thread {n}: the graph of round {round} replayed wrong")
            with own:
                if not bool((kept == 3 * round).all()):
                    wrong.append(f"thread {n}, round {round}: an array beside the captures is not {3 * round}")
            del graph, kept
        captured.synchronize(), own.synchronize()

    def guarded(n):
        try:
            thread(n)
        except Exception as why:
            wrong.append(f"thread {n}: {why!r}")
            ready.abort()

    threads = [threading.Thread(target=guarded, args=(n,)) for n in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return sum(both)


def scopes(outer):
    """Where an array did not come from the allocator of its scope, in words. The outer one is installed for every thread."""
    size = 1 << 20
    pools = {"outer": outer, "inner": millpond_cupy.MemoryPool(), "innermost": millpond_cupy.MemoryPool()}
    kept, wrong = [], []

    def comes_from(name, where):
        before = {who: pool.used_bytes() for who, pool in pools.items()}
        kept.append(cupy.empty(size, cupy.uint8))
        taken = {who: pool.used_bytes() - before[who] for who, pool in pools.items()}
        if taken != {who: size if who == name else 0 for who in pools}:
            wrong.append(f"{where}: {taken}")

    def scope(name):
        return cupy.cuda.using_allocator(pools[name].malloc)

    def another_thread():
        try:
            comes_from("outer", "another thread, in no scope")
            with scope("innermost"):
                comes_from("innermost", "another thread, in a scope of its own")
            comes_from("outer", "another thread, behind its scope")
        except Exception as why:
            wrong.append(f"another thread: {why!r}")

    comes_from("outer", "before all scopes")
    with scope("inner"):
        comes_from("inner", "in a scope")
        with scope("innermost"):
            comes_from("innermost", "in a scope of a scope")
        comes_from("inner", "behind the inner scope")
        try:
            with scope("innermost"):
                comes_from("innermost", "in a scope that ends badly")
                raise KeyError(size)
        except KeyError:
            comes_from("inner", "behind a scope that was left by an error")
        thread = threading.Thread(target=another_thread)
        thread.start()
        thread.join()
        comes_from("inner", "behind another thread's scopes")
    comes_from("outer", "behind all scopes")
    # What an array was taken from has it back, whatever the scope in which it ends.
    kept.clear()
    for who in ("inner", "innermost"):
        if pools[who].used_bytes():
            wrong.append(f"{who} has {pools[who].used_bytes()} bytes in use behind the last array")
        pools[who].free_all_blocks()
    return wrong


def main():
    failed = False

    def check(what, right, said=""):
        nonlocal failed
        print(f"{'PASS' if right else 'FAIL'} {what} {said}")
        failed = failed or not right

    theirs = demos()
    pool = millpond_cupy.install()
    ours = demos()
    for what, wrong in ours.items():
        check(what, wrong == 0, f"{wrong} of {RUNS} wrong; CuPy's own pools {theirs[what]} (CuPy {cupy.__version__})")
    wrong = []
    threads = [threading.Thread(target=numbers, args=(seed, wrong)) for seed in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    check("arrays, reductions, FFT, sorting, matrices as NumPy, 4 threads and streams", not wrong, "; ".join(wrong[:5]))
    cupy.cuda.Device().synchronize()
    try:
        wrong, held = capture(pool)
    except Exception as why:
        wrong, held = [repr(why)], 0
    check(f"capture, {RUNS} graphs beside arrays of other streams", not wrong, "; ".join(wrong[:5]) or f"at most {held} frees held meanwhile")
    cupy.cuda.Device().synchronize()
    theirs, handle = external()
    wrong = []
    both = captures(wrong, [stream(), theirs])
    check(f"captures, {RUNS} graphs on each of two threads", not wrong, "; ".join(wrong[:5]) or f"{both} times both captured")
    cupy.cuda.Device().synchronize()
    del theirs
    destroy(handle)
    # Behind the captures' ends nothing is held by a next call.
    cupy.empty(512, cupy.uint8)
    check("captures, nothing is held behind their ends", pool.held_frees() == 0, f"{pool.held_frees()} frees")
    wrong = scopes(pool)
    check("C3, an array comes from the allocator of its scope: nested, left by an error, beside another thread", not wrong, "; ".join(wrong[:5]))
    pool.set_limit(size=1 << 30)
    limit = pool.get_limit()
    try:
        cupy.empty(2 << 30, cupy.uint8)
        check("a limit", False, "2 GiB were given out above a limit of 1 GiB")
    except cupy.cuda.memory.OutOfMemoryError:
        check("a limit", limit == 1 << 30)
    pool.set_limit(size=0)
    x = cupy.zeros(1 << 20, cupy.uint8)
    used = pool.used_bytes()
    del x
    check("statistics", used - pool.used_bytes() == 1 << 20, f"{used} bytes used, {pool.total_bytes()} taken")
    cupy.cuda.Device().synchronize()
    pool.free_all_blocks()
    print(pool.report())
    return 1 if failed else 0


sys.exit(main())
