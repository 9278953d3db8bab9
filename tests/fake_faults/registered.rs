//! Large pinned segments over the stand-in driver: registered pages where they can be, the driver's own memory where anything of that is refused,
//! and nothing left of what was refused.

use super::{Fake, GIB, MIB, When, fake};
use millpond::cuda::Cuda;
use millpond::driver::{Host, HostKind, OwnedHost};
use millpond::{Allocator, Config, DriverErrorKind, Trim};

/// The smallest segment that is registered.
const LARGE: u64 = 64 * MIB;

/// How many ranges were registered, and allocated by the driver.
fn pinned(fake: &Fake) -> (u64, u64) {
    (fake.calls("cuMemHostRegister_v2"), fake.calls("cuMemHostAlloc"))
}

#[allow(unsafe_code, reason = "memory by its address")]
fn is_zero_and_writable(of: &OwnedHost<Cuda>) {
    // SAFETY: so many bytes are pinned there, and nothing else looks at them.
    let all = unsafe { std::slice::from_raw_parts_mut(of.ptr().as_ptr(), of.bytes() as usize) };
    assert!(all.iter().all(|&b| b == 0), "new pinned memory is zero");
    all.fill(0xAB);
}

/// Large cached segments are registered; small ones and write-combined ones are the driver's. Each goes back where it came from.
#[test]
fn large_segments_are_registered_pages() {
    let Some(fake) = fake(When::Latest) else { return };
    {
        let cuda = Cuda::new(0).expect("the stand-in");
        for (size, kind, registers) in [
            (LARGE, HostKind::Cached, true),
            (LARGE + 512, HostKind::Cached, true),
            (LARGE - 512, HostKind::Cached, false),
            (LARGE, HostKind::WriteCombined, false),
        ] {
            let (before, freed) = (pinned(&fake), fake.calls("cuMemFreeHost"));
            let range = cuda.pin(size, kind).expect("pinned");
            let (registered, allocated) = (pinned(&fake).0 - before.0, pinned(&fake).1 - before.1);
            assert_eq!(
                (registered, allocated),
                (u64::from(registers), u64::from(!registers)),
                "{size} {kind:?}"
            );
            assert_eq!(
                cuda.outstanding(),
                [format!("{size} bytes of pinned memory at {:#x}", range.addr().0)]
            );
            is_zero_and_writable(&range);
            range.release().map_err(|(_, e)| e).expect("unpinned");
            assert_eq!(fake.calls("cuMemFreeHost") - freed, u64::from(!registers));
            assert!(cuda.outstanding().is_empty());
        }
        assert_eq!(fake.calls("cuMemHostUnregister"), 2);
    }
    assert_eq!((fake.verdict(), fake.leaks()), (None, None));
}

/// Whatever the driver says to a registration, the segment comes from its own call. Only what it will always say is not tried again.
#[test]
fn a_refused_registration_is_an_ordinary_allocation() {
    for (code, again) in
        [(2, true), (1, true), (712, true), (999, true), (54_321, true), (801, false), (800, false)]
    {
        let Some(fake) = fake(When::Latest) else { return };
        {
            let cuda = Cuda::new(0).expect("the stand-in");
            fake.fail_next("cuMemHostRegister_v2", 1, code);
            let range = cuda.pin(LARGE, HostKind::Cached).expect("pinned");
            assert_eq!(pinned(&fake), (1, 1), "code {code}");
            is_zero_and_writable(&range);
            drop(range);
            drop(cuda.pin(LARGE, HostKind::Cached).expect("pinned"));
            assert_eq!(pinned(&fake), if again { (2, 1) } else { (1, 2) }, "code {code}");
            // Out of memory stays out of memory.
            fake.fail_next("cuMemHostRegister_v2", 1, 2);
            fake.fail_next("cuMemHostAlloc", 1, 2);
            let refused = cuda.pin(LARGE, HostKind::Cached).expect_err("there is none");
            assert!(refused.is_out_of_memory(), "{refused}");
        }
        assert_eq!((fake.verdict(), fake.leaks()), (None, None), "code {code}");
    }
}

