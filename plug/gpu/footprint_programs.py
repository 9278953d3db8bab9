"""What plug/gpu/footprint.py measures: four programs of plain PyTorch, and trials of what happens to memory that is free.

A program is a generator. Each `next` queues one step and gives its losses as a tensor. It does not know which allocator is below, and
asks for the same bytes in the same order on each: data is drawn on the device by seeded generators, and what the host does depends on no time.
The exception is `threads`, whose eight threads run at once: there the order differs between runs, but not what is held when all wait for each other.
"""

import random
import threading
import time

import torch
from torch.nn import functional

MIB = 1 << 20


def lengths():
    """A transformer encoder is trained on texts, each step with another length. The longest is in the fourth step. Some 6 GiB live."""
    width, words, batch, longest = 512, 2000, 34, 1024
    with torch.device("cuda"):
        layer = torch.nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
        model = torch.nn.Sequential(
            torch.nn.Embedding(words, width),
            torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False),
            torch.nn.Linear(width, words),
        )
    del layer
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = torch.Generator(device="cuda").manual_seed(11)
    dice = random.Random(3)
    step = 0
    while True:
        length = longest if step == 3 else dice.randint(64, longest)
        text = torch.randint(words, (batch, length), device="cuda", generator=data)
        loss = functional.cross_entropy(model(text).flatten(0, 1), text.roll(-1, 1).flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        step += 1
        yield loss.detach()


class Block(torch.nn.Module):
    """Two convolutions and what goes past them."""

    def __init__(self, channels, out, stride):
        super().__init__()
        self.first = torch.nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.first_norm = torch.nn.BatchNorm2d(out)
        self.second = torch.nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.second_norm = torch.nn.BatchNorm2d(out)
        self.past = torch.nn.Identity()
        if stride != 1 or channels != out:
            self.past = torch.nn.Sequential(torch.nn.Conv2d(channels, out, 1, stride, bias=False), torch.nn.BatchNorm2d(out))

    def forward(self, x):
        y = functional.relu(self.first_norm(self.first(x)), inplace=True)
        return functional.relu(self.second_norm(self.second(y)) + self.past(x), inplace=True)


# Heights and widths. cuDNN plans each convolution anew for each, on the host, so that there cannot be a new size in each step here.
IMAGES = (
    (224, 232), (264, 320), (200, 256), (352, 352), (296, 248), (328, 280),
    (344, 264), (216, 312), (312, 344), (248, 184),
)  # fmt: skip


def images():
    """A residual network is trained on images whose size changes from step to step: each size once, then in any order. Some 3.5 GiB live.
    Strides and a mean take the place of pooling: some of PyTorch's has no gradient that is the same to the bit in every run."""
    batch, classes = 64, 1000
    with torch.device("cuda"):
        stem = [
            torch.nn.Conv2d(3, 64, 3, 2, 1, bias=False), torch.nn.BatchNorm2d(64), torch.nn.ReLU(inplace=True),
            torch.nn.Conv2d(64, 64, 3, 2, 1, bias=False), torch.nn.BatchNorm2d(64), torch.nn.ReLU(inplace=True),
        ]  # fmt: skip
        blocks, channels = [], 64
        for out in (64, 128, 256, 512):
            blocks += [Block(channels, out, 1 if out == 64 else 2), Block(out, out, 1)]
            channels = out
        model = torch.nn.Sequential(*stem, *blocks)
        head = torch.nn.Linear(channels, classes)
    optimiser = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.01, momentum=0.9)
    data = torch.Generator(device="cuda").manual_seed(12)
    dice = random.Random(4)
    step = 0
    while True:
        height, width = IMAGES[step] if step < len(IMAGES) else dice.choice(IMAGES)
        image = torch.randn(batch, 3, height, width, device="cuda", generator=data)
        target = torch.randint(classes, (batch,), device="cuda", generator=data)
        loss = functional.cross_entropy(head(model(image).mean((2, 3))), target)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        step += 1
        yield loss.detach()


