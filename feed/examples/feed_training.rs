//! A training loop whose batches come from the host: in turn (copy, wait, compute, wait), fed, and with all data there already, which is the
//! bound. All three compute the same.
//!
//! Runs on the simulated device, in its virtual time:  `cargo run -p millpond-feed --example feed_training`
//! Runs on a GPU:                                      `cargo run --release -p millpond-feed --example feed_training -- gpu`

mod common;

use millpond::driver::{Driver, Kernels};
use millpond::units::MIB;
use millpond::{Allocator, Config, DeviceArray, DeviceView, Stream, kernel};
use millpond_feed::{Feeder, Filled};
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

/// Steps of an epoch, elements of a batch, and bytes of the scratch memory whose filling stands for the rest of a model.
const STEPS: u64 = 16;
const LEN: usize = 1 << 18;
const SCRATCH: usize = 64 << 20;

/// One step of a training that is none: the batch into the weights, and something that takes its time.
fn train<D: Driver + Kernels>(
    images: DeviceView<'_, f32, D>,
    (weights, scratch): (&mut DeviceArray<f32, D>, &mut DeviceArray<u8, D>),
    work: &Stream<D>,
) -> Result<(), millpond::Error> {
    kernel::saxpy(0.5, images, weights, work)?;
    scratch.fill_bytes(1, work)
}

/// What a loader would read and decode: here each element of batch `i` is `i`.
fn load(i: u64, images: &mut [f32]) {
    images.fill(i as f32);
}

/// The batches of an epoch, each written in place where the copy reads it.
fn source() -> impl Iterator<Item = Filled<(f32, u8)>> + Send {
    (0..STEPS).map(|i| {
        Filled::<(f32, u8)>::new((LEN.into(), 64.into()), move |(images, labels)| {
            load(i, images);
            labels.fill(1);
            Ok(())
        })
    })
}

struct Training;

impl common::Program for Training {
    fn on<D: Driver + Kernels>(&self, device: D, clock: &common::Clock) -> Result<(), Box<dyn Error>> {
        let gpu = Allocator::new(device, Config::default())?;
        let work = gpu.stream()?;
        let mut weights = gpu.zeros::<f32>(LEN, &work)?;
        let mut scratch = gpu.uninit::<u8>(SCRATCH, &work)?;
        // Each way once before the clock runs, so that memory is there and kernels are loaded.
        let time = |run: &mut dyn FnMut() -> Result<(), Box<dyn Error>>| {
            run()?;
            gpu.synchronize()?;
            let start = clock();
            run()?;
            gpu.synchronize()?;
            Ok::<Duration, Box<dyn Error>>(clock().saturating_sub(start))
        };

        let mut host = vec![0.0; LEN];
        let in_turn = time(&mut || {
            for i in 0..STEPS {
                load(i, &mut host);
                let images = gpu.array_from_slice(&host, &work)?;
                train(images.view(), (&mut weights, &mut scratch), &work)?;
                work.synchronize()?;
            }
            Ok(())
        })?;

        let feeder = Feeder::builder(&gpu).depth(3).budget(256 * MIB).fillers(2).start(source())?;
        let progress = common::bar("fed", 2 * STEPS)?;
        let mut first = true;
        let fed = time(&mut || {
            if !std::mem::take(&mut first) {
                feeder.restart(source())?;
            }
            for batch in feeder.on(&work) {
                let batch = batch?;
                let (images, _labels) = batch.views();
                train(images, (&mut weights, &mut scratch), &work)?;
                progress.set_position(feeder.stats().batches);
            }
            Ok(())
        })?;
        progress.finish_and_clear();

        let resident: Vec<_> = (0..STEPS)
            .map(|i| {
                load(i, &mut host);
                gpu.array_from_slice(&host, &work)
            })
            .collect::<Result<_, _>>()?;
        let bound = time(&mut || {
            for images in &resident {
                train(images.view(), (&mut weights, &mut scratch), &work)?;
            }
            Ok(())
        })?;

        for (name, took) in [("in turn", in_turn), ("fed", fed), ("all data there", bound)] {
            let share = 100.0 * bound.as_secs_f64() / took.as_secs_f64();
            println!("{name:15} {:8.3} ms   {share:5.1} % of the bound", took.as_secs_f64() * 1e3);
        }
        println!("\nby the clock of this machine:\n{}", feeder.stats());
        println!("slots: {} bytes, {} at most", feeder.slot_bytes().0, feeder.slot_bytes().1);
        // Six epochs of the same steps.
        let expected = 6.0 * 0.5 * (STEPS * (STEPS - 1) / 2) as f32;
        let weights = weights.to_vec(&work)?;
        if weights.iter().all(|w| w.to_bits() == expected.to_bits()) {
            Ok(())
        } else {
            Err(format!("every weight is to be {expected}, and the first is {}", weights[0]).into())
        }
    }
}

fn main() -> ExitCode {
    common::run(&Training)
}
