//! What is played: together the scenarios climb every rung of the ladder and use every verb.

use super::stage::{Stage, Stop};
use millpond::allocator::VirtualMemory;
use millpond::array::ExternalMemory;
use millpond::driver::HostKind;
use millpond::report::Report;
use millpond::units::MIB;
use millpond::{Allocator, Config, DeviceArray, Growth, Limit, Policy, Reuse, Trim, kernel};
use millpond_sim::Launch;
use std::sync::{Arc, Mutex};

pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) config: fn() -> Config,
    pub(crate) play: fn(&mut Stage) -> Result<(), Stop>,
    /// Whether a good run got where the name says.
    pub(crate) reached: fn(&Report) -> bool,
    /// Short enough to fail every pair of its calls.
    pub(crate) pairs: bool,
}

/// Those on memory whose frees do not wait for the device, which requests may give back.
pub(crate) const POOLED: &[&str] = &["trim and grow", "the callback makes room"];

/// Room for one block of 64 MiB.
fn tight() -> Config {
    Config::default().reuse(Reuse::WithWaits).limit(Limit::Bytes(64 * MIB))
}

/// An array over another allocator's block, used on two streams and dropped while the second writes it. It goes back to
/// its owner when nothing does any more.
#[allow(unsafe_code, reason = "the block lives as long as the array has it, and no other code uses it")]
fn external(st: &mut Stage) -> Result<(), Stop> {
    const LENGTH: usize = 1 << 18;
    let brought = Mutex::new(None);
    st.act("from_external", |st| {
        let config = Config::default().reuse(Reuse::WithWaits).growth(Growth::Exact).limit(Limit::Bytes(MIB));
        let library = Allocator::new(st.sim.clone(), config)?;
        let stream = library.stream()?;
        let block = library.alloc(MIB, &stream)?;
        let memory = ExternalMemory { address: block.address(), bytes: MIB, device: library.device() };
        // SAFETY: the block is the array's owner, so that it outlives it, and nothing else uses it.
        let made = unsafe { DeviceArray::<u32, _>::from_external(memory, LENGTH, block, &st.streams["a"]) };
        *brought.lock().unwrap() = Some((made.map_err(|(_, e)| e)?, stream, library));
        Ok(())
    })?;
    for s in ["a", "b"] {
        st.act("fill", |st| {
            let mut brought = brought.lock().unwrap();
            let (array, ..) = brought.as_mut().expect("made above");
            kernel::fill(array, 7, &st.streams[s])
        })?;
    }
    let (array, stream, library) = brought.into_inner().unwrap().expect("made above");
    drop(array);
    // If its owner had it back by now, it would use it. That it cannot have it is no failure, whatever the reason.
    if let Ok(again) = library.alloc(MIB, &stream) {
        let theirs = Launch::new("theirs").writes(again.address(), MIB).tag(again.id().expect("bytes"));
        drop(st.sim.launch(stream.native(), theirs));
    }
    st.act("synchronize", |st| st.gpu().synchronize())?;
    st.act("trim", |st| st.gpu().trim(Trim::All).map(drop))?;
    if st.planted.is_none() && !st.unready {
        assert_eq!(library.report().total.live, 0, "its owner has it back");
    }
    Ok(())
}

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "miss, grow, hit",
        config: Config::default,
        play: |st| {
            st.open("s")?;
            st.alloc_touch("x", 3, "s")?;
            st.free("x");
            st.alloc_touch("y", 3, "s")?;
            st.alloc_touch("z", 30, "s")
        },
        reached: |r| (r.growths, r.total.counters.hits) == (2, 1),
        pairs: true,
    },
    Scenario {
        name: "grow in a window, and beside what is free there",
        config: || Config::default().virtual_memory(VirtualMemory::Always),
        play: |st| {
            st.open("s")?;
            st.alloc_touch("x", 3, "s")?;
            st.alloc_touch("y", 5, "s")?;
            st.free("y");
            st.alloc_touch("z", 7, "s")
        },
        reached: |r| (r.growths, r.reserved) == (3, 10 * MIB),
        pairs: true,
    },
    Scenario {
        name: "grow by less than planned",
        config: || Config::default().reuse(Reuse::WithWaits).limit(Limit::Bytes(8 * MIB)),
        play: |st| {
            st.open("s")?;
            st.alloc_touch("x", 5, "s")
        },
        reached: |r| r.reserved == 6 * MIB,
        pairs: true,
    },
    Scenario {
        name: "migrate what is complete",
        config: tight,
        play: |st| {
            st.open("a")?;
            st.open("b")?;
            st.alloc_touch("x", 64, "a")?;
            st.record("e", "a")?;
            st.free("x");
            st.act("synchronize", |st| st.gpu().synchronize())?;
            st.alloc_touch("y", 64, "b")
        },
        reached: |r| r.ladder.migrate.served == 1,
        pairs: true,
    },
    Scenario {
        name: "migrate what is ordered",
        config: tight,
        play: |st| {
            st.open("a")?;
            st.open("b")?;
            st.alloc_touch("x", 64, "a")?;
            st.free("x");
            st.act("wait_stream", |st| st.streams["b"].wait_stream(&st.streams["a"]))?;
            st.alloc_touch("y", 64, "b")
        },
        reached: |r| r.ladder.migrate.served == 1 && r.total.counters.waits_inserted == 0,
        pairs: false,
    },
    Scenario {
        name: "migrate with a wait",
        config: tight,
        play: |st| {
            st.open("a")?;
            st.open("b")?;
            st.alloc_touch("x", 64, "a")?;
            st.free("x");
            st.alloc_touch("y", 64, "b")
        },
        reached: |r| r.ladder.migrate_with_wait.served == 1,
        pairs: true,
    },
    Scenario {
        name: "migrate with waits a piece of a range in flight",
        config: tight,
        play: |st| {
            for s in ["a", "b", "c"] {
                st.open(s)?;
            }
            st.alloc_touch("x", 64, "a")?;
            st.use_on("x", "a", "b")?;
            st.free("x");
            st.alloc_touch("y", 8, "c")?;
            st.alloc_touch("z", 56, "a")
        },
        reached: |r| r.ladder.migrate_with_wait.served == 2 && r.total.counters.waits_inserted == 3,
        pairs: false,
    },
    Scenario {
        name: "the own range in flight behind a wait",
        config: tight,
        play: |st| {
            st.open("a")?;
            st.open("b")?;
            st.alloc_touch("x", 64, "a")?;
            st.use_on("x", "a", "b")?;
            st.free("x");
            st.alloc_touch("y", 64, "a")
        },
        reached: |r| r.ladder.migrate_with_wait.served == 1,
        pairs: false,
    },
    Scenario {
        name: "footprint waits before it grows",
        config: || Config::default().reuse(Reuse::WithWaits).policy(Policy::Footprint).growth(Growth::Exact),
        play: |st| {
            st.open("a")?;
            st.open("b")?;
            st.alloc_touch("x", 64, "a")?;
            st.free("x");
            st.alloc_touch("y", 64, "b")?;
            st.alloc_touch("z", 32, "a")
        },
        reached: |r| (r.ladder.migrate_with_wait.served, r.ladder.grow.served) == (1, 2),
        pairs: false,
    },
    Scenario {
        name: "trim and grow",
        config: || tight().reuse(Reuse::Never).growth(Growth::Exact),
        play: |st| {
            st.open("a")?;
            st.open("b")?;
            for (x, mib) in [("x", 16), ("y", 16), ("z", 32)] {
                st.alloc_touch(x, mib, "a")?;
            }
            for x in ["x", "y", "z"] {
                st.free(x);
            }
            st.act("synchronize", |st| st.gpu().synchronize())?;
            st.alloc_touch("w", 40, "b")
        },
        reached: |r| r.ladder.trim.served == 1,
        pairs: false,
    },
    Scenario {
        name: "wait for several uses",
        config: || tight().reuse(Reuse::Ordered),
        play: |st| {
            for s in ["a", "b", "c"] {
                st.open(s)?;
            }
            st.alloc_touch("x", 64, "a")?;
            st.use_on("x", "a", "b")?;
            st.use_on("x", "b", "c")?;
            st.free("x");
            st.alloc_touch("y", 64, "b")
        },
        reached: |r| r.total.counters.host_waits >= 2,
        pairs: false,
    },
    Scenario {
        name: "the callback makes room",
        config: || {
            // Each refusal but the first gives up: the first block is there to be freed by the user.
            let asked = Arc::new(Mutex::new(0));
            tight().growth(Growth::Exact).on_out_of_memory(move |_| {
                let mut asked = asked.lock().unwrap();
                *asked += 1;
                *asked == 1
            })
        },
        play: |st| {
            st.open("a")?;
            st.alloc_touch("x", 32, "a")?;
            let x = st.blocks.remove("x");
            let refused = st.gpu().alloc(64 * MIB, &st.streams["a"]);
            match refused.map(drop).unwrap_err() {
                e if e.out_of_memory().is_some() => {}
                millpond::Error::Driver(d) if d.is_context_lost() => return Err(Stop),
                millpond::Error::Driver(d) if Some(d.kind) == st.planted => st.sim.clear_faults(),
                e => panic!("{}: {e}", st.story),
            }
            drop(x);
            st.alloc_touch("y", 64, "a")
        },
        reached: |r| r.ladder.callback.tried >= 2,
        pairs: false,
    },
    Scenario {
        name: "trim and limits",
        config: || Config::default().growth(Growth::Exact),
        play: |st| {
            st.open("a")?;
            st.open("b")?;
            for (x, s) in [("x", "a"), ("y", "a"), ("z", "b"), ("w", "b")] {
                st.alloc_touch(x, 8, s)?;
            }
            for x in ["x", "y", "z"] {
                st.free(x);
            }
            st.act("trim too early", |st| st.gpu().trim(Trim::All).map(drop))?;
            st.act("synchronize", |st| st.streams["a"].synchronize())?;
            st.act("trim a", |st| st.gpu().trim(Trim::Stream(&st.streams["a"])).map(drop))?;
            st.act("synchronize", |st| st.gpu().synchronize())?;
            st.act("set_limit", |st| st.gpu().set_limit(Limit::Bytes(9 * MIB)))?;
            st.act("no limit", |st| st.gpu().set_limit(Limit::None))?;
            st.alloc_touch("x", 8, "a")?;
            st.act("trim", |st| st.gpu().trim(Trim::All).map(drop))
        },
        reached: |r| (r.releases, r.reserved) == (3, 16 * MIB),
        pairs: false,
    },
    Scenario {
        name: "streams come and go",
        // No room for two of 15, in whatever the memory comes: each stream waits for the one before.
        config: || Config::default().reuse(Reuse::WithWaits).limit(Limit::Bytes(39 * MIB)),
        play: |st| {
            st.open("home")?;
            st.alloc_touch("x", 10, "home")?;
            for (s, y) in [("a", "ya"), ("b", "yb"), ("c", "yc")] {
                st.open(s)?;
                st.alloc_touch(y, 15, s)?;
                st.use_on("x", "home", s)?;
                st.free(y);
                st.close(s);
            }
            st.free("x");
            st.alloc_touch("z", 15, "home")?;
            st.act("trim", |st| st.gpu().trim(Trim::All).map(drop))
        },
        reached: |r| r.total.counters.in_flight_frees == 1,
        pairs: false,
    },
    Scenario {
        name: "adopted streams",
        config: tight,
        play: |st| {
            let sim = st.sim.clone();
            let natives = Mutex::new(Vec::new());
            st.act("native stream", |_| {
                natives.lock().unwrap().push(sim.stream()?);
                Ok(())
            })?;
            let native = natives.lock().unwrap().remove(0);
            for _ in 0..2 {
                st.act("adopt", |st| {
                    let stream = st.gpu().adopt(native.clone())?;
                    st.streams.insert("a", stream);
                    Ok(())
                })?;
                st.act("adopt the default", |st| {
                    let stream = st.gpu().adopt(st.sim.per_thread_stream())?;
                    st.streams.insert("t", stream);
                    Ok(())
                })?;
                st.alloc_touch("x", 64, "a")?;
                st.free("x");
                st.close("a");
                st.alloc_touch("y", 64, "t")?;
                st.free("y");
            }
            Ok(())
        },
        reached: |r| r.growths == 1,
        pairs: false,
    },
    Scenario {
        name: "uses, events, sharing",
        config: tight,
        play: |st| {
            st.open("a")?;
            st.open("b")?;
            st.alloc_touch("x", 64, "a")?;
            st.free("x");
            st.alloc("x", 64, "a")?;
            st.act("share_with", |st| st.blocks["x"].share_with(&st.streams["b"]))?;
            st.touch("x", "b")?;
            st.record("e", "b")?;
            st.act("record_use_until", |st| st.blocks["x"].record_use_until(&st.events["e"]))?;
            st.act("is_complete", |st| st.events["e"].is_complete().map(drop))?;
            st.act("wait", |st| st.streams["a"].wait(&st.events["e"]))?;
            st.touch("x", "a")?;
            let x = Mutex::new(st.blocks.remove("x"));
            st.act("free_on", |st| {
                let mut slot = x.lock().unwrap();
                slot.take().expect("handed back").free_on(&st.streams["b"]).map_err(|(back, e)| {
                    *slot = Some(back);
                    e
                })
            })?;
            st.alloc_touch("y", 64, "b")?;
            st.record("f", "b")?;
            st.act("synchronize", |st| st.events["f"].synchronize(core::time::Duration::from_secs(1)))
        },
        reached: |r| r.growths == 1 && r.total.counters.waits_inserted >= 1,
        pairs: false,
    },
    Scenario {
        name: "a use by an unknown stream",
        config: tight,
        play: |st| {
            st.open("a")?;
            st.open("b")?;
            st.alloc_touch("x", 64, "a")?;
            st.blocks.remove("x").expect("made above").free_unknown();
            st.alloc_touch("y", 64, "b")?;
            st.blocks.remove("y").expect("made above").free_unknown();
            st.act("trim", |st| st.gpu().trim(Trim::All).map(drop))?;
            st.alloc_touch("z", 64, "b")
        },
        reached: |r| r.total.counters.in_flight_frees == 2,
        pairs: false,
    },
    Scenario {
        name: "markers that fall due",
        config: || Config::default().reuse(Reuse::WithWaits).limit(Limit::Bytes(20 * MIB)),
        play: |st| {
            st.open("a")?;
            st.open("b")?;
            st.alloc_touch("x", 2, "a")?;
            for i in 0..17 {
                st.alloc_touch("y", 1, "a")?;
                st.use_on("y", "a", "b")?;
                st.free("y");
                if i % 8 == 7 {
                    st.act("stream synchronize", |st| st.streams["b"].synchronize())?;
                }
            }
            st.alloc_touch("z", 18, "b")
        },
        reached: |r| r.total.counters.in_flight_frees > 8,
        pairs: false,
    },
    Scenario {
        name: "pinned memory",
        config: || Config::default().reuse(Reuse::WithWaits).pinned_limit(96 * MIB),
        play: |st| {
            st.open("a")?;
            st.open("b")?;
            st.pin("p", 40)?;
            st.pin("q", 8)?;
            st.read_pinned("p", "a")?;
            st.read_pinned("p", "b")?;
            st.read_pinned("q", "a")?;
            st.record("e", "a")?;
            st.act("record_use_until", |st| st.pinned["q"].record_use_until(&st.events["e"]))?;
            st.unpin("p");
            st.unpin("q");
            // Does not fit beside what is in flight: the copies are waited for.
            st.pin("r", 60)?;
            st.unpin("r");
            // Needs a segment of its own, and the first is in the way: only a trim gives it back.
            st.act("trim", |st| st.gpu().trim(Trim::All).map(drop))?;
            st.pin("s", 90)?;
            st.act("trim", |st| st.gpu().trim(Trim::All).map(drop))?;
            st.unpin("s");
            st.act("trim", |st| st.gpu().trim(Trim::All).map(drop))?;
            st.pin("t", 2)
        },
        reached: |r| r.pinned.as_ref().is_some_and(|p| p.counters.host_waits >= 1 && p.reserved == 64 * MIB),
        pairs: false,
    },
    Scenario {
        name: "deterministic",
        config: || tight().deterministic(true),
        play: |st| {
            st.open("a")?;
            st.open("b")?;
            st.alloc_touch("x", 64, "a")?;
            st.use_on("x", "a", "b")?;
            st.free("x");
            st.alloc_touch("y", 64, "b")?;
            st.free("y");
            st.act("synchronize", |st| st.gpu().synchronize())?;
            st.act("trim", |st| st.gpu().trim(Trim::All).map(drop))?;
            st.alloc_touch("z", 64, "a")
        },
        reached: |r| (r.growths, r.releases) == (2, 1),
        pairs: false,
    },
    Scenario {
        name: "wiped, aligned, on an independent stream",
        config: || tight().scrub(true).growth(Growth::Exact),
        play: |st| {
            for s in ["a", "b", "c"] {
                st.open(s)?;
            }
            st.alloc_touch("x", 32, "a")?;
            st.act("alloc_aligned", |st| {
                let block = st.gpu().alloc_aligned(20 * MIB, 8 * MIB, &st.streams["a"])?;
                assert!(block.address().0.is_multiple_of(8 * MIB), "{}: {}", st.story, block.address());
                st.blocks.insert("y", block);
                Ok(())
            })?;
            st.touch("y", "a")?;
            st.free("x");
            // Behind a wait, and wiped.
            st.alloc("z", 32, "b")?;
            st.is_wiped("z", "b")?;
            st.touch("z", "b")?;
            st.free("y");
            st.streams["c"].set_independent(true);
            // What is not complete is not for it: it is waited for, and wiped.
            st.alloc_touch("w", 16, "c")?;
            st.free("z");
            st.alloc_touch("x", 32, "a")
        },
        reached: |r| r.ladder.migrate_with_wait.served >= 2 && r.total.counters.host_waits >= 1,
        pairs: false,
    },
    Scenario {
        name: "memory of others and past the cache",
        config: || Config::default().growth(Growth::Exact),
        play: |st| {
            st.open("a")?;
            st.open("b")?;
            external(st)?;
            st.act("alloc_pinned_as", |st| {
                let pinned = st.gpu().alloc_pinned_as(3 * MIB, HostKind::WriteCombined)?;
                st.sim.host_writes(pinned.address(), pinned.len())?;
                st.pinned.insert("p", pinned);
                Ok(())
            })?;
            st.read_pinned("p", "a")?;
            st.unpin("p");
            st.pin("q", 3)?;
            st.act("synchronize", |st| st.gpu().synchronize())?;
            st.act("trim", |st| st.gpu().trim(Trim::All).map(drop))
        },
        reached: |r| r.pinned.as_ref().is_some_and(|p| p.reserved > 0) && r.reserved == 0,
        pairs: false,
    },
    Scenario {
        name: "the allocator goes first, with everything pending",
        config: Config::default,
        play: |st| {
            st.open("a")?;
            st.open("b")?;
            st.alloc_touch("x", 3, "a")?;
            st.use_on("x", "a", "b")?;
            st.alloc_touch("y", 30, "b")?;
            st.pin("p", 1)?;
            st.read_pinned("p", "b")?;
            st.record("e", "b")
        },
        reached: |r| (r.total.live, r.growths) == (2, 2),
        pairs: false,
    },
];
