//! Copies and their tokens: the contents that arrive, which streams wait, and what owns the memory meanwhile.

#![allow(clippy::many_single_char_names, reason = "b is the bench; s, t, u are streams; x, y arrays")]

use super::*;
use millpond::transfer::{Part, scope};
use millpond::{Error, PinnedArray, Shape};
use std::sync::Arc;

type Pinned<E, B> = PinnedArray<E, <B as Bench>::Device>;

fn numbers<T: Bench>(gpu: &Allocator<T::Device>, n: usize, from: u32) -> Pinned<u32, T> {
    gpu.pinned_from_fn(n, |i| from.wrapping_add((i as u32).wrapping_mul(2_654_435_761))).expect("pinned")
}

pub fn a_source_comes_back_and_its_elements_arrive<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default());
    let s = gpu.stream().expect("a stream");
    let mut x = gpu.zeros::<u32>(10_000, &s).expect("an array");
    let host = numbers::<T>(&gpu, 10_000, 7);
    let first = host.as_ptr();
    let sent = x.copy_from(host, &s).expect("queued");
    let mut host = sent.wait().expect("done");
    assert_eq!(host.as_ptr(), first, "the same memory, not a copy");
    let expected = host.to_vec();
    host.fill(0);
    let back = x.to_pinned(&s).expect("queued").wait().expect("done");
    assert!(back[..] == expected[..]);
    let part = x.slice_mut(100..200).copy_from(Part::new(host, 5..105), &s).expect("queued");
    assert_eq!(part.wait().expect("done").range(), 5..105);
    let back = x.to_vec(&s).expect("read");
    assert!(back[..100] == expected[..100] && back[100..200] == [0; 100] && back[200..] == expected[200..]);
    let (y, sent) = gpu.array_from_pinned(numbers::<T>(&gpu, 500, 1), &s).expect("an array");
    assert_eq!(y.to_vec(&s).expect("read"), &sent.wait().expect("done")[..]);
}

pub fn later_work_waits_for_the_copy_and_the_host_does_not<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default());
    let (copy, work) = (gpu.stream().expect("a stream"), gpu.stream().expect("a stream"));
    let mut x = gpu.zeros::<u32>(1000, &copy).expect("an array");
    let mut y = gpu.zeros::<u32>(1000, &work).expect("an array");
    let gate = b.gate(copy.native());
    let sent = x.copy_from(numbers::<T>(&gpu, 1000, 3), &copy).expect("queued");
    y.copy_from_device(&x, &work).expect("queued");
    let back = y.to_pinned(&work).expect("queued");
    assert!(!sent.is_done().expect("an answer") && !back.is_done().expect("an answer"));
    let (sent, back) = (sent.try_into_inner().expect_err("held"), back.try_into_inner().expect_err("held"));
    b.open(gate);
    let back = back.wait().expect("done");
    assert!(back[..] == sent.wait().expect("done")[..]);
}

/// A copy's marker is right after it: work that its stream gets later delays nothing.
pub fn what_comes_after_a_copy_holds_back_no_waiter<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default());
    let (copy, work) = (gpu.stream().expect("a stream"), gpu.stream().expect("a stream"));
    let mut x = gpu.zeros::<u32>(1000, &copy).expect("an array");
    let host = numbers::<T>(&gpu, 1000, 3);
    let expected = host.to_vec();
    let sent = x.copy_from(host, &copy).expect("queued");
    let gate = b.gate(copy.native());
    let back = x.to_pinned(&work).expect("queued").wait().expect("the gate is behind the copy");
    assert!(back[..] == expected[..]);
    drop(sent.wait().expect("the gate is behind the copy"));
    b.open(gate);
}

