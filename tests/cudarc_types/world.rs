//! Programs of cudarc's safe calls on our arrays, pooled slices and pinned arrays, on streams that the allocator made, adopted or never
//! heard of, on default streams, and of three values of cudarc's for one context: the calls, a strategy that draws them, and a
//! world in which each is made and its value known. It knows no test.

#![allow(dead_code, unreachable_pub, reason = "each test uses some of it")]

use super::WORDS;
use super::rig::{Adopted, Given, Ours, Rig, Spoils, Unknown, Words, given, read};
use cudarc::driver::CudaContext;
use millpond::driver::cuda::Cuda;
use millpond::interop::PooledSlice;
use millpond::{Allocator, PinnedArray, Stream};
use proptest::prelude::*;
use std::sync::Arc;

pub const ARRAYS: usize = 3;
pub const HOSTS: usize = 2;
const STREAMS: usize = 8;
const HOMES: usize = 3;

/// A call; numbers say which array, pinned array and stream.
#[derive(Clone, Copy, Debug)]
pub enum Call {
    /// `memcpy_htod`; spoilt, cudarc leaves its wait out.
    Send {
        host: usize,
        x: usize,
        on: usize,
        spoilt: bool,
    },
    /// `memcpy_dtoh`.
    Fetch {
        x: usize,
        host: usize,
        on: usize,
        spoilt: bool,
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
    /// `memcpy_dtod` into a view of the pooled slice, if at most one stream has read it since it was written.
    ToPool {
        x: usize,
        on: usize,
    },
    /// The stream is dropped, with what is queued on it.
    End {
        on: usize,
    },
}

pub fn calls() -> impl Strategy<Value = Vec<Call>> {
    let (x, host, on, spoilt) = (0..ARRAYS, 0..HOSTS, 0..STREAMS, any::<bool>());
    // Streams of other values more often than their share: to order them takes most.
    let of_all = prop_oneof![1 => on.clone(), 1 => 5..STREAMS];
    let call = prop_oneof![
        3 => (host.clone(), x.clone(), on.clone(), spoilt)
            .prop_map(|(host, x, on, spoilt)| Call::Send { host, x, on, spoilt }),
        3 => (x.clone(), host.clone(), on.clone(), spoilt)
            .prop_map(|(x, host, on, spoilt)| Call::Fetch { x, host, on, spoilt }),
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
        5 => (x.clone(), of_all).prop_map(|(x, on)| Call::ToPool { x, on }),
        1 => on.prop_map(|on| Call::End { on }),
    ];
    prop::collection::vec(call, 1..40)
}

/// An array, on which stream of ours it was made, and what all its elements are.
struct Filled {
    array: Words,
    home: usize,
    value: u32,
}

/// Who has read a pooled slice since it was written.
#[derive(Clone, Copy, PartialEq)]
enum Readers {
    None,
    /// The stream in this place, or one that was there and is dropped.
    One(Option<usize>),
    /// cudarc forgets all but the last: nobody may write.
    Several,
}

struct Pooled {
    slice: PooledSlice<u32>,
    value: u32,
    readers: Readers,
}

pub struct World<'a> {
    rig: &'a Rig,
    gpu: &'a Allocator<Cuda>,
    others: &'a [Arc<CudaContext>; 2],
    /// Two of the allocator's, and one adopted from another value.
    homes: [Stream<Cuda>; HOMES],
    arrays: Vec<Filled>,
    hosts: Vec<(PinnedArray<u32, Cuda>, u32)>,
    streams: Vec<Given>,
    /// What is written while others read is cudarc's to order, hazards included.
    pooled: Option<Pooled>,
}

