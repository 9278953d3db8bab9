//! Groups: several allocators, of one device or of several, that share one budget.
//!
//! ```text
//!   Group ── book: what all members reserve, hard, soft
//!     └ seats (weak) ── Seat: what one member reserves, the member (weak)
//!   Core ── Config ── Group,   Core ── Backing ── Seat ── book
//! ```
//!
//! A claim counts in the member's own record and in the book in one hold of the member's backing lock; the book has a lock of its own, which is a leaf. So
//! the sum never exceeds the hard limit, whoever claims meanwhile. Nobody refers to a member but weakly: a member ends as it would alone, gives up what it
//! held, and leaves its seat, for which it waits while another member's request is inside ([`Seat::ask`]).
//!
//! A request at the group's limit asks the other members, one after the other, for what is idle and complete. It holds no lock but the seat it is
//! at, which only askers, reports and the member's own end take; no device is waited for, and none of a member's streams. It does not know pools, nor how
//! a member finds what is idle.

use crate::laws::limits;
use crate::report::{GroupReport, MemberReport};
use crate::sync::atomic::AtomicU64;
use crate::sync::{Arc, Mutex, Ordering, Weak, assert_unlocked};
use core::fmt;

/// Several allocators that share one budget of device memory, on one device or on several. Cheap to clone.
///
/// The sum of what its members reserve never exceeds the hard limit, whichever threads they are used on. A request that finds no room under it climbs its own
/// ladder first; then the other members give back what is idle and complete, without waiting for anything; then it is out of memory, and the error has
/// each member's figures ([`Report::group`](crate::report::Report::group)). Above the soft limit each member requests memory as above its own
/// ([`Config::soft_limit`](super::Config::soft_limit)), and its crossing is reported to the sink of the member that crossed it. Limits of members count besides.
///
/// A member leaves when it ends, in any order with others and with the group's handles. Pinned memory does not count.
///
/// ```
/// use millpond::{Allocator, Config, Group, units::MIB};
/// use millpond_sim::Sim;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let group = Group::new(Some(64 * MIB), None);
/// let [one, other] = [0, 1].map(|_| Allocator::new(Sim::new(1 << 30), Config::default().group(&group)));
/// let (one, other) = (one?, other?);
/// let (s, t) = (one.stream()?, other.stream()?);
/// let x = one.alloc(40 * MIB, &s)?;
/// assert!(other.alloc(40 * MIB, &t).is_err());              // the sum would be 80 MiB
/// assert_eq!(group.report().reserved, 40 * MIB);
/// # drop(x);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Group {
    shared: Arc<Shared>,
}

/// What all members have in common.
struct Shared {
    hard: Option<u64>,
    soft: Option<u64>,
    book: Mutex<Book>,
    seats: Mutex<Vec<Weak<Seat>>>,
}

#[derive(Default)]
struct Book {
    reserved: u64,
    reserved_peak: u64,
    /// Bytes that were given up since the beginning.
    given_up: u64,
    /// The crossing of the soft limit was reported.
    reported: bool,
}

/// What others may ask of a member.
pub(super) trait Member: Send + Sync {
    /// Gives back idle complete memory, at least so many bytes if there are as many, and waits for nothing. Returns how many.
    fn give_back_idle(&self, enough: u64) -> u64;
    /// Its figures, but for those that its seat has.
    fn figures(&self) -> MemberReport;
}

/// A member's place in its group.
pub(crate) struct Seat {
    group: Arc<Shared>,
    /// What the member reserves. Changed under its backing lock.
    held: AtomicU64,
    /// What it gave up itself.
    given_up: AtomicU64,
    /// `None` before the member sits, and after it ended. Held by who asks it.
    member: Mutex<Option<Weak<dyn Member>>>,
}

/// A soft limit was crossed: what is reserved, and the limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Crossing {
    pub(crate) reserved: u64,
    pub(crate) limit: u64,
    pub(crate) of_group: bool,
}

impl Group {
    /// A group whose members reserve at most `hard` bytes together, and tighten above `soft`; `None`: no limit.
    pub fn new(hard: Option<u64>, soft: Option<u64>) -> Group {
        let (book, seats) = (Mutex::new(Book::default()), Mutex::new(Vec::new()));
        Group { shared: Arc::new(Shared { hard, soft, book, seats }) }
    }

    /// Its figures and those of each member, in the order in which they came. The sum is of one moment, and the members' figures of one each.
    pub fn report(&self) -> GroupReport {
        self.shared.report()
    }

    /// Whether it has a soft limit.
    pub(super) fn has_soft(&self) -> bool {
        self.shared.soft.is_some()
    }

    /// A seat for a new member, which it takes by [`Seat::sit`].
    pub(super) fn seat(&self) -> Arc<Seat> {
        let seat = Arc::new(Seat {
            group: Arc::clone(&self.shared),
            held: AtomicU64::new(0),
            given_up: AtomicU64::new(0),
            member: Mutex::new(None),
        });
        let mut seats = self.shared.seats.lock();
        seats.retain(|seat| seat.strong_count() > 0);
        seats.push(Arc::downgrade(&seat));
        seat
    }
}

impl Shared {
    fn seats(&self) -> Vec<Arc<Seat>> {
        self.seats.lock().iter().filter_map(Weak::upgrade).collect()
    }

