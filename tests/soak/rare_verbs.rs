//! Rarely used parts of the interface, as steps of a random program: copies between devices and in scopes, external memory, limits, trims of one stream, streams
//! found by their numbers, several guards, streams that end in their captures, and failures while something is put off.

use super::super::programs::brought_in;
use super::{Done, LEN, LIMIT, Machine, STREAMS, Step, Verb, range, use_of};
use millpond::transfer::{self, Part};
use millpond::units::KIB;
use millpond::{Allocator, DeviceArray, DriverErrorKind, Limit, Stream, Trim, kernel};
use millpond_sim::{Call, Launch};
use millpond_testkit::counted::Device;
use millpond_testkit::counting;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

/// One in so many limits that are set is below what is taken, so that idle memory goes back and a request climbs the ladder; and one in so many trims
/// that the driver refuses is made.
const TURNS_A_TRIM: u64 = 25;

/// What there is on another device.
pub(super) struct Peer {
    streams: [Stream<Device>; 2],
    arrays: [DeviceArray<f32, Device>; 2],
}

impl Peer {
    pub(super) fn new(gpu: &Allocator<Device>) -> Peer {
        let streams = [(); 2].map(|()| gpu.stream().expect("a stream"));
        let arrays = std::array::from_fn(|i| gpu.zeros(LEN, &streams[i]).expect("an array"));
        Peer { streams, arrays }
    }
}

impl Machine {
    pub(super) fn rarer_step(&mut self, step: Step, home: &Stream<Device>, on: &Stream<Device>) -> Done {
        let Step { verb, s, i, j, bytes, .. } = step;
        match verb {
            Verb::AllocAligned => {
                let block = self.gpu.alloc_aligned(bytes, 512 << (2 * i), home)?;
                let (at, bytes) = range(&block);
                self.device.launch(home.native(), || Launch::new("write").writes(at, bytes));
                self.blocks[j] = Some((s, block));
            }
            Verb::SetLimit => self.set_limit(step)?,
            Verb::TrimOne => drop(self.gpu.trim(Trim::Stream(home))?),
            Verb::TrimFails if !self.trims_now() => {}
            Verb::TrimFails => {
                self.fails(Call::MemFree, DriverErrorKind::Other, |gpu| drop(gpu.trim(Trim::All)));
            }
            Verb::StreamOf => {
                let again = self.gpu.stream_of(home.id()).expect("it has a reference");
                let block = self.gpu.alloc(4 * KIB, &again)?;
                let (at, bytes) = range(&block);
                self.device.launch(again.native(), || Launch::new("write").writes(at, bytes));
            }
            Verb::StreamOfBlock => {
                let fresh = self.gpu.stream()?;
                let (id, block) = (fresh.id(), self.gpu.alloc(4 * KIB, &fresh)?);
                let other = self.gpu.alloc(4 * KIB, home)?;
                fresh.wait_stream(home)?;
                let (at, bytes) = use_of(&other, &fresh)?;
                drop(fresh);
                let again = self.gpu.stream_of(id).expect("a block of it is live");
                self.device.launch(again.native(), || Launch::new("read").reads(at, bytes));
                let (at, bytes) = range(&block);
                self.device.launch(again.native(), || Launch::new("write").writes(at, bytes));
                drop(again);
                drop(other);
            }
            Verb::UserOfOneRound => {
                let (block, fresh) = (self.gpu.alloc(4 * KIB, home)?, self.gpu.stream()?);
                fresh.wait_stream(home)?;
                let (at, bytes) = use_of(&block, &fresh)?;
                self.device.launch(fresh.native(), || Launch::new("read").reads(at, bytes));
                // Behind its user, or in front.
                if i % 2 == 0 {
                    drop(fresh);
                }
                drop(block);
            }
            Verb::MaintenanceFails => self.maintenance_fails(step)?,
            Verb::PeerCopy => self.peer_copy(step)?,
            Verb::PeerFails => self.peer_fails(step),
            Verb::Scope => self.scope(step)?,
            Verb::ScopeUnwinds => self.scope_unwinds(step),
            Verb::TwoGuards | Verb::TwoGuardsForgotten => {
                self.two_guards(step, verb == Verb::TwoGuardsForgotten)?;
            }
            Verb::EndsInCapture => self.ends_in_capture(i % 2 == 0)?,
            _ => return self.rarer_step_on_arrays(step, home, on),
        }
        Ok(())
    }

