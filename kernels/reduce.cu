// out[b] = the sum of the elements [b * 8192, (b + 1) * 8192) of x that are below n: one block each, of 256 threads.
// Launched again on its own sums until one is left. CPU reference: `reduce` in src/kernel/references.rs.
//
// The order of the additions is fixed, so that floats give the same sum on every device, and in the reference: thread t adds
// the elements t, t + 256, ... of its block's part from zero on, in order; then thread t adds the sum of thread t + 128
// to its own, then t + 64, and so on. Integers wrap round, so one kernel serves both signs.
typedef unsigned int u32;
typedef unsigned long long u64;

#define THREADS 256
#define PART 8192

template <typename T> __device__ void reduce(T *out, const T *x, u64 n)
{
    __shared__ T sums[THREADS];
    u64 first = blockIdx.x * (u64)PART;
    u64 end = n - first < PART ? n : first + PART;
    T sum = 0;
    for (u64 i = first + threadIdx.x; i < end; i += THREADS)
        sum = sum + x[i];
    sums[threadIdx.x] = sum;
    for (u32 half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half)
            sums[threadIdx.x] = sums[threadIdx.x] + sums[threadIdx.x + half];
    }
    if (threadIdx.x == 0)
        out[blockIdx.x] = sums[0];
}

#define REDUCE(name, T) \
    extern "C" __global__ void millpond_reduce_##name(T *out, const T *x, u64 n) { reduce(out, x, n); }
REDUCE(u32, u32)
REDUCE(u64, u64)
REDUCE(f32, float)
REDUCE(f64, double)
