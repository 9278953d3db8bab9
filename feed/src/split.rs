//! One source for several feeders. It does not know them.

use core::fmt;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

struct Dealt<I: Iterator> {
    source: I,
    ended: bool,
    /// Whom the next item is for.
    next: usize,
    /// What each part has not taken yet; `None` once it is dropped, whose items are dropped.
    waiting: Vec<Option<VecDeque<I::Item>>>,
}

/// A part of a source, dealt as cards are: item `i` of the source goes to part `i % parts`, whoever asks first. For a feeder on each of
/// several devices.
///
/// A part that asks for its next item takes those of the others from the source too, which wait for them: they are as many as the slowest part is behind. One that is dropped
/// loses its items, and the others keep theirs.
///
/// ```
/// use millpond_feed::Split;
/// let [mut even, mut odd] = Split::new(0..5);
/// assert_eq!(odd.next(), Some(1));
/// assert_eq!(even.by_ref().collect::<Vec<_>>(), [0, 2, 4]);
/// assert_eq!(odd.collect::<Vec<_>>(), [3]);
/// ```
pub struct Split<I: Iterator> {
    dealt: Arc<Mutex<Dealt<I>>>,
    part: usize,
}

impl<I: Iterator> Split<I> {
    /// So many parts of one source.
    #[allow(clippy::new_ret_no_self, reason = "a part alone is of no use")]
    pub fn new<const N: usize>(source: impl IntoIterator<IntoIter = I>) -> [Split<I>; N] {
        let waiting = (0..N).map(|_| Some(VecDeque::new())).collect();
        let dealt = Dealt { source: source.into_iter(), ended: false, next: 0, waiting };
        let dealt = Arc::new(Mutex::new(dealt));
        core::array::from_fn(|part| Split { dealt: Arc::clone(&dealt), part })
    }
}

impl<I: Iterator> Iterator for Split<I> {
    type Item = I::Item;
    fn next(&mut self) -> Option<I::Item> {
        let mut dealt = self.dealt.lock();
        loop {
            if let Some(item) = dealt.waiting[self.part].as_mut().and_then(VecDeque::pop_front) {
                return Some(item);
            }
            if dealt.ended {
                return None;
            }
            // A source that panics is not asked again.
            dealt.ended = true;
            let item = dealt.source.next()?;
            dealt.ended = false;
            let to = dealt.next;
            dealt.next = (to + 1) % dealt.waiting.len();
            if let Some(waiting) = &mut dealt.waiting[to] {
                waiting.push_back(item);
            }
        }
    }
}

impl<I: Iterator> Drop for Split<I> {
    fn drop(&mut self) {
        let gone = self.dealt.lock().waiting[self.part].take();
        drop(gone);
    }
}

impl<I: Iterator> fmt::Debug for Split<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Split(part {})", self.part)
    }
}
