"""What PyTorch's programs take of the device, and how long a step takes, with millpond below and with PyTorch's own allocators.

    footprint.py [--programs NAMES] [--allocators NAMES] [--rounds N] [--steps N] [--minutes N] [--trials NAMES] [--json FILE]

Four programs (plug/gpu/footprint_programs.py): training on varying lengths, training on images in changing sizes, generation with growing
caches, eight threads on streams of their own. Each run is a process of its own, and the allocators take turns, in each round from another one on. cudaMallocAsync,
which is not what a step is compared with, has the first round only. A run that would not end within the minutes is left out, which is said.

    native, expandable, cuda_malloc_async   PyTorch's, the last two by PYTORCH_ALLOC_CONF
    millpond-plain                          segments from the driver's plain allocations
    millpond-windows                        virtual memory beneath the pools, policy `latency`
    millpond-footprint                      virtual memory, policy `footprint`

Taken: by how much the device's free bytes sank below what they were before the process began, at most. This process reads them from the driver
each millisecond (cuMemGetInfo, through a context of its own), for all allocators alike, so that nothing within the run is slowed by it.
Libraries: what of that no allocator holds: context, code of the libraries' kernels, cuDNN's and cuBLAS's own memory. It is the same for all allocators of
a program, since they launch the same kernels, and PyTorch's native one tells it: what is taken at the end of its run, less what it says that it has
reserved. cuBLAS's workspaces are not among it: PyTorch asks its allocator for them. What each other allocator's own account leaves is printed beside, as `rest`.
Live: bytes asked for that were live at once, at most, as the native allocator counts them (requested_bytes): an allocator of others' making is asked for the
same and not counted by PyTorch.
A step: on the device's clock, from the end of one to the end of the next, the mean of all that are timed, so that a step in which memory moves
counts; of several rounds the quickest. The median is printed beside.
Losses: every bit of them is compared with the native allocator's. PyTorch's deterministic algorithms are on.

Trials are D5, D6, D9 and D10 of tests/architecture/requirements.rs, all in one process for each allocator: a fresh stream an epoch, prefetching, a large
request where every other piece was freed, giving back beside a kernel.

Ends with 1 if losses differ or a run of ours failed, with 77 without PyTorch, a GPU or a peer, or if a program has not run on every allocator. Whether an aim was reached is printed and does not count.
MILLPOND_LIBRARY names the library where the package is not installed.
"""

import argparse
import ctypes
import gc
import hashlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20
PROGRAMS = ("lengths", "images", "generation", "threads")
TRIALS = ("D5", "D6", "D9", "D10")
# What each is told by its environment.
ALLOCATORS = {
    "native": {},
    "expandable": {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "cuda_malloc_async": {"PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync", "PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
    "millpond-plain": {"MILLPOND_VIRTUAL": "never", "MILLPOND_POLICY": "latency"},
    "millpond-windows": {"MILLPOND_VIRTUAL": "auto", "MILLPOND_POLICY": "latency"},
    "millpond-footprint": {"MILLPOND_VIRTUAL": "auto", "MILLPOND_POLICY": "footprint"},
}
ONE_ROUND = ("cuda_malloc_async",)
# What a step is compared with.
QUICK = ("native", "expandable")
# In the order of the figures: of what, and at most how much.
AIMS = (("of live", 1.10), ("of expandable segments'", 1.0), ("of the step of the quicker of PyTorch's two", 1.02))
# A run that takes longer has failed.
SECONDS = 120


def ours(allocator):
    return allocator.startswith("millpond")


class Driver:
    """The device's free bytes, asked of the driver itself."""

    def __init__(self):
        self._cuda = ctypes.CDLL(os.environ.get("MILLPOND_LIBCUDA", "libcuda.so.1"))
        context, name = ctypes.c_void_p(), ctypes.create_string_buffer(100)
        self._must("cuInit", 0)
        self._must("cuDeviceGetName", name, len(name), 0)
        self._must("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self._must("cuCtxSetCurrent", context)
        self.name = name.value.decode()
        self._free, self._total = ctypes.c_size_t(), ctypes.c_size_t()

    def _must(self, call, *arguments):
        code = getattr(self._cuda, call)(*arguments)
        if code:
            raise OSError(f"{call} gave {code}")

    def free(self):
        self._must("cuMemGetInfo_v2", ctypes.byref(self._free), ctypes.byref(self._total))
        return self._free.value

    def settled(self):
        """The same, when what ended before is gone: three readings that agree, for at most five seconds."""
        end, seen = time.monotonic() + 5, [self.free()]
        while time.monotonic() < end and not (len(seen) > 2 and len(set(seen[-3:])) == 1):
            time.sleep(0.02)
            seen.append(self.free())
        return seen[-1]


def watched(driver, arguments, environment):
    """Runs a child: what it told, in JSON, and the bytes of the device that were taken at most; or None, after a word on why."""
    before = least = driver.settled()
    end, late = time.monotonic() + SECONDS, False
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), *arguments], env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=errors
        )
        while child.poll() is None:
            least = min(least, driver.free())
            if time.monotonic() > end and not late:
                late = True
                child.kill()
            time.sleep(0.001)
        for file in (said, errors):
            file.seek(0)
        told = [line for line in said if line.startswith("TOLD ")]
        if child.returncode or not told:
            why = f"took more than {SECONDS} s" if late else f"ended with {child.returncode}"
            print(f"{' '.join(arguments[1:])}: {why}\n{errors.read()[-3000:]}", flush=True)
            return None
    return json.loads(told[-1][5:]) | {"before": before, "taken": before - least}