def generation():
    """A decoder of 12 layers answers 48 requests at a time, a token a step; each layer's keys and values grow by `torch.cat`, and go when the next requests come.
    The longest answer is the second. Some 1.6 GiB live."""
    width, heads, layers, batch, words = 1024, 16, 12, 48, 8000
    data = torch.Generator(device="cuda").manual_seed(13)
    dice = random.Random(5)

    def weights(rows, columns):
        return (0.02 * torch.randn(rows, columns, device="cuda", generator=data)).bfloat16()

    def normed(x):
        return functional.layer_norm(x, (width,))

    model = [
        (weights(3 * width, width), weights(width, width), weights(4 * width, width), weights(width, 4 * width)) for _ in range(layers)
    ]
    embedding = weights(words, width)
    request = 0
    while True:
        prompt, whole = ((60, 260), (150, 560))[request] if request < 2 else (dice.randint(40, 200), dice.randint(300, 560))
        request += 1
        keys, values = [None] * layers, [None] * layers
        said = torch.randint(words, (batch, prompt), device="cuda", generator=data)
        for _ in range(whole - prompt):
            new = said.shape[1]
            x = embedding[said]
            for n, (into, out, up, down) in enumerate(model):
                query, key, value = functional.linear(normed(x), into).view(batch, new, 3, heads, width // heads).permute(2, 0, 3, 1, 4).unbind(0)
                keys[n] = key.contiguous() if keys[n] is None else torch.cat((keys[n], key), 2)
                values[n] = value.contiguous() if values[n] is None else torch.cat((values[n], value), 2)
                seen = functional.scaled_dot_product_attention(query, keys[n], values[n], is_causal=new > 1)
                x = x + functional.linear(seen.transpose(1, 2).reshape(batch, new, width), out)
                x = x + functional.linear(functional.gelu(functional.linear(normed(x), up)), down)
            logits = functional.linear(normed(x[:, -1]), embedding)
            said = logits.argmax(-1, keepdim=True)
            yield logits.float().logsumexp(-1).mean()
        del keys, values, query, key, value, seen, x, logits


# What each of the eight threads holds in a step, in MiB: another one each step, so that their sum stays and the pools that a thread needed do not.
HELD = (384, 256, 192, 128, 96, 64, 48, 32)
# A row of `threads`: 1,024 numbers come, 4,096 are computed of them, and as many of those.
ROW = 4 * (1024 + 4096 + 4096)


def threads():
    """Eight threads on streams of their own answer a request each in a step: pieces of changing sizes, held until all threads have theirs, then
    dropped one by one in any order. The requests take turns in their sizes. Some 1.5 GiB live, 0.25 of them cuBLAS's workspaces, one a thread."""
    data = torch.Generator(device="cuda").manual_seed(14)
    first = torch.randn(4096, 1024, device="cuda", generator=data) / 32
    second = torch.randn(1024, 4096, device="cuda", generator=data) / 64
    torch.cuda.synchronize()
    # Nobody waits for ever for a thread that has failed.
    start, held, end = (threading.Barrier(n, timeout=60) for n in (len(HELD) + 1, len(HELD), len(HELD) + 1))
    rows, told, failed = [0] * len(HELD), [0.0] * len(HELD), []

    def answer(dice, generator, count):
        cuts = sorted(dice.sample(range(1, count), dice.randint(1, 4)))
        pieces = []
        for n in (b - a for a, b in zip([0, *cuts], [*cuts, count])):
            x = torch.randn(n, 1024, device="cuda", generator=generator)
            h = functional.linear(x, first)
            pieces.append((x, h, functional.gelu(h)))
        del x, h
        held.wait()
        dice.shuffle(pieces)
        total = torch.zeros((), device="cuda")
        while pieces:
            x, h, a = pieces.pop()
            del h
            total = total + (functional.linear(a, second) + x).square().mean()
            del x, a
        # To the host, as an answer goes: the stream's work is done then.
        return total.item()

    def thread(n):
        try:
            dice, generator, stream = random.Random(100 + n), torch.Generator(device="cuda").manual_seed(100 + n), torch.cuda.Stream()
            with torch.cuda.stream(stream):
                while True:
                    start.wait()
                    told[n] = answer(dice, generator, rows[n])
                    end.wait()
        except threading.BrokenBarrierError:
            pass
        except Exception as why:
            failed.append(f"thread {n}: {why!r}")
            for barrier in (start, held, end):
                barrier.abort()

    dice = random.Random(6)
    turns = list(HELD)
    for n in range(len(HELD)):
        threading.Thread(target=thread, args=(n,), daemon=True).start()
    try:
        while True:
            dice.shuffle(turns)
            rows[:] = [mib * MIB // ROW for mib in turns]
            start.wait()
            end.wait()
            yield torch.tensor(told)
    except threading.BrokenBarrierError:
        raise RuntimeError("; ".join(failed) or "a thread came to no end") from None
    finally:
        start.abort()


# Each with the steps before the first that is timed, and how many are.
PROGRAMS = {"lengths": (lengths, 10, 40), "images": (images, 16, 48), "generation": (generation, 610, 500), "threads": (threads, 20, 120)}


def run(name, steps):
    """Runs a program: the bits of its losses, and milliseconds from the end of each timed step to the end of the next on the device's clock."""
    program, warm, timed = PROGRAMS[name]
    torch.manual_seed(7)
    going, losses, marks = program(), [], []

    def mark():
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        marks.append(event)

    for step in range(warm + (steps or timed)):
        if step == warm:
            torch.cuda.synchronize()
            mark()
        losses.append(next(going))
        if step >= warm:
            mark()
    torch.cuda.synchronize()
    bits = [bit for loss in losses for bit in loss.float().reshape(-1).cpu().view(torch.int32).tolist()]
    going.close()
    return bits, float(losses[-1].float().mean()), [a.elapsed_time(b) for a, b in zip(marks, marks[1:])]


def warmed(give_back):
    """Every kernel of the trials is loaded, and nothing is cached: the device's free bytes."""
    host = torch.ones(256).pin_memory()
    x = host.to("cuda", non_blocking=True) * 2
    x = x * x + torch.full((256,), 1.0, device="cuda")
    _ = x.sum(), x.amax(), x.amin(), torch.empty(256, device="cuda").fill_(1)
    torch.cuda._sleep(1000)
    torch.cuda.synchronize()
    del x, _
    return emptied(give_back)


def emptied(give_back):
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    give_back()
    return torch.cuda.mem_get_info()[0]


def fresh_streams(free, epochs=40):
    """D5: a stream that is new in each epoch copies batches of 64 MiB, which the main stream uses: bytes taken after each epoch."""
    host, main, taken = torch.ones(16 << 20).pin_memory(), torch.cuda.current_stream(), []
    for _ in range(epochs):
        stream = torch.cuda.Stream()
        for _ in range(8):
            with torch.cuda.stream(stream):
                x = host.to("cuda", non_blocking=True) * 2
            main.wait_stream(stream)
            x.record_stream(main)
            y = (x * x).sum()
            del x
        torch.cuda.synchronize()
        taken.append(free - torch.cuda.mem_get_info()[0])
    del y
    return {"first": taken[0], "last": taken[-1], "most": max(taken)}


def prefetching(free, steps=300):
    """D6: batches of 16 to 96 MiB come on one stream and are used on another, one ahead; the host waits for nobody. Bytes live at most and
    taken, and how many values were wrong."""
    copy, work, dice = torch.cuda.Stream(), torch.cuda.Stream(), random.Random(8)
    sizes = [dice.randint(4 * MIB, 24 * MIB) for _ in range(steps + 1)]

    def load(n):
        with torch.cuda.stream(copy):
            return torch.full((sizes[n],), float(n % 7 + 1), device="cuda")

    ahead, live, taken, seen = load(0), 0, 0, []
    for n in range(steps):
        x = ahead
        work.wait_stream(copy)
        ahead = load(n + 1)
        with torch.cuda.stream(work):
            x.record_stream(work)
            y = x * 2
            z = y * y
            seen.append((z.amin(), z.amax()))
        live = max(live, 4 * (3 * sizes[n] + sizes[n + 1]))
        taken = max(taken, free - torch.cuda.mem_get_info()[0])
        del x, y, z
    torch.cuda.synchronize()
    wrong = sum(value.item() != 4.0 * (n % 7 + 1) ** 2 for n, both in enumerate(seen) for value in both)
    return {"live": live, "taken": max(taken, free - torch.cuda.mem_get_info()[0]), "wrong": wrong}


def beside_a_kernel(give_back, cycles=600_000_000):
    """D10: 64 MiB go back to the device while a kernel of some 0.3 s runs on a stream that has nothing to do with them."""
    stream = torch.cuda.Stream()
    x = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda").fill_(1)
    del x
    torch.cuda.synchronize()
    before, end = torch.cuda.mem_get_info()[0], torch.cuda.Event()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(cycles)
        end.record()
    start = time.perf_counter()
    give_back()
    took = 1e3 * (time.perf_counter() - start)
    running = not end.query()
    torch.cuda.synchronize()
    return {"ms": took, "running": running, "given": torch.cuda.mem_get_info()[0] - before}


def every_other():
    """D9: with a limit of 8 GiB, 7 GiB in 56 pieces, every other of which is freed; then 2 GiB in one."""

    def piece(size):
        return torch.empty(size, dtype=torch.uint8, device="cuda")

    torch.cuda.set_per_process_memory_fraction(8192 * MIB / torch.cuda.get_device_properties(0).total_memory)
    whole = piece(7168 * MIB)
    del whole
    pieces = [piece(128 * MIB) for _ in range(56)]
    del pieces[::2]
    try:
        piece(2048 * MIB)
    except torch.OutOfMemoryError as why:
        return {"got": False, "said": str(why).splitlines()[0][:120]}
    return {"got": True, "said": ""}


def trials(give_back):
    """All of them, by their rows in tests/architecture/requirements.rs. `give_back` makes the allocator return what it caches. The last one sets a limit."""
    told = {"D5": fresh_streams(warmed(give_back))}
    told["D6"] = prefetching(emptied(give_back))
    emptied(give_back)
    told["D10"] = beside_a_kernel(give_back)
    emptied(give_back)
    told["D9"] = every_other()
    return told