pub fn reads_wait_for_no_reads_and_writes_for_reads<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default());
    let (s, t, u) =
        (gpu.stream().expect("a stream"), gpu.stream().expect("a stream"), gpu.stream().expect("a stream"));
    let mut x = gpu.zeros::<u32>(1000, &s).expect("an array");
    // So that both streams are ordered after the fill.
    x.wait_on(&t).expect("ordered");
    x.wait_on(&u).expect("ordered");
    let gate = b.gate(t.native());
    let slow = x.to_pinned(&t).expect("queued");
    let quick = x.to_pinned(&u).expect("queued").wait().expect("a read waits for no read");
    assert!(quick.iter().all(|&v| v == 0) && !slow.is_done().expect("an answer"));
    x.fill_bytes(0xFF, &u).expect("filled");
    let behind = mark(b, u.native());
    assert!(pending(b, &behind), "a write waits for the read");
    b.open(gate);
    assert!(slow.wait().expect("done").iter().all(|&v| v == 0), "what was there before the write");
    assert!(x.to_vec(&s).expect("read").iter().all(|&v| v == u32::MAX));
}

/// S17, P9, H1: while the copy is pending, the next pinned array of the same size gets other bytes.
pub fn a_dropped_token_keeps_its_memory<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default());
    let s = gpu.stream().expect("a stream");
    let mut x = gpu.zeros::<u32>(5000, &s).expect("an array");
    let host = numbers::<T>(&gpu, 5000, 11);
    let (expected, first) = (host.to_vec(), host.as_ptr());
    let gate = b.gate(s.native());
    drop(x.copy_from(host, &s).expect("queued"));
    let back = x.to_pinned(&s).expect("queued");
    drop(x.to_pinned(&s).expect("queued"));
    for _ in 0..4 {
        let mut next = gpu.pinned_uninit::<u32>(5000).expect("pinned");
        assert_ne!(next.as_ptr(), first, "the copy has not read it");
        next.fill(0xBAD);
    }
    b.open(gate);
    assert!(back.wait().expect("done")[..] == expected[..]);
    gpu.synchronize().expect("waited");
    let again = gpu.pinned_uninit::<u32>(5000).expect("pinned");
    assert_eq!(again.as_ptr(), first, "it came back when the copy was done");
}

pub fn a_forgotten_token_costs_memory_and_nothing_else<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default());
    let s = gpu.stream().expect("a stream");
    let mut x = gpu.zeros::<u32>(5000, &s).expect("an array");
    let gate = b.gate(s.native());
    let sent = x.copy_from(Arc::new(numbers::<T>(&gpu, 5000, 2)), &s).expect("queued");
    let kept = std::mem::ManuallyDrop::new(sent);
    let back = std::mem::ManuallyDrop::new(x.to_pinned(&s).expect("queued"));
    drop(x);
    let mut y = gpu.zeros::<u32>(5000, &s).expect("an array");
    y.fill_bytes(1, &s).expect("filled");
    b.open(gate);
    assert!(y.to_vec(&s).expect("read").iter().all(|&v| v == 0x0101_0101));
    // Dropped after all, so that nothing is left at the end.
    drop(std::mem::ManuallyDrop::into_inner(kept));
    drop(std::mem::ManuallyDrop::into_inner(back));
}

pub fn a_shared_source_lives_until_every_copy_is_done<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default());
    let (s, t) = (gpu.stream().expect("a stream"), gpu.stream().expect("a stream"));
    let host = Arc::new(numbers::<T>(&gpu, 3000, 5));
    let mut all: Vec<_> = (0..3).map(|_| gpu.zeros::<u32>(3000, &s).expect("an array")).collect();
    let gate = b.gate(t.native());
    for x in &mut all {
        drop(x.copy_from(Arc::clone(&host), &t).expect("queued"));
    }
    gpu.deliver_events();
    assert_eq!(Arc::strong_count(&host), 4, "the deferred drops have one for each copy");
    b.open(gate);
    gpu.synchronize().expect("waited");
    assert_eq!(Arc::strong_count(&host), 1, "all done");
    for x in &all {
        assert!(x.to_vec(&s).expect("read") == host[..]);
    }
    // A token may be the last owner of everything. The memory of the device does not wait for the token, but for the work on it: the gate
    // is opened before the last handle of this memory is dropped.
    let gate = b.gate(t.native());
    let sent = all[0].copy_from(host, &t).expect("queued");
    b.open(gate);
    drop((all, s, t, gpu));
    drop(sent);
}