def environment_of(allocator):
    told = {name for settings in ALLOCATORS.values() for name in settings}
    found = {name: value for name, value in os.environ.items() if name not in told}
    # Kernels are loaded when they are first launched, as PyTorch has it otherwise: before the first step that is timed.
    return found | {"CUDA_MODULE_LOADING": "LAZY", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"} | ALLOCATORS[allocator]


def installed(allocator):
    """Within a child: millpond is PyTorch's allocator from here on, if it is the one. How it gives back what it caches, and its own account."""
    import torch

    if not ours(allocator):

        def account():
            stats = torch.cuda.memory_stats()
            return {"reserved": stats["reserved_bytes.all.current"], "live": stats.get("requested_bytes.all.peak") or None}

        return torch.cuda.empty_cache, account
    import millpond_torch

    millpond_torch.install()

    def account():
        stats = millpond_torch.allocator().stats()
        counters = stats["total"]["counters"]
        served = {rung: counts["served"] for rung, counts in stats["ladder"].items() if counts["served"]}
        told = {name: counters[name] for name in ("allocations", "hits", "waits_inserted", "host_waits")}
        told |= {"growths": stats["growths"], "releases": stats["releases"], "served": served, "reserved_peak": stats["reserved_peak"]}
        return {"reserved": stats["reserved"], "live": None, "counts": told}

    return millpond_torch.trim, account


def program_told(program, allocator, steps):
    """Within a child: one program, from its first step to its last."""
    _, account = installed(allocator)
    import torch
    import torch.utils.deterministic

    torch.use_deterministic_algorithms(True)
    # Nothing here reads what was not written, and no program that is not being debugged would pay for it.
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.set_float32_matmul_precision("high")
    # cuDNN's attention would be planned anew for every length of a cache.
    torch.backends.cuda.enable_cudnn_sdp(False)
    # What is freed when would depend on what the collector was told by everything that was imported.
    gc.collect()
    gc.disable()
    import footprint_programs

    bits, last, times = footprint_programs.run(program, steps)
    return account() | {
        "torch": torch.__version__,
        "backend": torch.cuda.get_allocator_backend(),
        "free": torch.cuda.mem_get_info()[0],
        "bits": bits,
        "loss": last,
        "mean": statistics.fmean(times),
        "median": statistics.median(times),
        "worst": max(times),
    }


def trials_told(allocator):
    """Within a child: what becomes of memory that is free."""
    give_back, _ = installed(allocator)
    import footprint_programs

    return footprint_programs.trials(give_back)


class Runs:
    """What was told by each run, by program and allocator; and as lines of JSON, if there is a file for them."""

    def __init__(self, driver, choice):
        self._driver, self._choice = driver, choice
        self._file = open(choice.json, "w") if choice.json else None
        self._begun, self._longest = time.monotonic(), 15.0
        self.found, self.failed, self.left_out = {}, [], []

    def run(self, what, allocator, steps, turn):
        """One run of a program or of the trials, if there is time for as long a one as there was."""
        said = f"{what} on {allocator}, round {turn + 1}"
        if time.monotonic() - self._begun + self._longest > 60 * self._choice.minutes:
            self.left_out.append(said)
            return None
        start = time.monotonic()
        told = watched(self._driver, ["--child", what, allocator, str(steps)], environment_of(allocator))
        self._longest = max(self._longest, time.monotonic() - start)
        if told is None:
            self.failed.append((allocator, said))
            return None
        if "bits" in told:
            told["losses"] = hashlib.sha256(json.dumps(told["bits"]).encode()).hexdigest()[:16]
        named = {"run": what, "allocator": allocator, "round": turn + 1, "seconds": round(time.monotonic() - start, 1)}
        self.line(named | {name: value for name, value in told.items() if name != "bits"})
        return told

    def program(self, program, allocator, turn):
        told = self.run(program, allocator, self._choice.steps, turn)
        if told is not None:
            self.found.setdefault((program, allocator), []).append(told)

    def line(self, record):
        if self._file:
            print(json.dumps(record), file=self._file, flush=True)


def of(runs, name, by=max):
    """The most or least of a figure in all rounds; None if nobody told it."""
    told = [run[name] for run in runs if run.get(name) is not None]
    return by(told) if told else None


def ratio(a, b):
    return None if a is None or not b else a / b


def shown(value, form):
    return "-" if value is None else format(value, form)


def table(heads, rows):
    """Columns as wide as they need; the first is to the left."""
    wide = [max(len(row[n]) for row in (heads, *rows)) for n in range(len(heads))]
    for row in (heads, *rows):
        print("  ".join(cell.ljust(w) if n == 0 else cell.rjust(w) for n, (cell, w) in enumerate(zip(row, wide))).rstrip())


def first_other(bits, expected):
    """At which loss two runs part."""
    return next((n for n, (a, b) in enumerate(zip(bits, expected)) if a != b), min(len(bits), len(expected)))


def judged(program, found, allocators, line):
    """A program's table and how each of ours stands to the aims; in how many runs the losses are those of the first, and in how many they are not."""
    runs = {allocator: found[program, allocator] for allocator in allocators if (program, allocator) in found}
    if not runs:
        return 0, 0
    # The native allocator tells what the libraries hold and what is live, or the next that can.
    teller = next((a for a in (*QUICK, "cuda_malloc_async") if a in runs), None)
    rest = {a: of([{"rest": run["before"] - run["free"] - run["reserved"]} for run in told], "rest") for a, told in runs.items()}
    libraries = rest[teller] if teller else min(rest.values())
    live = of([run for a in QUICK for run in runs.get(a, ())], "live")
    quickest = min((of(runs[a], "mean", min) for a in QUICK if a in runs), default=None)
    expected = runs[teller or next(iter(runs))][0]["bits"]
    same, differ, rows, aims = -1, 0, [], []
    beside = of(runs["expandable"], "taken") if "expandable" in runs else None
    for allocator, told in runs.items():
        taken, mean, median = of(told, "taken"), of(told, "mean", min), of(told, "median", min)
        wrong = [first_other(run["bits"], expected) for run in told if run["bits"] != expected]
        same, differ = same + len(told) - len(wrong), differ + len(wrong)
        figures = {
            "live": ratio(taken - libraries, live),
            "expandable": ratio(taken - libraries, beside - libraries if beside else None),
            "step": ratio(mean, quickest),
        }
        spread = "" if len(told) < 2 else f" to {of(told, 'mean'):.2f}"
        rows.append(
            (
                allocator, f"{(taken - libraries) / MIB:.0f}", shown(figures["live"], ".3f"), shown(figures["expandable"], ".3f"),
                f"{rest[allocator] / MIB:.0f}", f"{mean:.2f}{spread}", f"{median:.2f}", shown(figures["step"], ".3f"),
                f"from {min(wrong)} on other" if wrong else "same", str(len(told)),
            )
        )  # fmt: skip
        sizes = {"taken": taken - libraries, "libraries": libraries, "live": live}
        line({"summary": program, "allocator": allocator, **sizes, "mean": mean, "same": not wrong, "ratios": figures})
        if ours(allocator):
            for value, (what, aim) in zip(figures.values(), AIMS):
                verdict = "not known" if value is None else "reached" if value <= aim else "missed"
                aims.append(f"{verdict:9} {program}, {allocator}: {shown(value, '.3f')} {what}, aim {aim:.2f}")
    by = f"by {teller}" if teller else "the least rest"
    print(f"\n{program}: live {shown(live and live / MIB, '.0f')} MiB, libraries {libraries / MIB:.0f} MiB ({by})")
    table(("allocator", "taken MiB", "of live", "of expandable", "rest MiB", "ms a step", "median", "of the best", "losses", "rounds"), rows)
    print("\n".join(aims), flush=True)
    for allocator, told in runs.items():
        if ours(allocator) and "counts" in told[-1]:
            print(f"{allocator}, last round: {json.dumps(told[-1]['counts'])}")
    return same, differ


def trials_shown(told, wanted):
    """A line for each allocator and trial."""
    print()
    for name in wanted:
        for allocator, found in told.items():
            one = found[name]
            if name == "D5":
                value = one["last"] / one["first"]
                right = value <= 1.05
                words = f"{one['first'] / MIB:.0f} MiB after the first epoch, {one['last'] / MIB:.0f} after the last, {value:.3f} of it (aim 1.05)"
            elif name == "D6":
                value = one["taken"] / one["live"]
                right = value <= 1.05 and not one["wrong"]
                words = f"{one['taken'] / MIB:.0f} MiB for {one['live'] / MIB:.0f} live, {value:.3f} of it (aim 1.05); {one['wrong']} values wrong"
            elif name == "D9":
                right = one["got"]
                words = "2 GiB in one where every other of 56 pieces was freed" if right else one["said"]
            else:
                right = one["running"] and one["given"] > 0
                words = f"{one['given'] / MIB:.0f} MiB given back in {one['ms']:.2f} ms, the kernel beside {'runs on' if one['running'] else 'was waited for'}"
            print(f"{'reached' if right else 'missed':9} {name}, {allocator}: {words}", flush=True)


def names(known):
    """A list of names, parted by commas."""

    def parse(text):
        found = [name for name in text.split(",") if name]
        for name in found:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name} is none of {', '.join(known)}")
        return found

    return parse


