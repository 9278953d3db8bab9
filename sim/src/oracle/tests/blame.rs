//! Who is to blame.

use super::*;

#[test]
fn a_use_on_another_stream_never_recorded_is_the_programs() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.order(1, 2);
    b.write(2, a, 0, 512);
    b.free(a);
    let c = b.alloc(1, 0, 512);
    b.write(1, c, 0, 512);
    let v = b.convicts(Property::P2, Blame::Program, Fault::MissingRecordUse);
    assert!(v.to_string().contains("record_use(&s2) on it before that"), "{v}");
}

#[test]
fn a_recorded_use_without_a_wait_is_the_allocators() {
    for before in [true, false] {
        let mut b = Bench::new();
        let a = b.alloc(1, 0, 512);
        b.order(1, 2);
        if before {
            b.used(a, 2);
        }
        b.write(2, a, 0, 512);
        if !before {
            b.used(a, 2);
        }
        b.free(a);
        let c = b.alloc(1, 0, 512);
        b.write(1, c, 0, 512);
        b.convicts_early_reuse();
    }
}

#[test]
fn another_streams_recorded_use_does_not_cover_this_one() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.order(1, 2);
    b.write(2, a, 0, 512);
    b.used(a, 3);
    b.free(a);
    let c = b.alloc(1, 0, 512);
    b.write(1, c, 0, 512);
    b.convicts(Property::P2, Blame::Program, Fault::MissingRecordUse);
}

#[test]
fn a_free_of_unknown_uses_makes_them_all_the_allocators() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.order(1, 2);
    b.write(2, a, 0, 512);
    b.oracle.freed(HOST, a, true);
    let c = b.alloc(1, 0, 512);
    b.write(1, c, 0, 512);
    b.convicts_early_reuse();
}

#[test]
fn a_use_ordered_before_the_free_is_the_allocators_though_never_recorded() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.order(1, 2);
    b.write(2, a, 0, 512);
    b.order(2, 1);
    b.free(a);
    let c = b.alloc(3, 0, 512);
    b.write(3, c, 0, 512);
    b.convicts_early_reuse();
}

#[test]
fn both_faults_at_once_are_both_reported() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.read(1, a, 0, 512);
    b.order(1, 2);
    b.read(2, a, 0, 512);
    // Stream 3 reads what stream 2 does not dominate, so that both uses are pending.
    b.read(1, a, 0, 512);
    b.free(a);
    let c = b.alloc(3, 0, 512);
    b.write(3, c, 0, 512);
    let blames: Vec<_> = b.oracle.violations().iter().map(|v| (v.blame, v.fault)).collect();
    assert_eq!(blames, [(Blame::Allocator, Fault::EarlyReuse), (Blame::Program, Fault::MissingRecordUse)]);
}

#[test]
fn one_missing_edge_is_one_violation() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.write(1, a, 0, 512);
    b.free(a);
    let c = b.alloc(2, 0, 512);
    for _ in 0..5 {
        b.write(2, c, 0, 512);
    }
    b.convicts_early_reuse();
}

#[test]
fn reuse_of_reuse_still_remembers_the_first_owner() {
    // The second owner, on stream 2, never accesses the bytes; the third accesses those of the first unordered.
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.write(1, a, 0, 512);
    b.free(a);
    let second = b.alloc(2, 0, 512);
    b.free(second);
    let third = b.alloc(2, 0, 512);
    b.write(2, third, 0, 512);
    let v = b.convicts_early_reuse();
    assert_eq!(v.earlier.as_ref().unwrap().allocation.as_ref().unwrap().id, a);
}

#[test]
fn an_untouched_owner_hands_on_what_it_was_given() {
    // Found by random programs: the second owner is ordered after the first one's write but accesses nothing, so that the
    // third, on another stream, has nothing of the second to come after.
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.write(1, a, 0, 512);
    b.free(a);
    let untouched = b.alloc(1, 0, 512);
    b.free(untouched);
    let last = b.alloc(2, 0, 512);
    b.write(2, last, 0, 512);
    let v = b.convicts_early_reuse();
    assert_eq!(v.earlier.as_ref().unwrap().allocation.as_ref().unwrap().id, a);
}

