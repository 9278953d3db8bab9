//! By which wait each line was learnt: a tree of the same shape as the ticks', whose parts name one wait for everything below, or one for most
//! of a leaf and others for some.
//!
//! It does not know ticks, nor which lines have one: for lines without one its entries have no meaning.

use super::{LEAF, PAGES, Via, slot};
use std::sync::Arc;

/// A part of the tree. Its holder knows its height.
#[derive(Clone, Debug)]
pub(super) enum Marks {
    All(Via),
    /// A leaf: those that differ from the rest, ascending by place.
    But(Via, Arc<Vec<(u8, Via)>>),
    Parts(Arc<[Marks; PAGES]>),
}

impl Default for Marks {
    fn default() -> Marks {
        Marks::All(Via::NONE)
    }
}

fn in_leaf(place: u32) -> u8 {
    (place & ((1 << LEAF) - 1)) as u8
}

impl Marks {
    pub(super) fn all(via: Via) -> Marks {
        Marks::All(via)
    }
    pub(super) fn get(&self, place: u32, mut height: u32) -> Via {
        let mut part = self;
        loop {
            match part {
                Marks::All(via) => return *via,
                Marks::But(rest, others) => {
                    let found = others.binary_search_by_key(&in_leaf(place), |other| other.0);
                    return found.map_or(*rest, |i| others[i].1);
                }
                Marks::Parts(parts) => {
                    part = &parts[slot(place, height)];
                    height -= 1;
                }
            }
        }
    }
    pub(super) fn set(&mut self, place: u32, height: u32, via: Via) {
        if let Marks::All(all) = self
            && *all == via
        {
            return;
        }
        if height == 0 {
            if let Marks::All(all) = self {
                *self = Marks::But(*all, Arc::default());
            }
            let Marks::But(_, others) = self else { unreachable!("a part of height 0 is a leaf") };
            let others = Arc::make_mut(others);
            match others.binary_search_by_key(&in_leaf(place), |other| other.0) {
                Ok(i) => others[i].1 = via,
                Err(i) => others.insert(i, (in_leaf(place), via)),
            }
            return;
        }
        self.parts()[slot(place, height)].set(place, height - 1, via);
    }
    /// The marks of the places below one of the parts.
    pub(super) fn below(&self, slot: usize) -> Marks {
        match self {
            Marks::Parts(parts) => parts[slot].clone(),
            Marks::All(_) => self.clone(),
            Marks::But(..) => unreachable!("a leaf has nothing below"),
        }
    }
    pub(super) fn set_below(&mut self, slot: usize, marks: Marks) {
        self.parts()[slot] = marks;
    }
    /// These marks in a tree that is higher.
    pub(super) fn as_high_as(&self, own: u32, height: u32) -> Marks {
        (own..height).fold(self.clone(), |marks, _| {
            let mut parts = [const { Marks::All(Via::NONE) }; PAGES];
            parts[0] = marks;
            Marks::Parts(Arc::new(parts))
        })
    }
    fn parts(&mut self) -> &mut [Marks; PAGES] {
        if let Marks::All(via) = *self {
            *self = Marks::Parts(Arc::new([const { Marks::All(Via::NONE) }; PAGES].map(|_| Marks::All(via))));
        }
        match self {
            Marks::Parts(parts) => Arc::make_mut(parts),
            _ => unreachable!("a leaf has no parts"),
        }
    }
}
