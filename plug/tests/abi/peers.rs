//! Which memory an allocator has for kernels of other GPUs, which may not access what is mapped on one.

use super::{Door, GIB, OK, When, alone, function, last};
use std::ffi::{CStr, c_char, c_int};

/// `PyTorch`'s allocator of a device, made with these options.
fn of_pytorch(device: c_int, options: &CStr) -> Door {
    let of = function::<extern "C" fn(c_int, *const c_char, *mut u32) -> c_int>("millpond_torch_allocator");
    let mut number = 0;
    assert_eq!(of(device, options.as_ptr(), &raw mut number), OK, "{}", last());
    Door(number)
}

fn has_windows(door: Door) -> bool {
    !door.stats().contains("\"physical\":null")
}

/// `PyTorch`'s kernels access other GPUs' memory: where the process sees several, its allocators have plain segments unless virtual memory was asked for.
#[test]
fn pytorch_has_plain_segments_beside_other_gpus() {
    alone("peers::pytorch_has_plain_segments_beside_other_gpus", |fake| {
        fake.reset(GIB, 3, When::Earliest);
        assert!(has_windows(Door::new("")), "any other allocator");
        assert!(!has_windows(of_pytorch(0, c"limit=64MiB,")));
        assert!(has_windows(of_pytorch(1, c"limit=64MiB, Virtual=auto")));
        assert!(!has_windows(of_pytorch(2, c"virtual=never")));
        assert_eq!(fake.verdict(), None);
    });
}

/// With one GPU it has virtual memory, as any other allocator.
#[test]
fn pytorch_has_windows_on_a_gpu_alone() {
    alone("peers::pytorch_has_windows_on_a_gpu_alone", |fake| {
        fake.reset(GIB, 1, When::Earliest);
        assert!(has_windows(of_pytorch(0, c"limit=64MiB")));
        assert_eq!(fake.verdict(), None);
    });
}