#[test]
fn an_overrun_is_the_programs_and_names_the_neighbour() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    let n = b.alloc(1, 512, 512);
    b.write(1, a, 256, 512);
    let v = b.convicts(Property::P3, Blame::Program, Fault::Overrun);
    assert_eq!(v.later.allocation.as_ref().unwrap().id, a);
    assert_eq!(v.earlier.as_ref().unwrap().allocation.as_ref().unwrap().id, n);
    assert_eq!(v.place, Some(PhysicalRange { phys: SEGMENT, offset: 256, bytes: 512 }));
}

#[test]
fn an_overrun_into_padding_counts_although_nothing_is_allocated_there() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 1000);
    b.write(1, a, 0, 1024);
    assert_eq!(b.convicts(Property::P3, Blame::Program, Fault::Overrun).earlier, None);
}

#[test]
fn an_access_wholly_outside_its_allocation_is_an_overrun() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.write(1, a, 1024, 512);
    b.convicts(Property::P3, Blame::Program, Fault::Overrun);
}

#[test]
fn the_part_of_an_overrun_that_is_inside_is_judged_too() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.write(1, a, 0, 512);
    b.free(a);
    let c = b.alloc(2, 0, 512);
    b.write(2, c, 256, 512);
    let faults: Vec<_> = b.oracle.violations().iter().map(|v| v.fault).collect();
    assert_eq!(faults, [Fault::Overrun, Fault::EarlyReuse]);
}

#[test]
fn an_allocation_of_several_pieces_is_whole() {
    let mut b = Bench::new();
    b.oracle.memory_created(PhysKey(5), Space::Device, 1024);
    let a = b.id();
    let pieces = [(SEGMENT, 0, 512), (SEGMENT, 512, 512), (PhysKey(5), 0, 256)];
    b.oracle.allocated(HOST, a, Addr(BASE), &pieces, Some(StreamKey(1)));
    b.write(1, a, 256, 512);
    let op = b.submit(1);
    b.oracle.access(op, None, PhysKey(5), 0, 256, Write, Some(a));
    b.passes();
    b.oracle.access(op, None, PhysKey(5), 0, 257, Write, Some(a));
    let v = b.convicts(Property::P3, Blame::Program, Fault::Overrun);
    assert_eq!(v.later.allocation.as_ref().unwrap().range, Some((Addr(BASE), 1280)));
}

#[test]
fn conflicting_accesses_of_one_generation_race() {
    for (first, second) in [(Write, Write), (Write, Read), (Read, Write)] {
        let mut b = Bench::new();
        let a = b.alloc(1, 0, 512);
        b.touch(2, first, a, 0, 512);
        b.touch(3, second, a, 256, 512 - 256);
        let v = b.convicts(Property::Race, Blame::Program, Fault::Race);
        assert_eq!(v.place, Some(PhysicalRange { phys: SEGMENT, offset: 256, bytes: 256 }));
    }
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.read(2, a, 0, 512);
    b.read(3, a, 0, 512);
    b.write(2, a, 0, 0);
    b.passes();
}

#[test]
fn a_race_is_found_behind_reads_that_were_ordered() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.write(1, a, 0, 512);
    b.order(1, 2);
    b.read(2, a, 0, 512);
    b.read(2, a, 0, 512);
    // Stream 1 read nothing; its next write is ordered after its first, not after stream 2's reads.
    b.write(1, a, 0, 512);
    let v = b.convicts(Property::Race, Blame::Program, Fault::Race);
    assert_eq!(v.earlier.as_ref().unwrap().at, Point::Stream { id: StreamId(2), position: 2 });
}

#[test]
fn disjoint_bytes_do_not_race() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.write(2, a, 0, 256);
    b.write(3, a, 256, 256);
    b.passes();
}

