//! Which bytes lie behind an address: the table of mappings over pieces of physical memory.
//!
//! Everything is keyed twice, as on a real device: an address leads to a mapping, a mapping to a piece of physical
//! memory and an offset in it. A plain allocation is a piece with one mapping made and removed with it; a virtual
//! memory handle may have none, one or two; pinned host memory is a piece whose contents are real memory of this
//! process, at its real address. Device addresses lie above 2^48, where no pointer of a process is.
//!
//! An operation declares how far it may reach ([`Reach`]): operations queued by safe code never reach pinned memory, even if it
//! was pinned later.
//!
//! This file does not know streams, order, the oracle or the driver's prices. It answers what is mapped where, and moves
//! contents.
//!
//! Invariants: M1 mappings do not overlap; M2 a piece lives while it is unreleased or mapped; M3 offsets of a mapping lie
//! inside its piece, since a mapping always covers the whole of it.

use super::block::HostBlock;
use super::contents::{Bytes, Contents, anchored, byte_at};
use super::oracle::{MapKey, PhysKey};
use hashbrown::HashMap;
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};

/// What new plain memory holds: not zero, so that a program that relies on zeroes fails.
pub(super) const FRESH_WORD: u64 = 0xCDCD_CDCD_CDCD_CDCD;

/// How memory was allocated, which decides what may be done with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Backing {
    Plain,
    Virtual,
    Pinned,
}

/// Which memory an operation may touch when it runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reach {
    /// Device memory. Pinned memory counts as unmapped there: Rust references to it may exist.
    Device,
    /// Pinned memory too: an unsafe call promised that no Rust reference conflicts.
    Anywhere,
}

/// One mapping; its address is its key in the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mapping {
    pub(super) end: u64,
    pub(super) phys: PhysKey,
    pub(super) map: MapKey,
    pub(super) access: bool,
    pub(super) backing: Backing,
}

/// Where the bytes of a piece are.
#[derive(Debug)]
pub(super) enum Store {
    Device(Contents),
    Host(HostBlock),
}

/// A piece of physical memory.
#[derive(Debug)]
pub(super) struct Phys {
    pub(super) bytes: u64,
    pub(super) device: usize,
    pub(super) backing: Backing,
    pub(super) mapped: u32,
    pub(super) released: bool,
    /// Those who imported it and have not released it, by number.
    pub(super) imports: SmallVec<[u32; 1]>,
    pub(super) store: Store,
}

/// A part of an address range.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    /// Usable bytes: address, length, mapping, piece, offset in it.
    Here { addr: u64, bytes: u64, map: MapKey, phys: PhysKey, offset: u64 },
    /// Nothing is mapped there, or access was not granted.
    Hole { addr: u64, bytes: u64 },
}

/// Free ranges of addresses: a request gets the low end of the smallest that fits.
#[derive(Debug)]
pub(super) struct FreeAddresses {
    by_start: BTreeMap<u64, u64>,
    by_length: BTreeSet<(u64, u64)>,
}

impl FreeAddresses {
    pub(super) fn new(start: u64, end: u64) -> FreeAddresses {
        let mut all = FreeAddresses { by_start: BTreeMap::new(), by_length: BTreeSet::new() };
        all.insert(start, end);
        all
    }
    fn insert(&mut self, start: u64, end: u64) {
        if start < end {
            self.by_start.insert(start, end);
            self.by_length.insert((end - start, start));
        }
    }
    fn remove(&mut self, start: u64) -> Option<u64> {
        let end = self.by_start.remove(&start)?;
        self.by_length.remove(&(end - start, start));
        Some(end)
    }
    /// Takes `bytes` anywhere.
    pub(super) fn take(&mut self, bytes: u64) -> Option<u64> {
        let &(_, start) = self.by_length.range((bytes, 0)..).next()?;
        let end = self.remove(start)?;
        self.insert(start + bytes, end);
        Some(start)
    }
    /// Takes exactly this range, if it is free.
    pub(super) fn take_at(&mut self, at: u64, bytes: u64) -> bool {
        let Some(wanted_end) = at.checked_add(bytes) else { return false };
        let found = self.by_start.range(..=at).next_back().map(|(&s, &e)| (s, e));
        let Some((start, end)) = found.filter(|&(_, e)| wanted_end <= e) else { return false };
        self.remove(start);
        self.insert(start, at);
        self.insert(wanted_end, end);
        true
    }
    /// Gives a range back; it merges with free neighbours.
    pub(super) fn give(&mut self, mut start: u64, bytes: u64) {
        let mut end = start + bytes;
        if let Some((&s, &e)) = self.by_start.range(..start).next_back()
            && e == start
        {
            self.remove(s);
            start = s;
        }
        if let Some(e) = self.remove(end) {
            end = e;
        }
        self.insert(start, end);
    }
}

