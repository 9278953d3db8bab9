//! What can be known without a driver: the errors' words, the meaning of codes, the table.

use super::probe::{self, PATH_VARIABLE};
use super::table::{Call, Calls, Table, kind_of};
use super::*;
use millpond_driver::{DriverError, DriverErrorKind};

/// A library that is certainly there and certainly no GPU driver.
#[cfg(target_os = "linux")]
const NOT_A_DRIVER: &str = "libc.so.6";

#[test]
#[cfg(target_os = "linux")]
fn a_missing_library_names_what_was_tried_and_why() {
    // The third is there, and no library.
    let names = [
        "libmillpond-no-such-driver.so.1",
        "/nowhere/libcuda.so",
        concat!(env!("CARGO_MANIFEST_DIR"), "/src"),
    ];
    let Err(Unavailable::DriverMissing { tried }) = probe::open(&names) else {
        panic!("a library that does not exist was opened")
    };
    assert_eq!(tried[..2], names[..2], "no more to say than that it is not there");
    let reason = tried[2].strip_prefix(names[2]).expect("the name comes first");
    assert!(reason.starts_with(": ") && reason.len() > 2 && !reason.contains('\n'), "{reason}");
    assert!(!reason.contains(names[2]), "the name once: {}", tried[2]);
    let said = Unavailable::DriverMissing { tried }.to_string();
    assert!(said.contains("no NVIDIA driver") && said.contains("simulated device"), "{said}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_library_without_the_functions_is_called_by_the_missing_name() {
    let library = probe::open(&[NOT_A_DRIVER]).expect("the C library");
    match Table::resolve(&library) {
        Err(Unavailable::SymbolMissing { name }) => assert_eq!(name, Table::REQUIRED[0]),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("the C library has no driver functions"),
    }
    assert_eq!(probe::look(library).err(), Some(Unavailable::SymbolMissing { name: "cuDriverGetVersion" }));
}

#[test]
fn opening_a_device_gives_a_device_or_one_sentence() {
    // Without a driver this is the error; on a machine with one (or with the stand-in on the library path), the device.
    match Cuda::new(0) {
        Ok(cuda) => {
            assert!(cuda.driver_version() >= probe::OLDEST);
            assert_eq!(Cuda::devices().expect("counted").min(1), 1);
        }
        Err(why) => {
            let said = why.to_string();
            assert!(!said.is_empty() && !said.contains('\n'), "{said}");
            assert_eq!(Cuda::new(0).err(), Some(why), "the answer is the same the second time");
        }
    }
    let Err(why) = Cuda::new(u32::MAX) else { panic!("there is no device {}", u32::MAX) };
    match why {
        Unavailable::DriverMissing { tried } => {
            let alone = std::env::var_os(PATH_VARIABLE).is_some_and(|p| !p.is_empty());
            assert_eq!(tried.len(), if alone { 1 } else { 3 }, "{tried:?}");
        }
        Unavailable::NoDevice { requested, .. } => assert_eq!(requested, u32::MAX),
        Unavailable::DriverTooOld { need, have } => assert!(have < need),
        other => assert!(!other.to_string().is_empty()),
    }
}

#[test]
fn unavailable_says_what_to_do() {
    let said = |u: Unavailable| u.to_string();
    let old = said(Unavailable::DriverTooOld { need: 11_040, have: 10_020 });
    assert_eq!(old, "the NVIDIA driver supports CUDA 10.2, 11.4 is needed: install a newer driver");
    assert!(said(Unavailable::SymbolMissing { name: "cuMemAlloc_v2" }).contains("cuMemAlloc_v2"));
    assert!(said(Unavailable::NoDevice { requested: 0, found: 0 }).contains("sees none"));
    let none = said(Unavailable::NoDevice { requested: 3, found: 2 });
    assert!(none.contains("device 3") && none.contains("there are 2"), "{none}");
}

#[test]
fn codes_have_meanings_and_unknown_ones_are_data() {
    use DriverErrorKind::{
        Capturing, ContextLost, InvalidHandle, InvalidValue, NotSupported, Other, OutOfMemory,
    };
    let table = [
        (1, InvalidValue),
        (2, OutOfMemory),
        (3, ContextLost),
        (4, ContextLost),
        (100, Other),
        (201, InvalidHandle),
        (400, InvalidHandle),
        (600, Other),
        (700, ContextLost),
        (701, Other),
        (709, ContextLost),
        (710, ContextLost),
        (714, ContextLost),
        (719, ContextLost),
        (720, Other),
        (801, NotSupported),
        (899, Other),
        (900, Capturing),
        (906, Capturing),
        (908, Capturing),
        (909, Other),
        (999, Other),
        (123_456, Other),
        (u32::MAX, Other),
    ];
    for (code, kind) in table {
        assert_eq!(kind_of(code), kind, "code {code}");
    }
}

/// Of the three calls that query an event, or wait for it, and of no other.
#[test]
fn an_invalid_event_is_one_that_a_capture_took() {
    use super::table::{Call, kind_of_answer};
    for call in [Call::event_query, Call::event_synchronize, Call::stream_wait_event] {
        assert_eq!(kind_of_answer(call, 1), DriverErrorKind::Capturing);
        assert_eq!(kind_of_answer(call, 2), DriverErrorKind::OutOfMemory);
    }
    assert_eq!(kind_of_answer(Call::event_record, 1), DriverErrorKind::InvalidValue);
}

#[test]
fn errors_after_the_drivers_end_are_ignored_in_destructors() {
    let error = |code| DriverError::new("cuStreamDestroy", code, kind_of(code), "");
    assert!(context::means_driver_is_gone(&error(4)), "the driver was shut down");
    assert!(context::means_driver_is_gone(&error(709)), "the context was destroyed");
    assert!(!context::means_driver_is_gone(&error(700)), "a kernel went wrong");
    assert!(!context::means_driver_is_gone(&error(400)));
}

#[test]
fn calls_are_counted_by_name_until_counting_is_off() {
    let calls = Calls::new();
    calls.count(Call::mem_alloc);
    calls.count(Call::mem_alloc);
    calls.count(Call::event_query);
    assert_eq!(calls.list(), [("cuEventQuery", 1), ("cuMemAlloc", 2)]);
    calls.switch(false);
    calls.count(Call::mem_alloc);
    assert_eq!(calls.list(), [("cuEventQuery", 1), ("cuMemAlloc", 2)]);
}

#[test]
fn names_in_errors_lose_their_symbols_version() {
    assert_eq!(Call::mem_alloc.name(), "cuMemAlloc");
    assert_eq!(Call::ctx_pop.name(), "cuCtxPopCurrent");
    assert_eq!(Call::func_load.name(), "cuFuncLoad", "the last of the table");
    let unique: std::collections::HashSet<_> = Table::REQUIRED.iter().collect();
    assert_eq!(unique.len(), Table::REQUIRED.len(), "no symbol twice");
}

#[test]
fn handles_may_be_used_and_dropped_on_any_thread() {
    fn travels<T: Send + Sync + 'static>() {}
    travels::<Cuda>();
    travels::<GpuStream>();
    travels::<GpuEvent>();
    travels::<GpuGate>();
    travels::<GpuHandle>();
}
