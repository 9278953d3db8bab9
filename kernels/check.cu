// Checks that a range holds a repeating 8-byte word, little endian, beginning at `at`. CPU reference: `Launch::check_pattern`
// of the simulated device.
//
// `out` is the launch's own slot of four 8-byte words in device memory, zero except for the second, which is all ones:
//   0 how many words (of an unaligned range, or after the last whole word: bytes) differ
//   1 the lowest offset at which one does, in bytes
//   2 `tag`, written by the first thread that finds one
//   3 what that thread found
extern "C" __global__ void millpond_check(const unsigned char *at, unsigned long long bytes, unsigned long long word,
                                          unsigned long long *out, unsigned long long tag)
{
    unsigned long long thread = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    unsigned long long threads = gridDim.x * (unsigned long long)blockDim.x;
    unsigned long long first_loose = 0, bad = 0, lowest = ~0ull, seen = 0;
    if (((unsigned long long)at & 7) == 0) {
        unsigned long long words = bytes / 8;
        for (unsigned long long i = thread; i < words; i += threads) {
            unsigned long long found = ((const unsigned long long *)at)[i];
            if (found != word) {
                if (bad == 0) { lowest = i * 8; seen = found; }
                bad += 1;
            }
        }
        first_loose = words * 8;
    }
    for (unsigned long long i = first_loose + thread; i < bytes; i += threads) {
        unsigned long long found = at[i];
        if (found != ((word >> (8 * (i & 7))) & 255)) {
            if (bad == 0) { lowest = i; seen = found; }
            bad += 1;
        }
    }
    if (bad == 0)
        return;
    if (atomicAdd(&out[0], bad) == 0) {
        out[2] = tag;
        out[3] = seen;
    }
    atomicMin(&out[1], lowest);
}