/// A device whose address for registered memory is not the CPU's does not register; nor does one that cannot be queried.
#[test]
fn a_device_that_cannot_register_is_not_asked_to() {
    const SAME_ADDRESS: u32 = 91;
    let Some(fake) = fake(When::Latest) else { return };
    fake.attribute(SAME_ADDRESS, 0);
    {
        let cuda = Cuda::new(0).expect("the stand-in");
        drop(cuda.pin(LARGE, HostKind::Cached).expect("pinned"));
        assert_eq!(pinned(&fake), (0, 1));
        let gpu = Allocator::new(cuda, Config::default()).expect("an allocator");
        let (owner, e) = gpu.register(vec![1_u8; 100]).expect_err("it cannot");
        assert!(e.to_string().contains("another address"), "{e}");
        assert_eq!(owner, [1; 100]);
    }
    assert_eq!((fake.verdict(), fake.leaks()), (None, None));
    fake.reset(GIB, 1, When::Latest);
    {
        let cuda = Cuda::new(0).expect("the stand-in");
        fake.fail_next("cuDeviceGetAttribute", 1, 999);
        drop(cuda.pin(LARGE, HostKind::Cached).expect("pinned"));
        assert_eq!(pinned(&fake), (0, 1), "it is not known");
        drop(cuda.pin(LARGE, HostKind::Cached).expect("pinned"));
        assert_eq!(pinned(&fake), (1, 1), "the next time it is queried again");
    }
    assert_eq!((fake.verdict(), fake.leaks()), (None, None));
}

/// A segment whose registration cannot be ended is still pinned and whole, and goes back the next time.
#[test]
fn a_registration_that_cannot_end_stays() {
    let Some(fake) = fake(When::Latest) else { return };
    {
        let cuda = Cuda::new(0).expect("the stand-in");
        let range = cuda.pin(LARGE, HostKind::Cached).expect("pinned");
        fake.fail_next("cuMemHostUnregister", 1, 999);
        let (range, e) = range.release().expect_err("the driver refuses");
        assert_eq!((e.code, e.call), (999, "cuMemHostUnregister"));
        assert_eq!(cuda.outstanding().len(), 1);
        is_zero_and_writable(&range);
        drop(range);
        assert!(cuda.outstanding().is_empty());

        // Through the allocator: the trim says so, the segment serves on, and the next trim gives it back.
        let gpu = Allocator::new(cuda.clone(), Config::default()).expect("an allocator");
        drop(gpu.alloc_pinned(MIB).expect("pinned"));
        fake.fail_next("cuMemHostUnregister", 1, 1);
        gpu.trim(Trim::All).expect_err("the driver refuses");
        let before = pinned(&fake);
        drop(gpu.alloc_pinned(MIB).expect("it is there"));
        assert_eq!(pinned(&fake), before);
        assert_eq!(gpu.trim(Trim::All).expect("now it goes").bytes, LARGE);
        assert!(cuda.outstanding().is_empty());
    }
    assert_eq!((fake.verdict(), fake.leaks()), (None, None));
}

/// Copies from and into registered segments, and from the program's own memory, while the device runs as late as it may.
#[test]
fn copies_use_registered_memory() {
    let Some(fake) = fake(When::Latest) else { return };
    {
        let gpu =
            Allocator::new(Cuda::new(0).expect("the stand-in"), Config::default()).expect("an allocator");
        let s = gpu.stream().expect("a stream");
        let host = gpu.pinned_from_fn(100_000, |i| i as u32).expect("pinned");
        assert_eq!(pinned(&fake), (1, 0));
        let (x, sent) = gpu.array_from_pinned(host, &s).expect("queued");
        let back = x.to_pinned(&s).expect("queued");
        assert!(back.wait().expect("done").iter().enumerate().all(|(i, &v)| v == i as u32));
        drop(sent);

        let own =
            gpu.register((0..5000_u32).rev().collect::<Vec<_>>()).map_err(|(_, e)| e).expect("registered");
        let (y, sent) = gpu.array_from_pinned(own, &s).expect("queued");
        let own = sent.wait().expect("done").into_inner().map_err(|(_, e)| e).expect("ended");
        assert_eq!(y.to_vec(&s).expect("copied"), own);
        let gone = gpu.register(own.into_boxed_slice()).map_err(|(_, e)| e).expect("registered");
        drop(gone);
        assert_eq!(fake.calls("cuMemHostUnregister"), 1, "a drop waits for nothing");
        gpu.trim(Trim::All).expect("trimmed");
        assert!(fake.calls("cuMemHostUnregister") >= 2);
        fake.fail_next("cuMemHostRegister_v2", 1, 2);
        let (_, e) = gpu.register(vec![0_u64; 1000]).expect_err("the driver refuses");
        assert!(matches!(e, millpond::Error::Driver(e) if e.kind == DriverErrorKind::OutOfMemory));
    }
    assert_eq!((fake.verdict(), fake.leaks()), (None, None));
}
