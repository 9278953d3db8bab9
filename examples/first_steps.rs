//! Arrays on two streams with no event written by hand: a copy, a kernel behind it on another stream, the result back.
//!
//! Runs on the simulated device, which also judges the order:  `cargo run --example first_steps`
//! Runs on a GPU:                                              `cargo run --example first_steps -- gpu`

mod common;

use millpond::driver::{Driver, Kernels};
use millpond::kernel::{Argument, Kernel, ReferenceMemory};
use millpond::{Allocator, Config, Stream};
use std::error::Error;
use std::process::ExitCode;

/// The program. It is the same for every device. `tests/soak.rs` runs it for ever.
#[allow(unsafe_code, reason = "a kernel of the program's own")]
pub(crate) fn steps<D: Driver + Kernels>(
    gpu: &Allocator<D>,
    [copy, work]: [&Stream<D>; 2],
    saxpy: &Kernel,
    n: usize,
) -> Result<Vec<f32>, Box<dyn Error>> {
    let host = gpu.pinned_from_fn(n, |i| i as f32)?;
    let mut x = gpu.zeros::<f32>(n, copy)?;
    let mut y = gpu.zeros::<f32>(n, work)?;
    let sent = x.copy_from(host, copy)?; // it owns the source until the copy is done
    // `work` waits for the copy, on the device; the host does not wait.
    // SAFETY: the kernel takes these, reads `x`, writes `y`, has a thread for each of their elements, and ends.
    unsafe { work.launch(saxpy, n, (2.0f32, x.read(), y.write()))? };
    let back = y.to_pinned(work)?.wait()?; // the data can be reached only through wait()
    let host = sent.wait()?; // the source, ready for the next batch
    drop(x); // at any time, on any thread: the bytes are reused only in order
    assert_eq!(host.len(), back.len());
    Ok(back.to_vec())
}

/// Elements: whole blocks of 256 threads, so that every thread has one.
pub(crate) const N: usize = 1 << 20;

/// The kernel: `y[i] = a * x[i] + y[i]`, a thread each. `millpond::kernel::saxpy` does the same for any length, and is safe.
pub(crate) static SAXPY: Kernel = Kernel::new(
    c"saxpy",
    c".version 7.0
.target sm_70
.address_size 64
.visible .entry saxpy(.param .f32 saxpy_a, .param .u64 saxpy_x, .param .u64 saxpy_y)
{
    .reg .f32 %f<5>;
    .reg .b32 %r<4>;
    .reg .b64 %rd<8>;
    ld.param.f32 %f1, [saxpy_a];
    ld.param.u64 %rd1, [saxpy_x];
    ld.param.u64 %rd2, [saxpy_y];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    cvt.u64.u32 %rd3, %r3;
    mul.wide.u32 %rd4, %r1, %r2;
    add.s64 %rd4, %rd4, %rd3;
    shl.b64 %rd4, %rd4, 2;
    cvta.to.global.u64 %rd5, %rd1;
    cvta.to.global.u64 %rd6, %rd2;
    add.s64 %rd5, %rd5, %rd4;
    add.s64 %rd6, %rd6, %rd4;
    ld.global.f32 %f2, [%rd5];
    ld.global.f32 %f3, [%rd6];
    fma.rn.f32 %f4, %f1, %f2, %f3;
    st.global.f32 [%rd6], %f4;
    ret;
}
",
)
.reference(saxpy_on_the_cpu);

/// The same where there is no GPU.
fn saxpy_on_the_cpu(memory: &mut dyn ReferenceMemory, arguments: &[Argument]) {
    let &[a, x, y] = arguments else { panic!("saxpy(float a, const float *x, float *y)") };
    let (mut xs, mut ys) = (vec![0; 4 * N], vec![0; 4 * N]);
    memory.read(x.as_addr(), &mut xs);
    memory.read(y.as_addr(), &mut ys);
    for (x, y) in xs.as_chunks().0.iter().zip(ys.as_chunks_mut().0) {
        *y = a.as_f32().mul_add(f32::from_le_bytes(*x), f32::from_le_bytes(*y)).to_le_bytes();
    }
    memory.write(y.as_addr(), &ys);
}

struct FirstSteps;

impl common::Program for FirstSteps {
    fn on<D: Driver + Kernels>(&self, device: D) -> Result<(), Box<dyn Error>> {
        let gpu = Allocator::new(device, Config::default())?;
        let (copy, work) = (gpu.stream()?, gpu.stream()?);
        let result = steps(&gpu, [&copy, &work], &SAXPY, N)?;
        println!("{}", gpu.report());
        println!("{N} elements went there, {} came back: {:?} ...", result.len(), &result[..5]);
        let twice = (0..N).map(|i| 2.0 * i as f32);
        if result.into_iter().eq(twice) {
            Ok(())
        } else {
            Err("every element is to be twice its index".into())
        }
    }
}

fn main() -> ExitCode {
    common::run(&FirstSteps)
}
