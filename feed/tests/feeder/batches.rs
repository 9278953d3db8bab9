//! What comes is what was given: values, types and shapes, by every kind of batch.

use crate::{clean, late};
use millpond::Shape;
use millpond_feed::{Batch, Feeder, Fields, FillError, Filled, Layout, Ragged, Shaped, Slot, batch};
use std::sync::Arc;

batch! {
    /// A struct of batches.
    pub(crate) struct Sample => SampleViews {
        pixels: Shaped<u8>,
        tokens: Ragged<i32>,
        weight: [f64; 1],
    }
}

/// Every field of every kind, with threads and without.
#[test]
fn h10_each_kind_of_batch_comes_as_it_was_given() {
    for fillers in [0, 1, 3] {
        let (sim, gpu) = late();
        let work = gpu.stream().unwrap();
        let of = |i: u8| {
            let sample = Sample {
                pixels: Shaped::new(vec![i; 12], [2, 3, 2]).unwrap(),
                tokens: Ragged::new(vec![vec![i32::from(i)], vec![2, 3, 4]], -1).at_least(4),
                weight: [f64::from(i) / 2.0],
            };
            let shared: Arc<[u16]> = Arc::from(vec![u16::from(i); usize::from(i)]);
            let written = Filled::<(u64, u8)>::new((3.into(), [1, 2].into()), move |(a, b)| {
                a.fill(u64::from(i) << 40);
                b.copy_from_slice(&[i, i + 1]);
                Ok(())
            });
            (sample, shared, written, &[7_i8, 8][..], vec![i; 3].into_boxed_slice())
        };
        let feeder = Feeder::builder(&gpu).fillers(fillers).start((0..9).map(of)).unwrap();
        let mut n = 0_u8;
        for batch in feeder.on(&work) {
            let batch = batch.unwrap();
            assert_eq!(batch.number(), u64::from(n));
            let (sample, shared, (a, b), fixed, boxed) = batch.views();
            let SampleViews { pixels, tokens: (tokens, lengths), weight } = sample;
            assert_eq!(pixels.shape(), Shape::from([2, 3, 2]));
            assert_eq!(pixels.to_vec(&work).unwrap(), [n; 12]);
            assert_eq!(tokens.shape(), Shape::from([2, 4]));
            assert_eq!(tokens.to_vec(&work).unwrap(), [i32::from(n), -1, -1, -1, 2, 3, 4, -1]);
            assert_eq!(lengths.to_vec(&work).unwrap(), [1, 3]);
            assert_eq!(weight.to_vec(&work).unwrap(), [f64::from(n) / 2.0]);
            assert_eq!(shared.to_vec(&work).unwrap(), vec![u16::from(n); usize::from(n)]);
            assert_eq!(a.to_vec(&work).unwrap(), [u64::from(n) << 40; 3]);
            assert_eq!((b.shape(), b.to_vec(&work).unwrap()), (Shape::from([1, 2]), vec![n, n + 1]));
            assert_eq!(
                (fixed.to_vec(&work).unwrap(), boxed.to_vec(&work).unwrap()),
                (vec![7, 8], vec![n; 3])
            );
            n += 1;
        }
        assert_eq!((n, feeder.stats().batches), (9, 9));
        drop((feeder, work, gpu));
        clean(&sim);
    }
}

/// H8: as many bytes in another shape, of another type: the batch's own shape and type, though the slot is the same.
#[test]
fn h08_equal_bytes_in_another_shape() {
    let (sim, gpu) = late();
    let work = gpu.stream().unwrap();
    let shapes = [[2, 6], [3, 4], [12, 1], [1, 12]];
    let batches = shapes.map(|shape| Shaped::new((0..12_i32).collect(), shape).unwrap());
    let feeder = Feeder::builder(&gpu).fillers(0).depth(1).start(batches).unwrap();
    let mut slots = Vec::new();
    for (batch, shape) in feeder.on(&work).zip(shapes) {
        let batch = batch.unwrap();
        assert_eq!(batch.views().shape(), Shape::from(shape));
        assert_eq!(batch.views().to_vec(&work).unwrap(), (0..12).collect::<Vec<_>>());
        slots.push(batch.views().address());
    }
    slots.sort_unstable();
    slots.dedup();
    assert!(slots.len() < shapes.len(), "slots are used again");
    drop((feeder, work, gpu));
    clean(&sim);
}

/// Batches of no bytes, of no fields, and sources of no batches.
#[test]
fn nothing_is_a_batch_too() {
    for fillers in [0, 2] {
        let (sim, gpu) = late();
        let work = gpu.stream().unwrap();
        let feeder = Feeder::builder(&gpu).fillers(fillers).start(vec![Vec::<f32>::new(); 5]).unwrap();
        assert_eq!(feeder.on(&work).map(|b| b.unwrap().views().len()).sum::<usize>(), 0);
        feeder.restart(Vec::new()).unwrap();
        assert!(feeder.next(&work).is_none() && feeder.next(&work).is_none());
        drop((feeder, work, gpu));
        clean(&sim);
    }
}

