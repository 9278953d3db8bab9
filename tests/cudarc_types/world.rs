//! Programs of cudarc's safe calls on our arrays, pooled slices and pinned arrays, on streams that the allocator made, adopted or does not
//! know, on default streams, and of three values of cudarc's for one context: the calls, a strategy that draws them, and a
//! world in which each is made and its value known. It knows no test.

#![allow(dead_code, unreachable_pub, reason = "each test uses some of it")]

use super::WORDS;
use super::remote::Fake;
use super::rig::{
    Adopted, GRID, Ours, PINNED, Rig, StoresError, TestStream, Unknown, Words, iota, test_stream,
};
use cudarc::driver::sys::{CUresult, CUstreamCaptureMode, cuGraphGetNodes};
use cudarc::driver::{CudaContext, CudaFunction, CudaStream, PushKernelArg, result};
use millpond::cuda::Cuda;
use millpond::interop::PooledSlice;
use millpond::{Allocator, Config, PinnedArray, Stream};
use parts::Part;
use proptest::prelude::*;
use std::sync::Arc;

#[path = "parts.rs"]
pub mod parts;
#[path = "short_lived.rs"]
mod short_lived;

pub const ARRAYS: usize = 3;
pub const HOSTS: usize = 2;
pub const STREAMS: usize = 8;
pub const HOMES: usize = 3;
/// Which streams are of which of the other values.
const STREAMS_OF: [core::ops::Range<usize>; 2] = [5..7, 7..STREAMS];

/// A call; numbers say which array, pinned array and stream.
#[derive(Clone, Copy, Debug)]
pub enum Call {
    /// `memcpy_htod`; with a stored error, cudarc skips its wait.
    Send {
        host: usize,
        x: usize,
        on: usize,
        stored_error: bool,
    },
    /// `memcpy_dtoh`.
    Fetch {
        x: usize,
        host: usize,
        on: usize,
        stored_error: bool,
    },
    /// `memcpy_dtod`, from the array behind it.
    Copy {
        x: usize,
        on: usize,
    },
    /// `memset_zeros`.
    Zero {
        x: usize,
        on: usize,
    },
    /// `clone_dtoh`, and a look at it.
    Read {
        x: usize,
        on: usize,
    },
    /// Our own fill, on the stream of the array.
    Fill {
        x: usize,
        value: u8,
    },
    /// The array is dropped, and its bytes may be the next one's at once.
    Renew {
        x: usize,
    },
    Look {
        host: usize,
    },
    Write {
        host: usize,
        value: u32,
    },
    RenewHost {
        host: usize,
    },
    /// Another pooled slice in the place of the one there was, filled from an array on its own stream.
    Pool {
        x: usize,
        home: usize,
    },
    /// `memcpy_dtod` from the pooled slice, or from a view of it.
    FromPool {
        x: usize,
        on: usize,
        view: bool,
    },
    /// `memcpy_dtod` into a view of the pooled slice, whichever stream has read it since it was written.
    ToPool {
        x: usize,
        on: usize,
    },
    /// Something with some quarters of an array or of the pooled slice: views of views.
    Part {
        what: Part,
        x: usize,
        on: usize,
    },
    /// The stream is dropped, with what is queued on it.
    End {
        on: usize,
    },
    /// A kernel that writes all of it, by cudarc's builder under a guard, which may be forgotten; it is on a stream of the allocator's.
    Launch {
        x: usize,
        home: usize,
        value: u32,
        forget: bool,
    },
    /// A kernel that writes the pooled slice, which is its argument, on the slice's stream.
    LaunchPool {
        value: u32,
    },
    /// `memset_zeros` on a stream of another device, which is refused.
    Far {
        x: usize,
    },
    /// The allocator ends, but for the memory that is still used, and is made again.
    Remake,
    /// A value of cudarc's for the context goes, but for what holds it, with the streams of it that cudarc is given; another one takes its place.
    Value {
        which: usize,
    },
    /// Many streams of the allocator read a little of the array, by `memcpy_dtod`, and go.
    Crowd {
        x: usize,
    },
    /// The first pooled slice in a value of cudarc's whose owner has slices of cudarc's own, with a fault at a driver call, where the world is alone.
    Owner {
        which: usize,
        nth: u64,
    },
    /// Other code begins to capture a graph on a stream, or on one that arrays are made on.
    Capture {
        on: usize,
        home: bool,
    },
    /// The capture ends.
    Graph,
}

