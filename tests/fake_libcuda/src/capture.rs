//! Captures: streams record work instead of running it, and some calls destroy a capture.
//!
//! All captures are as strict as a global one; only calls of a thread in relaxed mode do not destroy them. Graphs cannot be launched,
//! only destroyed. This file does not know what was recorded.

use crate::entry::{self, Fail, Outcome};
use crate::raw::Out;
use crate::state::{state, stream};
use millpond::driver::Fences;
use millpond_sim::Sim;
use std::ffi::c_uint;

/// The calling thread's default stream; the two lower values are the legacy stream.
const PER_THREAD: u64 = 2;
/// Work on the legacy stream would end a capture by other code.
const IMPLICIT: u32 = 906;

/// For a call that destroys captures unless its thread is in relaxed mode, and that the simulated device does not have. A
/// query is such a call too, and a query of an event that was never recorded has no other effect.
pub(crate) fn forbid(sim: &Sim) -> Outcome {
    sim.query(&sim.create_event()?)?;
    Ok(())
}

/// Whether a stream captures. For the legacy default stream, while a blocking stream captures, the result is an error, which destroys
/// nothing.
fn captures(value: u64) -> Outcome<bool> {
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
    /// Begins a capture; every mode is treated as global.
    fn cuStreamBeginCapture_v2(value: u64, mode: c_uint) {
        if mode > 2 {
            return Err(Fail::invalid(format!("capture mode {mode} is not known")));
        }
        let (sim, _, on) = stream(value)?;
        Ok(sim.begin_capture(&on)?)
    }
    /// Ends a capture and returns its graph, or the code of the reason why there is none.
    fn cuStreamEndCapture(value: u64, graph: Out<u64>) {
        let (sim, _, on) = stream(value)?;
        graph.put(0)?;
        let captured = sim.end_capture(&on)?;
        graph.put(state().graphs.insert(captured))
    }
    /// Whether a stream captures: 0 no, 1 yes, also if the capture was destroyed and not ended yet. Never destroys a capture.
    fn cuStreamIsCapturing(value: u64, status: Out<c_uint>) {
        status.put(c_uint::from(captures(value)?))
    }
    /// As `cuStreamIsCapturing`, with an id of the capture; its dependencies are not returned.
    fn cuStreamGetCaptureInfo_v2(value: u64, status: Out<c_uint>, id: Out<u64>, graph: Out<u64>, dependencies: Out<u64>, count: Out<usize>) {
        let capturing = captures(value)?;
        status.put(c_uint::from(capturing))?;
        id.put_if_wanted(if capturing { value | 1 << 63 } else { 0 });
        graph.put_if_wanted(0);
        dependencies.put_if_wanted(0);
        count.put_if_wanted(0);
        Ok(())
    }
    /// Exchanges this thread's capture mode: 0 global, 1 thread-local (treated as global), 2 relaxed.
    fn cuThreadExchangeStreamCaptureMode(mode: Out<c_uint>) {
        let wanted = mode.get()?;
        if wanted > 2 {
            return Err(Fail::invalid(format!("capture mode {wanted} is not known")));
        }
        mode.put(entry::exchange_capture_mode(wanted))
    }
    /// Destroys a graph.
    fn cuGraphDestroy(graph: u64) {
        state().graphs.remove(graph).map(|_| ())
    }
    /// Refused, because graphs cannot run here.
    fn cuGraphInstantiateWithFlags(exec: Out<u64>, graph: u64, flags: u64) {
        let _ = (exec, flags);
        state().graphs.get(graph)?;
        Err(Fail::unsupported("a captured graph cannot be launched on the stand-in"))
    }
    /// Returns how many nodes a graph has; the list of nodes is not written.
    fn cuGraphGetNodes(graph: u64, nodes: Out<u64>, count: Out<usize>) {
        let _ = nodes;
        let operations = state().graphs.get(graph)?.operations;
        count.put(operations as usize)
    }
}