#[test]
fn two_mappings_of_one_handle_are_the_same_bytes() {
    let mut b = Bench::new();
    b.oracle.mapped(MapKey(7), SEGMENT);
    let a = b.alloc(1, 0, 512);
    b.write(1, a, 0, 512);
    b.free(a);
    let c = b.id();
    b.oracle.allocated(HOST, c, Addr(0x90_0000), &[(SEGMENT, 0, 512)], Some(StreamKey(2)));
    let op = b.submit(2);
    b.oracle.access(op, Some(MapKey(7)), SEGMENT, 0, 512, Write, Some(c));
    b.convicts_early_reuse();
}

#[test]
fn unmapping_needs_only_the_uses_through_that_mapping() {
    let mut b = Bench::new();
    b.oracle.mapped(MapKey(7), SEGMENT);
    let a = b.alloc(1, 0, 512);
    let op = b.submit(1);
    b.oracle.access(op, Some(MapKey(7)), SEGMENT, 0, 512, Write, Some(a));
    b.oracle.unmapped(HOST, MAP);
    b.passes();
    b.oracle.unmapped(HOST, MapKey(7));
    b.convicts(Property::P4, Blame::Allocator, Fault::UnmappedWhilePending);
}

#[test]
fn releasing_needs_the_uses_through_every_mapping() {
    let mut b = Bench::new();
    b.oracle.mapped(MapKey(7), SEGMENT);
    for (stream, map) in [(1, MAP), (2, MapKey(7))] {
        let op = b.submit(stream);
        b.oracle.access(op, Some(map), SEGMENT, 0, 512, Read, None);
    }
    b.synchronize(1);
    b.oracle.memory_released(HOST, SEGMENT);
    let v = b.convicts(Property::P4, Blame::Allocator, Fault::ReleasedWhilePending);
    assert_eq!(v.earlier.as_ref().unwrap().at, Point::Stream { id: StreamId(2), position: 1 });
}

#[test]
fn release_under_a_use_that_was_never_recorded_is_the_programs() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.order(1, 2);
    b.write(2, a, 0, 512);
    b.free(a);
    b.synchronize(1);
    b.oracle.memory_released(HOST, SEGMENT);
    b.convicts(Property::P4, Blame::Program, Fault::MissingRecordUse);
}

#[test]
fn memory_going_away_under_a_live_allocation_is_the_allocators() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.oracle.unmapped(HOST, MAP);
    b.oracle.memory_released(HOST, SEGMENT);
    let v = b.convicts(Property::P4, Blame::Allocator, Fault::ReleasedWhileOwned);
    assert_eq!(v.earlier.as_ref().unwrap().allocation.as_ref().unwrap().id, a);
}

#[test]
fn managed_bytes_that_were_never_handed_out_must_not_be_touched() {
    let mut b = Bench::new();
    b.alloc(1, 0, 512);
    let op = b.submit(1);
    b.oracle.access(op, Some(MAP), SEGMENT, 1024, 512, Write, None);
    b.convicts(Property::P3, Blame::Program, Fault::NotHandedOut);
}

#[test]
fn an_unnamed_access_counts_for_the_owner() {
    let mut b = Bench::new();
    b.submit(1);
    b.alloc(1, 0, 512);
    let op = b.submit(2);
    b.oracle.access(op, Some(MAP), SEGMENT, 0, 512, Write, None);
    b.convicts(Property::P3, Blame::Program, Fault::BeforeAllocation);
}

#[test]
fn nothing_mapped_is_the_programs_unless_a_live_allocation_is_there() {
    let mut b = Bench::new();
    let op = b.submit(1);
    b.oracle.unmapped_access(op, Addr(0xdead_0000), 16, None);
    b.convicts(Property::P3, Blame::Program, Fault::NothingMapped);

    let mut b = Bench::new();
    b.alloc(1, 0, 512);
    let op = b.submit(1);
    b.oracle.unmapped_access(op, Addr(BASE + 511), 1, None);
    b.convicts(Property::P3, Blame::Allocator, Fault::NoMemory);

    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.free(a);
    let op = b.submit(1);
    b.oracle.unmapped_access(op, Addr(BASE + 511), 1, None);
    b.convicts(Property::P3, Blame::Program, Fault::AfterFree);
}