impl<'a> World<'a> {
    pub fn new(rig: &'a Rig, gpu: &'a Allocator<Cuda>, others: &'a [Arc<CudaContext>; 2]) -> World<'a> {
        let theirs = rig.cuda.adopt(others[0].new_stream().expect("a stream")).expect("adopted");
        let ours = || gpu.stream().expect("a stream");
        let homes = [ours(), ours(), gpu.adopt(theirs).expect("a pool")];
        let arrays = (0..ARRAYS).map(|n| zeroes(gpu, &homes, n % 2)).collect();
        let hosts = (0..HOSTS).map(|_| (gpu.pinned_zeros(WORDS).expect("pinned"), 0)).collect();
        let streams = (0..STREAMS).map(|n| a_stream(rig, gpu, others, n)).collect();
        World { rig, gpu, others, homes, arrays, hosts, streams, pooled: None }
    }

    fn two(&mut self, x: usize) -> (&mut Filled, &mut Filled) {
        let (one, rest) = self.arrays[..].split_at_mut(ARRAYS - 1);
        let last = &mut rest[0];
        if x == ARRAYS - 1 { (&mut one[0], last) } else { (last, &mut one[x]) }
    }

    pub fn make(&mut self, call: Call) {
        match call {
            Call::Send { host, x, on, spoilt } => {
                let (theirs, (from, value)) = (&self.streams[on].theirs, &self.hosts[host]);
                let to = &mut self.arrays[x];
                if spoilt {
                    theirs.memcpy_htod(from, &mut Spoils(&mut to.array)).expect("queued");
                    theirs.context().check_err().expect_err("cudarc did not wait");
                } else {
                    theirs.memcpy_htod(from, &mut to.array).expect("sent");
                }
                to.value = *value;
            }
            Call::Fetch { x, host, on, spoilt } => {
                let (theirs, (to, value)) = (&self.streams[on].theirs, &mut self.hosts[host]);
                let from = &self.arrays[x];
                if spoilt {
                    theirs.memcpy_dtoh(&Spoils(&from.array), to).expect("queued");
                    theirs.context().check_err().expect_err("cudarc did not wait");
                } else {
                    theirs.memcpy_dtoh(&from.array, to).expect("fetched");
                }
                *value = from.value;
            }
            Call::Copy { x, on } => {
                let theirs = Arc::clone(&self.streams[on].theirs);
                let (from, to) = self.two(x);
                theirs.memcpy_dtod(&from.array, &mut to.array).expect("queued");
                to.value = from.value;
            }
            Call::Zero { x, on } => {
                self.streams[on].theirs.memset_zeros(&mut self.arrays[x].array).expect("queued");
                self.arrays[x].value = 0;
            }
            Call::Read { x, on } => {
                let found = read(&self.streams[on].theirs, &self.arrays[x].array);
                is_all(&found, self.arrays[x].value);
            }
            Call::Fill { x, value } => {
                let Filled { array, home, value: now } = &mut self.arrays[x];
                array.fill_bytes(value, &self.homes[*home]).expect("queued");
                *now = u32::from_ne_bytes([value; 4]);
            }
            Call::Renew { x } => {
                let Filled { array, home, .. } = self.arrays.remove(x);
                drop(array);
                self.arrays.insert(x, zeroes(self.gpu, &self.homes, home));
            }
            Call::Look { host } => is_all(&self.hosts[host].0, self.hosts[host].1),
            Call::Write { host, value } => {
                self.hosts[host].0.fill(value);
                self.hosts[host].1 = value;
            }
            Call::RenewHost { host } => {
                drop(self.hosts.remove(host));
                self.hosts.insert(host, (self.gpu.pinned_zeros(WORDS).expect("pinned"), 0));
            }
            Call::Pool { x, home } => {
                self.pooled = None;
                let (home, Filled { array, value, .. }) = (&self.homes[home], &self.arrays[x]);
                let slice = self.gpu.cuda_slice(WORDS, home).or_else(|_| {
                    self.gpu.synchronize()?;
                    self.gpu.cuda_slice(WORDS, home)
                });
                let mut slice = slice.expect("there is room");
                let theirs = home.cudarc().expect("its alias");
                theirs.memcpy_dtod(array, &mut slice.as_view_mut()).expect("queued");
                self.pooled = Some(Pooled { slice, value: *value, readers: Readers::None });
            }
            Call::FromPool { x, on, view } => self.read_pool(x, on, view),
            Call::ToPool { x, on } => {
                if let Some(Pooled { slice, value, readers }) =
                    self.pooled.as_mut().filter(|p| p.readers != Readers::Several)
                {
                    let Filled { array, value: theirs, .. } = &self.arrays[x];
                    self.streams[on].theirs.memcpy_dtod(array, &mut slice.as_view_mut()).expect("queued");
                    (*value, *readers) = (*theirs, Readers::None);
                }
            }
            Call::End { on } => {
                let given = a_stream(self.rig, self.gpu, self.others, on);
                self.streams[on] = given;
                if let Some(Pooled { readers, .. }) = &mut self.pooled
                    && *readers == Readers::One(Some(on))
                {
                    *readers = Readers::One(None);
                }
            }
        }
    }

    fn read_pool(&mut self, x: usize, on: usize, view: bool) {
        if let Some(Pooled { slice, value, readers }) = &mut self.pooled {
            let (to, theirs) = (&mut self.arrays[x], &self.streams[on].theirs);
            if view {
                theirs.memcpy_dtod(&slice.as_view(), &mut to.array).expect("queued");
            } else {
                theirs.memcpy_dtod(&*slice, &mut to.array).expect("queued");
            }
            to.value = *value;
            *readers = match *readers {
                Readers::None => Readers::One(Some(on)),
                Readers::One(by) if by == Some(on) => Readers::One(by),
                _ => Readers::Several,
            };
        }
    }

    pub fn end(mut self) {
        for x in 0..ARRAYS {
            self.make(Call::Read { x, on: 0 });
        }
        for host in 0..HOSTS {
            self.make(Call::Look { host });
        }
    }
}

fn is_all(found: &[u32], value: u32) {
    for at in [0, 1, found.len() / 2, found.len() - 1] {
        assert_eq!(found[at], value, "element {at}");
    }
}

fn zeroes(gpu: &Allocator<Cuda>, homes: &[Stream<Cuda>; HOMES], home: usize) -> Filled {
    let array = gpu.zeros(WORDS, &homes[home]).or_else(|_| {
        gpu.synchronize()?;
        gpu.zeros(WORDS, &homes[home])
    });
    Filled { array: array.expect("there is room"), home, value: 0 }
}

/// The stream that a number stands for.
fn a_stream(rig: &Rig, gpu: &Allocator<Cuda>, others: &[Arc<CudaContext>; 2], number: usize) -> Given {
    let theirs = match number {
        0 => return given(rig, gpu, Ours),
        1 => return given(rig, gpu, Adopted),
        2 => return given(rig, gpu, Unknown),
        3 => rig.ctx.default_stream(),
        4 => rig.ctx.per_thread_stream(),
        5 => others[0].default_stream(),
        6 => others[0].new_stream().expect("a stream"),
        // Alone in its value: cudarc's tracking is off there, but for what a pooled slice does about it.
        _ => others[1].default_stream(),
    };
    Given { theirs, ours: None }
}