pub fn the_shapes_of_both_sides_are_compared<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default());
    let s = gpu.stream().expect("a stream");
    let mut x = gpu.zeros::<f32>([4, 6], &s).expect("an array");
    let mut host = gpu.pinned_from_fn([3, 8], |i| i as f32).expect("pinned");
    for _ in 0..2 {
        let refused = x.copy_from(host, &s).expect_err("as many elements, in another shape");
        let said = refused.to_string();
        assert!(said.contains("[4, 6] of f32") && said.contains("[3, 8] of f32"), "{said}");
        assert!(matches!(refused.error, Error::Mismatch(_)));
        host = refused.host.expect("nothing was queued");
        let refused = x.copy_to(host, &s).expect_err("in this direction too");
        host = refused.host.expect("nothing was queued");
    }
    host.reshape([4, 6]).expect("as many elements");
    let mut host = x.copy_from(host, &s).expect("queued").wait().expect("done");
    host.reshape(24).expect("as many elements");
    drop(x.rows_mut(1..2).copy_from(host, &s).expect_err("24 are not 6"));
    let y = gpu.zeros::<f32>(24, &s).expect("an array");
    let refused = x.copy_from_device(&y, &s).expect_err("[24] is not [4, 6]");
    assert!(matches!(&refused, Error::Mismatch(m) if m.verb == "copy_from_device"), "{refused}");
    x.copy_from_device(y.view().reshape([4, 6]).expect("as many"), &s).expect("queued");
    // A slice has only a length: the error has the lengths of both sides.
    let refused = x.copy_from_slice(&[0.0; 25], &s).expect_err("25 are not 24").to_string();
    assert!(refused.contains("24 elements") && refused.contains("25 elements"), "{refused}");
    let refused = x.copy_to_slice(&mut [0.0; 23], &s).expect_err("23 are not 24").to_string();
    assert!(refused.contains("24 elements") && refused.contains("23 elements"), "{refused}");
}

pub fn nothing_is_copied_too<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default());
    let s = gpu.stream().expect("a stream");
    let mut x = gpu.zeros::<u16>([0, 5], &s).expect("an array");
    let host = gpu.pinned_zeros::<u16>([0, 5]).expect("pinned");
    let sent = x.copy_from(host, &s).expect("nothing");
    assert!(sent.is_done().expect("an answer") && sent.event().is_none());
    let host = sent.try_into_inner().expect("done");
    assert!(x.copy_to(host, &s).expect("nothing").wait().expect("done").is_empty());
    x.copy_from_slice(&[], &s).expect("nothing");
    assert!(x.to_vec(&s).expect("nothing").is_empty());
    let host = gpu.pinned_zeros::<u16>([0, 5]).expect("pinned");
    scope(&s, |copies| copies.upload(&mut x, host.view())).expect("nothing").expect("nothing");
}

pub fn pageable_memory_goes_through_slots<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default().staging_threads(1));
    let (s, t) = (gpu.stream().expect("a stream"), gpu.stream().expect("a stream"));
    // A little more than four slots, so that slots are reused.
    let n = (4 << 20) + 333;
    let mut data: Vec<u32> = (0..n as u32).map(|i| i.wrapping_mul(40_503)).collect();
    let mut x = gpu.array_from_slice(&data, &s).expect("an array");
    data[0] = !data[0];
    x.slice_mut(..1).copy_from_slice(&data[..1], &s).expect("copied");
    let mut back = vec![0; n];
    x.copy_to_slice(&mut back, &t).expect("read");
    assert!(back == data);
    assert!(x.slice(n - 10..).to_vec(&t).expect("read") == data[n - 10..]);
    let held = gpu.report().pinned.expect("slots").allocated_peak;
    assert!(held <= 24 << 20, "slots of both directions, not the whole: {held}");
}

