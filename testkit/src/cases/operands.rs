//! Operations that come after several streams at once, while another thread orders those streams (O1, O8).

use super::{Case, Held, Outcome, World, at, ensure, said};
use bytemuck::Pod;
use millpond::{DeviceArray, Stream, kernel};
use millpond_sim::Sim;
use std::sync::{Arc, mpsc};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "two markers that cover each other",
        kills: &["cover-other"],
        run: two_that_cover_each_other,
    },
    Case {
        name: "three operands, and markers out of order",
        kills: &["cover-other", "cover-tie"],
        run: markers_out_of_order,
    },
    Case { name: "two threads' operations at home", kills: &["seal-stores"], run: two_at_home },
];

const LEN: usize = 1 << 16;

/// An array that its stream has yet to fill, with no marker behind that.
fn filled<T: Pod>(w: &World, value: T, s: &Stream<Sim>) -> Result<DeviceArray<T, Sim>, String> {
    let mut x = w.gpu.uninit(LEN, s).map_err(said)?;
    kernel::fill(&mut x, value, s).map_err(said)?;
    Ok(x)
}

/// t copies what a fills into what b fills. No marker of a covers its fill, so one is made; just before, another thread has b
/// wait for a and a for b. a's new marker knows of b's fill, and b's marker, which is found, of a's: who compares the two
/// leaves out both waits.
fn two_that_cover_each_other() -> Outcome {
    let w = World::at(8);
    let [a, b, t] = w.streams();
    let (y, mut x) = (filled(&w, 2_u8, &a)?, filled(&w, 1_u8, &b)?);
    let (a2, b2) = (a.clone(), b.clone());
    at("not covered", 1, move || {
        b2.wait_stream(&a2).expect("a wait");
        a2.wait_stream(&b2).expect("a wait");
    });
    x.copy_from_device(&y, &t).map_err(said)?;
    brings(&x, 2, &t)?;
    drop((x, y, a, b, t));
    w.end()
}

/// t gathers by what c fills from what b fills into what a fills. Of two markers of b the first is recorded and not published
/// while b comes to wait for a and the second is made, which is found. The first, then published, is what c waits for. So
/// a's wait is left to b, whose marker knows a; b's to c, whose marker knows b; and c's marker knows nothing of a. No two
/// cover each other.
fn markers_out_of_order() -> Outcome {
    let w = World::at(8);
    let [a, b, c, t] = w.streams();
    let (mut x, y, z) = (filled(&w, 1_u8, &a)?, filled(&w, 2_u8, &b)?, filled(&w, 0_u32, &c)?);
    let first = Held::at("recorded", &b)?;
    b.wait_stream(&a).map_err(said)?;
    let second = b.record().map_err(said)?;
    let c2 = c.clone();
    at("not covered", 1, move || {
        let first = first.go().expect("the record");
        c2.wait(&first).expect("a wait");
    });
    kernel::gather(&y, &z, &mut x, &t).map_err(said)?;
    brings(&x, 2, &t)?;
    drop((second, x, y, z, a, b, c, t));
    w.end()
}

/// Two threads read one array on its home stream. The stamp of the first one's operation is loaded; before it is kept, the stream is marked
/// and the second one's is queued, and kept behind that marker. What writes the array elsewhere comes after both.
fn two_at_home() -> Outcome {
    let w = World::at(8);
    let [a, t] = w.streams();
    let x = Arc::new(filled(&w, 2_u8, &a)?);
    let copy = || w.gpu.uninit::<u8>(LEN, &a).map_err(said);
    let (mut first, mut second) = (copy()?, copy()?);
    let (x2, a2) = (Arc::clone(&x), a.clone());
    let (brought, bring) = mpsc::channel();
    at("stamped", 1, move || {
        drop(a2.record().expect("a marker"));
        second.copy_from_device(&*x2, &a2).expect("a copy");
        drop(x2);
        brought.send(second).expect("the receiver waits");
    });
    first.copy_from_device(&*x, &a).map_err(said)?;
    let second = bring.recv().map_err(said)?;
    let mut x = Arc::into_inner(x).ok_or("the other thread is over")?;
    kernel::fill(&mut x, 3, &t).map_err(said)?;
    brings(&first, 2, &a)?;
    brings(&second, 2, &a)?;
    drop((x, first, second, a, t));
    w.end()
}

/// The array holds this value.
fn brings(x: &DeviceArray<u8, Sim>, value: u8, on: &Stream<Sim>) -> Outcome {
    let found = x.to_vec(on).map_err(said)?;
    let wrong = found.iter().find(|&&v| v != value);
    ensure!(wrong.is_none(), "{wrong:?} was read where {value} is to be");
    Ok(())
}