    fn report(&self) -> GroupReport {
        let members: Vec<MemberReport> = self.seats().iter().filter_map(|seat| seat.figures()).collect();
        let book = self.book.lock();
        let (reserved, reserved_peak) = (book.reserved, book.reserved_peak);
        GroupReport { hard: self.hard, soft: self.soft, reserved, reserved_peak, members }
    }
}

impl Seat {
    /// The member sits: others may ask it from now on.
    pub(super) fn sit(&self, member: Weak<dyn Member>) {
        *self.member.lock() = Some(member);
    }

    /// The member is about to end: nobody asks it any more, and nobody who did is still inside.
    pub(super) fn leave(&self) {
        assert_unlocked("a member leaves its group");
        self.member.lock().take();
    }

    /// The member has ended: it holds nothing any more but `kept` bytes that stay allocated for good.
    pub(crate) fn end(&self, kept: u64) {
        let held = self.held.swap(0, Ordering::Relaxed);
        self.take_off(limits::given_up_at_end(held, kept));
    }

    /// What the member reserves, by its seat.
    pub(super) fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    pub(super) fn hard(&self) -> Option<u64> {
        self.group.hard
    }

    /// How many bytes more the members may claim.
    pub(crate) fn room(&self) -> u64 {
        let reserved = self.group.book.lock().reserved;
        self.group.hard.unwrap_or(u64::MAX).saturating_sub(reserved)
    }

    /// How many bytes more they may claim below the soft limit.
    pub(crate) fn soft_room(&self) -> u64 {
        let reserved = self.group.book.lock().reserved;
        self.group.soft.unwrap_or(u64::MAX).saturating_sub(reserved)
    }

    /// How many bytes they reserve above it.
    pub(crate) fn above_soft(&self) -> u64 {
        self.group.book.lock().reserved.saturating_sub(self.group.soft.unwrap_or(u64::MAX))
    }

    /// Claims so many bytes; `false`, and nothing is claimed, if the sum would exceed the hard limit.
    pub(crate) fn claim(&self, bytes: u64) -> bool {
        {
            let mut book = self.group.book.lock();
            let room = self.group.hard.unwrap_or(u64::MAX).saturating_sub(book.reserved);
            if bytes > room {
                return false;
            }
            book.reserved += limits::claimed(bytes);
        }
        self.held.fetch_add(bytes, Ordering::Relaxed);
        true
    }

    /// Gives up so many bytes that were claimed.
    pub(crate) fn give_up(&self, bytes: u64) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
        self.given_up.fetch_add(bytes, Ordering::Relaxed);
        self.take_off(limits::given_up(bytes));
    }

    fn take_off(&self, bytes: u64) {
        let mut book = self.group.book.lock();
        // A planted bug may have left more or less there.
        book.reserved = book.reserved.saturating_sub(bytes);
        book.given_up += bytes;
        book.reported &= self.group.soft.is_none_or(|soft| book.reserved > soft);
    }

    /// The driver gave what was claimed. Returns the crossing of the soft limit, if this is one.
    pub(crate) fn granted(&self) -> Option<Crossing> {
        let mut book = self.group.book.lock();
        book.reserved_peak = book.reserved_peak.max(book.reserved);
        let limit = self.group.soft?;
        let above = book.reserved > limit;
        let reports = limits::reports_crossing(above, book.reported);
        book.reported = above;
        reports.then_some(Crossing { reserved: book.reserved, limit, of_group: true })
    }

    /// What other members gave up so far: a request that finds nothing looks again if it has changed.
    pub(super) fn given_up_by_others(&self) -> u64 {
        self.group.book.lock().given_up.saturating_sub(self.given_up.load(Ordering::Relaxed))
    }

    /// Asks the other members, those behind this one first, until they gave back `enough`. Returns how many bytes they did.
    pub(super) fn trim_others(&self, enough: u64) -> u64 {
        assert_unlocked("other members give memory back");
        let mut seats = self.group.seats();
        let own = seats.iter().position(|seat| core::ptr::eq(&raw const **seat, self)).unwrap_or(0);
        seats.rotate_left(own);
        let mut given = 0;
        for seat in seats.iter().skip(1) {
            if given >= enough {
                break;
            }
            given += seat.ask(enough - given);
        }
        given
    }

    /// Asks the member of this seat, which does not end meanwhile.
    fn ask(&self, enough: u64) -> u64 {
        let member = self.member.lock();
        let Some(asked) = member.as_ref().and_then(Weak::upgrade) else { return 0 };
        asked.give_back_idle(enough)
    }

    fn figures(&self) -> Option<MemberReport> {
        let member = self.member.lock();
        let asked = member.as_ref().and_then(Weak::upgrade)?;
        let mut figures = asked.figures();
        figures.reserved = self.held.load(Ordering::Relaxed);
        Some(figures)
    }
}

impl Drop for Seat {
    /// Of a member that was never made, or whose end did not come this far.
    fn drop(&mut self) {
        let held = self.held.load(Ordering::Relaxed);
        if held > 0 {
            self.take_off(held);
        }
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group").field("hard", &self.shared.hard).field("soft", &self.shared.soft).finish()
    }
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seat({})", self.held.load(Ordering::Relaxed))
    }
}
