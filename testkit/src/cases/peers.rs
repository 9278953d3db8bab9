//! Copies between the memories of two devices, of which each one's allocator knows its own side.

use super::{Case, Outcome, World, ensure, said};
use millpond::units::GIB;
use millpond::{DeviceArray, DriverErrorKind, Stream};
use millpond_sim::{Call, Schedule, Sim};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "what uses the target of a copy between devices",
        kills: &["peer-target-early"],
        run: target,
    },
    Case { name: "a copy between devices is read", kills: &["peer-unwaited"], run: read },
    Case { name: "a copy between devices that cannot be waited for", kills: &["peer-lost"], run: lost },
];

const LEN: usize = 1 << 20;

/// Two devices that run nothing before they must, with memory for one array each; and on each a stream and an array that is filled with a number.
struct Two {
    near: (World, Stream<Sim>, DeviceArray<u8, Sim>),
    far: (World, Stream<Sim>, DeviceArray<u8, Sim>),
}

fn two() -> Result<Two, String> {
    let mut sims = Sim::devices(2, 4 * GIB);
    let (b, a) = (sims.pop().expect("two"), sims.pop().expect("two"));
    a.set_schedule(Schedule::Latest);
    let side = |sim: Sim, value: u8| -> Result<_, String> {
        let w = World::on(sim, World::config(1));
        let s = w.stream();
        let mut x = w.gpu.uninit::<u8>(LEN, &s).map_err(said)?;
        x.fill_bytes(value, &s).map_err(said)?;
        Ok((w, s, x))
    };
    Ok(Two { near: side(a, 7)?, far: side(b, 1)? })
}

impl Two {
    fn holds(&self, value: u8) -> Outcome {
        let back = self.far.2.to_vec(&self.far.1).map_err(said)?;
        ensure!(back.iter().all(|&v| v == value), "{} is not {value}", back[0]);
        Ok(())
    }
    fn end(self) -> Outcome {
        for (w, s, x) in [self.far, self.near] {
            drop((x, s));
            w.end()?;
        }
        Ok(())
    }
}

/// The target is written by its own stream before.
fn target() -> Outcome {
    let mut two = two()?;
    two.far.2.copy_from_peer(&two.near.2, &two.near.1, &two.far.1).map_err(said)?;
    two.far.0.sim.run_until_idle();
    two.holds(7)?;
    two.end()
}

/// The target is read by its own stream behind it.
fn read() -> Outcome {
    let mut two = two()?;
    two.far.1.synchronize().map_err(said)?;
    two.far.2.copy_from_peer(&two.near.2, &two.near.1, &two.far.1).map_err(said)?;
    two.holds(7)?;
    two.end()
}

/// The wait of the target's stream fails, so that its next owner comes behind the copy by the host's wait alone.
fn lost() -> Outcome {
    let mut two = two()?;
    // The first is the source's stream's, for what the target's has done.
    two.near.0.sim.fail(Call::StreamWaitEvent, 2, DriverErrorKind::Other);
    let copied = two.far.2.copy_from_peer(&two.near.2, &two.near.1, &two.far.1);
    ensure!(copied.is_err(), "the wait failed");
    let (w, s, x) = two.far;
    drop(x);
    let mut x = w.gpu.uninit::<u8>(LEN, &s).map_err(said)?;
    x.fill_bytes(3, &s).map_err(said)?;
    two.far = (w, s, x);
    two.holds(3)?;
    two.end()
}
