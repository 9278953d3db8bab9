"""What the demonstrations with CuPy share: a kernel that holds a stream for a while. Without CuPy it says so and ends with 77."""

import sys

try:
    import cupy
    import numpy
except ImportError as why:
    print(f"SKIPPED: CuPy, {why}")
    sys.exit(77)

SPIN = r"""
extern "C" __global__ void hold(long long nanoseconds) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while ((long long)(now - start) < nanoseconds);
}
"""
WORDS = 1 << 22
# 20 ms: far longer than a host needs to free, allocate and write.
TIME = 20_000_000

_kernel = cupy.RawKernel(SPIN, "hold")


def hold(nanoseconds=TIME):
    """Holds the current stream."""
    _kernel((1,), (1,), (numpy.int64(nanoseconds),))


def stream():
    return cupy.cuda.Stream(non_blocking=True)


def runs_asked(otherwise):
    return int(sys.argv[1]) if len(sys.argv) > 1 else otherwise


# Compiled and loaded before anything is shown.
hold(1000)
cupy.cuda.Device().synchronize()
