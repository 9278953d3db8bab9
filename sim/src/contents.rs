//! What one piece of memory holds: byte-exact, and sparse.
//!
//! A [`Contents`] is an interval map from offset to run. A run is a repeating 8-byte word or literal bytes; what was
//! never written is the background word. So a fill of a gibibyte is one run, and 144 GiB of fresh memory cost nothing.
//! It does not know addresses, mappings, streams or who owns the bytes, and it never fails: the caller has checked
//! that the range lies inside.
//!
//! A word is stored *anchored*: the byte at offset `o` is byte `o % 8` of the stored word, wherever its run begins, so
//! that a run can be cut anywhere without touching the word. A pattern that begins at offset 3 is therefore rotated by
//! three bytes before it is stored:
//!
//! ```text
//! offset          0  1  2  3  4  5  6  7 | 8  9 10
//! pattern from 3           A  B  C  D  E | F  G  H
//! stored word     F  G  H  A  B  C  D  E | F  G  H     = word rotated left by 3 bytes (little endian)
//! ```

use millpond_driver::sync::Arc;
use std::collections::BTreeMap;

/// The bytes of a run.
#[derive(Clone, Debug)]
pub(super) enum Bytes {
    /// A repeating word, anchored at offset 0 of the memory it lies in.
    Word(u64),
    /// These bytes, from this index on.
    Literal(Arc<[u8]>, usize),
}

#[derive(Clone, Debug)]
struct Run {
    end: u64,
    bytes: Bytes,
}

/// A part of a range, as [`Contents::runs`] lists them: first offset, length, bytes.
pub(super) type Part = (u64, u64, Bytes);

/// Turns a word that begins at `start` into the same word anchored at 0.
pub(super) fn anchored(word: u64, start: u64) -> u64 {
    word.rotate_left(8 * (start % 8) as u32)
}

/// The byte that an anchored word has at an offset.
pub(super) fn byte_at(word: u64, offset: u64) -> u8 {
    word.to_le_bytes()[(offset % 8) as usize]
}

/// Whether `bytes`, beginning at `start`, are one repeating word, and which (anchored).
fn repeating(bytes: &[u8], start: u64) -> Option<u64> {
    let (first, rest) = bytes.split_first_chunk::<8>()?;
    let same = rest.chunks(8).all(|c| c == &first[..c.len()]);
    same.then(|| anchored(u64::from_le_bytes(*first), start))
}

/// What a piece of memory holds.
#[derive(Debug)]
pub(super) struct Contents {
    runs: BTreeMap<u64, Run>,
    background: u64,
}

impl Contents {
    /// Memory that holds `background` everywhere.
    pub(super) fn new(background: u64) -> Contents {
        Contents { runs: BTreeMap::new(), background }
    }

    /// Writes literal bytes; a repeating word is recognised and kept as one.
    pub(super) fn write(&mut self, at: u64, bytes: &[u8]) {
        match repeating(bytes, at) {
            Some(word) => self.put(at, bytes.len() as u64, Bytes::Word(word)),
            None => self.put(at, bytes.len() as u64, Bytes::Literal(Arc::from(bytes), 0)),
        }
    }

    /// Writes a run. A word is anchored already; literal bytes must be long enough.
    pub(super) fn put(&mut self, at: u64, len: u64, bytes: Bytes) {
        if len == 0 {
            return;
        }
        let (mut start, mut end) = (at, at + len);
        self.remove_range(start, end);
        if let Bytes::Word(word) = bytes {
            if let Some((&s, run)) = self.runs.range(..start).next_back()
                && run.end == start
                && matches!(run.bytes, Bytes::Word(w) if w == word)
            {
                start = s;
            }
            if let Some(run) = self.runs.get(&end)
                && matches!(run.bytes, Bytes::Word(w) if w == word)
            {
                let next = end;
                end = run.end;
                self.runs.remove(&next);
            }
        }
        self.runs.insert(start, Run { end, bytes });
    }

    /// Removes what lies in a range, keeping what extends beyond it on either side.
    fn remove_range(&mut self, start: u64, end: u64) {
        if let Some((&s, run)) = self.runs.range_mut(..start).next_back()
            && run.end > start
        {
            let tail = (run.end > end).then(|| (run.end, tail_of(&run.bytes, s, end)));
            run.end = start;
            if let Some((tail_end, bytes)) = tail {
                self.runs.insert(end, Run { end: tail_end, bytes });
                return;
            }
        }
        while let Some((&s, run)) = self.runs.range(start..end).next() {
            let run = (run.end > end).then(|| Run { end: run.end, bytes: tail_of(&run.bytes, s, end) });
            self.runs.remove(&s);
            if let Some(rest) = run {
                self.runs.insert(end, rest);
            }
        }
    }