/// All mappings and all pieces of one world.
#[derive(Debug)]
pub(super) struct MemoryMap {
    table: BTreeMap<u64, Mapping>,
    pieces: HashMap<u32, Phys>,
    next_phys: u32,
    next_map: u32,
    /// Whether bytes are kept at all.
    pub(super) contents: bool,
}

impl MemoryMap {
    pub(super) fn new() -> MemoryMap {
        MemoryMap {
            table: BTreeMap::new(),
            pieces: HashMap::new(),
            next_phys: 0,
            next_map: 0,
            contents: true,
        }
    }

    // Pieces and mappings.

    pub(super) fn create(&mut self, device: usize, bytes: u64, backing: Backing, store: Store) -> PhysKey {
        let key = PhysKey(self.next_phys);
        self.next_phys += 1;
        self.pieces.insert(
            key.0,
            Phys { bytes, device, backing, mapped: 0, released: false, imports: SmallVec::new(), store },
        );
        key
    }
    pub(super) fn phys(&self, key: PhysKey) -> Option<&Phys> {
        self.pieces.get(&key.0)
    }
    /// Marks a piece released; returns whether it is gone (M2).
    pub(super) fn release(&mut self, key: PhysKey) -> Option<Phys> {
        if let Some(p) = self.pieces.get_mut(&key.0) {
            p.released = true;
        }
        self.remove_if_unused(key)
    }
    /// One more owner of a live piece; its number.
    pub(super) fn import(&mut self, key: PhysKey) -> Option<u32> {
        let number = self.next_map;
        self.pieces.get_mut(&key.0)?.imports.push(number);
        self.next_map += 1;
        Some(number)
    }
    /// That owner releases it; returns whether it is gone (M2).
    pub(super) fn release_import(&mut self, key: PhysKey, number: u32) -> Option<Phys> {
        if let Some(p) = self.pieces.get_mut(&key.0) {
            p.imports.retain(|import| *import != number);
        }
        self.remove_if_unused(key)
    }
    fn remove_if_unused(&mut self, key: PhysKey) -> Option<Phys> {
        let gone =
            self.pieces.get(&key.0).is_some_and(|p| p.released && p.mapped == 0 && p.imports.is_empty());
        if gone { self.pieces.remove(&key.0) } else { None }
    }
    /// Maps a whole piece at an address where nothing is.
    pub(super) fn map(&mut self, addr: u64, phys: PhysKey) -> MapKey {
        let piece = self.pieces.get_mut(&phys.0).expect("M3: only a live piece is mapped");
        piece.mapped += 1;
        let (end, backing) = (addr + piece.bytes, piece.backing);
        assert!(self.first_in(addr, end).is_none(), "M1: two mappings at {addr:#x}");
        let map = MapKey(self.next_map);
        self.next_map += 1;
        let access = backing != Backing::Virtual;
        self.table.insert(addr, Mapping { end, phys, map, access, backing });
        map
    }
    /// Removes a mapping; returns the piece if nothing else kept it alive.
    pub(super) fn unmap(&mut self, addr: u64) -> Option<(Mapping, Option<Phys>)> {
        let mapping = self.table.remove(&addr)?;
        let piece = self.pieces.get_mut(&mapping.phys.0).expect("M2: a mapped piece lives");
        piece.mapped -= 1;
        Some((mapping, self.remove_if_unused(mapping.phys)))
    }
    /// The mapping that begins here.
    pub(super) fn at(&self, addr: u64) -> Option<&Mapping> {
        self.table.get(&addr)
    }
    pub(super) fn give_access(&mut self, addr: u64) {
        if let Some(m) = self.table.get_mut(&addr) {
            m.access = true;
        }
    }
    /// The mapping that an address lies in, with its first address.
    pub(super) fn around(&self, addr: u64) -> Option<(u64, &Mapping)> {
        self.table.range(..=addr).next_back().filter(|(_, m)| addr < m.end).map(|(&s, m)| (s, m))
    }
    /// The first mapping that touches a range.
    pub(super) fn first_in(&self, start: u64, end: u64) -> Option<(u64, &Mapping)> {
        self.around(start).or_else(|| self.table.range(start..end).next().map(|(&s, m)| (s, m)))
    }
    /// Mappings that touch a range, in order of address.
    pub(super) fn all_in(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, &Mapping)> {
        let from = self.around(start).map_or(start, |(s, _)| s);
        self.table.range(from..end).map(|(&s, m)| (s, m))
    }
    /// Live pieces, for lists of leaks.
    pub(super) fn all_pieces(&self) -> impl Iterator<Item = (PhysKey, &Phys)> {
        self.pieces.iter().map(|(&k, p)| (PhysKey(k), p))
    }
    /// Mappings, for lists of leaks.
    pub(super) fn all_mappings(&self) -> impl Iterator<Item = (u64, &Mapping)> {
        self.table.iter().map(|(&s, m)| (s, m))
    }

