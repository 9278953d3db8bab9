// Element at[i] of out = element i of from, for i below n; where at[i] is not below length, nothing is written. Of several
// elements for one place any may win, piece by piece. An element is `pieces` pieces of 1, 2, 4 or 8 bytes, as the kernel's
// name says. CPU reference: `scatter` in src/kernel/references.rs; there the last one wins.
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

template <typename P> __device__ void scatter(P *out, u64 length, const P *from, const u32 *at, u64 n, u64 pieces)
{
    u64 threads = gridDim.x * (u64)blockDim.x;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n * pieces; i += threads) {
        u64 element = pieces == 1 ? i : i / pieces;
        u64 target = at[element];
        if (target < length)
            out[target * pieces + (i - element * pieces)] = from[i];
    }
}

#define SCATTER(bytes, P) \
    extern "C" __global__ void millpond_scatter_##bytes(P *out, u64 length, const P *from, const u32 *at, u64 n, u64 pieces) \
    { scatter(out, length, from, at, n, pieces); }
SCATTER(1, u8)
SCATTER(2, u16)
SCATTER(4, u32)
SCATTER(8, u64)