    fn rarer_step_on_arrays(&mut self, step: Step, home: &Stream<Device>, on: &Stream<Device>) -> Done {
        let Step { verb, i, j, .. } = step;
        match verb {
            Verb::BroughtIn => {
                let mut x = brought_in(&self.gpu, home)?;
                kernel::fill(&mut x, 1.0, on)?;
                kernel::saxpy(1.0, x.slice(..LEN), &mut self.arrays[i], home)?;
            }
            Verb::BroughtInUsed => {
                let x = brought_in(&self.gpu, home)?;
                x.wait_on(on)?;
                x.record_use(on)?;
                let (at, bytes) = (x.address(), x.size_bytes());
                self.device.launch(on.native(), || Launch::new("reads").reads(at, bytes));
            }
            Verb::TokenAbandoned => {
                let source = self.pinned()?;
                self.abandoned.push_back(self.arrays[i].copy_from(source, on)?);
                if self.abandoned.len() > 2 {
                    drop(self.abandoned.pop_front());
                }
            }
            Verb::TokenOfOneRound => {
                let fresh = self.gpu.stream()?;
                let up = self.arrays[i].copy_from(Arc::clone(&self.source), &fresh)?;
                let own = self.gpu.array_from_pinned(self.pinned()?, &fresh)?;
                let down = self.arrays[j].to_pinned(&fresh)?;
                drop(fresh);
                drop((up, own, down));
            }
            Verb::Rows => {
                let (rows, width) = (LEN / 16, 8);
                let source = Part::new(Arc::clone(&self.source), ..rows * width);
                let mut source_plane = self.gpu.pinned_uninit([rows, width])?;
                source_plane.fill(source.range().len() as f32);
                let mut plane = self.arrays[i].view_mut().plane(rows, width, 16)?;
                drop(plane.copy_from(source_plane, on)?);
                drop(self.arrays[j].view().plane(rows, width, 16)?.to_pinned(on)?);
                drop(self.arrays[j].slice_mut(..rows * width).copy_from(source, on)?);
            }
            _ => unreachable!("a step that is not rare"),
        }
        Ok(())
    }

    /// A stream captures, and its last reference goes: what was freed on it, and its end, are known when the device is quiet.
    fn ends_in_capture(&mut self, adopted: bool) -> Done {
        let native = adopted.then(|| self.device.wrap_stream(|sim| sim.stream().expect("a stream")));
        let ends =
            native.as_ref().map_or_else(|| self.gpu.stream(), |theirs| self.gpu.adopt(theirs.clone()))?;
        let block = self.gpu.alloc(4 * KIB, &ends)?;
        let at = range(&block);
        self.device.launch(ends.native(), || Launch::new("write").writes(at.0, at.1));
        drop(block);
        let handle = ends.native().handle();
        counting::device(|| {
            let sim = self.device.sim();
            sim.begin_capture(&sim.stream_from_handle(handle)).expect("a capture");
        });
        drop(native);
        drop(ends);
        Ok(())
    }

    fn trims_now(&mut self) -> bool {
        self.turns += 1;
        self.turns.is_multiple_of(TURNS_A_TRIM)
    }

    /// The limit comes to what is taken, at which nothing can grow, and now and then to nothing.
    fn set_limit(&mut self, step: Step) -> Done {
        let trims = self.trims_now();
        let taken = if trims { 0 } else { self.device.ledger().bytes_reserved };
        let set = self.gpu.set_limit(Limit::Bytes(taken));
        // One climbs the ladder, with all its waits; what the cache has is to be had.
        let asked = if trims { 1 << 20 } else { 512 };
        let had = self.gpu.alloc(asked, &self.streams[step.s]);
        self.gpu.set_limit(if self.short { Limit::Bytes(LIMIT) } else { Limit::None })?;
        set?;
        match had {
            Err(e) if e.out_of_memory().is_none() => Err(e)?,
            _ => Ok(()),
        }
    }