pub fn calls() -> impl Strategy<Value = Vec<Call>> {
    prop::collection::vec(a_call(), 1..40)
}

fn a_call() -> impl Strategy<Value = Call> {
    let (x, host, on, stored_error) = (0..ARRAYS, 0..HOSTS, 0..STREAMS, any::<bool>());
    // Streams of other values more often than their share: to order them takes most.
    let of_all = prop_oneof![1 => on.clone(), 1 => 5..STREAMS];
    prop_oneof![
        3 => (host.clone(), x.clone(), on.clone(), stored_error)
            .prop_map(|(host, x, on, stored_error)| Call::Send { host, x, on, stored_error }),
        3 => (x.clone(), host.clone(), on.clone(), stored_error)
            .prop_map(|(x, host, on, stored_error)| Call::Fetch { x, host, on, stored_error }),
        3 => (x.clone(), on.clone()).prop_map(|(x, on)| Call::Copy { x, on }),
        2 => (x.clone(), on.clone()).prop_map(|(x, on)| Call::Zero { x, on }),
        1 => (x.clone(), on.clone()).prop_map(|(x, on)| Call::Read { x, on }),
        4 => (x.clone(), 1..200_u8).prop_map(|(x, value)| Call::Fill { x, value }),
        3 => x.clone().prop_map(|x| Call::Renew { x }),
        2 => host.clone().prop_map(|host| Call::Look { host }),
        2 => (host.clone(), 1..200_u32).prop_map(|(host, value)| Call::Write { host, value }),
        2 => host.prop_map(|host| Call::RenewHost { host }),
        3 => (x.clone(), 0..HOMES).prop_map(|(x, home)| Call::Pool { x, home }),
        5 => (x.clone(), of_all.clone(), any::<bool>()).prop_map(|(x, on, view)| Call::FromPool { x, on, view }),
        5 => (x.clone(), of_all.clone()).prop_map(|(x, on)| Call::ToPool { x, on }),
        6 => (parts::a_part(), x.clone(), on.clone()).prop_map(|(what, x, on)| Call::Part { what, x, on }),
        3 => (parts::a_part_of_a_pool(), x.clone(), of_all).prop_map(|(what, x, on)| Call::Part { what, x, on }),
        1 => on.prop_map(|on| Call::End { on }),
    ]
}

/// The end of a capture, if there is one, and a look at each value.
pub fn all_looks() -> impl Iterator<Item = Call> {
    let arrays = (0..ARRAYS).map(|x| Call::Read { x, on: 0 });
    [Call::Graph].into_iter().chain(arrays).chain((0..HOSTS).map(|host| Call::Look { host }))
}

/// The calls of [`calls`], and kernels, other devices, and allocators that end.
pub fn all_calls() -> impl Strategy<Value = Call> {
    let (x, home) = (0..ARRAYS, 0..HOMES);
    prop_oneof![
        12 => a_call(),
        2 => (x.clone(), home, 1..200_u32, prop::bool::weighted(0.2))
            .prop_map(|(x, home, value, forget)| Call::Launch { x, home, value, forget }),
        1 => (1..200_u32).prop_map(|value| Call::LaunchPool { value }),
        1 => x.prop_map(|x| Call::Far { x }),
        1 => Just(Call::Remake),
        1 => (0..2_usize).prop_map(|which| Call::Value { which }),
        1 => (0..ARRAYS).prop_map(|x| Call::Crowd { x }),
        1 => (0..short_lived::OF_A_FIRST_SLICE.len())
            .prop_flat_map(|which| (Just(which), 1..=short_lived::OF_A_FIRST_SLICE[which].1))
            .prop_map(|(which, nth)| Call::Owner { which, nth }),
    ]
}

/// What the elements of each quarter of something are: one of these, of which there are several behind an operation that may have failed.
#[derive(Clone, PartialEq, Debug)]
struct Known([Vec<u32>; parts::PARTS]);

