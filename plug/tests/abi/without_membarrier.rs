//! A process that restricts its system calls once it has allocators: the kernel's fences (membarrier(2)), which are needed to free the records
//! of ended allocators, are refused from then on. Allocators that end after that are kept, and nothing fails.

use super::{Door, MIB, OK, UNKNOWN_ALLOCATOR, alone, bind, program, stream};
use std::ffi::{c_int, c_long, c_ulong};

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
    fn prctl(option: c_int, ...) -> c_int;
}

const MEMBARRIER: c_long = if cfg!(target_arch = "x86_64") { 324 } else { 283 };

/// After this many ended allocators the record of the first one is freed.
const MORE: usize = 100;

fn come_and_go() {
    for _ in 0..MORE {
        Door::new("").destroy();
    }
}

/// From now on membarrier(2) is refused to the calling thread, by a filter of system calls.
fn forbid_membarrier() {
    #[repr(C)]
    struct Step {
        code: u16,
        if_so: u8,
        if_not: u8,
        value: u32,
    }
    #[repr(C)]
    struct Filter {
        steps: u16,
        first: *const Step,
    }
    const fn step(code: u16, value: u32) -> Step {
        Step { code, if_so: 0, if_not: if code == 0x15 { 1 } else { 0 }, value }
    }
    // Loads the call's number: that call fails with EPERM, and every other one is allowed.
    let steps =
        [step(0x20, 0), step(0x15, MEMBARRIER as u32), step(0x06, 0x0005_0001), step(0x06, 0x7fff_0000)];
    let filter = Filter { steps: steps.len() as u16, first: steps.as_ptr() };
    let (no, yes): (c_ulong, c_ulong) = (0, 1);
    // SAFETY: prctl(2) with no new privileges, and a filter given by a pointer to its steps, which the kernel copies.
    let done = unsafe { [prctl(38, yes, no, no, no), prctl(22, 2 as c_ulong, &raw const filter)] };
    assert_eq!(done, [0; 2], "the kernel accepts the filter");
    assert_eq!(fences(), -1, "and applies it");
}

/// Which fences the kernel supports.
fn fences() -> c_long {
    // SAFETY: membarrier(2) with the command that queries the supported commands.
    unsafe { syscall(MEMBARRIER, 0 as c_int, 0 as c_int, 0 as c_int) }
}

#[test]
fn allocators_that_end_where_the_kernel_refuses_are_kept() {
    alone("without_membarrier::allocators_that_end_where_the_kernel_refuses_are_kept", |fake| {
        let cuda = program();
        bind(&cuda);
        let s = stream(&cuda);
        // This one ends before the filter, and its record is freed.
        let first = Door::new("");
        first.destroy();
        come_and_go();
        assert_eq!(first.one("millpond_synchronize"), UNKNOWN_ALLOCATOR);
        if fences() < 0 {
            println!("SKIPPED: this kernel does not support membarrier");
            return;
        }
        let door = Door::new("");
        let x = door.alloc(MIB, &s);
        forbid_membarrier();
        let after = Door::new("");
        after.destroy();
        come_and_go();
        assert_eq!(after.one("millpond_synchronize"), OK, "the ended allocator is kept");
        let y = door.alloc(MIB, &s);
        assert_eq!([door.free(x), door.free(y)], [OK; 2]);
        door.destroy();
        assert_eq!((door.stat("reserved"), fake.verdict()), (0, None));
    });
}