#[test]
fn handing_out_memory_that_is_gone_is_the_allocators() {
    let mut b = Bench::new();
    b.oracle.unmapped(HOST, MAP);
    b.oracle.memory_released(HOST, SEGMENT);
    b.alloc(1, 0, 512);
    b.convicts(Property::P3, Blame::Allocator, Fault::NoMemory);
}

#[test]
fn names_never_recorded_are_the_programs_fault() {
    let never_recorded = AllocationId { pool: 9, chunk: 9, generation: 9 };
    let mut b = Bench::new();
    b.write(1, never_recorded, 0, 512);
    b.convicts(Property::P3, Blame::Program, Fault::UnknownAllocation);
    let mut b = Bench::new();
    b.free(never_recorded);
    b.convicts(Property::P3, Blame::Program, Fault::BadFree);
    let mut b = Bench::new();
    b.used(never_recorded, 1);
    b.convicts(Property::P3, Blame::Program, Fault::BadUse);
}

#[test]
fn pinned_reuse_under_a_use_never_recorded_is_the_programs() {
    let mut b = Bench::new();
    let a = b.pin(0, 512);
    b.touch_pinned(1, Read, a, 0, 512);
    b.free(a);
    b.pin(0, 512);
    b.convicts(Property::P2, Blame::Program, Fault::MissingRecordUse);
}

#[test]
fn pinned_reuse_under_a_copy_that_the_library_keeps_the_memory_for_is_the_allocators() {
    // Reported by any address in the memory; of what was queued by then, and not of other memory.
    let reported: [(u64, u64, Blame, Fault); 4] = [
        (512, 1, Blame::Allocator, Fault::EarlyReuse),
        (1023, 1, Blame::Allocator, Fault::EarlyReuse),
        (1024, 1, Blame::Program, Fault::MissingRecordUse),
        (512, 2, Blame::Program, Fault::MissingRecordUse),
    ];
    for (at, reads, blame, fault) in reported {
        let mut b = Bench::new();
        let a = b.pin(512, 512);
        b.touch_pinned(1, Read, a, 512, 512);
        b.oracle.used_so_far_at(HOST, Addr(at), StreamKey(1));
        for _ in 1..reads {
            b.touch_pinned(1, Read, a, 512, 512);
        }
        b.free(a);
        b.pin(512, 512);
        b.convicts(Property::P2, blame, fault);
    }
}

#[test]
fn a_host_write_under_a_running_read_races() {
    let mut b = Bench::new();
    let a = b.pin(0, 512);
    b.touch_pinned(1, Read, a, 0, 512);
    b.cpu(Read, a, 0, 512);
    b.passes();
    b.cpu(Write, a, 0, 512);
    let v = b.convicts(Property::Race, Blame::Program, Fault::Race);
    assert_eq!(v.missing.unwrap().to, Point::Host { thread: None });
}

/// Two writes on two streams without an edge; `first` and `second` report what the library knows of each beforehand.
fn unordered_writes(first: fn(&mut Bench, AllocationId), second: fn(&mut Bench, AllocationId)) -> Bench {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.order(1, 2);
    b.order(1, 3);
    first(&mut b, a);
    b.write(2, a, 0, 512);
    second(&mut b, a);
    b.write(3, a, 0, 512);
    b
}

#[test]
fn a_race_of_two_operations_that_the_library_knew_is_the_librarys() {
    let b = unordered_writes(|b, a| b.comes(a, 2, Write), |b, a| b.comes(a, 3, Write));
    let v = b.convicts(Property::Race, Blame::Allocator, Fault::UnorderedOperation);
    let from = Point::Stream { id: StreamId(2), position: 1 };
    assert_eq!(v.missing.unwrap().from, from);
    assert!(v.to_string().contains("both known and in no order"), "{v}");
}