    /// The parts that tile a range, background included.
    pub(super) fn runs(&self, at: u64, len: u64) -> Vec<Part> {
        let end = at + len;
        let mut parts = Vec::new();
        let mut from = at;
        let first = self.runs.range(..=at).next_back().map_or(at, |(&s, _)| s);
        for (&s, run) in self.runs.range(first..end) {
            if run.end <= from {
                continue;
            }
            if s > from {
                parts.push((from, s - from, Bytes::Word(self.background)));
                from = s;
            }
            let to = run.end.min(end);
            parts.push((from, to - from, tail_of(&run.bytes, s, from)));
            from = to;
        }
        if from < end {
            parts.push((from, end - from, Bytes::Word(self.background)));
        }
        parts
    }

    /// Reads bytes.
    pub(super) fn read(&self, at: u64, into: &mut [u8]) {
        for (from, len, bytes) in self.runs(at, into.len() as u64) {
            let slot = &mut into[(from - at) as usize..][..len as usize];
            match bytes {
                Bytes::Word(word) => {
                    for (byte, offset) in slot.iter_mut().zip(from..) {
                        *byte = byte_at(word, offset);
                    }
                }
                Bytes::Literal(all, index) => slot.copy_from_slice(&all[index..][..len as usize]),
            }
        }
    }

    /// The first offset in a range whose byte is not that of an anchored word.
    pub(super) fn first_difference(&self, at: u64, len: u64, word: u64) -> Option<u64> {
        self.runs(at, len).into_iter().find_map(|(from, len, bytes)| match bytes {
            Bytes::Word(found) if found == word => None,
            Bytes::Word(found) => (from..from + len.min(8)).find(|&o| byte_at(found, o) != byte_at(word, o)),
            Bytes::Literal(all, index) => {
                let found = &all[index..][..len as usize];
                found.iter().zip(from..).find(|&(&b, o)| b != byte_at(word, o)).map(|(_, o)| o)
            }
        })
    }

    /// How many runs describe the contents.
    #[cfg(test)]
    fn run_count(&self) -> usize {
        self.runs.len()
    }
}

/// The bytes of a run that began at `start`, from offset `from` on.
fn tail_of(bytes: &Bytes, start: u64, from: u64) -> Bytes {
    match bytes {
        Bytes::Word(word) => Bytes::Word(*word),
        Bytes::Literal(all, index) => Bytes::Literal(all.clone(), index + (from - start) as usize),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_fill_of_a_gibibyte_is_one_run() {
        let mut c = Contents::new(0);
        c.put(0, 1 << 30, Bytes::Word(7));
        c.put(1 << 30, 1 << 30, Bytes::Word(7));
        assert_eq!(c.run_count(), 1);
        c.write(4096, &[1, 2, 3]);
        assert_eq!(c.run_count(), 3, "a hole of three bytes in the middle");
        assert_eq!(c.first_difference(0, 2 << 30, 7), Some(4096));
        c.put(4096, 3, Bytes::Word(7));
        assert_eq!(c.run_count(), 1, "healed");
    }

    #[derive(Clone, Debug)]
    enum Step {
        Word(u64, u64, u64),
        Literal(u64, Vec<u8>),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0u64..90, 1u64..40, 0u64..3).prop_map(|(at, len, w)| Step::Word(
                at,
                len,
                w.wrapping_mul(0x0102_0304_0506_0708)
            )),
            (0u64..90, prop::collection::vec(0u8..3, 1..20)).prop_map(|(at, bytes)| Step::Literal(at, bytes)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn agrees_with_a_plain_array(steps in prop::collection::vec(step(), 1..30), at in 0u64..100, len in 1u64..28) {
            let mut plain = [0xAAu8; 128];
            let mut sparse = Contents::new(0xAAAA_AAAA_AAAA_AAAA);
            for step in steps {
                match step {
                    Step::Word(at, len, word) => {
                        for i in 0..len {
                            plain[(at + i) as usize] = byte_at(word, i);
                        }
                        sparse.put(at, len, Bytes::Word(anchored(word, at)));
                    }
                    Step::Literal(at, bytes) => {
                        plain[at as usize..][..bytes.len()].copy_from_slice(&bytes);
                        sparse.write(at, &bytes);
                    }
                }
            }
            let mut read = vec![0; len as usize];
            sparse.read(at, &mut read);
            prop_assert_eq!(&read[..], &plain[at as usize..][..len as usize]);
            let word = anchored(0x0102_0304_0506_0708, at);
            let expected = (at..at + len).find(|&o| plain[o as usize] != byte_at(word, o));
            prop_assert_eq!(sparse.first_difference(at, len, word), expected);
            let tiled: u64 = sparse.runs(at, len).iter().map(|r| r.1).sum();
            prop_assert_eq!(tiled, len);
        }
    }
}
