//! Programs that keep something of every round: the soak names what grew.

use super::run::{Bench, Pace, Run, Steady, try_soak};
use millpond::Config;

type Program = fn(&Bench) -> Steady;

/// A stream, what waits for it, and what a round does with it.
fn steady<T: 'static>(b: &Bench, mut keep: impl FnMut(u64) -> T + 'static) -> Steady {
    let gpu = b.gpu.clone();
    let mut kept = Vec::new();
    let round = Box::new(move |i| kept.push(keep(i)));
    let synchronise = Box::new(move || gpu.synchronize().expect("waited"));
    Steady { round, synchronise, asked: 2 }
}

fn blocks_of_the_host(b: &Bench) -> Steady {
    steady(b, Box::new)
}

fn events(b: &Bench) -> Steady {
    let s = b.gpu.stream().expect("a stream");
    steady(b, move |_| s.record().expect("recorded"))
}

fn memory(b: &Bench) -> Steady {
    let (gpu, s) = (b.gpu.clone(), b.gpu.stream().expect("a stream"));
    steady(b, move |_| gpu.alloc(512, &s).expect("memory"))
}

/// A guard that is forgotten keeps its stream's use until the free, or an access to the whole: nobody says when its work was queued.
fn forgotten_guards(b: &Bench) -> Steady {
    let (gpu, s) = (b.gpu.clone(), b.gpu.stream().expect("a stream"));
    let x = gpu.zeros::<f32>(256, &s).expect("an array");
    steady(b, move |_| {
        let t = gpu.stream().expect("a stream");
        std::mem::forget(x.read_on(&t).expect("ordered"));
        t
    })
}

#[test]
fn what_grows_is_named() {
    let leaks: [(&str, Program); 4] = [
        ("host blocks", blocks_of_the_host),
        ("driver events", events),
        ("chunks", memory),
        ("uses", forgotten_guards),
    ];
    for (counter, program) in leaks {
        for pace in [Pace::AtOnce, Pace::Late] {
            let why = try_soak(counter, Run::steady(pace), Config::default(), program)
                .expect_err("it keeps something of every round");
            assert!(why.contains(&format!("\n    {counter}: ")), "{counter}:\n{why}");
        }
    }
}