    /// What lies behind a range of addresses, in order.
    pub(super) fn parts(&self, addr: u64, bytes: u64) -> SmallVec<[Part; 2]> {
        let end = addr.saturating_add(bytes);
        let mut parts = SmallVec::new();
        let mut from = addr;
        while from < end {
            let (start, to, m) = match self.first_in(from, end) {
                Some((s, m)) if s <= from => (s, m.end.min(end), m),
                other => {
                    let to = other.map_or(end, |(s, _)| s);
                    parts.push(Part::Hole { addr: from, bytes: to - from });
                    from = to;
                    continue;
                }
            };
            let bytes = to - from;
            parts.push(if m.access {
                Part::Here { addr: from, bytes, map: m.map, phys: m.phys, offset: from - start }
            } else {
                Part::Hole { addr: from, bytes }
            });
            from = to;
        }
        parts
    }

    // Contents. Each function returns the first unusable address as an error, and then has done nothing.

    fn usable(&self, addr: u64, bytes: u64, reach: Reach) -> Result<SmallVec<[Part; 2]>, u64> {
        let parts = self.parts(addr, bytes);
        let beyond = |p: &Part| match *p {
            Part::Hole { addr, .. } => Some(addr),
            Part::Here { addr, phys, .. } => {
                let beyond = reach == Reach::Device && self.pieces[&phys.0].backing == Backing::Pinned;
                (beyond && !mutant!(SimPinnedReached)).then_some(addr)
            }
        };
        match parts.iter().find_map(beyond) {
            Some(hole) => Err(hole),
            None => Ok(parts),
        }
    }
    fn store(&mut self, phys: PhysKey) -> &mut Store {
        &mut self.pieces.get_mut(&phys.0).expect("M2: a mapped piece lives").store
    }

    /// Writes a repeating word, whose first byte goes to `addr`.
    pub(super) fn write_word(&mut self, addr: u64, bytes: u64, word: u64, reach: Reach) -> Result<(), u64> {
        for part in self.usable(addr, bytes, reach)? {
            let Part::Here { addr: from, bytes, phys, offset, .. } = part else { continue };
            if !self.contents {
                continue;
            }
            let word = anchored(word, offset.wrapping_sub(from - addr));
            match self.store(phys) {
                Store::Device(c) => c.put(offset, bytes, Bytes::Word(word)),
                Store::Host(block) => {
                    block.write_with(offset, bytes, |slot, at| {
                        for (byte, o) in slot.iter_mut().zip(at..) {
                            *byte = byte_at(word, o);
                        }
                    });
                }
            }
        }
        Ok(())
    }

    /// Writes literal bytes.
    pub(super) fn write_bytes(&mut self, addr: u64, data: &[u8], reach: Reach) -> Result<(), u64> {
        for part in self.usable(addr, data.len() as u64, reach)? {
            let Part::Here { addr: from, bytes, phys, offset, .. } = part else { continue };
            if !self.contents {
                continue;
            }
            let data = &data[(from - addr) as usize..][..bytes as usize];
            match self.store(phys) {
                Store::Device(c) => c.write(offset, data),
                Store::Host(block) => block.write(offset, data),
            }
        }
        Ok(())
    }

    /// Reads bytes; zeroes if contents are off.
    pub(super) fn read_bytes(&mut self, addr: u64, into: &mut [u8], reach: Reach) -> Result<(), u64> {
        for part in self.usable(addr, into.len() as u64, reach)? {
            let Part::Here { addr: from, bytes, phys, offset, .. } = part else { continue };
            let slot = &mut into[(from - addr) as usize..][..bytes as usize];
            if !self.contents {
                slot.fill(0);
                continue;
            }
            match self.store(phys) {
                Store::Device(c) => c.read(offset, slot),
                Store::Host(block) => block.read(offset, slot),
            }
        }
        Ok(())
    }

