//! How long the host takes to have a copy done: queued, and waited for by its token, by its stream, and as plain CUDA
//! does it. One copy at a time, by the host's clock.

use super::bench::{
    Aims, Bench, Fallible, KIB, MIB, PlainDevice, PlainHost, bytes_text, median, micros, plain_d2h,
    plain_h2d, plain_wait, warm,
};
use std::time::Instant;

/// Microseconds from the call until the wait has returned.
fn timed(work: &mut dyn FnMut() -> Fallible<()>) -> Fallible<f64> {
    let begun = Instant::now();
    work()?;
    Ok(micros(begun.elapsed()))
}

/// Small copies both ways.
pub(crate) fn latency(bench: &Bench, aims: &mut Aims) -> Fallible<()> {
    println!(
        "wait\tway\tbytes\tplain CUDA us\tours, by the token us\tours, by the stream us\ttoken - plain us"
    );
    let on = bench.gpu.stream()?;
    for bytes in [4 * KIB, 64 * KIB, MIB] {
        let (plain, device) = (PlainHost::new(bytes)?, PlainDevice::new(bytes)?);
        let mut array = bench.gpu.zeros::<u8>(bytes, &on)?;
        let mut host = Some(bench.gpu.pinned_zeros::<u8>(bytes)?);
        on.synchronize()?;
        for up in [true, false] {
            let mut found: [Vec<f64>; 3] = Default::default();
            // One more than counts.
            for _ in bench.rounds(1002, 302) {
                found[0].push(timed(&mut || {
                    if up {
                        plain_h2d(device.0, plain.at, bytes, on.native())?;
                    } else {
                        plain_d2h(plain.at, device.0, bytes, on.native())?;
                    }
                    plain_wait(on.native())
                })?);
                for (by_stream, found) in found[1..].iter_mut().enumerate() {
                    let mut free = host.take();
                    let took = timed(&mut || {
                        let memory = free.take().ok_or("a host array got lost")?;
                        host = Some(if up {
                            let sent = array.copy_from(memory, &on)?;
                            if by_stream == 1 {
                                on.synchronize()?;
                            }
                            sent.wait()?
                        } else {
                            let back = array.copy_to(memory, &on)?;
                            if by_stream == 1 {
                                on.synchronize()?;
                            }
                            back.wait()?
                        });
                        Ok(())
                    });
                    found.push(took?);
                }
            }
            let found = warm(&found);
            let above = median(&found[1].iter().zip(found[0]).map(|(a, b)| a - b).collect::<Vec<_>>());
            let way = if up { "to the device" } else { "to the host" };
            println!(
                "wait\t{way}\t{}\t{:.2}\t{:.2}\t{:.2}\t{above:.2}",
                bytes_text(bytes),
                median(found[0]),
                median(found[1]),
                median(found[2])
            );
            let what =
                format!("one copy of {} {way} and its wait, ours over plain CUDA's, us", bytes_text(bytes));
            aims.at_most(&what, above, 5.0);
        }
    }
    Ok(())
}
