// Element i of out = element at[i] of from, for i below n; where at[i] is not below length, element i stays as it is. An
// element is `pieces` pieces of 1, 2, 4 or 8 bytes, as the kernel's name says. CPU reference: `gather` in src/kernel/references.rs.
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

template <typename P> __device__ void gather(P *out, const P *from, u64 length, const u32 *at, u64 n, u64 pieces)
{
    u64 threads = gridDim.x * (u64)blockDim.x;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n * pieces; i += threads) {
        u64 element = pieces == 1 ? i : i / pieces;
        u64 source = at[element];
        if (source < length)
            out[i] = from[source * pieces + (i - element * pieces)];
    }
}

#define GATHER(bytes, P) \
    extern "C" __global__ void millpond_gather_##bytes(P *out, const P *from, u64 length, const u32 *at, u64 n, u64 pieces) \
    { gather(out, from, length, at, n, pieces); }
GATHER(1, u8)
GATHER(2, u16)
GATHER(4, u32)
GATHER(8, u64)
