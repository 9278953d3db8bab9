//! cuBLAS, through cudarc's safe wrapper, on arrays of ours: one product a stream, a shared matrix, and then their sum, with
//! no event by hand; and one in half precision. The results are compared with the CPU's.
//!
//! Needs an NVIDIA GPU and libcublas:  `cargo run --release --features half --example with_cublas`
//! Without one of them it says so, and ends well.

use cudarc::cublas::sys::cublasOperation_t::CUBLAS_OP_N;
use cudarc::cublas::{CudaBlas, Gemm, GemmConfig};
use millpond::cuda::Cuda;
use millpond::half::f16;
use millpond::{Allocator, Config, DeviceArray, Stream, kernel};
// For this repository's sake alone: has compiled an allocator for this device already.
use millpond_testkit as _;
use std::error::Error;

/// Rows and columns of each matrix, as cuBLAS counts and as Rust does.
const SIDE: i32 = 256;
const N: usize = SIDE as usize;
/// How many products, each on a stream of its own.
const STREAMS: usize = 3;
/// How often all of it is done: later rounds reuse the memory of earlier ones.
const ROUNDS: usize = 20;

type Matrix = DeviceArray<f32, Cuda>;

/// Small whole numbers, so that sums of products are exact in `f32`, in whatever order they are added.
fn element(seed: usize, i: usize) -> f32 {
    ((i * 7 + i / N * 3 + seed * 5) % 9) as f32 - 4.0
}

fn matrix(seed: usize) -> Vec<f32> {
    (0..N * N).map(|i| element(seed, i)).collect()
}

/// What cuBLAS computes: columns one after the other, c = a b.
fn product(a: &[f32], b: &[f32]) -> Vec<f32> {
    let mut c = vec![0.0; N * N];
    for column in 0..N {
        for k in 0..N {
            let factor = b[column * N + k];
            for row in 0..N {
                c[column * N + row] += a[k * N + row] * factor;
            }
        }
    }
    c
}

const SQUARE: GemmConfig<f32> = GemmConfig {
    transa: CUBLAS_OP_N,
    transb: CUBLAS_OP_N,
    m: SIDE,
    n: SIDE,
    k: SIDE,
    alpha: 1.0,
    lda: SIDE,
    ldb: SIDE,
    beta: 0.0,
    ldc: SIDE,
};

/// One round: the shared matrix is copied on the first stream, each stream multiplies it, and the first adds it all up.
fn round(
    gpu: &Allocator<Cuda>,
    handles: &[(Stream<Cuda>, CudaBlas)],
    round: usize,
) -> Result<Vec<f32>, Box<dyn Error>> {
    let (first, _) = &handles[0];
    let (shared, sent) = gpu.array_from_pinned(gpu.pinned_from_slice(&matrix(round))?, first)?;
    let mut sum: Matrix = gpu.zeros(N * N, first)?;
    for (i, (stream, blas)) in handles.iter().enumerate() {
        let mut factor: Matrix = gpu.uninit(N * N, stream)?;
        // cudarc's copy from a slice, by its own value of the same stream.
        stream.cudarc()?.memcpy_htod(&matrix(round + i + 1), &mut factor)?;
        let mut c: Matrix = gpu.uninit(N * N, stream)?;
        #[allow(unsafe_code, reason = "cuBLAS trusts the sizes it is given")]
        // SAFETY: three square matrices of N by N, as the configuration says.
        unsafe {
            blas.gemm(SQUARE, &shared, &factor, &mut c)?;
        }
        kernel::saxpy(1.0, &c, &mut sum, first)?; // behind the product, on the device
        // `factor` and `c` go here, while cuBLAS may still work on them: their bytes are reused behind it.
    }
    drop(shared);
    drop(sent);
    Ok(sum.to_pinned(first)?.wait()?.to_vec())
}