/// A slice may be in pinned memory: the copy for pageable memory reads it before it returns all the same.
pub fn a_staged_source_is_free_at_return<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default());
    let s = gpu.stream().expect("a stream");
    let mut x = gpu.zeros::<u32>(1000, &s).expect("an array");
    let mut host = numbers::<T>(&gpu, 1000, 9);
    let expected = host.to_vec();
    let gate = b.gate(s.native());
    x.copy_from_slice(&host, &s).expect("staged");
    host.fill(0);
    b.open(gate);
    assert!(x.to_vec(&s).expect("read") == expected);
}

pub fn arrays_are_copied_inside_the_device<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default());
    let (s, t) = (gpu.stream().expect("a stream"), gpu.stream().expect("a stream"));
    let x = gpu.array_from_slice(&[1_u8, 2, 3, 4, 5, 6], &s).expect("an array");
    let mut y = x.duplicate(&t).expect("a copy");
    y.slice_mut(0..2).copy_from_device(x.slice(4..6), &s).expect("queued");
    let (low, high) = y.split_at_mut(3);
    low.slice(0..1).copy_from_device(high.view().slice(2..), &t).expect("two parts of one array");
    assert_eq!(y.to_vec(&s).expect("read"), [6, 6, 3, 4, 5, 6]);
    assert_eq!(x.to_vec(&t).expect("read"), [1, 2, 3, 4, 5, 6]);
}

pub fn rows_that_lie_apart<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default());
    let (s, t) = (gpu.stream().expect("a stream"), gpu.stream().expect("a stream"));
    let (rows, columns) = (40, 100);
    let all: Vec<u16> = (0..rows * columns).map(|i| i as u16).collect();
    let x = gpu.array_from_slice(&all, &s).expect("an array");
    // The window of 10 columns from column 30 on, rows 5 to 24.
    let window = x.view().slice(5 * columns + 30..).plane(20, 10, columns).expect("inside");
    let packed = window.to_pinned(&t).expect("queued").wait().expect("done");
    assert_eq!(packed.shape(), Shape::from([20, 10]));
    let at = |row: usize, column: usize| ((row + 5) * columns + 30 + column) as u16;
    assert!(packed.iter().enumerate().all(|(i, &v)| v == at(i / 10, i % 10)));

    let mut y = gpu.zeros::<u16>([32, 64], &t).expect("an array");
    y.view_mut().plane(20, 10, 64).expect("inside").copy_from_plane(&window, &s).expect("queued");
    drop(
        y.slice_mut(3 * 64 + 20..).plane(20, 10, 64).expect("inside").copy_from(packed, &t).expect("queued"),
    );
    let y = y.to_vec(&s).expect("read");
    for (i, &v) in y.iter().enumerate() {
        let (row, column) = (i / 64, i % 64);
        let expected = match (row, column) {
            (0..20, 0..10) => at(row, column),
            (3..23, 20..30) => at(row - 3, column - 20),
            _ => 0,
        };
        assert_eq!(v, expected, "row {row}, column {column}");
    }
    for (rows, width, pitch) in [(40, 101, 100), (41, 1, 100), (40, 70, 101), (usize::MAX, 2, usize::MAX)] {
        let refused = x.view().plane(rows, width, pitch).expect_err("not inside");
        assert!(matches!(refused, Error::Mismatch(_)), "{refused}");
    }
    assert!(x.view().plane(40, 50, 50).is_ok() && x.view().plane(0, 7, 9).is_ok());
    // With one row the pitch may be any number, even one whose bytes overflow.
    let alone = x.view().plane(1, 4, usize::MAX).expect("one row").to_pinned(&s).expect("queued");
    assert_eq!(alone.wait().expect("done")[..], [0, 1, 2, 3]);
    let none = x.view().plane(0, usize::MAX, usize::MAX).expect("no row").to_pinned(&s).expect("nothing");
    assert!(none.wait().expect("done").is_empty());
}