impl Known {
    /// All of them.
    fn is(value: u32) -> Known {
        Known(std::array::from_fn(|_| vec![value]))
    }
    /// Either is possible until the operation is known to have been made.
    fn or(&mut self, other: &Known) {
        for (known, other) in self.0.iter_mut().zip(&other.0) {
            let new: Vec<_> = other.iter().copied().filter(|v| !known.contains(v)).collect();
            known.extend(new);
        }
    }
    fn check(&self, found: &[u32]) {
        assert_eq!(found.len(), WORDS, "all of it");
        for (n, (known, found)) in self.0.iter().zip(found.chunks(parts::QUARTER)).enumerate() {
            parts::check(known, found, n);
        }
    }
}

/// An array, the stream of ours that it was made on, and what its elements are.
struct Filled {
    array: Words,
    home: Stream<Cuda>,
    number: usize,
    value: Known,
}

struct Pooled {
    slice: PooledSlice<u32>,
    home: Stream<Cuda>,
    value: Known,
}

/// A stream that other code captures.
#[derive(Clone, Copy, PartialEq)]
enum Captured {
    TestStream(usize),
    Home(usize),
}

/// Whether a call was made, and why not.
type Outcome = Result<(), String>;

pub struct World<'a> {
    rig: &'a Rig,
    gpu: Allocator<Cuda>,
    /// This world's own: the first has a stream of its own, the second none.
    others: [Arc<CudaContext>; 2],
    /// Two of the allocator's, and one adopted from another value.
    homes: [Stream<Cuda>; HOMES],
    arrays: Vec<Filled>,
    hosts: Vec<(PinnedArray<u32, Cuda>, Known)>,
    streams: Vec<TestStream>,
    pooled: Option<Pooled>,
    captured: Option<Captured>,
    /// Nodes in the graph that fill at the null address.
    null_fills: usize,
    kernel: Option<CudaFunction>,
    crowd: Option<short_lived::Crowd>,
    /// Whether no other thread makes calls, and errors may be kept.
    pub alone: bool,
    /// On which homes a pooled slice was made.
    sliced: [bool; HOMES],
}

