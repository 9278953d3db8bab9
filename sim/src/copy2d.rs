//! Copies of rows, and copies to another device: the less used half of [`Copies`](millpond_driver::Copies).
//!
//! A copy of rows is one operation: the oracle gets each row, and the contents move row by row when it runs. One host
//! side has to be pinned, in one pinned range; a pageable one is refused. This file does not know what the bytes mean.

use super::Sim;
use super::call::Call;
use super::copy::touch;
use super::launch::{KernelMemory, Ranges, kernel};
use super::memory::Reach;
use super::oracle::AccessKind::{Read, Write};
use super::rate::Engine;
use super::stream::{Booking, SimStream};
use super::world::{World, invalid};
use millpond_driver::units::Addr;
use millpond_driver::{CopySide, DriverResult, Pitched};

impl World {
    /// A host side lies in one pinned range, wholly.
    fn demand_pinned(&self, place: CopySide, span: u64) -> DriverResult<()> {
        let call = Call::Memcpy2D;
        let CopySide::Pinned(first) = place else { return Ok(()) };
        if self.is_pinned(first.addr() as u64, span, call)? {
            return Ok(());
        }
        let message =
            format!("{span} bytes at {first:?} are not pinned: a copy of rows takes pinned host memory");
        Err(invalid(call, message))
    }
}

impl Sim {
    /// Queues a copy of rows.
    #[track_caller]
    pub(super) fn queue_rows(&self, copy: &Pitched, stream: &SimStream) -> DriverResult<()> {
        let call = Call::Memcpy2D;
        let copy = *copy;
        let Some((to_span, from_span)) = copy.spans() else {
            let message =
                format!("a pitch of {copy:?} is below its width, or the rows end beyond all addresses");
            return Err(invalid(call, message));
        };
        let (name, engine) = match (copy.to, copy.from) {
            (CopySide::Pinned(_), CopySide::Pinned(_)) => {
                let message = "both sides are host memory: a copy needs the device at one end";
                return Err(invalid(call, message));
            }
            (CopySide::Device(_), CopySide::Device(_)) => ("copy of rows", Engine::Compute),
            (CopySide::Device(_), CopySide::Pinned(_)) => ("copy of rows from pinned memory", Engine::In),
            (CopySide::Pinned(_), CopySide::Device(_)) => ("copy of rows to pinned memory", Engine::Out),
        };
        // As numbers: the body runs on any thread that makes the executor reach it.
        let (to, from, width) = (copy.to.addr().0, copy.from.addr().0, copy.width);
        self.call(call, |w| {
            let key = w.resolve_here(self, stream, call)?;
            w.demand_pinned(copy.to, to_span)?;
            w.demand_pinned(copy.from, from_span)?;
            if copy.bytes() == 0 || w.recorded(key, call)? {
                return Ok(());
            }
            // With zero bytes there may be more rows than memory.
            let rows: Vec<_> = copy.each_row().collect();
            let touched: Vec<_> = rows
                .iter()
                .flat_map(|(to, from)| [touch(from.0, width, Read), touch(to.0, width, Write)])
                .collect();
            w.report_operation(key, name, &touched);
            let ranges = Ranges::from_slice(&[touch(from, from_span, Read), touch(to, to_span, Write)]);
            let body = Box::new(move |memory: &mut KernelMemory<'_>| {
                let mut row = vec![0; width as usize];
                for (to, from) in rows {
                    memory.read(from, &mut row);
                    memory.write(to, &row);
                }
            });
            let booking = Booking::on(engine, engine.nanos(copy.bytes()));
            w.submit(key, booking, kernel(name.into(), ranges, Reach::Anywhere, body));
            Ok(())
        })
    }

    /// Queues a copy from this device's memory to another's.
    #[track_caller]
    pub(super) fn queue_peer(
        &self,
        dst: Addr,
        to: &Sim,
        src: Addr,
        bytes: u64,
        stream: &SimStream,
    ) -> DriverResult<()> {
        let call = Call::MemcpyPeer;
        if !millpond_driver::sync::Arc::ptr_eq(self.shared(), to.shared()) {
            let message = "the devices are of two simulated worlds: make them with one Sim::devices";
            return Err(invalid(call, message));
        }
        self.call(call, |w| {
            let key = w.resolve_here(self, stream, call)?;
            let (name, into) = ("copy to another device", Some(to.index()));
            w.queue_copy(key, call, name, into, (dst, src, bytes), Reach::Anywhere)
        })
    }
}
