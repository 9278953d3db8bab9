//! Captures: what streams record instead of running, and which calls destroy a recording.
//!
//! All captures are as strict as a global one; only a thread's relaxed mode spares them. There is nothing to launch at the
//! end: a graph can only be destroyed. This file does not know what was recorded.

use crate::door::{self, Fail, Outcome};
use crate::raw::Out;
use crate::state::{state, stream};
use millpond::driver::Fences;
use millpond_sim::Sim;
use std::ffi::c_uint;

/// The calling thread's default stream; below are the two values of the legacy one.
const PER_THREAD: u64 = 2;
/// Work on the legacy stream would end a capture by other code.
const IMPLICIT: u32 = 906;

/// For a call that destroys captures unless its thread is relaxed, and of which the simulated device knows nothing. A
/// query is such a call, and of an event never recorded it does nothing else.
pub(crate) fn forbid(sim: &Sim) -> Outcome {
    sim.query(&sim.create_event()?)?;
    Ok(())
}

/// Whether a stream is recording. Of the legacy default stream beside a blocking stream that is, the answer is an error, and
/// harms nothing.
fn asked(value: u64) -> Outcome<bool> {
    let (sim, _, on) = stream(value)?;
    let capturing = sim.is_capturing(&on)?;
    if capturing && value < PER_THREAD {
        return Err(Fail::new(
            IMPLICIT,
            "a blocking stream captures: work on the legacy stream would destroy that",
        ));
    }
    Ok(capturing)
}

driver_calls! {
    /// Begins a capture; its mode is taken for global whatever it is.
    fn cuStreamBeginCapture_v2(value: u64, mode: c_uint) {
        if mode > 2 {
            return Err(Fail::invalid(format!("capture mode {mode} is not known")));
        }
        let (sim, _, on) = stream(value)?;
        Ok(sim.begin_capture(&on)?)
    }
    /// Ends a capture and answers its graph, or why there is none.
    fn cuStreamEndCapture(value: u64, graph: Out<u64>) {
        let (sim, _, on) = stream(value)?;
        graph.put(0)?;
        let captured = sim.end_capture(&on)?;
        graph.put(state().graphs.insert(captured))
    }
    /// Whether a stream is recording: 0 no, 1 yes, a destroyed recording included until it is ended. Harmless at any time.
    fn cuStreamIsCapturing(value: u64, status: Out<c_uint>) {
        status.put(c_uint::from(asked(value)?))
    }
    /// As `cuStreamIsCapturing`, with a number of the capture; what it depends on is not told.
    fn cuStreamGetCaptureInfo_v2(value: u64, status: Out<c_uint>, id: Out<u64>, graph: Out<u64>, dependencies: Out<u64>, count: Out<usize>) {
        let capturing = asked(value)?;
        status.put(c_uint::from(capturing))?;
        id.put_if_wanted(if capturing { value | 1 << 63 } else { 0 });
        graph.put_if_wanted(0);
        dependencies.put_if_wanted(0);
        count.put_if_wanted(0);
        Ok(())
    }
    /// Exchanges this thread's capture mode: 0 global, 1 thread-local (taken for global), 2 relaxed.
    fn cuThreadExchangeStreamCaptureMode(mode: Out<c_uint>) {
        let wanted = mode.get()?;
        if wanted > 2 {
            return Err(Fail::invalid(format!("capture mode {wanted} is not known")));
        }
        mode.put(door::exchange_capture_mode(wanted))
    }
    /// Destroys a graph.
    fn cuGraphDestroy(graph: u64) {
        state().graphs.remove(graph).map(|_| ())
    }
    /// Refused: graphs cannot run here.
    fn cuGraphInstantiateWithFlags(exec: Out<u64>, graph: u64, flags: u64) {
        let _ = (exec, flags);
        state().graphs.get(graph)?;
        Err(Fail::unsupported("a captured graph cannot be launched on the stand-in"))
    }
    /// How many nodes a graph has, where no list of them is wanted.
    fn cuGraphGetNodes(graph: u64, nodes: Out<u64>, count: Out<usize>) {
        let _ = nodes;
        let operations = state().graphs.get(graph)?.operations;
        count.put(operations as usize)
    }
}
