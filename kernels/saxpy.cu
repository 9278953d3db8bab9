// y[i] = a * x[i] + y[i], for i below n. Integers wrap round, so one kernel serves both signs; floats are rounded once.
// CPU reference: `saxpy` in src/kernel/references.rs.
typedef unsigned int u32;
typedef unsigned long long u64;

template <typename T> __device__ T fused(T a, T x, T y) { return a * x + y; }
template <> __device__ float fused(float a, float x, float y) { return __fmaf_rn(a, x, y); }
template <> __device__ double fused(double a, double x, double y) { return __fma_rn(a, x, y); }

template <typename T> __device__ void saxpy(T *y, const T *x, u64 n, T a)
{
    u64 threads = gridDim.x * (u64)blockDim.x;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n; i += threads)
        y[i] = fused(a, x[i], y[i]);
}

#define SAXPY(name, T) \
    extern "C" __global__ void millpond_saxpy_##name(T *y, const T *x, u64 n, T a) { saxpy(y, x, n, a); }
SAXPY(u32, u32)
SAXPY(u64, u64)
SAXPY(f32, float)
SAXPY(f64, double)