impl<'a> World<'a> {
    pub fn new(rig: &'a Rig, gpu: &Allocator<Cuda>, others: &'a [Arc<CudaContext>; 2]) -> World<'a> {
        let homes = homes(rig, gpu, others);
        let arrays = (0..ARRAYS).map(|n| zeroes(gpu, &homes, n % 2, true).expect("there is room")).collect();
        let hosts = (0..HOSTS).map(|_| (gpu.pinned_zeros(WORDS).expect("pinned"), Known::is(0))).collect();
        let streams = (0..STREAMS).map(|n| a_stream(rig, gpu, others, n)).collect();
        let gpu = gpu.clone();
        World {
            rig,
            gpu,
            others: others.clone(),
            homes,
            arrays,
            hosts,
            streams,
            pooled: None,
            captured: None,
            null_fills: 0,
            kernel: None,
            crowd: None,
            alone: false,
            sliced: [false; HOMES],
        }
    }

    /// Makes a call, which is made or refused as a capture has it.
    pub fn make(&mut self, call: Call) {
        if let Err(why) = self.attempt(call) {
            panic!("{call:?}: {why}");
        }
    }

    /// Makes a call, which may fail: then it is unknown whether it was made.
    ///
    /// # Errors
    /// What it said.
    #[allow(clippy::too_many_lines, reason = "one match, an arm a call")]
    pub fn attempt(&mut self, call: Call) -> Outcome {
        match call {
            Call::Send { host, x, on, stored_error } => {
                let Some(theirs) = self.not_captured(on) else { return Ok(()) };
                let ((from, value), to) = (&self.hosts[host], &mut self.arrays[x]);
                to.value.or(value);
                if stored_error {
                    described(theirs.memcpy_htod(from, &mut StoresError(&mut to.array)))?;
                    theirs.context().check_err().expect_err("cudarc did not wait");
                } else {
                    described(theirs.memcpy_htod(from, &mut to.array))?;
                }
                to.value = value.clone();
            }
            Call::Fetch { x, host, on, stored_error } => {
                let Some(theirs) = self.not_captured(on) else { return Ok(()) };
                let (from, (to, value)) = (&self.arrays[x], &mut self.hosts[host]);
                value.or(&from.value);
                if stored_error {
                    described(theirs.memcpy_dtoh(&StoresError(&from.array), to))?;
                    theirs.context().check_err().expect_err("cudarc did not wait");
                } else {
                    described(theirs.memcpy_dtoh(&from.array, to))?;
                }
                *value = from.value.clone();
            }
            Call::Copy { x, on } => {
                let (theirs, captured) = self.stream(on);
                let (from, to) = self.two(x);
                let queued = |to: &mut Filled| described(theirs.memcpy_dtod(&from.array, &mut to.array));
                if captured {
                    return refused(&queued(to));
                }
                to.value.or(&from.value);
                queued(to)?;
                to.value = from.value.clone();
            }
            Call::Zero { x, on } => {
                let (theirs, captured) = self.stream(on);
                let to = &mut self.arrays[x];
                if captured {
                    let answer = theirs.memset_zeros(&mut to.array);
                    // The array has the null address there. The stand-in refuses it; a real driver takes a fill into the graph unlooked at,
                    // and refuses to instantiate that (H200, driver 580).
                    if self.rig.fake.is_none() && answer.is_ok() {
                        self.null_fills += 1;
                        return Ok(());
                    }
                    return refused(&answer);
                }
                to.value.or(&Known::is(0));
                described(theirs.memset_zeros(&mut to.array))?;
                to.value = Known::is(0);
            }
            Call::Read { x, on } => {
                let Some(theirs) = self.not_captured(on) else { return Ok(()) };
                let mut found = vec![0; WORDS];
                described(theirs.memcpy_dtoh(&self.arrays[x].array, &mut found))?;
                described(theirs.synchronize())?;
                self.arrays[x].value.check(&found);
            }
            Call::Fill { x, value } => {
                let captured = self.is_captured(&self.arrays[x].home);
                let Filled { array, home, value: now, .. } = &mut self.arrays[x];
                if captured {
                    return refused(&array.fill_bytes(value, home));
                }
                let known = Known::is(u32::from_ne_bytes([value; 4]));
                now.or(&known);
                described(array.fill_bytes(value, home))?;
                *now = known;
            }
            Call::Renew { x } => {
                let number = self.arrays[x].number;
                if self.captured != Some(Captured::Home(number)) {
                    // Before the new one is made, which may have its bytes at once.
                    self.arrays[x].array = described(self.gpu.uninit(0, &self.homes[number]))?;
                    self.arrays[x].value = Known::is(0);
                    self.arrays[x] = zeroes(&self.gpu, &self.homes, number, !self.captures())?;
                }
            }
            Call::Look { host } => self.hosts[host].1.check(&self.hosts[host].0),
            Call::Write { host, value } => {
                self.hosts[host].1.or(&Known::is(value));
                self.hosts[host].0.fill(value);
                self.hosts[host].1 = Known::is(value);
            }
            Call::RenewHost { host } => {
                let made = described(self.gpu.pinned_zeros(WORDS))?;
                self.hosts[host] = (made, Known::is(0));
            }
            Call::Pool { x, home } => self.pool(x, home)?,
            Call::FromPool { x, on, view } => self.read_pool(x, on, view)?,
            Call::ToPool { x, on } => self.write_pool(x, on)?,
            Call::Part { what, x, on } => self.part(what, x, on)?,
            Call::End { on } => {
                if self.captured != Some(Captured::TestStream(on)) {
                    self.streams[on] = a_stream(self.rig, &self.gpu, &self.others, on);
                }
            }
            Call::Launch { x, home, value, forget } => {
                let home = self.homes[home].clone();
                if self.is_captured(&home) {
                    return refused(&self.arrays[x].array.write_on(&home));
                }
                let kernel = self.kernel();
                let to = &mut self.arrays[x];
                to.value.or(&Known::is(value));
                let theirs = described(home.cudarc())?;
                let mut guard = described(to.array.write_on(&home))?;
                let mut launch = theirs.launch_builder(&kernel);
                launch.arg(&mut guard).arg(&(WORDS as u64)).arg(&value).arg(&0_u32);
                #[allow(unsafe_code, reason = "a launch")]
                // SAFETY: iota takes an address, a length, the first number and the step; it writes so many elements.
                described(unsafe { launch.launch(GRID) }.map(drop))?;
                if forget {
                    core::mem::forget(guard);
                }
                to.value = Known::is(value);
            }
            Call::LaunchPool { value } => {
                let kernel = self.kernel();
                let captured = self.pooled.as_ref().is_none_or(|p| self.is_captured(&p.home));
                if let Some(to) = self.pooled.as_mut().filter(|_| !captured) {
                    to.value.or(&Known::is(value));
                    let theirs = described(to.home.cudarc())?;
                    let mut launch = theirs.launch_builder(&kernel);
                    launch.arg(&mut to.slice).arg(&(WORDS as u64)).arg(&value).arg(&0_u32);
                    #[allow(unsafe_code, reason = "a launch")]
                    // SAFETY: as above.
                    described(unsafe { launch.launch(GRID) }.map(drop))?;
                    to.value = Known::is(value);
                }
            }
            // On a machine with one GPU there is nothing far.
            Call::Far { .. } if described(CudaContext::device_count())? < 2 => {}
            Call::Far { x } => {
                let far = described(CudaContext::new(1))?.default_stream();
                let answer = far.memset_zeros(&mut self.arrays[x].array);
                described(self.rig.ctx.bind_to_thread())?;
                refused(&answer)?;
            }
            Call::Remake => {
                if self.captured.is_none() {
                    let gpu = described(Allocator::new(
                        self.rig.cuda.clone(),
                        Config::default().pinned_limit(PINNED),
                    ))?;
                    self.homes = homes(self.rig, &gpu, &self.others);
                    self.gpu = gpu;
                    self.sliced = [false; HOMES];
                }
            }
            Call::Value { which } => self.value(which)?,
            Call::Crowd { x } => self.crowd(x)?,
            Call::Owner { which, nth } => self.owner(which, nth)?,
            Call::Capture { on, home } => self.capture(on, home)?,
            Call::Graph => self.graph()?,
        }
        Ok(())
    }

    /// `copy_from_peer`, from an array of another device's world.
    ///
    /// # Errors
    /// What it said.
    pub fn cross(&mut self, x: usize, from: &World, y: usize) -> Outcome {
        let (source, captured) = (&from.arrays[y], self.is_captured(&self.arrays[x].home));
        let Filled { array, home, value, .. } = &mut self.arrays[x];
        if captured || from.is_captured(&source.home) {
            return refused(&array.copy_from_peer(&source.array, &source.home, home));
        }
        value.or(&source.value);
        described(array.copy_from_peer(&source.array, &source.home, home))?;
        *value = source.value.clone();
        Ok(())
    }

    fn pool(&mut self, x: usize, home: usize) -> Outcome {
        self.pooled = None;
        let at = home;
        let home = self.homes[at].clone();
        let streams = || self.rig.fake.as_ref().filter(|_| self.alone).map(|f| f.calls("cuStreamCreate"));
        let before = streams();
        let made = || self.gpu.cuda_slice::<u32>(WORDS, &home);
        if self.is_captured(&home) {
            return refused(&made());
        }
        let made = made().or_else(|e| {
            if self.captured.is_some() { Err(e) } else { self.gpu.synchronize().and_then(|()| made()) }
        });
        let mut slice = described(made)?;
        // What the first one has made there is there for all.
        assert!(!self.sliced[at] || streams() == before, "a second slice makes no stream");
        self.sliced[at] = true;
        // What cudarc does with a slice beside a driver that fails is its own.
        self.rig.fake.iter().for_each(Fake::clear_faults);
        let Filled { array, value, .. } = &self.arrays[x];
        described(described(home.cudarc())?.memcpy_dtod(array, &mut slice.as_view_mut()))?;
        self.pooled = Some(Pooled { slice, home, value: value.clone() });
        Ok(())
    }

    fn read_pool(&mut self, x: usize, on: usize, view: bool) -> Outcome {
        let (theirs, captured) = self.stream(on);
        let Some(Pooled { slice, value, .. }) = &mut self.pooled else { return Ok(()) };
        let to = &mut self.arrays[x];
        if !captured {
            to.value.or(value);
        }
        let queued = if view {
            theirs.memcpy_dtod(&slice.as_view(), &mut to.array)
        } else {
            theirs.memcpy_dtod(&*slice, &mut to.array)
        };
        if captured {
            return refused(&queued);
        }
        described(queued)?;
        to.value = value.clone();
        Ok(())
    }

    fn write_pool(&mut self, x: usize, on: usize) -> Outcome {
        let (theirs, captured) = self.stream(on);
        let from = &self.arrays[x];
        if let Some(to) = self.pooled.as_mut() {
            if !captured {
                to.value.or(&from.value);
            }
            let queued = theirs.memcpy_dtod(&from.array, &mut to.slice.as_view_mut());
            if captured {
                return refused(&queued);
            }
            described(queued)?;
            to.value = from.value.clone();
        }
        Ok(())
    }

    fn value(&mut self, which: usize) -> Outcome {
        let of = STREAMS_OF[which].clone();
        let captured = self.captured_on().is_some_and(|on| of.contains(&on));
        // The first stream of a value waits for the whole context, which no capture survives.
        if captured || which == 0 && self.captures() {
            return Ok(());
        }
        self.others[which] = described(CudaContext::new(self.rig.ctx.ordinal()))?;
        for on in of {
            self.streams[on] = a_stream(self.rig, &self.gpu, &self.others, on);
        }
        Ok(())
    }

    fn capture(&mut self, on: usize, home: bool) -> Outcome {
        if self.captured.is_none() {
            let what = if home { Captured::Home(on % HOMES) } else { Captured::TestStream(on) };
            // The legacy stream cannot.
            if let Some(theirs) = self.captures_on(what).filter(|s| s.cu_stream().addr() > 1) {
                // Where nothing captures the rest is marked; on this stream nothing can be, from here on.
                self.pooled = None;
                if home {
                    self.pool(0, on % HOMES)?;
                }
                (0..ARRAYS).try_for_each(|x| self.attempt(Call::Fill { x, value: 1 }))?;
                (0..HOSTS).try_for_each(|host| self.attempt(Call::Write { host, value: 1 }))?;
                described(self.gpu.synchronize())?;
                described(theirs.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED))?;
                self.captured = Some(what);
            }
        }
        Ok(())
    }

    /// It lives, and nothing of ours is in its graph.
    #[allow(unsafe_code, reason = "foreign calls")]
    fn graph(&mut self) -> Outcome {
        let Some(what) = self.captured.take() else { return Ok(()) };
        let theirs = self.captures_on(what).expect("it captured");
        described(theirs.context().bind_to_thread())?;
        // SAFETY: the stream is alive, and its capture began on it.
        let graph = described(unsafe { result::stream::end_capture(theirs.cu_stream()) })?;
        let mut nodes = usize::MAX;
        // SAFETY: no list is wanted, and the number is a local's.
        let counted = unsafe { cuGraphGetNodes(graph, std::ptr::null_mut(), &raw mut nodes) };
        let ours = nodes - core::mem::take(&mut self.null_fills);
        assert_eq!((counted, ours), (CUresult::CUDA_SUCCESS, 0), "nothing of ours is in it");
        // SAFETY: ended above, and nothing uses it.
        described(unsafe { result::graph::destroy(graph) })
    }

    /// All anew, where nothing captures: what could not be marked is open until then. What there was is looked at before, as far as that is
    /// allowed.
    pub fn renew_all(&mut self) {
        for x in 0..ARRAYS {
            let _ = self.attempt(Call::Read { x, on: 0 });
            self.forget_errors();
        }
        self.pooled = None;
        (0..ARRAYS).for_each(|x| self.make(Call::Renew { x }));
        (0..HOSTS).for_each(|host| self.make(Call::RenewHost { host }));
        self.gpu.synchronize().expect("no capture is open");
    }

    /// Nothing captures, says the program.
    pub fn synchronise(&self) {
        self.gpu.synchronize().expect("no capture is open");
    }

    pub fn captures(&self) -> bool {
        self.captured.is_some()
    }

    /// The stream that captures, if cudarc is given it.
    pub fn captured_on(&self) -> Option<usize> {
        match self.captured {
            Some(Captured::TestStream(on)) => Some(on),
            _ => None,
        }
    }

    fn captures_on(&self, what: Captured) -> Option<Arc<CudaStream>> {
        match what {
            Captured::TestStream(on) => Some(Arc::clone(&self.streams[on].theirs)),
            Captured::Home(home) => self.homes[home].cudarc().ok(),
        }
    }

    fn is_captured(&self, home: &Stream<Cuda>) -> bool {
        matches!(self.captured, Some(Captured::Home(at)) if self.homes[at].id() == home.id())
    }

    /// A stream, and whether other code captures on it.
    fn stream(&self, on: usize) -> (Arc<CudaStream>, bool) {
        (Arc::clone(&self.streams[on].theirs), self.captured == Some(Captured::TestStream(on)))
    }

    fn not_captured(&self, on: usize) -> Option<Arc<CudaStream>> {
        let (theirs, captured) = self.stream(on);
        (!captured).then_some(theirs)
    }

    fn kernel(&mut self) -> CudaFunction {
        self.kernel.get_or_insert_with(|| iota(&self.rig.ctx)).clone()
    }

    fn two(&mut self, x: usize) -> (&mut Filled, &mut Filled) {
        let (one, rest) = self.arrays[..].split_at_mut(ARRAYS - 1);
        let last = &mut rest[0];
        if x == ARRAYS - 1 { (&mut one[0], last) } else { (last, &mut one[x]) }
    }

    /// What the next call of cudarc by other code would meet: taken away.
    pub fn forget_errors(&self) {
        for context in self.others.iter().chain([&self.rig.ctx]) {
            let _ = context.check_err();
        }
        for home in &self.homes {
            let _ = home.cudarc().map(|theirs| theirs.context().check_err());
        }
    }

    pub fn end(mut self) {
        all_looks().for_each(|call| self.make(call));
    }
}

