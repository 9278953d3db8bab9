//! Operations on arrays: what each comes after, what is kept of it, and what its bytes show (O6, O7).

use super::{Case, Outcome, World, ensure, said};
use millpond::allocator::StagingPieces;
use millpond::array::ExternalMemory;
use millpond::units::{DeviceId, MIB};
use millpond::{
    Allocator, Config, DeviceArray, Download, DriverErrorKind, Growth, Limit, Reuse, Stream, Trim, kernel,
};
use millpond_sim::{Call, Launch, Sim};
use std::sync::Arc;

pub(super) const CASES: &[Case] = &[
    Case { name: "written at home, read elsewhere", kills: &["array-write-unseen"], run: written_at_home },
    Case { name: "read at home, written elsewhere", kills: &["array-read-unseen"], run: read_at_home },
    Case {
        name: "new bytes, first written elsewhere",
        kills: &["z20", "array-birth-unseen"],
        run: new_bytes,
    },
    Case { name: "declared work at home, read elsewhere", kills: &["array-open-unseen"], run: declared_work },
    Case {
        name: "written elsewhere, read at home",
        kills: &["z35", "array-use-lost", "array-use-unseen"],
        run: written_elsewhere,
    },
    Case {
        name: "an array of memory that was written elsewhere",
        kills: &["array-past-unseen"],
        run: written_before,
    },
    Case {
        name: "read elsewhere twice, written at home",
        kills: &["array-read-forgets", "array-cover-any"],
        run: two_readers,
    },
    Case { name: "two operations of one stream on one array", kills: &["z33"], run: two_operations },
    Case {
        name: "written as a whole, declared before",
        kills: &["array-whole-forgets-open"],
        run: whole_and_declared,
    },
    Case { name: "an operation without its marker", kills: &["array-unsealed"], run: without_marker },
    Case {
        name: "a part is written elsewhere, another at home",
        kills: &["part-forgets-home"],
        run: two_parts,
    },
    Case { name: "an operation whose call panics", kills: &["panic-unsealed"], run: panics_when_queued },
    Case { name: "a kernel in a guard", kills: &["guard-sealed-early"], run: guarded },
    Case {
        name: "a kernel in a guard beside many readers",
        kills: &["open-ends-early"],
        run: guarded_beside_many,
    },
    Case { name: "a shared source whose token is dropped", kills: &["deferred-at-once"], run: shared_source },
    Case {
        name: "a query that fails while a source is kept",
        kills: &["deferred-error-done"],
        run: failing_query,
    },
    Case {
        name: "a large source whose token is dropped",
        kills: &["large-source-unseen"],
        run: large_source,
    },
    Case { name: "slots of staged copies", kills: &["array-token-unwaited"], run: staged_slots },
    Case { name: "a new tenant's bytes", kills: &["scrub-skipped", "scrub-unborn"], run: new_tenant },
    Case { name: "an owner of external memory", kills: &["external-at-once"], run: external_owner },
    Case {
        name: "an owner of external memory, one of whose streams was synchronised",
        kills: &["deferred-first-done"],
        run: external_owner_of_two,
    },
];

const LEN: usize = 1 << 20;

type Array = DeviceArray<u8, Sim>;

/// An array of one value, which it has by now.
fn written(w: &World, value: u8, s: &Stream<Sim>) -> Result<Array, String> {
    let mut x = w.gpu.uninit(LEN, s).map_err(said)?;
    kernel::fill(&mut x, value, s).map_err(said)?;
    s.synchronize().map_err(said)?;
    Ok(x)
}

/// The copy brings this value.
fn brings(down: Download<u8, Sim>, value: u8) -> Outcome {
    let found = down.wait().map_err(said)?;
    let wrong = found.iter().find(|&&v| v != value);
    ensure!(wrong.is_none(), "{wrong:?} was read where {value} is to be");
    Ok(())
}

/// t reads what s wrote.
fn written_at_home() -> Outcome {
    let w = World::at(8);
    let [s, t] = w.streams();
    let mut x = written(&w, 1, &s)?;
    kernel::fill(&mut x, 2, &s).map_err(said)?;
    brings(x.to_pinned(&t).map_err(said)?, 2)?;
    drop((x, s, t));
    w.end()
}

/// t writes behind what s reads.
fn read_at_home() -> Outcome {
    let w = World::at(8);
    let [s, t] = w.streams();
    let mut x = written(&w, 1, &s)?;
    let down = x.to_pinned(&s).map_err(said)?;
    kernel::fill(&mut x, 2, &t).map_err(said)?;
    t.synchronize().map_err(said)?;
    brings(down, 1)?;
    drop((x, s, t));
    w.end()
}

