//! The uses of one allocation, each found by its stream, its kind and its access: at most one use has the same three.
//!
//! The simple version is a list, which is what nearly every allocation has: one user or two. With thousands of users each search would
//! look at all of them, under the pool's lock, so a longer list becomes a tree, and a use costs its depth.
//!
//! It does not know what a use means, or when one ends.

use super::{Access, Use, UseKind};
use crate::order::TimelineId;
use core::cmp::Ordering;
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// A longer list becomes a tree; a tree with half as many becomes a list again.
const LIST: usize = 16;

/// The key of a use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    on: TimelineId,
    kind: u8,
    access: Access,
}

impl Key {
    pub(super) fn of(on: TimelineId, access: Access, kind: UseKind) -> Key {
        let kind = match kind {
            UseKind::Declared => 0,
            UseKind::Borrows => 1,
            UseKind::Open(_) => 2,
            UseKind::Exact(_) => 3,
        };
        Key { on, kind, access }
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Key) -> Ordering {
        #[cfg(test)]
        crate::order::tests::compared::count();
        (self.on, self.kind, self.access).cmp(&(other.on, other.kind, other.access))
    }
}
impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Key) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Key {}

/// Uses, in no order while there are few, otherwise sorted by stream.
#[derive(Clone, Default, Debug)]
pub(super) struct Table {
    list: SmallVec<[Use; 2]>,
    /// All of them instead, if there are many.
    #[allow(
        clippy::box_collection,
        reason = "nearly no allocation has many: it is to cost the others a pointer"
    )]
    tree: Option<Box<BTreeMap<Key, Use>>>,
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.tree.as_ref().map_or(self.list.len(), |tree| tree.len())
    }
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Whether those of one stream come one after the other.
    pub(super) fn is_sorted(&self) -> bool {
        self.tree.is_some()
    }
    pub(super) fn iter(&self) -> impl Iterator<Item = &Use> {
        self.list.iter().chain(self.tree.iter().flat_map(|tree| tree.values()))
    }

    fn at(&self, key: Key) -> Option<usize> {
        self.list.iter().position(|u| u.key() == key)
    }
    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut Use> {
        match &mut self.tree {
            Some(tree) => tree.get_mut(&key),
            None => self.list.iter_mut().find(|u| u.key() == key),
        }
    }
    /// Inserts a use that has no equal yet; if it has, returns `false` and changes nothing.
    pub(super) fn insert(&mut self, u: Use) -> bool {
        let key = u.key();
        if let Some(tree) = &mut self.tree {
            let len = tree.len();
            tree.entry(key).or_insert(u);
            return tree.len() > len;
        }
        let new = self.at(key).is_none();
        if new {
            self.list.push(u);
            if self.list.len() > LIST {
                self.tree = Some(Box::new(self.list.drain(..).map(|u| (u.key(), u)).collect()));
            }
        }
        new
    }
    pub(super) fn remove(&mut self, key: Key) {
        match &mut self.tree {
            Some(tree) => drop(tree.remove(&key)),
            None => drop(self.at(key).map(|i| self.list.swap_remove(i))),
        }
        self.shrink();
    }
    pub(super) fn retain(&mut self, mut keeps: impl FnMut(&Use) -> bool) {
        match &mut self.tree {
            Some(tree) => tree.retain(|_, u| keeps(u)),
            None => self.list.retain(|u| keeps(u)),
        }
        self.shrink();
    }
    /// Takes out all uses.
    pub(super) fn take(&mut self) -> impl Iterator<Item = Use> + use<> {
        let Table { list, tree } = core::mem::take(self);
        list.into_iter().chain(tree.into_iter().flat_map(|tree| tree.into_values()))
    }

    fn shrink(&mut self) {
        if self.tree.as_ref().is_some_and(|tree| tree.len() <= LIST / 2) {
            self.list = self.tree.take().into_iter().flat_map(|tree| tree.into_values()).collect();
        }
    }
}
