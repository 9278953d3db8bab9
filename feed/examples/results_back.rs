//! Results come back to the host in order while the device goes on: a loss for every step, and a large result now and then.
//!
//! Runs on the simulated device, which also judges the order:  `cargo run -p millpond-feed --example results_back`
//! Runs on a GPU:                                              `cargo run --release -p millpond-feed --example results_back -- gpu`

mod common;

use millpond::driver::{Driver, Kernels};
use millpond::units::MIB;
use millpond::{Allocator, Config, kernel};
use millpond_feed::{Drain, Drained, Feeder};
use std::error::Error;
use std::process::ExitCode;
use std::sync::mpsc;

const STEPS: u32 = 60;
const LEN: usize = 1 << 16;

struct ResultsBack;

impl common::Program for ResultsBack {
    fn on<D: Driver + Kernels>(&self, device: D, _: &common::Clock) -> Result<(), Box<dyn Error>> {
        let gpu = Allocator::new(device, Config::default())?;
        let work = gpu.stream()?;
        let batches = (0..STEPS).map(|i| vec![i as f32; LEN]);
        let feeder = Feeder::builder(&gpu).budget(16 * MIB).start(batches)?;

        // One drain for small results, one for large ones: the large ones do not hold up the small ones.
        let (to, losses) = mpsc::channel();
        let loss_drain =
            Drain::builder(&gpu).depth(16).start(move |loss: Drained<'_, f32>| to.send(loss[0]))?;
        let (to, checkpoints) = mpsc::channel();
        let state_drain = Drain::builder(&gpu).budget(MIB).start(move |state: Drained<'_, f32>| {
            to.send(state.iter().map(|&x| f64::from(x)).sum::<f64>())
        })?;

        let mut state = gpu.zeros::<f32>(LEN, &work)?;
        let mut loss = gpu.zeros::<f32>(1, &work)?;
        let progress = common::bar("steps", u64::from(STEPS))?;
        for batch in feeder.on(&work) {
            let batch = batch?;
            kernel::saxpy(1.0, batch.views(), &mut state, &work)?;
            kernel::reduce_sum(batch.views(), &mut loss, &work)?;
            loss_drain.push(&loss, &work)?; // the next step writes `loss` again, behind this copy, on the device
            if batch.number() % 20 == 19 {
                state_drain.push(&state, &work)?;
            }
            progress.set_position(feeder.stats().batches);
        }
        progress.finish_and_clear();
        let (small, large) = (loss_drain.finish()?, state_drain.finish()?);
        println!(
            "{} losses and {} states of {} bytes came back in order",
            small.results, large.results, large.bytes
        );

        let losses: Vec<f32> = losses.iter().collect();
        println!("losses: {:?} ... {:?}", &losses[..4], losses[losses.len() - 1]);
        let expected = (0..STEPS).map(|i| (i as usize * LEN) as f32);
        if !losses.into_iter().eq(expected) {
            return Err("loss i is to be the sum of batch i".into());
        }
        let sums: Vec<f64> = checkpoints.iter().collect();
        println!("sums of the states: {sums:?}");
        let upto = |n: u64| (n * (n - 1) / 2 * LEN as u64) as f64;
        if sums == [upto(20), upto(40), upto(60)] { Ok(()) } else { Err("a state is wrong".into()) }
    }
}

fn main() -> ExitCode {
    common::run(&ResultsBack)
}
