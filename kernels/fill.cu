// Fills a range with a repeating 8-byte word, little endian, beginning at `at`; a last piece shorter than a word gets the
// word's first bytes. CPU reference: `Launch::write_pattern` of the simulated device.
//
// `at` may have any alignment: whole words are written by words where it is a multiple of 8, else byte by byte.
extern "C" __global__ void millpond_fill(unsigned char *at, unsigned long long bytes, unsigned long long word)
{
    unsigned long long thread = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    unsigned long long threads = gridDim.x * (unsigned long long)blockDim.x;
    unsigned long long first_loose = 0;
    if (((unsigned long long)at & 7) == 0) {
        unsigned long long words = bytes / 8;
        for (unsigned long long i = thread; i < words; i += threads)
            ((unsigned long long *)at)[i] = word;
        first_loose = words * 8;
    }
    for (unsigned long long i = first_loose + thread; i < bytes; i += threads)
        at[i] = (unsigned char)(word >> (8 * (i & 7)));
}