/// The result with its error as text.
fn described<T, E: core::fmt::Debug>(answer: Result<T, E>) -> Result<T, String> {
    answer.map_err(|e| format!("{e:?}"))
}

/// Fails if the call succeeded.
fn refused<T, E>(answer: &Result<T, E>) -> Outcome {
    if answer.is_ok() { Err("it was not refused".into()) } else { Ok(()) }
}

fn homes(rig: &Rig, gpu: &Allocator<Cuda>, others: &[Arc<CudaContext>; 2]) -> [Stream<Cuda>; HOMES] {
    let theirs = rig.cuda.adopt(others[0].new_stream().expect("a stream")).expect("adopted");
    let ours = || gpu.stream().expect("a stream");
    [ours(), ours(), gpu.adopt(theirs).expect("a pool")]
}

/// An array of zeroes. Where it is refused one the program tries again, behind a wait if it may: what is held back comes back then. Not
/// beside a capture, which a wait may end.
fn zeroes(
    gpu: &Allocator<Cuda>,
    homes: &[Stream<Cuda>; HOMES],
    number: usize,
    may_wait: bool,
) -> Result<Filled, String> {
    let home = homes[number].clone();
    let array = gpu.zeros(WORDS, &home).or_else(|_| {
        if may_wait {
            gpu.synchronize()?;
        }
        gpu.zeros(WORDS, &home)
    });
    Ok(Filled { array: described(array)?, home, number, value: Known::is(0) })
}