#[test]
fn a_race_with_a_recorded_use_is_the_librarys() {
    let reported_before = unordered_writes(|b, a| b.used(a, 2), |b, a| b.comes(a, 3, Write));
    reported_before.convicts(Property::Race, Blame::Allocator, Fault::UnorderedOperation);
    let reported_after = |b: &mut Bench, a| {
        b.oracle.used_so_far(HOST, a, StreamKey(2));
        b.comes(a, 3, Write);
    };
    unordered_writes(|_, _| (), reported_after).convicts(
        Property::Race,
        Blame::Allocator,
        Fault::UnorderedOperation,
    );
}

#[test]
fn a_race_of_which_one_side_was_recorded_is_the_programs() {
    type Reports = fn(&mut Bench, AllocationId);
    let nothing: Reports = |_, _| ();
    let first: Reports = |b, a| b.comes(a, 2, Write);
    let second: Reports = |b, a| b.comes(a, 3, Write);
    // The program's own kernel, on a stream that was admitted, or reported to the library as a user: it was not ordered.
    let let_in: Reports = |b, a| b.oracle.admitted(a, StreamKey(3));
    let reported: Reports = |b, a| b.used(a, 3);
    for (first, second) in
        [(nothing, nothing), (nothing, second), (first, nothing), (first, let_in), (first, reported)]
    {
        unordered_writes(first, second).convicts(Property::Race, Blame::Program, Fault::Race);
    }
}

#[test]
fn the_librarys_notice_is_for_one_operation() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.comes(a, 1, Write);
    b.write(1, a, 0, 512);
    b.order(1, 2);
    b.comes(a, 2, Read);
    b.read(2, a, 0, 512);
    b.passes();
    // The program's own unreported kernels, behind the library's operations on the same streams.
    b.read(2, a, 0, 512);
    b.write(1, a, 0, 512);
    b.convicts(Property::Race, Blame::Program, Fault::Race);
}

#[test]
fn what_the_program_queues_behind_a_wait_of_the_librarys_is_ordered_and_not_known() {
    // Two kernels of the program's behind one wait, which the library has left out: its fault, for the second too.
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 1024);
    b.order(1, 2);
    b.comes(a, 1, Write);
    b.write(1, a, 512, 512);
    b.is_ordered(a, 2, Write);
    b.write(2, a, 0, 512);
    b.write(2, a, 512, 512);
    b.convicts(Property::Race, Blame::Allocator, Fault::UnorderedOperation);
    // An unreported kernel behind a wait, and an operation of the library's that does not come after it.
    let kernel: fn(&mut Bench, AllocationId) = |b, a| b.is_ordered(a, 2, Write);
    let operation: fn(&mut Bench, AllocationId) = |b, a| b.comes(a, 3, Write);
    unordered_writes(kernel, operation).convicts(Property::Race, Blame::Program, Fault::Race);
    let reported = |b: &mut Bench, a| {
        b.used(a, 2);
        b.is_ordered(a, 2, Write);
    };
    unordered_writes(reported, operation).convicts(
        Property::Race,
        Blame::Allocator,
        Fault::UnorderedOperation,
    );
    // An operation of the library's on the same stream, ordered at once behind the wait: known.
    let both: fn(&mut Bench, AllocationId) = |b, a| {
        b.is_ordered(a, 2, Write);
        b.comes(a, 2, Write);
    };
    unordered_writes(both, operation).convicts(Property::Race, Blame::Allocator, Fault::UnorderedOperation);
    let reversed: fn(&mut Bench, AllocationId) = |b, a| {
        b.comes(a, 2, Write);
        b.is_ordered(a, 2, Write);
    };
    unordered_writes(reversed, operation).convicts(Property::Race, Blame::Program, Fault::Race);
}

