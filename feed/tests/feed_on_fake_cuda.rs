//! Feeders, drains and a dataset larger than the device on the CUDA backend, over the stand-in driver: judged by the simulated device's oracle
//! beneath it and by what is left in it. `MILLPOND_LIBCUDA` unset and no stand-in built: this says so.
#![cfg(feature = "cuda")]

#[path = "../../tests/fake_libcuda/remote.rs"]
mod remote;

// For the code that is made there once (`millpond_testkit::compiled`).
use millpond_testkit as _;

use millpond::cuda::Cuda;
use millpond::units::GIB;
use millpond::{Allocator, Config};
use millpond_feed::{Drain, Drained, Feeder, OutOfCore};
use remote::When;
use std::sync::mpsc;

/// H9: the same programs over the driver's functions: batches, epochs, an early end, results back, a dataset in place.
#[test]
fn h09_feeders_run_over_a_driver() {
    for when in [When::Earliest, When::Latest, When::Random(3)] {
        let Some(fake) = remote::fake_or_skip(4 * GIB, 1, when) else { return };
        let gpu = Allocator::new(Cuda::new(0).expect("the stand-in's device"), Config::default()).unwrap();
        let work = gpu.stream().unwrap();
        let (to, results) = mpsc::channel();
        let drain = Drain::builder(&gpu).start(move |r: Drained<'_, u32>| to.send(r.to_vec())).unwrap();
        let source =
            |epoch: u32| (0..30_usize).map(move |i| (vec![i as u32 + epoch; 1 + 7 * i], vec![epoch; 3]));
        let feeder = Feeder::builder(&gpu).fillers(2).depth(2).start(source(0)).unwrap();
        for epoch in 0..3 {
            if epoch > 0 {
                feeder.restart(source(epoch)).unwrap();
            }
            for (i, batch) in (0..).zip(feeder.on(&work)) {
                let batch = batch.unwrap();
                let (numbers, epochs) = batch.views();
                assert_eq!(epochs.to_vec(&work).unwrap(), [epoch; 3]);
                assert_eq!(numbers.len(), 1 + 7 * i);
                drain.push(numbers, &work).unwrap();
            }
        }
        feeder.restart(source(9)).unwrap();
        let held = feeder.next(&work).unwrap().unwrap();
        drop(feeder);
        assert_eq!(held.views().1.to_vec(&work).unwrap(), [9; 3]);
        assert_eq!(drain.finish().unwrap().results, 90);
        for (n, result) in (0..90_u32).zip(results.iter()) {
            assert_eq!(result, vec![n % 30 + n / 30; 1 + 7 * (n % 30) as usize]);
        }

        let mut data = vec![1_u16; 5000];
        let run = OutOfCore::new(&gpu).chunk(300).fillers(2);
        run.in_place(&mut data, &work, |range, mut view| {
            assert_eq!(view.len(), range.len());
            view.fill_bytes(3, &work)
        })
        .unwrap();
        assert!(data.iter().all(|&x| x == 0x0303));
        drop((held, work, gpu));
        assert_eq!((fake.verdict(), fake.leaks()), (None, None));
    }
}
