//! Errors and panics come in their place, and what is behind them follows.

use crate::{clean, late, words};
use millpond_feed::{Batch, FeedError, Feeder, Fields, FillError, Filled, Layout, Slot};

/// What came, in a word each.
fn said<E: std::fmt::Display>(error: &FeedError<E>) -> String {
    match error {
        FeedError::Source { batch, error } => format!("{batch} source {error}"),
        FeedError::Fill { batch, error } => format!("{batch} fill {error}"),
        FeedError::Panicked { batch, stage, message } => format!("{batch} {stage:?} panic {message}"),
        other => panic!("{other}"),
    }
}

/// An error of the source, one of filling, and a panic of filling, among batches that come.
#[test]
fn errors_come_in_their_places() {
    for fillers in [0, 1, 3] {
        let (sim, gpu) = late();
        let work = gpu.stream().unwrap();
        let batches = (0..10_u64).map(|i| match i {
            3 => Err("no file"),
            5 => Ok(Filled::<(u64,)>::new((8.into(),), |_| Err("torn".into()))),
            7 => Ok(Filled::<(u64,)>::new((8.into(),), |_| panic!("index 9 of 8"))),
            _ => Ok(words(8, i)),
        });
        let feeder = Feeder::builder(&gpu).fillers(fillers).try_start(batches).unwrap();
        let found: Vec<String> = feeder
            .on(&work)
            .map(|batch| match batch {
                Ok(batch) => {
                    assert_eq!(batch.views().0.to_vec(&work).unwrap(), [batch.number(); 8]);
                    batch.number().to_string()
                }
                Err(e) => said(&e),
            })
            .collect();
        let expected = [
            "0",
            "1",
            "2",
            "3 source no file",
            "4",
            "5 fill torn",
            "6",
            "7 Fill panic index 9 of 8",
            "8",
            "9",
        ];
        assert_eq!(found, expected, "{fillers} fillers");
        assert_eq!((feeder.stats().batches, feeder.stats().errors), (7, 3));
        drop((feeder, work, gpu));
        clean(&sim);
    }
}

/// A source that panics is not asked again: what it gave before comes, then the panic, then the end. The next epoch is whole.
#[test]
fn a_panic_of_the_source_ends_the_epoch() {
    for fillers in [0, 2] {
        let (sim, gpu) = late();
        let work = gpu.stream().unwrap();
        let batches = (0..10_u64).map(|i| if i == 4 { panic!("gone at {i}") } else { words(8, i) });
        let feeder = Feeder::builder(&gpu).fillers(fillers).start(batches).unwrap();
        let found: Vec<Result<u64, String>> =
            feeder.on(&work).map(|batch| batch.map(|b| b.number()).map_err(|e| said(&e))).collect();
        assert_eq!(found, [Ok(0), Ok(1), Ok(2), Ok(3), Err("4 Source panic gone at 4".into())]);
        assert!(feeder.next(&work).is_none());
        feeder.restart((0..3).map(|i| words(8, i))).unwrap();
        assert_eq!(feeder.on(&work).map(|b| b.unwrap().number()).collect::<Vec<_>>(), [0, 1, 2]);
        drop((feeder, work, gpu));
        clean(&sim);
    }
}

/// A batch whose functions do not agree, or that panics as it says its layout.
struct Wrong(u8);
impl Batch for Wrong {
    type Views<'a, D: millpond::driver::Driver> = millpond::DeviceView<'a, u8, D>;
    fn layout(&self, layout: &mut Layout) {
        assert!(self.0 != 1, "no layout");
        layout.field::<u8>(4);
    }
    fn fill(self, slot: &mut Slot<'_>) -> Result<(), FillError> {
        if self.0 == 2 {
            slot.field::<i16>();
        }
        slot.field::<u8>().fill(self.0);
        if self.0 == 3 {
            slot.field::<u8>();
        }
        Ok(())
    }
    fn views<'a, D: millpond::driver::Driver>(fields: &mut Fields<'a, D>) -> Self::Views<'a, D> {
        fields.field()
    }
}