#[test]
fn a_use_after_the_library_ordered_an_operation_is_the_programs() {
    // `wait_on`, another operation elsewhere, and only then the kernel that the wait was for.
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.order(1, 2);
    b.comes(a, 2, Write);
    b.comes(a, 1, Write);
    b.write(1, a, 0, 512);
    b.write(2, a, 0, 512);
    b.convicts(Property::Race, Blame::Program, Fault::Race);
}

#[test]
fn an_operation_that_does_more_than_it_said_is_the_programs() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.order(1, 2);
    b.comes(a, 1, Read);
    b.read(1, a, 0, 512);
    b.comes(a, 2, Read);
    b.write(2, a, 0, 512);
    b.convicts(Property::Race, Blame::Program, Fault::Race);
}

#[test]
fn an_operation_with_the_allocation_on_both_sides_says_both() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 1024);
    b.order(1, 2);
    b.comes(a, 1, Write);
    b.write(1, a, 0, 512);
    b.comes(a, 2, Write);
    b.comes(a, 2, Read);
    let op = b.submit(2);
    b.oracle.access(op, Some(MAP), SEGMENT, 0, 512, Write, Some(a));
    b.oracle.access(op, Some(MAP), SEGMENT, 512, 512, Read, Some(a));
    b.convicts(Property::Race, Blame::Allocator, Fault::UnorderedOperation);
}

/// An allocation that is imported as external memory on stream 2, and an operation of the library's on stream 3 behind stream 2's;
/// `before` is what happened by then, `after` what comes between.
fn brought_in(before: fn(&mut Bench, AllocationId), after: fn(&mut Bench, AllocationId)) -> Bench {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.order(1, 2);
    b.order(1, 3);
    before(&mut b, a);
    b.oracle.brought_in_at(HOST, Addr(BASE), StreamKey(2));
    after(&mut b, a);
    b.oracle.operation_comes_at(Addr(BASE + 8), StreamKey(3), Write, QueuedBy::Library);
    b.write(3, a, 0, 512);
    b
}

#[test]
fn what_the_library_knows_of_external_memory_is_found_by_its_address() {
    let theirs = |b: &mut Bench, a| {
        b.oracle.operation_comes_at(Addr(BASE + 511), StreamKey(2), Read, QueuedBy::Library);
        b.read(2, a, 0, 512);
    };
    brought_in(|_, _| (), theirs).convicts(Property::Race, Blame::Allocator, Fault::UnorderedOperation);
    let reported = |b: &mut Bench, a| {
        b.write(2, a, 0, 512);
        b.oracle.used_so_far_at(HOST, Addr(BASE), StreamKey(2));
    };
    brought_in(|_, _| (), reported).convicts(Property::Race, Blame::Allocator, Fault::UnorderedOperation);
    let open = |b: &mut Bench, a| {
        b.oracle.used_at(HOST, Addr(BASE), StreamKey(2));
        b.write(2, a, 0, 512);
    };
    brought_in(|_, _| (), open).convicts(Property::Race, Blame::Allocator, Fault::UnorderedOperation);
    // Of another address, or never.
    let elsewhere = |b: &mut Bench, a| {
        b.oracle.used_at(HOST, Addr(BASE + 512), StreamKey(2));
        b.write(2, a, 0, 512);
    };
    brought_in(|_, _| (), elsewhere).convicts(Property::Race, Blame::Program, Fault::Race);
}

#[test]
fn what_was_done_before_memory_is_brought_in_is_the_programs_to_order() {
    // By the library itself, whose array it was; and by the program, which reported it then.
    type Before = fn(&mut Bench, AllocationId);
    let librarys: Before = |b, a| {
        b.comes(a, 1, Write);
        b.write(1, a, 0, 512);
    };
    let reported: Before = |b, a| {
        b.used(a, 1);
        b.write(1, a, 0, 512);
    };
    for before in [librarys, reported] {
        brought_in(before, |_, _| ()).convicts(Property::Race, Blame::Program, Fault::Race);
    }
    // The owner still has to respect at its free what was reported.
    let mut b = brought_in(|b, a| b.used(a, 3), |_, _| ());
    b.passes();
    let live = b.oracle.ledger.live_at(Addr(BASE)).expect("it lives");
    b.free(live);
    let next = b.alloc(1, 0, 512);
    b.write(1, next, 0, 512);
    b.convicts_early_reuse();
}

