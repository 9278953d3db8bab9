"""PyTorch on millpond, beside its own allocator, on a GPU: `torch_checks.py` runs every part and ends with 1 if one failed.

    train       a small transformer, 200 steps: the same losses as on PyTorch's own allocators, memory and time beside them
    prefetch    batches copied on a stream of their own, used on another: every sum is right
    record      D2: a tensor used by a slow kernel on another stream, record_stream, dropped, its bytes given out again
    capture     torch.cuda.graph on tensors that are there, while other threads allocate and drop on other streams: each capture survives and replays correctly
    memory      out of memory raises torch.OutOfMemoryError with millpond's report; limits, statistics, empty_cache
    mempool     torch.cuda.MemPool over millpond beside PyTorch's own allocator
    devices     with two GPUs: tensors on both, copies across, record_stream, statistics of each; skipped with one

Each allocator runs in a process of its own. Needs PyTorch; ends with 77 without it or without a GPU. MILLPOND_LIBRARY names
the library where the package is not installed.
"""

import json
import os
import statistics
import subprocess
import sys
import threading
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
MIB = 1 << 20


def train(torch, steps=200):
    """Losses of a small transformer, milliseconds a step, and MiB taken from the device."""
    torch.manual_seed(7)
    torch.use_deterministic_algorithms(True)
    free, _ = torch.cuda.mem_get_info()
    width, length, batch, words = 256, 128, 16, 1000
    layer = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
    model = torch.nn.Sequential(
        torch.nn.Embedding(words, width),
        torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False),
        torch.nn.Linear(width, words),
    ).cuda()
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-4)
    data = torch.Generator().manual_seed(11)
    losses, times = [], []
    for step in range(steps):
        # Lengths vary, as text does.
        n = length - 8 * (step % 5)
        text = torch.randint(words, (batch, n), generator=data).cuda()
        start = time.perf_counter()
        loss = torch.nn.functional.cross_entropy(model(text).flatten(0, 1), text.roll(-1, 1).flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        times.append(1e3 * (time.perf_counter() - start))
    after, _ = torch.cuda.mem_get_info()
    return losses, statistics.median(times[20:]), (free - after) // MIB


def prefetch(torch, batches=200):
    """How many batches summed up wrong."""
    copy, work = torch.cuda.Stream(), torch.cuda.Stream()
    host = [torch.full((1 << 20,), float(i % 7 + 1)).pin_memory() for i in range(8)]
    wrong = 0
    sums = []
    nothing = torch.zeros(1, device="cuda")
    for i in range(batches):
        with torch.cuda.stream(copy):
            batch = host[i % 8].to("cuda", non_blocking=True)
        work.wait_stream(copy)
        with torch.cuda.stream(work):
            batch.record_stream(work)
            sums.append((batch * 2).sum() + nothing)
        del batch
    torch.cuda.synchronize()
    for i, total in enumerate(sums):
        wrong += total.item() != 2.0 * (i % 8 % 7 + 1) * (1 << 20)
    return wrong


def record(torch, recorded, runs=40):
    """D2: in how many runs the slow reader saw the next owner's bytes."""
    one, two = torch.cuda.Stream(), torch.cuda.Stream()
    words = 1 << 22
    wrong = 0
    for _ in range(runs):
        with torch.cuda.stream(one):
            x = torch.ones(words, device="cuda")
            out = torch.zeros(words, device="cuda")
        two.wait_stream(one)
        with torch.cuda.stream(two):
            torch.cuda._sleep(20_000_000)
            out.copy_(x)
        if recorded:
            x.record_stream(two)
            out.record_stream(two)
        del x
        with torch.cuda.stream(one):
            y = torch.full((words,), 7.0, device="cuda")
        torch.cuda.synchronize()
        wrong += bool((out != 1).any().item())
        del y, out
    return wrong


def capture(torch, graphs=40):
    """What went wrong, in words, and how often the other threads came round. The captured work allocates nothing: an allocator of others'
    making has no pools for graphs, and a tensor that is made inside a capture is refused."""
    words, wrong, rounds = 1 << 20, [], [0, 0]
    captured = torch.cuda.Stream()
    with torch.cuda.stream(captured):
        x, y = torch.zeros(words, device="cuda"), torch.zeros(words, device="cuda")
    stop = threading.Event()

    def work():
        torch.add(x, 1, out=x)
        torch.mul(x, 2, out=y)

    def beside(n):
        try:
            own, other = torch.cuda.Stream(), torch.cuda.Stream()
            while not stop.is_set():
                value = float(rounds[n] % 100)
                with torch.cuda.stream(own):
                    a = torch.full((words >> n,), value, device="cuda")
                    other.wait_stream(own)
                    with torch.cuda.stream(other):
                        b = a * 3
                    a.record_stream(other)
                    del a
                    c = torch.full((words >> n,), -1.0, device="cuda")
                with torch.cuda.stream(other):
                    if not bool((b == 3 * value).all().item()):
                        wrong.append(f"thread {n}, round {rounds[n]}: not {3 * value}")
                del b, c
                rounds[n] += 1
        except Exception as why:
            wrong.append(f"thread {n}: {why!r}")

    with torch.cuda.stream(captured):
        work()
    torch.cuda.synchronize()
    threads = [threading.Thread(target=beside, args=(n,)) for n in range(len(rounds))]
    for t in threads:
        t.start()
    try:
        for i in range(graphs):
            graph = torch.cuda.CUDAGraph()
            # By this thread's mode: what others call meanwhile is theirs.
            with torch.cuda.graph(graph, stream=captured, capture_error_mode="thread_local"):
                work()
                before = list(rounds)
                # The others come round while it captures, if they run still.
                while all(t.is_alive() for t in threads) and any(now <= then for now, then in zip(rounds, before)):
                    time.sleep(0)
            with torch.cuda.stream(captured):
                x.fill_(float(i))
                graph.replay()
                graph.replay()
                right = bool((x == i + 2).all().item()) and bool((y == 2 * (i + 2)).all().item())
            if not right:
                wrong.append(f"graph {i} replayed wrong")
            del graph
    except Exception as why:
        wrong.append(f"a capture: {why!r}")
    stop.set()
    for t in threads:
        t.join()
    torch.cuda.synchronize()
    return wrong[:5], sum(rounds)


def memory(torch, millpond_torch):
    """What a program sees of limits, statistics and refusals."""
    total = torch.cuda.get_device_properties(0).total_memory
    try:
        torch.empty(2 * total, dtype=torch.uint8, device="cuda")
        raise AssertionError("twice the device was given out")
    except torch.OutOfMemoryError as why:
        said = str(why)
        assert "requested" in said and "limit" in said, said
        print("    out of memory says:", said.splitlines()[0][:200])
    # Again, and with a limit: nothing is lost by a refusal.
    torch.cuda.set_per_process_memory_fraction(0.01)
    try:
        torch.empty(total // 50, dtype=torch.uint8, device="cuda")
        raise AssertionError("the fraction was not kept")
    except torch.OutOfMemoryError as why:
        assert "raise the limit" in str(why) or "limit" in str(why), why
    torch.cuda.set_per_process_memory_fraction(1.0)
    before = millpond_torch.memory_allocated()
    x = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    assert millpond_torch.memory_allocated() - before == 64 * MIB
    del x
    assert millpond_torch.memory_allocated() == before
    torch.cuda.empty_cache()
    stats = millpond_torch.memory_stats()
    assert stats["reserved_bytes.all.current"] >= stats["allocated_bytes.all.current"], stats
    assert stats["untold_failures"] == 0, (stats, millpond_torch.report())
    return stats


def mempool(torch, millpond_torch):
    """A pool of PyTorch's own over millpond: where its bytes come from."""
    pool = torch.cuda.MemPool(millpond_torch.pluggable().allocator())
    before = millpond_torch.memory_allocated()
    with torch.cuda.use_mem_pool(pool):
        x = torch.arange(1 << 22, device="cuda")
    held = millpond_torch.memory_allocated() - before
    right = bool((x == torch.arange(1 << 22, device="cuda")).all().item())
    del x, pool
    torch.cuda.empty_cache()
    return held, right


def devices(torch, millpond_torch, rounds=50):
    """How many values were wrong on two GPUs that copy to each other; that each has its own memory."""
    one, two = torch.device("cuda:0"), torch.device("cuda:1")
    before = [millpond_torch.memory_allocated(d) for d in (0, 1)]
    held = torch.ones(4 << 20, device=two)
    after = [millpond_torch.memory_allocated(d) for d in (0, 1)]
    assert [a - b for a, b in zip(after, before)] == [0, 16 * MIB], (before, after)
    side = {d: torch.cuda.Stream(d) for d in (one, two)}
    words, wrong = 1 << 20, 0
    nothing = [torch.zeros(1, device=d) for d in (one, two)]
    for i in range(rounds):
        here, there = (one, two) if i % 2 else (two, one)
        with torch.cuda.device(here), torch.cuda.stream(side[here]):
            x = torch.full((words,), float(i + 1), device=here)
            # The copy runs on a stream of the source's device, ordered with the target's.
            y = x.to(there, non_blocking=True)
        torch.cuda.current_stream(there).wait_stream(side[here])
        with torch.cuda.device(there), torch.cuda.stream(side[there]):
            side[there].wait_stream(side[here])
            torch.cuda._sleep(2_000_000)
            z = y * 2
            y.record_stream(side[there])
        del x, y
        with torch.cuda.device(there):
            other = torch.full((words,), -7.0, device=there)
        torch.cuda.synchronize(there)
        wrong += int((z != 2.0 * (i + 1)).sum().item() > 0)
        del z, other
    wrong += int((held != 1).sum().item() > 0)
    del held, nothing
    for d in (0, 1):
        torch.cuda.synchronize(d)
        stats = millpond_torch.allocator(d).stats()
        assert stats["device"] == d and stats["total"]["counters"]["allocations"] > rounds // 2, stats
    torch.cuda.empty_cache()
    return {"wrong": wrong, "rounds": rounds, "unreported": millpond_torch.memory_stats(0)["untold_failures"]}


def part(name):
    """What one process does; prints a line of JSON."""
    import torch

    result = {"torch": torch.__version__}
    if name == "millpond":
        import millpond_torch

        millpond_torch.install()
    result["losses"], result["ms"], result["MiB"] = train(torch)
    if name != "expandable":
        result["prefetch"] = prefetch(torch)
        result["record"] = record(torch, True)
        result["unrecorded"] = record(torch, False)
    if name == "millpond":
        result["capture"] = capture(torch)
        result["stats"] = memory(torch, millpond_torch)
        if torch.cuda.device_count() > 1:
            result["devices"] = devices(torch, millpond_torch)
    if name == "native":
        import millpond_torch

        result["mempool"] = mempool(torch, millpond_torch)
    print("RESULT " + json.dumps(result))


def run(name):
    environment = dict(os.environ)
    if name == "expandable":
        environment["PYTORCH_CUDA_ALLOC_CONF"] = environment["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    done = subprocess.run([sys.executable, __file__, name], env=environment, capture_output=True, text=True, timeout=170)
    result = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    for line in done.stdout.splitlines():
        if not line.startswith("RESULT "):
            print(line)
    if done.returncode or not result:
        print(f"{name}: ended with {done.returncode}\n{done.stderr[-3000:]}")
        return None
    return json.loads(result[0][7:])


def main():
    try:
        import torch
    except ImportError as why:
        print(f"SKIPPED: PyTorch, {why}")
        return 77
    if not torch.cuda.is_available():
        print("SKIPPED: PyTorch sees no GPU")
        return 77
    failed = []

    def check(what, right, said=""):
        print(f"{'PASS' if right else 'FAIL'} {what} {said}")
        if not right:
            failed.append(what)

    seen = {name: run(name) for name in ("native", "expandable", "millpond")}
    check("every allocator ran", all(seen.values()))
    if not all(seen.values()):
        return 1
    ours, native = seen["millpond"], seen["native"]
    for name, result in seen.items():
        print(f"train {name}: {result['ms']:.2f} ms a step, {result['MiB']} MiB taken, last loss {result['losses'][-1]:.6f} (PyTorch {result['torch']})")
    check("200 losses are the same to the last bit", ours["losses"] == native["losses"])
    check("prefetch on two streams", ours["prefetch"] == 0, f"{ours['prefetch']} of 200 batches wrong")
    check("D2 with record_stream", ours["record"] == 0, f"{ours['record']} of 40 wrong; native {native['record']}")
    print(f"D2 without record_stream: {ours['unrecorded']} of 40 wrong; native {native['unrecorded']}")
    wrong, rounds = ours["capture"]
    check("40 graphs captured beside two threads that allocate and drop", not wrong, f"{rounds} rounds of the others; {'; '.join(wrong)}")
    check("limits, refusals, statistics", ours["stats"]["untold_failures"] == 0)
    if "devices" in ours:
        two = ours["devices"]
        check("two GPUs", two["wrong"] == 0 and two["unreported"] == 0, f"{two['wrong']} of {two['rounds']} rounds wrong, {two['unreported']} failures that no call reported")
    else:
        print("SKIPPED: two GPUs, PyTorch sees one")
    held, right = native["mempool"]
    check("torch.cuda.MemPool over millpond", held > 0 and right, f"{held // MIB} MiB held by it")
    return 1 if failed else 0


if len(sys.argv) > 1:
    part(sys.argv[1])
else:
    sys.exit(main())