/// t writes bytes whose former life s still reads.
fn new_bytes() -> Outcome {
    let w = World::at(1);
    let [s, t] = w.streams();
    let down = written(&w, 1, &s)?.to_pinned(&s).map_err(said)?;
    let mut x: Array = w.gpu.uninit(LEN, &s).map_err(said)?;
    kernel::fill(&mut x, 2, &t).map_err(said)?;
    t.synchronize().map_err(said)?;
    brings(down, 1)?;
    drop((x, s, t));
    w.end()
}

/// A kernel of the program's own on s, declared; t reads what it wrote.
fn declared_work() -> Outcome {
    let w = World::at(8);
    let [s, t] = w.streams();
    let x = written(&w, 1, &s)?;
    x.record_use(&s).map_err(said)?;
    let (at, bytes) = (x.address(), x.size_bytes());
    let theirs = Launch::new("theirs").writes(at, bytes).tag(x.id().expect("bytes"));
    let word = u64::from_ne_bytes([2; 8]);
    w.sim.launch(s.native(), theirs.body(move |memory| memory.fill(at, bytes, word))).map_err(said)?;
    brings(x.to_pinned(&t).map_err(said)?, 2)?;
    drop((x, s, t));
    w.end()
}

/// t writes an array whose memory becomes another array; s reads that.
fn written_before() -> Outcome {
    let w = World::at(8);
    let [s, t] = w.streams();
    let mut x = written(&w, 1, &s)?;
    kernel::fill(&mut x, 2, &t).map_err(said)?;
    let block = x.into_allocation().map_err(|_| "the memory is the allocator's".to_owned())?;
    let x = Array::from_allocation(block, LEN).map_err(|(_, e)| said(e))?;
    brings(x.to_pinned(&s).map_err(said)?, 2)?;
    drop((x, s, t));
    w.end()
}

/// A kernel of the program's own on t, queued while its guard lives and behind a marker that was made meanwhile; s reads what
/// it wrote.
fn guarded() -> Outcome {
    let w = World::at(8);
    let [s, t] = w.streams();
    let mut x = written(&w, 1, &s)?;
    let (at, bytes, id) = (x.address(), x.size_bytes(), x.id().expect("bytes"));
    let guard = x.write_on(&t).map_err(said)?;
    drop(t.record().map_err(said)?);
    let theirs = Launch::new("theirs").writes(at, bytes).tag(id);
    let word = u64::from_ne_bytes([2; 8]);
    w.sim.launch(t.native(), theirs.body(move |memory| memory.fill(at, bytes, word))).map_err(said)?;
    drop(guard);
    brings(x.to_pinned(&s).map_err(said)?, 2)?;
    drop((x, s, t));
    w.end()
}

/// t's kernel is queued behind the looks that nine other readers make necessary, in a guard that is forgotten.
fn guarded_beside_many() -> Outcome {
    let w = World::at(8);
    let [s, t, u] = w.streams();
    let mut x = written(&w, 1, &s)?;
    let (at, bytes, id) = (x.address(), x.size_bytes(), x.id().expect("bytes"));
    let guard = x.read_on(&t).map_err(said)?;
    for _ in 0..20 {
        let other = w.gpu.stream().map_err(said)?;
        drop(x.read_on(&other).map_err(said)?);
    }
    drop(t.record().map_err(said)?);
    w.sim.launch(t.native(), Launch::new("theirs").reads(at, bytes).tag(id)).map_err(said)?;
    std::mem::forget(guard);
    kernel::fill(&mut x, 2, &s).map_err(said)?;
    brings(x.to_pinned(&u).map_err(said)?, 2)?;
    drop((x, s, t, u));
    w.end()
}

/// t is to write one half, under a guard, while s writes the other at home; u reads both.
fn two_parts() -> Outcome {
    let w = World::at(8);
    let [s, t, u] = w.streams();
    let mut x = written(&w, 1, &s)?;
    {
        let (mut low, high) = x.split_at_mut(LEN / 2);
        let guard = high.write_on(&t).map_err(said)?;
        kernel::fill(&mut low, 2, &s).map_err(said)?;
        drop(guard);
    }
    let down = x.slice(..LEN / 2).to_pinned(&u).map_err(said)?;
    brings(down, 2)?;
    drop((x, s, t, u));
    w.end()
}

/// t's fill is queued, and then the call panics; s reads what it wrote.
fn panics_when_queued() -> Outcome {
    let w = World::at(8);
    let [s, t] = w.streams();
    let mut x = written(&w, 1, &s)?;
    w.sim.panic_behind(Call::MemsetD8, 1);
    let filled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| x.fill_bytes(2, &t)));
    ensure!(filled.is_err(), "the call did not panic: {filled:?}");
    brings(x.to_pinned(&s).map_err(said)?, 2)?;
    drop((x, s, t));
    w.end()
}