#[test]
fn what_the_stream_of_memory_that_is_brought_in_came_after_is_the_librarys_to_order() {
    type Before = fn(&mut Bench, AllocationId);
    let on_it: Before = |b, a| b.write(2, a, 0, 512);
    let before_it: Before = |b, a| {
        b.write(1, a, 0, 512);
        b.order(1, 2);
    };
    // The library announced that this stream comes after all that it knew, and it did not.
    let undertaken: Before = |b, a| {
        b.comes(a, 1, Write);
        b.write(1, a, 0, 512);
        b.comes(a, 2, Write);
    };
    for before in [on_it, before_it, undertaken] {
        brought_in(before, |_, _| ()).convicts(Property::Race, Blame::Allocator, Fault::UnorderedOperation);
    }
    // It announced so for an operation that only reads, or before the write was queued.
    let reads: Before = |b, a| {
        b.comes(a, 1, Write);
        b.write(1, a, 0, 512);
        b.comes(a, 2, Read);
    };
    let early: Before = |b, a| {
        b.comes(a, 2, Write);
        b.comes(a, 1, Write);
        b.write(1, a, 0, 512);
    };
    for before in [reads, early] {
        brought_in(before, |_, _| ()).convicts(Property::Race, Blame::Program, Fault::Race);
    }
}

#[test]
fn an_owner_whose_memory_is_gone_and_its_address_reused_is_no_program_that_freed() {
    let mut b = Bench::new();
    b.alloc(1, 0, 512);
    let same = b.alloc(1, 0, 512);
    b.free(same);
    let op = b.submit(1);
    b.oracle.unmapped_access(op, Addr(BASE + 511), 1, None);
    let last = b.oracle.violations().last().expect("a violation");
    assert_eq!((last.blame, last.fault), (Blame::Allocator, Fault::NoMemory));
}

#[test]
fn what_was_handed_out_where_no_memory_is_is_no_program_that_freed() {
    let mut b = Bench::new();
    let (old, new) = (b.alloc(1, 0, 512), b.id());
    b.free(old);
    b.oracle.allocated(HOST, new, Addr(BASE), &[], Some(StreamKey(1)));
    b.oracle.allocated_nowhere(new, Addr(BASE), 512);
    let op = b.submit(1);
    b.oracle.unmapped_access(op, Addr(BASE + 511), 1, None);
    b.convicts(Property::P3, Blame::Allocator, Fault::NoMemory);
}

#[test]
fn an_allocation_runs_over_its_end_into_nothing() {
    let mut b = Bench::new();
    let (a, freed) = (b.alloc(1, 0, 512), b.alloc(1, 512, 512));
    b.free(freed);
    let op = b.submit(1);
    b.oracle.unmapped_access(op, Addr(BASE + 512), 4, Some(a));
    b.convicts(Property::P3, Blame::Program, Fault::Overrun);
}

/// One number for two allocations is the allocator's mistake, and the judge continues.
#[test]
fn a_number_given_twice_and_freed_is_no_panic() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.oracle.allocated(HOST, a, Addr(BASE + 1024), &[(SEGMENT, 1024, 512)], Some(StreamKey(1)));
    b.convicts(Property::P1, Blame::Allocator, Fault::Overlap);
    b.free(a);
    let op = b.submit(1);
    b.oracle.unmapped_access(op, Addr(BASE + 8), 4, None);
    b.oracle.used_at(HOST, Addr(BASE + 8), StreamKey(2));
    let op = b.submit(2);
    b.oracle.access(op, Some(MAP), SEGMENT, 0, 512, Write, None);
    let faults: Vec<_> = b.oracle.violations().iter().skip(1).map(|v| v.fault).collect();
    assert_eq!(faults, [Fault::NothingMapped, Fault::NotHandedOut]);
}