def main():
    asked = argparse.ArgumentParser(description="What PyTorch's programs take of the device, by allocator.")
    asked.add_argument("--programs", type=names(PROGRAMS), default=list(PROGRAMS))
    asked.add_argument("--allocators", type=names(ALLOCATORS), default=list(ALLOCATORS))
    asked.add_argument("--trials", type=names(TRIALS), default=list(TRIALS), help="the empty text for none")
    asked.add_argument("--rounds", type=int, default=2)
    asked.add_argument("--steps", type=int, default=0, help="how many are timed; 0 is each program's own number")
    asked.add_argument("--minutes", type=float, default=7, help="no run begins that might end later")
    asked.add_argument("--json", metavar="FILE", help="a line for each run and each row")
    choice = asked.parse_args()
    if importlib.util.find_spec("torch") is None:
        print("SKIPPED: PyTorch, python3 has no torch")
        return 77
    try:
        driver = Driver()
    except OSError as why:
        print(f"SKIPPED: no GPU, {why}")
        return 77
    runs, trials = Runs(driver, choice), {}
    for turn in range(choice.rounds):
        for nth, program in enumerate(choice.programs):
            first = (turn + nth) % len(choice.allocators)
            for allocator in choice.allocators[first:] + choice.allocators[:first]:
                if turn == 0 or allocator not in ONE_ROUND:
                    runs.program(program, allocator, turn)
        if turn == 0 and choice.trials:
            for allocator in choice.allocators:
                told = runs.run("trials", allocator, 0, turn)
                if told is not None:
                    trials[allocator] = told
    versions = sorted({told["torch"] for found in runs.found.values() for told in found})
    print(f"{driver.name}; PyTorch {', '.join(versions)}; {os.cpu_count()} cores")
    verdicts = [(0, 0), *(judged(program, runs.found, choice.allocators, runs.line) for program in choice.programs)]
    trials_shown(trials, choice.trials)
    if runs.left_out:
        print(f"left out, for there was no time: {'; '.join(runs.left_out)}")
    for _, what in runs.failed:
        print(f"FAILED: {what}")
    same, differ = (sum(both) for both in zip(*verdicts))
    if differ:
        print(f"FAIL losses differ in {differ} runs of {same + differ} from those of the same program elsewhere")
    elif same:
        print(f"PASS losses are the same to the last bit in {same} runs as in another of the same program")
    else:
        print("SKIPPED: losses, no program has run twice")
    if differ or any(ours(allocator) for allocator, _ in runs.failed):
        return 1
    whole = all((program, allocator) in runs.found for program in choice.programs for allocator in choice.allocators)
    return 0 if same and whole and not runs.failed else 77


def child(what, allocator, steps):
    told = trials_told(allocator) if what == "trials" else program_told(what, allocator, int(steps))
    print("TOLD " + json.dumps(told), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    else:
        sys.exit(main())