/// A query whether the kept source's copy is done fails; another request gets pinned memory.
fn failing_query() -> Outcome {
    let w = World::at(8);
    let [s] = w.streams();
    let (mut x, mut y) = (written(&w, 1, &s)?, written(&w, 1, &s)?);
    let source = Arc::new(w.gpu.pinned_from_slice(&vec![2_u8; LEN]).map_err(said)?);
    drop(x.copy_from(source, &s).map_err(said)?);
    w.sim.fail(Call::EventQuery, 1, DriverErrorKind::Other);
    y.fill_bytes(3, &s).map_err(said)?;
    w.sim.clear_faults();
    let next = w.gpu.pinned_from_slice(&vec![4_u8; LEN]).map_err(said)?;
    brings(x.to_pinned(&s).map_err(said)?, 2)?;
    drop((x, y, next, s));
    w.end()
}

/// A source of its own segment, whose token is dropped while the copy is under way; another request gets as much.
fn large_source() -> Outcome {
    const LARGE: usize = 12 << 20;
    let w = World::at(16);
    let [s] = w.streams();
    let mut x: Array = w.gpu.uninit(LARGE, &s).map_err(said)?;
    drop(x.copy_from(w.gpu.pinned_from_slice(&vec![2_u8; LARGE]).map_err(said)?, &s).map_err(said)?);
    let next = w.gpu.pinned_from_slice(&vec![3_u8; LARGE]).map_err(said)?;
    brings(x.slice(..LEN).to_pinned(&s).map_err(said)?, 2)?;
    drop((x, next, s));
    w.end()
}

/// Copies of a slice in many pieces, each way, by threads and by the calling thread alone: a slot is filled again, and emptied, behind its copy.
fn staged_slots() -> Outcome {
    for threads in [0, 2] {
        let staged = Config::default().staging_threads(threads).staging_pieces(StagingPieces::of(500, 2000));
        let w = World::new(staged);
        let [s] = w.streams();
        let source: Vec<u16> = (0..20_000).collect();
        let x = w.gpu.array_from_slice(&source, &s).map_err(said)?;
        s.synchronize().map_err(said)?;
        let sent = x.to_pinned(&s).map_err(said)?;
        s.synchronize().map_err(said)?;
        ensure!(
            sent.wait().map_err(said)?[..] == source[..],
            "{threads} threads: not what was copied to the device"
        );
        ensure!(x.to_vec(&s).map_err(said)? == source, "{threads} threads: not what was copied to the host");
        drop((x, s));
        w.end()?;
    }
    Ok(())
}

/// A copy reads a source that several own, and whose last owner was the token.
fn shared_source() -> Outcome {
    let w = World::at(8);
    let [s] = w.streams();
    let mut x = written(&w, 1, &s)?;
    let source = Arc::new(w.gpu.pinned_from_slice(&vec![2_u8; LEN]).map_err(said)?);
    drop(x.copy_from(source, &s).map_err(said)?);
    let next = w.gpu.pinned_from_slice(&vec![3_u8; LEN]).map_err(said)?;
    brings(x.to_pinned(&s).map_err(said)?, 2)?;
    drop((x, next, s));
    w.end()
}

/// s reads what t wrote.
fn written_elsewhere() -> Outcome {
    let w = World::at(8);
    let [s, t] = w.streams();
    let mut x = written(&w, 1, &s)?;
    kernel::fill(&mut x, 2, &t).map_err(said)?;
    brings(x.to_pinned(&s).map_err(said)?, 2)?;
    drop((x, s, t));
    w.end()
}

/// s writes behind two readers, neither of whom comes after the other.
fn two_readers() -> Outcome {
    let w = World::at(8);
    let [s, t, u] = w.streams();
    let mut x = written(&w, 1, &s)?;
    let first = x.to_pinned(&t).map_err(said)?;
    let second = x.to_pinned(&u).map_err(said)?;
    kernel::fill(&mut x, 2, &s).map_err(said)?;
    s.synchronize().map_err(said)?;
    brings(first, 1)?;
    brings(second, 1)?;
    drop((x, s, t, u));
    w.end()
}

/// s writes behind both of t's reads: one's end says nothing of the other.
fn two_operations() -> Outcome {
    let w = World::at(8);
    let [s, t] = w.streams();
    let mut x = written(&w, 1, &s)?;
    let first = x.to_pinned(&t).map_err(said)?;
    let second = x.to_pinned(&t).map_err(said)?;
    kernel::fill(&mut x, 2, &s).map_err(said)?;
    s.synchronize().map_err(said)?;
    brings(first, 1)?;
    brings(second, 1)?;
    drop((x, s, t));
    w.end()
}