    /// Copies between any two ranges, pinned host memory included. Runs stay runs.
    pub(super) fn copy(&mut self, dst: u64, src: u64, bytes: u64, reach: Reach) -> Result<(), u64> {
        let from = self.usable(src, bytes, reach)?;
        self.usable(dst, bytes, reach)?;
        if !self.contents {
            return Ok(());
        }
        for part in from {
            let Part::Here { addr, bytes, phys, offset, .. } = part else { continue };
            let to = dst + (addr - src);
            match self.store(phys) {
                Store::Device(c) => {
                    for (at, len, run) in c.runs(offset, bytes) {
                        let to = to + (at - offset);
                        match run {
                            Bytes::Word(word) => {
                                // Stored anchored at the source's zero: turn it back to begin at `at`.
                                let word = word.rotate_right(8 * (at % 8) as u32);
                                self.write_word(to, len, word, reach)?;
                            }
                            Bytes::Literal(all, index) => {
                                self.write_bytes(to, &all[index..][..len as usize], reach)?;
                            }
                        }
                    }
                }
                Store::Host(block) => {
                    let data = block.to_vec(offset, bytes);
                    self.write_bytes(to, &data, reach)?;
                }
            }
        }
        Ok(())
    }

    /// The first byte of a range that differs from a repeating word beginning at `addr`: its address and the eight
    /// bytes, or fewer, found there, as a word.
    pub(super) fn first_difference(
        &mut self,
        addr: u64,
        bytes: u64,
        word: u64,
        reach: Reach,
    ) -> Result<Option<(u64, u64)>, u64> {
        for part in self.usable(addr, bytes, reach)? {
            let Part::Here { addr: from, bytes: len, phys, offset, .. } = part else { continue };
            if !self.contents {
                continue;
            }
            let anchored = anchored(word, offset.wrapping_sub(from - addr));
            let found = match self.store(phys) {
                Store::Device(c) => c.first_difference(offset, len, anchored),
                Store::Host(block) => {
                    let data = block.to_vec(offset, len);
                    data.iter().zip(offset..).find(|&(&b, o)| b != byte_at(anchored, o)).map(|(_, o)| o)
                }
            };
            if let Some(at) = found.map(|o| from + (o - offset)) {
                let mut bytes_found = [0; 8];
                let len = (addr + bytes - at).min(8) as usize;
                self.read_bytes(at, &mut bytes_found[..len], reach)?;
                return Ok(Some((at, u64::from_le_bytes(bytes_found))));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_and_grow_together() {
        let mut free = FreeAddresses::new(1000, 2000);
        assert_eq!(free.take(100), Some(1000));
        assert_eq!(free.take(100), Some(1100));
        assert!(free.take_at(1500, 100) && !free.take_at(1550, 10), "taken only once");
        assert_eq!(free.take(350), Some(1600), "the smallest that fits");
        free.give(1000, 100);
        assert_eq!(free.take(60), Some(1000), "the smallest that fits: 100 bytes here");
        free.give(1000, 60);
        free.give(1100, 100);
        free.give(1500, 100);
        free.give(1600, 350);
        assert_eq!(free.by_start.into_iter().collect::<Vec<_>>(), [(1000, 2000)]);
        assert_eq!(free.by_length.into_iter().collect::<Vec<_>>(), [(1000, 1000)]);
    }

    #[test]
    fn a_range_over_two_pieces_and_a_hole() {
        let mut m = MemoryMap::new();
        let a = m.create(0, 100, Backing::Plain, Store::Device(Contents::new(0)));
        let b = m.create(0, 100, Backing::Plain, Store::Device(Contents::new(0)));
        m.map(1000, a);
        m.map(1100, b);
        m.write_word(1050, 100, 0x0807_0605_0403_0201, Reach::Device).expect("mapped");
        assert_eq!(m.first_difference(1050, 100, 0x0807_0605_0403_0201, Reach::Device), Ok(None));
        let mut over = [0; 4];
        m.read_bytes(1098, &mut over, Reach::Device).expect("mapped");
        assert_eq!(over, [1, 2, 3, 4], "48 bytes on: the word begins again, across the seam");
        assert_eq!(m.write_word(1150, 100, 0, Reach::Device), Err(1200), "the first hole");
        m.copy(1003, 1051, 40, Reach::Device).expect("mapped");
        assert_eq!(
            m.first_difference(1003, 40, 0x0108_0706_0504_0302, Reach::Device),
            Ok(None),
            "shifted by one byte"
        );
        assert_eq!(
            m.first_difference(1002, 2, 0, Reach::Device),
            Ok(Some((1003, 2))),
            "address, and what is there"
        );
    }
}
