//! What a thread remembers of streams: those that it used last, and its own default streams, which end with it.
//!
//! Nothing reports that a thread ends, and its default streams end without notice. So the list of them has a destructor, in which
//! what was freed there is marked and the lanes end, while the handle still means this thread's stream
//! ([`Door::thread_ends`]). Destructors of a thread's values run in the reverse order of their first use: the list is first
//! touched after driver calls of the thread, so that it ends before whatever the driver keeps for the thread. A destructor that runs
//! later (of a value that was made before, or of a pthread key) may still free: each such free marks the stream and ends its lane.
//!
//! It does not know what a lane is for.

use crate::door::{Door, Lane};
use crate::status;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// How many streams a thread remembers.
const REMEMBERED: usize = 16;

/// A lane, and the number of its allocator.
type Met = (u32, Arc<Lane>);

/// The stream that was used last in each place.
struct Recent(RefCell<[Option<Met>; REMEMBERED]>);

/// Default streams of the calling thread, one an allocator.
struct Own(RefCell<Vec<Met>>);

thread_local! {
    static RECENT: Recent = const { Recent(RefCell::new([const { None }; REMEMBERED])) };
    static OWN: Own = const { Own(RefCell::new(Vec::new())) };
    /// The list has ended. Querying the list itself would be its first use.
    static PAST: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is past the end of the list of its own streams: destructors that run later may still call.
#[inline]
pub(crate) fn is_past() -> bool {
    PAST.get()
}

fn place(handle: usize) -> usize {
    (handle >> 4 ^ handle >> 12 ^ handle) % REMEMBERED
}

/// Runs `then` on the stream that was last used with this handle at this allocator.
#[inline]
pub(crate) fn with<R>(door: u32, handle: usize, then: impl FnOnce(&Lane) -> Option<R>) -> Option<R> {
    let met = RECENT.try_with(|recent| {
        let recent = recent.0.try_borrow().ok()?;
        let (of, lane) = recent[place(handle)].as_ref()?;
        if *of == door && lane.handle() == handle { then(lane) } else { None }
    });
    met.ok().flatten()
}

/// This one was used last.
pub(crate) fn remember(door: u32, lane: &Arc<Lane>) {
    let _ = RECENT.try_with(|recent| {
        let replaced =
            recent.0.try_borrow_mut().ok()?[place(lane.handle())].replace((door, Arc::clone(lane)));
        // Its drop may call the driver: not while the list is borrowed.
        drop(replaced);
        Some(())
    });
}

/// A default stream of the calling thread, on which a driver call was made. If the thread is past its list's end, its frees
/// end it ([`is_past`]).
pub(crate) fn own(door: u32, lane: &Arc<Lane>) {
    let _ = OWN.try_with(|own| {
        let mut own = own.0.try_borrow_mut().ok()?;
        let ended: Vec<Met> = own.extract_if(.., |&mut (of, _)| Door::is_closed(of)).collect();
        if !own.iter().any(|(of, kept)| *of == door && Arc::ptr_eq(kept, lane)) {
            own.push((door, Arc::clone(lane)));
        }
        drop(own);
        drop(ended);
        Some(())
    });
}

/// The allocator was destroyed: the calling thread releases its streams. Other threads do when they end, or when others take their places.
pub(crate) fn forget(door: u32) {
    let recent = RECENT.try_with(|recent| {
        let mut recent = recent.0.try_borrow_mut().ok()?;
        let theirs = recent.iter_mut().map(|met| met.take_if(|(of, _)| *of == door));
        Some(theirs.collect::<Vec<_>>())
    });
    let own = OWN.try_with(|own| {
        let mut own = own.0.try_borrow_mut().ok()?;
        Some(own.extract_if(.., |&mut (of, _)| of == door).collect::<Vec<_>>())
    });
    // Their ends call the driver: not while the lists are borrowed.
    drop((recent, own));
}

/// Does for each of `kept` what a thread's end requires. In a forked child neither the parent's locks nor the driver may be
/// touched: there each is left as it is, and only their list is freed. And a panic in a thread's destructor would
/// end the process.
fn at_the_end<T>(forked: bool, kept: impl IntoIterator<Item = T>, run: impl FnMut(T)) {
    let kept = kept.into_iter();
    if forked {
        kept.for_each(core::mem::forget);
        return;
    }
    let _ = catch_unwind(AssertUnwindSafe(|| kept.for_each(run)));
}

impl Drop for Recent {
    /// A lane's last reference, of an allocator that another thread destroyed, is the end of a stream.
    fn drop(&mut self) {
        let met = core::mem::replace(self.0.get_mut(), [const { None }; REMEMBERED]);
        at_the_end(status::is_forked(), met, drop);
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        PAST.set(true);
        let own = core::mem::take(self.0.get_mut());
        let taken =
            |recent: &Recent| recent.0.try_borrow_mut().ok().map(|mut all| all.each_mut().map(Option::take));
        let recent = RECENT.try_with(taken);
        let forked = status::is_forked();
        at_the_end(forked, recent.ok().flatten().into_iter().flatten(), drop);
        at_the_end(forked, own, |(door, lane)| Door::thread_ends(door, lane));
    }
}

#[cfg(test)]
mod tests {
    use super::at_the_end;
    use std::sync::Arc;

    #[test]
    fn a_forked_child_lets_go_of_nothing_at_its_end() {
        let kept = Arc::new(());
        at_the_end(true, [Arc::clone(&kept)], |_| panic!("nothing is to be done"));
        assert_eq!(Arc::strong_count(&kept), 2, "its drop could touch the driver");
        at_the_end(false, [Arc::clone(&kept)], drop);
        assert_eq!(Arc::strong_count(&kept), 2, "and otherwise it is dropped");
    }

    #[test]
    fn a_panic_in_the_end_of_a_threads_list_is_not_the_end_of_the_process() {
        at_the_end(false, [()], |()| panic!("of a lane's drop"));
    }
}