/// What t was declared to do until the drop, a write of the whole by s does not end.
fn whole_and_declared() -> Outcome {
    let w = World::at(1);
    let [s, t] = w.streams();
    let mut x = written(&w, 1, &s)?;
    x.record_use(&t).map_err(said)?;
    kernel::fill(&mut x, 2, &s).map_err(said)?;
    x.wait_on(&t).map_err(said)?;
    let theirs = Launch::new("theirs").writes(x.address(), x.size_bytes()).tag(x.id().expect("bytes"));
    w.sim.launch(t.native(), theirs).map_err(said)?;
    drop(x);
    let mut y: Array = w.gpu.uninit(LEN, &s).map_err(said)?;
    kernel::fill(&mut y, 3, &s).map_err(said)?;
    drop((y, s, t));
    w.end()
}

/// The marker behind t's write fails; s reads what it wrote all the same.
fn without_marker() -> Outcome {
    let w = World::at(8);
    let [s, t] = w.streams();
    let mut x = written(&w, 1, &s)?;
    w.sim.fail(Call::EventRecord, 1, DriverErrorKind::Other);
    kernel::fill(&mut x, 2, &t).map_err(said)?;
    brings(x.to_pinned(&s).map_err(said)?, 2)?;
    drop((x, s, t));
    w.end()
}

/// Reused memory is wiped, also for a first reader on another stream.
fn new_tenant() -> Outcome {
    for elsewhere in [false, true] {
        let w = World::new(World::config(1).scrub(true));
        let [s, t] = w.streams();
        drop(written(&w, 1, &s)?);
        // The former life is complete: only the wipe is to be waited for.
        s.synchronize().map_err(said)?;
        let x: Array = w.gpu.uninit(LEN, &s).map_err(said)?;
        brings(x.to_pinned(if elsewhere { &t } else { &s }).map_err(said)?, 0)?;
        drop((x, s, t));
        w.end()?;
    }
    Ok(())
}

/// Another library, and an array in the one block that it has.
#[allow(unsafe_code, reason = "the library's block lives as long as the array")]
fn external(w: &World, home: &Stream<Sim>) -> Result<(Allocator<Sim>, Stream<Sim>, Array), String> {
    let config = Config::default().reuse(Reuse::WithWaits).growth(Growth::Exact).limit(Limit::Bytes(MIB));
    let library = Allocator::new(w.sim.clone(), config).map_err(said)?;
    let theirs = library.stream().map_err(said)?;
    let block = library.alloc(MIB, &theirs).map_err(said)?;
    let memory = ExternalMemory { address: block.address(), bytes: MIB, device: DeviceId(0) };
    // SAFETY: the block is the owner, and nothing else uses it.
    let made = unsafe { Array::from_external(memory, LEN, block, home) };
    Ok((library, theirs, made.map_err(|(_, e)| said(e))?))
}

/// Another library's block, given back to it while t still writes it, and used by it at once.
fn external_owner() -> Outcome {
    external_owner_by(|w, [_, t], x| {
        kernel::fill(x, 2, t).map_err(said)?;
        Ok(Box::new(|| w.gpu.trim(Trim::All).map(drop).map_err(said)))
    })
}

/// The same while s still writes it, behind t, which was waited for: one use is over and the other not.
fn external_owner_of_two() -> Outcome {
    external_owner_by(|_, [s, t], x| {
        kernel::fill(&mut x.slice_mut(..LEN / 2), 2, t).map_err(said)?;
        kernel::fill(&mut x.slice_mut(LEN / 2..), 3, s).map_err(said)?;
        Ok(Box::new(|| t.synchronize().map_err(said)))
    })
}

type Then<'a> = Box<dyn FnOnce() -> Outcome + 'a>;

/// Uses external memory, drops the array, does what the uses said, and the device is not done; then it is.
fn external_owner_by(
    uses: impl for<'a> FnOnce(&'a World, &'a [Stream<Sim>; 2], &mut Array) -> Result<Then<'a>, String>,
) -> Outcome {
    let w = World::at(8);
    let streams = w.streams();
    let (library, theirs, mut x) = external(&w, &streams[0])?;
    let then = uses(&w, &streams, &mut x)?;
    drop(x);
    then()?;
    ensure!(library.alloc(MIB, &theirs).is_err(), "it was given back while it is written");
    w.gpu.synchronize().map_err(said)?;
    let again = library.alloc(MIB, &theirs).map_err(said)?;
    let launch = Launch::new("theirs").writes(again.address(), MIB).tag(again.id().expect("bytes"));
    w.sim.launch(theirs.native(), launch).map_err(said)?;
    drop((again, theirs, library, streams));
    w.end()
}
