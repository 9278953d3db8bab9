//! The simulated device on the bench.

use crate::suite::Bench;
use millpond::allocator::VirtualMemory;
use millpond::driver::{DriverResult, Fences};
use millpond::units::{Addr, GIB};
use millpond::{Allocator, Config};
use millpond_sim::{Gate, Launch, Schedule, Sim, SimStream};

/// The simulated device on the bench, both oracles judging.
#[derive(Debug)]
pub struct OnSim(Sim, VirtualMemory);

/// A device of 4 GiB with this schedule.
#[allow(clippy::unnecessary_wraps, reason = "the suite asks for a bench that may not be there")]
pub fn bench(schedule: Schedule) -> Option<OnSim> {
    Some(OnSim(Sim::new(4 * GIB).schedule(schedule), VirtualMemory::Never))
}

/// The same, for allocators with virtual memory beneath their pools.
#[allow(clippy::unnecessary_wraps, reason = "as `bench`")]
pub fn bench_with_windows(schedule: Schedule) -> Option<OnSim> {
    Some(OnSim(Sim::new(4 * GIB).schedule(schedule), VirtualMemory::Auto))
}

impl Bench for OnSim {
    type Device = Sim;
    type Gate = Gate;

    fn device(&self) -> &Sim {
        &self.0
    }
    fn allocator(&self, config: Config) -> Allocator<Sim> {
        Allocator::new(self.0.clone(), config.virtual_memory(self.1)).expect("an allocator")
    }
    fn gate(&self, on: &SimStream) -> Gate {
        self.0.gate(on).expect("a gate")
    }
    fn open(&self, gate: Gate) {
        gate.open();
    }
    fn waits(&self, on: &SimStream, call: &mut dyn FnMut() -> DriverResult<()>) -> bool {
        // A host wait for a closed gate fails instead of hanging, and has then done nothing.
        let gate = self.gate(on);
        let stuck = call().is_err_and(|e| e.message.contains("would wait for ever"));
        gate.open();
        if stuck {
            call().expect("nothing stands in its way now");
        }
        stuck
    }
    fn write(&self, on: &SimStream, addr: Addr, bytes: u64, word: u64) {
        self.0.launch(on, Launch::write_pattern(addr, bytes, word)).expect("a launch");
    }
    fn check(&self, on: &SimStream, addr: Addr, bytes: u64, word: u64) {
        self.0.launch(on, Launch::check_pattern(addr, bytes, word)).expect("a launch");
    }
    fn legacy(&self) -> SimStream {
        self.0.legacy_stream()
    }
    fn per_thread(&self) -> SimStream {
        self.0.per_thread_stream()
    }
    fn handle(&self, stream: &SimStream) -> u64 {
        stream.handle()
    }
    fn query_id(&self, stream: &SimStream) -> Result<u64, u32> {
        self.0.stream_info(stream).map(|i| i.id.0).map_err(|e| e.code)
    }
    fn raw_context_event(&self) -> u32 {
        let event = self.0.event().expect("an event");
        self.0.record_context(&event).map_or_else(|e| e.code, |()| 0)
    }
    fn begin_capture(&self, stream: &SimStream) {
        self.0.begin_capture(stream).expect("a capture");
    }
    fn end_capture(&self, stream: &SimStream) -> Result<(), u32> {
        self.0.end_capture(stream).map(drop).map_err(|e| e.code)
    }
    fn finish(self) -> Result<(), String> {
        self.0.run_until_idle();
        self.0.verdict().map_err(|v| v.to_string())?;
        let (left, errors) = (self.0.leaks(), self.0.drop_errors());
        if left.is_empty() && errors.is_empty() { Ok(()) } else { Err(format!("left: {left:?}; {errors:?}")) }
    }
}

crate::conformance_list! { conformance_code [crate::on_sim::OnSim] }
