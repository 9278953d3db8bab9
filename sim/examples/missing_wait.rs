//! A stream program with a wait left out, and what the oracle says of it. No GPU and no allocator: `cargo run -p millpond-sim
//! --example missing_wait`, with `-- fixed` for the program as it should be.

use millpond_sim::driver::{Fences, Memory};
use millpond_sim::{Launch, Sim};
use std::error::Error;

const BYTES: u64 = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let fixed = std::env::args().nth(1).is_some_and(|word| word == "fixed");
    println!("{}", judged(fixed)?);
    Ok(())
}

/// Two rounds of a stream that writes and one that reads, and the verdict on them.
pub(crate) fn judged(fixed: bool) -> Result<String, Box<dyn Error>> {
    let sim = Sim::new(1 << 30);
    let data = sim.allocate(BYTES)?;
    let (producer, consumer) = (sim.stream()?, sim.stream()?);
    sim.name_stream(&producer, "producer")?;
    sim.name_stream(&consumer, "consumer")?;

    for _ in 0..2 {
        sim.launch(&producer, Launch::new("produce").writes(data.addr(), BYTES))?;
        let produced = sim.event()?;
        sim.record(&produced, &producer)?;
        if fixed {
            sim.wait(&consumer, &produced)?;
        }
        sim.launch(&consumer, Launch::new("consume").reads(data.addr(), BYTES))?;
        // The next round's write must come after this read.
        let consumed = sim.event()?;
        sim.record(&consumed, &consumer)?;
        sim.wait(&producer, &consumed)?;
    }

    Ok(match sim.verdict() {
        Ok(tally) => format!("{} accesses, every one ordered", tally.accesses_checked),
        Err(verdict) => verdict.to_string(),
    })
}