/// The stream that a number stands for.
pub fn a_stream(
    rig: &Rig,
    gpu: &Allocator<Cuda>,
    others: &[Arc<CudaContext>; 2],
    number: usize,
) -> TestStream {
    let theirs = match number {
        0 => return test_stream(rig, gpu, Ours),
        1 => return test_stream(rig, gpu, Adopted),
        2 => return test_stream(rig, gpu, Unknown),
        3 => rig.ctx.default_stream(),
        4 => rig.ctx.per_thread_stream(),
        5 => others[0].default_stream(),
        6 => others[0].new_stream().expect("a stream"),
        // Alone in its value: cudarc's tracking is off there, but for what a pooled slice does about it.
        _ => others[1].default_stream(),
    };
    TestStream { theirs, ours: None }
}

/// This thread's capture mode; answers what it was. The stand-in has a program end others' captures in any mode but the relaxed one.
#[allow(unsafe_code, reason = "a foreign call")]
pub fn relaxed(mut mode: CUstreamCaptureMode) -> CUstreamCaptureMode {
    // SAFETY: the pointer is a local's, read and written by the call.
    let answer = unsafe { cudarc::driver::sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
    assert_eq!(answer, cudarc::driver::sys::CUresult::CUDA_SUCCESS);
    mode
}