/// The same in half precision, with factors so small that every sum is exact.
fn half_product(
    gpu: &Allocator<Cuda>,
    (stream, blas): &(Stream<Cuda>, CudaBlas),
) -> Result<(), Box<dyn Error>> {
    let small = |seed| -> Vec<f32> { matrix(seed).iter().map(|x| x.signum()).collect() };
    let halves = |x: &[f32]| -> Vec<f16> { x.iter().copied().map(f16::from_f32).collect() };
    let (a, b) = (small(1), small(2));
    let (left, left_sent) = gpu.array_from_pinned(gpu.pinned_from_slice(&halves(&a))?, stream)?;
    let (right, right_sent) = gpu.array_from_pinned(gpu.pinned_from_slice(&halves(&b))?, stream)?;
    let mut c: DeviceArray<f16, Cuda> = gpu.uninit(N * N, stream)?;
    let square = GemmConfig {
        transa: CUBLAS_OP_N,
        transb: CUBLAS_OP_N,
        m: SIDE,
        n: SIDE,
        k: SIDE,
        alpha: f16::ONE,
        lda: SIDE,
        ldb: SIDE,
        beta: f16::ZERO,
        ldc: SIDE,
    };
    #[allow(unsafe_code, reason = "cuBLAS trusts the sizes it is given")]
    // SAFETY: three square matrices of N by N, as the configuration says.
    unsafe {
        blas.gemm(square, &left, &right, &mut c)?;
    }
    drop((left, left_sent, right, right_sent));
    let (found, expected) = (c.to_pinned(stream)?.wait()?, product(&a, &b));
    match (0..N * N).find(|&i| found[i].to_f32().to_bits() != expected[i].to_bits()) {
        None => Ok(()),
        Some(at) => Err(format!("f16: element {at} is {}, the CPU says {}", found[at], expected[at]).into()),
    }
}

/// One sentence, if cuBLAS is not to be had: cudarc would panic.
fn without_cublas() -> Option<String> {
    let names = cudarc::get_lib_name_candidates("cublas");
    #[allow(unsafe_code, reason = "loading a library runs its code")]
    // SAFETY: what runs on load is cuBLAS's own start-up.
    let found = names.iter().any(|name| unsafe { libloading::Library::new(name) }.is_ok());
    (!found).then(|| format!("libcublas is not installed, or not on the library path ({})", names.join(", ")))
}

fn main() -> Result<(), Box<dyn Error>> {
    let cuda = match Cuda::new(0) {
        Ok(cuda) => cuda,
        Err(why) => {
            println!("SKIPPED: {why}");
            return Ok(());
        }
    };
    if let Some(why) = without_cublas() {
        println!("SKIPPED: {why}");
        return Ok(());
    }
    let gpu = Allocator::new(cuda, Config::default())?;
    let mut handles = Vec::new();
    for _ in 0..STREAMS {
        let stream = gpu.stream()?;
        let blas = CudaBlas::new(stream.cudarc()?)?;
        handles.push((stream, blas));
    }
    for r in 0..ROUNDS {
        let found = round(&gpu, &handles, r)?;
        let mut expected = vec![0.0; N * N];
        for i in 0..STREAMS {
            for (e, p) in expected.iter_mut().zip(product(&matrix(r), &matrix(r + i + 1))) {
                *e += p;
            }
        }
        if let Some(at) = (0..N * N).find(|&i| found[i].to_bits() != expected[i].to_bits()) {
            let (found, expected) = (found[at], expected[at]);
            return Err(format!("round {r}: element {at} is {found}, the CPU says {expected}").into());
        }
    }
    half_product(&gpu, &handles[1])?;
    println!("one product of {N} by {N} in f16: every element as the CPU says");
    let report = gpu.report();
    println!(
        "{ROUNDS} rounds of {STREAMS} products of {N} by {N} on {STREAMS} streams: every element as the CPU says"
    );
    println!("{report}");
    if report.deferred_errors.is_empty() { Ok(()) } else { Err(report.deferred_errors.join("\n").into()) }
}