pub fn borrowed_memory_is_waited_for<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default());
    let (s, t) = (gpu.stream().expect("a stream"), gpu.stream().expect("a stream"));
    let mut x = gpu.zeros::<u32>(100, &s).expect("an array");
    let (from, mut to) = (numbers::<T>(&gpu, 60, 1), gpu.pinned_zeros::<u32>(100).expect("pinned"));
    let answer = scope(&t, |copies| {
        copies.upload(&mut x.slice_mut(..60), from.view())?;
        let (low, high) = to.view_mut().split_at(50);
        copies.download(x.slice(..50), low)?;
        copies.download(x.slice(50..), high)?;
        Ok::<_, Error>(from.len())
    });
    assert_eq!(answer.expect("waited").expect("queued"), 60);
    assert!(to[..60] == from[..] && to[60..] == [0; 40]);

    // A panic is passed on after the wait.
    let mut to = gpu.pinned_zeros::<u32>(100).expect("pinned");
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        scope(&t, |copies| {
            copies.download(&x, to.view_mut()).expect("queued");
            panic!("in the middle");
        })
    }));
    assert!(unwound.is_err());
    assert!(to[..60] == from[..], "the copy was waited for");
    let refused = scope(&s, |copies| copies.upload(&mut x, from.view())).expect("nothing to wait for");
    assert!(matches!(refused, Err(Error::Mismatch(_))));
}

/// Tokens are dropped in any order, also after everything else.
pub fn tokens_outlive_everything<T: Bench>(b: &T) {
    for order in 0..4 {
        let gpu = allocator(b, Config::default());
        let s = gpu.stream().expect("a stream");
        let mut x = gpu.zeros::<u32>(1000, &s).expect("an array");
        let gate = b.gate(s.native());
        let sent = x.copy_from(numbers::<T>(&gpu, 1000, 4), &s).expect("queued");
        let back = x.to_pinned(&s).expect("queued");
        b.open(gate);
        match order {
            0 => {
                drop((x, s, gpu));
                assert!(back.wait().expect("done")[..] == sent.wait().expect("done")[..]);
            }
            1 => drop((gpu, s, sent, back, x)),
            2 => drop((sent, back, s, x, gpu)),
            _ => {
                let host = sent.wait().expect("done");
                drop((gpu, x, s, back));
                assert_eq!(host.len(), 1000);
            }
        }
    }
}

/// C6: a capturing stream is refused, and the error has the source; other streams can be used.
pub fn a_capturing_stream_copies_nothing<T: Bench>(b: &T) {
    let gpu = allocator(b, Config::default());
    let s = gpu.stream().expect("a stream");
    let native = stream(b);
    let theirs = gpu.adopt(native.clone()).expect("adopted");
    let mut x = gpu.zeros::<u32>(100, &s).expect("an array");
    let host = numbers::<T>(&gpu, 100, 8);
    b.begin_capture(&native);
    let refused = x.copy_from(host, &theirs).expect_err("it would replay");
    assert!(matches!(refused.error, Error::Capturing { .. }), "{refused}");
    let refused_too = x.fill_bytes(1, &theirs).expect_err("it would replay");
    assert!(matches!(refused_too, Error::Capturing { .. }), "{refused_too}");
    let sent = x.copy_from(refused.host.expect("nothing was queued"), &s).expect("other streams can be used");
    assert_eq!(b.end_capture(&native), Ok(()), "the capture survived");
    drop(sent.wait().expect("done"));
    x.fill_bytes(2, &theirs).expect("after the capture");
}