/// A batch may be changed in place; its slot is clean for the next.
#[test]
fn a_field_is_written_in_place() {
    let (sim, gpu) = late();
    let work = gpu.stream().unwrap();
    let batches = (0..6).map(|i| (vec![i; 4], vec![10 * i; 3]));
    let feeder = Feeder::builder(&gpu).fillers(0).depth(2).start(batches).unwrap();
    for (i, batch) in (0..).zip(feeder.on(&work)) {
        let mut batch = batch.unwrap();
        millpond::kernel::fill(&mut batch.field_mut::<i32>(1), -i, &work).unwrap();
        let (first, second) = batch.views();
        assert_eq!(first.to_vec(&work).unwrap(), [i; 4]);
        assert_eq!(second.to_vec(&work).unwrap(), [-i; 3]);
    }
    drop((feeder, work, gpu));
    clean(&sim);
}

#[test]
#[should_panic(expected = "field 0 was asked for as u32, and the batch's layout has i32 there")]
fn a_field_of_another_type_is_refused() {
    let (_sim, gpu) = late();
    let work = gpu.stream().unwrap();
    let feeder = Feeder::builder(&gpu).fillers(0).start([vec![1_i32]]).unwrap();
    let mut batch = feeder.next(&work).unwrap().unwrap();
    let _ = batch.field_mut::<u32>(0);
}

/// A batch by hand that is made where it is needed.
struct Late(u8);
impl Batch for Late {
    type Views<'a, D: millpond::driver::Driver> = millpond::DeviceView<'a, u8, D>;
    fn layout(&self, layout: &mut Layout) {
        layout.field::<u8>([2, usize::from(self.0)]);
    }
    fn fill(self, slot: &mut Slot<'_>) -> Result<(), FillError> {
        slot.field::<u8>().fill(self.0);
        Ok(())
    }
    fn views<'a, D: millpond::driver::Driver>(fields: &mut Fields<'a, D>) -> Self::Views<'a, D> {
        fields.field()
    }
}

#[test]
fn h11_a_channel_and_a_closure_and_a_batch_by_hand() {
    let (sim, gpu) = late();
    let work = gpu.stream().unwrap();
    let (to, from) = std::sync::mpsc::channel();
    let feeder = Feeder::builder(&gpu).start(from).unwrap();
    for i in 0..20 {
        to.send(Late(i)).unwrap();
        let batch = feeder.next(&work).unwrap().unwrap();
        assert_eq!(batch.views().to_vec(&work).unwrap(), vec![i; 2 * usize::from(i)]);
    }
    drop(to);
    assert!(feeder.next(&work).is_none());
    let mut left = 3_u8;
    let closure = move || {
        left = left.checked_sub(1)?;
        Some(Late(left))
    };
    feeder.restart(std::iter::from_fn(closure)).unwrap();
    let lengths: Vec<usize> = feeder.on(&work).map(|b| b.unwrap().views().len()).collect();
    assert_eq!(lengths, [4, 2, 0]);
    drop((feeder, work, gpu));
    clean(&sim);
}

/// P11, G11: what threads write is the memory that the copy reads: one copy a batch, from where it was filled.
#[test]
fn p11_threads_fill_pinned_slots_in_place() {
    let (sim, gpu) = late();
    let work = gpu.stream().unwrap();
    let (to, filled) = std::sync::mpsc::channel();
    let batches = (0..40_u64).map(move |i| {
        let to = to.clone();
        Filled::<(u64, u8)>::new((100.into(), 3.into()), move |(words, bytes)| {
            words.fill(i);
            bytes.fill(1);
            let thread = std::thread::current().name().unwrap_or_default().to_owned();
            to.send((words.as_ptr().addr() as u64, thread))?;
            Ok(())
        })
    });
    let feeder = Feeder::builder(&gpu).fillers(2).depth(3).start(batches).unwrap();
    for batch in feeder.on(&work) {
        let batch = batch.unwrap();
        assert_eq!(batch.views().0.to_vec(&work).unwrap(), vec![batch.number(); 100]);
    }
    let mut places = std::collections::BTreeSet::new();
    for (address, thread) in filled.try_iter() {
        assert!(thread.starts_with("millpond-feed "), "{thread}");
        sim.host_reads(millpond::units::Addr(address), 800).expect("it is pinned memory of the device's");
        places.insert(address);
    }
    assert!(places.len() <= 3, "as many slots as the depth: {places:?}");
    drop((feeder, work, gpu));
    clean(&sim);
}

/// G11: a batch of several fields is copied once, by one call.
#[test]
fn g11_a_batch_is_copied_once() {
    let (sim, gpu) = late();
    let work = gpu.stream().unwrap();
    let batches = (0..25_i32).map(|i| (vec![i; 9], vec![0_u8; 5], [1.0_f64; 2]));
    let feeder = Feeder::builder(&gpu).fillers(2).start(batches).unwrap();
    let copies = || sim.ledger().calls_of(millpond_sim::Call::MemcpyHtoD);
    assert_eq!(feeder.on(&work).map(Result::unwrap).count(), 25);
    assert_eq!(copies(), 25);
    drop((feeder, work, gpu));
    clean(&sim);
}