    /// A stream that waits to be closed, a marker that is due, a value that is kept; and the next call that may speak to the driver fails in one of
    /// the calls that these need, or that it needs itself.
    fn maintenance_fails(&mut self, step: Step) -> Done {
        let Step { s, t, i, j, .. } = step;
        let (home, on) = (self.streams[s].clone(), self.streams[t].clone());
        drop(self.arrays[i].copy_from(Arc::clone(&self.source), &on)?);
        let ends = self.gpu.stream()?;
        let last = self.gpu.alloc(4 * KIB, &ends)?;
        let block = self.gpu.alloc(4 * KIB, &home)?;
        ends.wait_stream(&home)?;
        let at = use_of(&block, &ends)?;
        self.device.launch(ends.native(), || Launch::new("read").reads(at.0, at.1));
        drop((ends, block, last));
        let calls = [
            Call::EventCreate,
            Call::EventRecord,
            Call::EventQuery,
            Call::StreamWaitEvent,
            Call::LaunchKernel,
            Call::StreamIsCapturing,
        ];
        let call = calls[(i + STREAMS * t + s) % calls.len()];
        counting::device(|| self.device.sim().fail(call, 1, DriverErrorKind::Other));
        // Perhaps refused: the error of something that was not its own is not returned.
        drop(kernel::fill(&mut self.arrays[j], 1.0, &on));
        drop(self.gpu.alloc(4 * KIB, &home));
        counting::device(|| self.device.sim().clear_faults());
        Ok(())
    }

    /// To another device, or from it.
    fn peer_copy(&mut self, Step { s, t, i, j, .. }: Step) -> Result<(), millpond::Error> {
        let peer = self.peer.as_mut().expect("a step between devices has another one");
        let (there, here) = (s % 2, &self.streams[t]);
        let (theirs, on) = (&mut peer.arrays[j % 2], &peer.streams[there]);
        if i % 2 == 0 {
            self.arrays[i].copy_from_peer(&*theirs, on, here)
        } else {
            theirs.copy_from_peer(&self.arrays[i], here, on)
        }
    }

    /// The driver refuses one of the calls of a copy between devices.
    fn peer_fails(&mut self, step: Step) {
        let calls = [Call::EventRecord, Call::StreamWaitEvent, Call::MemcpyPeer, Call::EventCreate];
        let (call, nth) = (calls[(step.s + step.j) % calls.len()], 1 + step.t as u64 % 3);
        counting::device(|| self.device.sim().fail(call, nth, DriverErrorKind::Other));
        drop(self.peer_copy(step));
        counting::device(|| self.device.sim().clear_faults());
    }

    /// Borrowed memory goes there, and another array comes back.
    fn scope(&mut self, Step { t, i, j, .. }: Step) -> Done {
        let (source, target) = (self.source.view(), self.target.view_mut());
        let arrays = self.arrays.get_disjoint_mut([i, j]).expect("two");
        transfer::scope(&self.streams[t], |copies| {
            copies.upload(arrays[0], source)?;
            copies.download(&*arrays[1], target)
        })??;
        Ok(())
    }

    /// The same, with an end that no hook of a panic sees.
    fn scope_unwinds(&mut self, Step { t, i, .. }: Step) {
        let (source, array, on) = (self.source.view(), &mut self.arrays[i], &self.streams[t]);
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            transfer::scope(on, |copies| {
                // Refused where other code captures.
                drop(copies.upload(array, source));
                resume_unwind(Box::new(()))
            })
        }));
        let unwound: Result<Result<(), _>, _> = unwound;
        assert!(unwound.is_err(), "it goes on");
    }

    /// A half each is written on two streams, and another array read, all at one time.
    fn two_guards(&mut self, Step { s, t, i, j, .. }: Step, forgets: bool) -> Done {
        let bytes = 2 * LEN as u64;
        let [x, y] = self.arrays.get_disjoint_mut([i, j]).expect("two");
        let (home, on) = (&self.streams[s], &self.streams[t]);
        let (low, high) = x.split_at_mut(LEN / 2);
        let (low, high) = (low.write_on(home)?, high.write_on(on)?);
        let read = y.read_on(home)?;
        let again = y.read_on(on)?;
        let (first, second, other) = (low.address(), high.address(), read.address());
        self.device.launch(on.native(), || Launch::new("both").writes(second, bytes).reads(other, bytes));
        drop(again);
        self.device.launch(home.native(), || Launch::new("both").writes(first, bytes).reads(other, bytes));
        drop(low);
        if forgets {
            std::mem::forget(high);
        }
        Ok(())
    }
}
