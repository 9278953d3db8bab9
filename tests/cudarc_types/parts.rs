//! Calls on some quarters of an array or of a pooled slice, by views of views; what the other quarters hold stays known. It knows no
//! test.

use super::super::WORDS;
use super::{Filled, Outcome, Pooled, World, described, refused};
use proptest::prelude::*;

/// An array has so many parts whose contents are known apart.
pub const PARTS: usize = 4;
pub const QUARTER: usize = WORDS / PARTS;

/// Some quarters.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    from: usize,
    to: usize,
    count: usize,
}

/// What is done with quarters; `from` and `to` of a copy may be different ones.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    /// `memcpy_dtod`, from the array behind it.
    Copy(Span),
    /// `memset_zeros`.
    Zero(Span),
    /// `memcpy_htod`, from memory that is not pinned.
    Send(Span, u32),
    /// `memcpy_dtoh`, and a look at it.
    Read(Span),
    /// `memcpy_dtod`, from the pooled slice.
    FromPool(Span),
    /// `memcpy_dtod`, into the pooled slice.
    ToPool(Span),
}

impl Span {
    pub fn new(from: usize, to: usize, count: usize) -> Span {
        assert!(from + count <= PARTS && to + count <= PARTS, "there are {PARTS} quarters");
        Span { from, to, count }
    }
}

fn a_span() -> impl Strategy<Value = Span> {
    (1..PARTS).prop_flat_map(|count| {
        (0..=PARTS - count, 0..=PARTS - count).prop_map(move |(from, to)| Span { from, to, count })
    })
}

pub fn a_part() -> impl Strategy<Value = Part> {
    prop_oneof![
        2 => a_span().prop_map(Part::Copy),
        1 => a_span().prop_map(Part::Zero),
        1 => (a_span(), 1..200_u32).prop_map(|(span, value)| Part::Send(span, value)),
        1 => a_span().prop_map(Part::Read),
    ]
}

pub fn a_part_of_a_pool() -> impl Strategy<Value = Part> {
    prop_oneof![a_span().prop_map(Part::FromPool), a_span().prop_map(Part::ToPool)]
}

impl Part {
    /// Of the pooled slice, which cudarc orders.
    pub fn is_of_the_pool(self) -> bool {
        matches!(self, Part::FromPool(_) | Part::ToPool(_))
    }
}

/// One quarter is all of one value, and that is one of those it can be.
pub fn check(known: &[u32], found: &[u32], quarter: usize) {
    for at in [0, 1, found.len() / 2, found.len() - 1] {
        assert!(
            known.contains(&found[at]),
            "element {at} of quarter {quarter} is {}, not {known:?}",
            found[at]
        );
        assert_eq!(found[at], found[0], "element {at} of quarter {quarter}");
    }
}

impl Span {
    fn elements(self) -> usize {
        self.count * QUARTER
    }
}

impl super::Known {
    /// These quarters may be what quarters of another are.
    fn or_some(&mut self, span: Span, other: &super::Known) {
        let mut all = self.clone();
        all.take(span, other);
        self.or(&all);
    }
    /// They are.
    fn take(&mut self, Span { from, to, count }: Span, other: &super::Known) {
        self.0[to..to + count].clone_from_slice(&other.0[from..from + count]);
    }
}

macro_rules! to_read {
    ($of:expr, $span:ident) => {
        $of.slice($span.from * QUARTER..).slice(..$span.elements())
    };
}
macro_rules! to_write {
    ($of:expr, $span:ident) => {
        $of.slice_mut($span.to * QUARTER..).slice(..$span.elements())
    };
}

impl World<'_> {
    pub(super) fn part(&mut self, what: Part, x: usize, on: usize) -> Outcome {
        match what {
            Part::Copy(span) => self.copy_part(span, x, on),
            Part::Zero(span) => {
                let Some(theirs) = self.not_captured(on) else { return Ok(()) };
                let (Filled { array, value, .. }, zeroes) = (&mut self.arrays[x], super::Known::is(0));
                value.or_some(span, &zeroes);
                described(theirs.memset_zeros(&mut to_write!(array, span)))?;
                value.take(span, &zeroes);
                Ok(())
            }
            Part::Send(span, sent) => {
                let Some(theirs) = self.not_captured(on) else { return Ok(()) };
                let (Filled { array, value, .. }, known) = (&mut self.arrays[x], super::Known::is(sent));
                value.or_some(span, &known);
                described(theirs.memcpy_htod(&vec![sent; span.elements()], &mut to_write!(array, span)))?;
                value.take(span, &known);
                Ok(())
            }
            Part::Read(span) => {
                let Some(theirs) = self.not_captured(on) else { return Ok(()) };
                let mut found = vec![0; span.elements()];
                let Filled { array, value, .. } = &self.arrays[x];
                described(theirs.memcpy_dtoh(&to_read!(array, span), &mut found))?;
                described(theirs.synchronize())?;
                for (n, found) in found.chunks(QUARTER).enumerate() {
                    check(&value.0[span.from + n], found, span.from + n);
                }
                Ok(())
            }
            Part::FromPool(span) => self.part_of_pool(span, x, on),
            Part::ToPool(span) => self.part_to_pool(span, x, on),
        }
    }

    fn copy_part(&mut self, span: Span, x: usize, on: usize) -> Outcome {
        let (theirs, captured) = self.stream(on);
        let (from, to) = self.two(x);
        let queued =
            |to: &mut Filled| theirs.memcpy_dtod(&to_read!(from.array, span), &mut to_write!(to.array, span));
        if captured {
            return refused(&queued(to));
        }
        to.value.or_some(span, &from.value);
        described(queued(to))?;
        to.value.take(span, &from.value);
        Ok(())
    }

    fn part_of_pool(&mut self, span: Span, x: usize, on: usize) -> Outcome {
        let (theirs, captured) = self.stream(on);
        let Some(Pooled { slice, value, .. }) = &self.pooled else { return Ok(()) };
        let to = &mut self.arrays[x];
        if !captured {
            to.value.or_some(span, value);
        }
        let queued = theirs.memcpy_dtod(&to_read!(slice, span), &mut to_write!(to.array, span));
        if captured {
            return refused(&queued);
        }
        described(queued)?;
        to.value.take(span, value);
        Ok(())
    }

    fn part_to_pool(&mut self, span: Span, x: usize, on: usize) -> Outcome {
        let (theirs, captured) = self.stream(on);
        let from = &self.arrays[x];
        let Some(to) = &mut self.pooled else { return Ok(()) };
        if !captured {
            to.value.or_some(span, &from.value);
        }
        let mut outer = to.slice.slice_mut(span.to * QUARTER..);
        let queued = theirs.memcpy_dtod(&to_read!(from.array, span), &mut outer.slice_mut(..span.elements()));
        if captured {
            return refused(&queued);
        }
        described(queued)?;
        to.value.take(span, &from.value);
        Ok(())
    }
}
