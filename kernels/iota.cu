// out[i] = first + i * step, for i below n. Integers wrap round, so one kernel serves both signs; floats are rounded once.
// CPU reference: `iota` in src/kernel/references.rs.
typedef unsigned int u32;
typedef unsigned long long u64;

template <typename T> __device__ T along(u64 i, T step, T first) { return first + (T)i * step; }
template <> __device__ float along(u64 i, float step, float first) { return __fmaf_rn((float)i, step, first); }
template <> __device__ double along(u64 i, double step, double first) { return __fma_rn((double)i, step, first); }

template <typename T> __device__ void iota(T *out, u64 n, T first, T step)
{
    u64 threads = gridDim.x * (u64)blockDim.x;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n; i += threads)
        out[i] = along(i, step, first);
}

#define IOTA(name, T) \
    extern "C" __global__ void millpond_iota_##name(T *out, u64 n, T first, T step) { iota(out, n, first, step); }
IOTA(u32, u32)
IOTA(u64, u64)
IOTA(f32, float)
IOTA(f64, double)