#[test]
fn a_batch_that_contradicts_itself_is_an_error() {
    let (sim, gpu) = late();
    let work = gpu.stream().unwrap();
    let feeder = Feeder::builder(&gpu).fillers(2).start((0..5).map(Wrong)).unwrap();
    let found: Vec<Result<u64, String>> =
        feeder.on(&work).map(|batch| batch.map(|b| b.number()).map_err(|e| said(&e))).collect();
    let expected = [
        Ok(0),
        Err("1 Fill panic no layout".to_owned()),
        Err("2 Fill panic field 0 was asked for as i16, and the batch's layout has u8 there".to_owned()),
        Err("3 Fill panic field 1 was asked for, of a batch whose layout has 1".to_owned()),
        Ok(4),
    ];
    assert_eq!(found, expected);
    drop((feeder, work, gpu));
    clean(&sim);
}

/// A stream that cannot be made to wait gets an error, and the batch comes for the next one.
#[test]
fn a_stream_that_captures_gets_no_batch_and_loses_none() {
    for fillers in [0, 2] {
        let (sim, gpu) = late();
        let (captured, work) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        let feeder = Feeder::builder(&gpu).fillers(fillers).start((0..4).map(|i| words(8, i))).unwrap();
        drop(feeder.next(&work).unwrap().unwrap());
        sim.begin_capture(captured.native()).unwrap();
        for _ in 0..2 {
            match feeder.next(&captured).unwrap() {
                Err(FeedError::Device { batch: 1, .. }) => {}
                other => panic!("{other:?}"),
            }
        }
        let _ = sim.end_capture(captured.native()).unwrap();
        assert_eq!(feeder.on(&work).map(|b| b.unwrap().number()).collect::<Vec<_>>(), [1, 2, 3]);
        drop((feeder, work, captured, gpu));
        clean(&sim);
    }
}

/// A batch is dropped while its stream captures: its use cannot be marked then, and is once its slot is wanted.
#[test]
fn a_batch_that_is_dropped_in_a_capture() {
    // With threads one of them might want the slot during the capture, which would be an error in a batch's place.
    let (sim, gpu) = late();
    let work = gpu.stream().unwrap();
    let feeder = Feeder::builder(&gpu).fillers(0).depth(1).start((0..12).map(|i| words(8, i))).unwrap();
    let batch = feeder.next(&work).unwrap().unwrap();
    crate::foreign(&sim, &batch.views().0, 0, &work);
    sim.begin_capture(work.native()).unwrap();
    drop(batch);
    let _ = sim.end_capture(work.native()).unwrap();
    for (i, batch) in (1..).zip(feeder.on(&work)) {
        crate::foreign(&sim, &batch.unwrap().views().0, i, &work);
    }
    assert_eq!(feeder.stats().batches, 12);
    drop((feeder, work, gpu));
    clean(&sim);
}

/// Items that panic as they are dropped, unfilled: the consumer gets that in their place, and no thread is lost.
#[test]
fn a_batch_whose_drop_panics() {
    struct Sharp(Vec<u8>);
    impl Drop for Sharp {
        fn drop(&mut self) {
            assert!(self.0.len() < 1000 || std::thread::panicking(), "sharp");
        }
    }
    impl Batch for Sharp {
        type Views<'a, D: millpond::driver::Driver> = millpond::DeviceView<'a, u8, D>;
        fn layout(&self, layout: &mut Layout) {
            layout.field::<u8>(self.0.len());
        }
        fn fill(self, slot: &mut Slot<'_>) -> Result<(), FillError> {
            slot.field::<u8>().copy_from_slice(&self.0);
            Ok(())
        }
        fn views<'a, D: millpond::driver::Driver>(fields: &mut Fields<'a, D>) -> Self::Views<'a, D> {
            fields.field()
        }
    }
    for fillers in [0, 1] {
        let (sim, gpu) = late();
        let work = gpu.stream().unwrap();
        // The second does not fit the budget, and is dropped unfilled.
        let batches = [10, 2000, 10].map(|n| Sharp(vec![1; n]));
        let feeder = Feeder::builder(&gpu).fillers(fillers).budget(1024).start(batches).unwrap();
        let found: Vec<Result<u64, String>> =
            feeder.on(&work).map(|batch| batch.map(|b| b.number()).map_err(|e| said(&e))).collect();
        assert_eq!(found, [Ok(0), Err("1 Fill panic sharp".into()), Ok(2)]);
        drop((feeder, work, gpu));
        clean(&sim);
    }
}
