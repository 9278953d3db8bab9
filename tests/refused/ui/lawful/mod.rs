//! The twins of the programs that must not compile: compiled and run by `tests/refused.rs`.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::float_cmp,
    clippy::unnecessary_wraps,
    reason = "each is a program of its own beside its mistake"
)]

/// What a program comes to.
pub(crate) type Outcome = Result<(), Box<dyn std::error::Error>>;

macro_rules! twins {
    ($($name:ident)*) => {
        $(mod $name;)*
        /// Each by its name.
        pub(crate) const ALL: &[(&str, fn() -> Outcome)] = &[$((stringify!($name), $name::main)),*];
    };
}

twins! {
    array_after_into_allocation
    array_of_bool
    device_memory_read_by_the_host
    download_read_early
    element_types_differ_in_a_copy
    element_types_differ_inside_the_device
    element_without_a_promise
    guard_held_across_a_write
    guards_to_write_one_array
    host_memory_read_by_a_kernel
    host_memory_written_by_a_kernel
    operand_after_its_array
    pooled_slice_as_cudarcs_own
    pooled_slice_swapped
    read_and_written_in_one_launch
    scope_escapes
    scope_source_dropped
    scope_source_too_short
    scope_target_read_early
    shared_source_written_in_flight
    source_dropped_in_flight
    source_written_in_flight
    view_outlives_its_array
    views_overlap
    written_under_a_view
}
