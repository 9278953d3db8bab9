//! Programs on the whole allocator over the simulated device: any bytes are a correct program, so nothing may be
//! violated, no byte may change under its owner, no error but "no memory" may come, and nothing may be left.
//!
//! It makes a device and an allocator of its bytes and has `millpond_replay` run the program, which writes a word of the block's own at
//! each write, checks it at each read and follows words through copies. It knows nothing of what the allocator does.

use millpond::allocator::VirtualMemory;
use millpond::trace::{Op, Program};
use millpond::units::{Addr, MIB};
use millpond::{Allocator, Config, Growth, Limit, Policy, Reuse};
use millpond_sim::{Schedule, Sim};

/// The first two bytes choose the device's schedule and the options, the others make the program.
pub fn run(data: &[u8]) {
    let [schedule, options, rest @ ..] = data else { return };
    run_with(*schedule, *options, &millpond_replay::from_fuzz(rest));
}

/// Runs a correct program. `schedule` and `options` choose as in [`run`].
pub fn run_with(schedule: u8, options: u8, program: &Program) {
    // Too little for the 64 MiB that the pinned pool would like: real memory is what takes a fuzzer's time.
    let sim = Sim::new(48 * MIB).pinned_capacity(12 * MIB).schedule(match schedule {
        0..64 => Schedule::Latest,
        64..96 => Schedule::Earliest,
        seed => Schedule::Random(seed.into()),
    });
    let gpu = Allocator::new(sim.clone(), config(options)).expect("an allocator on a fresh device");
    let after = |number: usize, handed: Option<Addr>| {
        if let Some(addr) = handed {
            look_at(program.steps[number].op, addr, &sim);
        }
        if number.is_multiple_of(8) {
            gpu.check();
        }
    };
    if let Err(e) = millpond_replay::replay_watched(program, &gpu, &after) {
        panic!("with no fault planted: {e}\nwith schedule {schedule}, options {options}:\n{program}");
    }
    gpu.check();
    drop(gpu);
    sim.run_until_idle();
    if let Err(e) = sim.verdict() {
        panic!("{e}\nwith schedule {schedule}, options {options}:\n{program}");
    }
    assert_eq!(sim.leaks(), [], "left on the device by:\n{program}");
    assert_eq!(sim.drop_errors(), [], "with no fault planted");
}

/// A block has just been handed out.
fn look_at(op: Op, addr: Addr, sim: &Sim) {
    match op {
        Op::Alloc { align: Some(align), bytes, .. } => {
            assert!(
                bytes == 0 || addr.0.is_multiple_of(align),
                "{bytes} bytes at {addr}, to be aligned to {align}"
            );
        }
        // The CPU may touch fresh pinned memory at once: every use of its last life is complete.
        Op::AllocPinned { bytes, .. } if bytes > 0 => {
            sim.host_writes(addr, bytes).expect("pinned memory");
        }
        _ => {}
    }
}

fn config(options: u8) -> Config {
    let bit = |n: u8| options >> n & 1 == 1;
    let mut config = Config::default().deterministic(bit(0)).limit(Limit::Bytes(32 * MIB));
    config = config.policy(if bit(1) { Policy::Footprint } else { Policy::Latency });
    config = config.growth(match options >> 2 & 3 {
        0 => Growth::Exact,
        1 => Growth::Rounded { small: MIB, large: 4 * MIB, multiple: MIB },
        2 => Growth::Rounded { small: 4096, large: 4096, multiple: 512 },
        _ => Growth::default(),
    });
    config = config.reuse(match options >> 4 & 3 {
        0 => Reuse::Never,
        1 => Reuse::Ordered,
        2 => Reuse::WithWaits,
        _ => Reuse::KnownWaits,
    });
    config = config.virtual_memory(if bit(7) { VirtualMemory::Auto } else { VirtualMemory::Never });
    if bit(6) { config.pinned_limit(10 * MIB) } else { config }
}
