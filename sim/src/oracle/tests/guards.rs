//! Operations that other code queues under guards of the library's: it knows all of them, from a guard's begin to its end.

use super::*;

/// Both halves of an allocation are written, on streams 1 and 2, by operations of the library's; and a guard for the whole begins on stream 3, which
/// was ordered behind stream 1 alone.
fn behind_one_of_two() -> (Bench, AllocationId) {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 1024);
    b.order(1, 2);
    b.comes(a, 1, Write);
    b.write(1, a, 0, 512);
    b.comes(a, 2, Write);
    b.write(2, a, 512, 512);
    b.order(1, 3);
    b.guard(a, 3, Write);
    (b, a)
}

#[test]
fn a_wait_that_a_guard_lacks_is_the_librarys_whichever_operation_needs_it() {
    let (mut b, a) = behind_one_of_two();
    b.write(3, a, 0, 512);
    b.write(3, a, 512, 512);
    b.convicts(Property::Race, Blame::Allocator, Fault::UnorderedOperation);
}

#[test]
fn an_operation_of_the_librarys_ends_no_guard_and_neither_does_another_one() {
    for other in [true, false] {
        let (mut b, a) = behind_one_of_two();
        if other {
            b.guard(a, 3, Write);
            b.oracle.guard_ended(a, StreamKey(3), Write);
        } else {
            b.comes(a, 3, Write);
        }
        b.write(3, a, 0, 512);
        b.write(3, a, 512, 512);
        b.convicts(Property::Race, Blame::Allocator, Fault::UnorderedOperation);
    }
}

#[test]
fn what_comes_behind_the_end_of_a_guard_is_the_programs() {
    let (mut b, a) = behind_one_of_two();
    b.write(3, a, 0, 512);
    b.oracle.guard_ended(a, StreamKey(3), Write);
    b.write(3, a, 512, 512);
    b.convicts(Property::Race, Blame::Program, Fault::Race);
}

#[test]
fn an_operation_that_does_more_than_its_guard_may_is_the_programs() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 512);
    b.order(1, 2);
    b.comes(a, 1, Read);
    b.read(1, a, 0, 512);
    b.guard(a, 2, Read);
    b.write(2, a, 0, 512);
    b.convicts(Property::Race, Blame::Program, Fault::Race);
}

/// At home too, where no use is reported: the second kernel is as well known as the first.
#[test]
fn a_later_operation_has_to_come_behind_all_that_was_queued_under_a_guard() {
    let mut b = Bench::new();
    let a = b.alloc(1, 0, 1024);
    b.order(1, 2);
    b.guard(a, 1, Write);
    b.write(1, a, 0, 512);
    b.write(1, a, 512, 512);
    b.oracle.guard_ended(a, StreamKey(1), Write);
    b.comes(a, 2, Write);
    b.write(2, a, 512, 512);
    b.convicts(Property::Race, Blame::Allocator, Fault::UnorderedOperation);
}
