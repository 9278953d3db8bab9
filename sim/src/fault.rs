//! Planted faults: which call fails, and with what.
//!
//! A failed call is counted and does nothing else. Faults know calls by number and by name; they do not know what a call would
//! have done.

use super::Sim;
use super::call::Call;
use super::oracle::StreamKey;
use millpond_driver::DriverErrorKind;
use smallvec::SmallVec;
use std::fmt;

/// What another thread does meanwhile.
pub(super) struct Meanwhile(Box<dyn FnOnce() + Send>);

impl Meanwhile {
    /// Does it, with no lock of the device held.
    pub(super) fn run(self) {
        (self.0)();
    }
}

impl fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Meanwhile")
    }
}

#[derive(Clone, Copy, Debug)]
enum When {
    /// The call with this overall number.
    Number(u64),
    /// After this many more calls of one kind, counting down; 1 is the next.
    Countdown(Call, u64),
}

/// The faults still to strike.
#[derive(Debug, Default)]
pub(super) struct Faults {
    planted: Vec<(When, DriverErrorKind)>,
    /// Calls that panic when they are done, counting down.
    panics: Vec<(Call, u64)>,
    /// Streams on which captures begin behind calls, counting down.
    captures: Vec<(Call, u64, StreamKey)>,
    /// Streams on which captures begin right before a call and end behind it, counting down.
    around: Vec<(Call, u64, StreamKey)>,
    /// What happens before calls, counting down.
    meanwhile: Vec<(Call, u64, Meanwhile)>,
    not_ready: u32,
}

/// What strikes at one call, in the order in which it was planted.
pub(super) type Struck<T> = SmallVec<[T; 1]>;

/// Counts this call, and returns what strikes it.
fn struck_by<T>(waiting: &mut Vec<(Call, u64, T)>, call: Call) -> Struck<T> {
    waiting.iter_mut().filter(|c| c.0 == call).for_each(|c| c.1 -= 1);
    let mut struck = Struck::new();
    let mut at = 0;
    while at < waiting.len() {
        if waiting[at].1 == 0 {
            struck.push(waiting.remove(at).2);
        } else {
            at += 1;
        }
    }
    struck
}

impl Faults {
    /// Whether this call, the `number`th, fails now.
    pub(super) fn strike(&mut self, call: Call, number: u64) -> Option<DriverErrorKind> {
        if self.planted.is_empty() {
            return None;
        }
        let mut struck = None;
        self.planted.retain_mut(|(when, kind)| {
            let now = match when {
                When::Number(k) => *k == number,
                When::Countdown(c, left) if *c == call => {
                    *left -= 1;
                    *left == 0
                }
                When::Countdown(..) => false,
            };
            if now {
                struck = struck.or(Some(*kind));
            }
            !now
        });
        struck
    }

    /// Whether this call, which is done, panics now.
    pub(super) fn panics(&mut self, call: Call) -> bool {
        let mut struck = false;
        self.panics.retain_mut(|(c, left)| {
            *left -= u64::from(*c == call);
            struck |= *left == 0;
            *left > 0
        });
        struck
    }

    pub(super) fn capture_behind(&mut self, call: Call, nth: u64, on: StreamKey) {
        self.captures.push((call, nth, on));
    }

    pub(super) fn capture_around(&mut self, call: Call, nth: u64, on: StreamKey) {
        self.around.push((call, nth, on));
    }

    /// What happens before this call, which is about to be made.
    pub(super) fn meanwhile(&mut self, call: Call) -> Struck<Meanwhile> {
        struck_by(&mut self.meanwhile, call)
    }

    /// The streams on which there is a capture for as long as this call, which is about to be made.
    pub(super) fn captures_around(&mut self, call: Call) -> Struck<StreamKey> {
        struck_by(&mut self.around, call)
    }

    /// The streams on which a capture begins now, behind this call, which is done.
    pub(super) fn captures(&mut self, call: Call) -> Struck<StreamKey> {
        struck_by(&mut self.captures, call)
    }

    fn add_not_ready(&mut self, times: u32) {
        self.not_ready = if times == 0 { 0 } else { self.not_ready.saturating_add(times) };
    }

    /// Whether a planted "not ready" is the answer now.
    pub(super) fn not_ready(&mut self) -> bool {
        let yes = self.not_ready > 0;
        self.not_ready -= u32::from(yes);
        yes
    }
}

/// Faults to plant. They strike whichever device of the world makes the call.
impl Sim {
    /// How many calls were made so far that [`fail_call`](Sim::fail_call) can make fail: all except destructors.
    pub fn call_count(&self) -> u64 {
        self.lock().borrow().calls_made
    }
    /// The call with this overall number fails; the first call of a world is number 1. A test that counted `N` calls in a
    /// good run can make `N` more, failing call 1, 2 … `N`. A number that has passed never strikes.
    pub fn fail_call(&self, number: u64, kind: DriverErrorKind) {
        self.lock().borrow_mut().faults.planted.push((When::Number(number), kind));
    }
    /// The `nth` call of this kind from now on fails; 1 is the next. [`DriverErrorKind::ContextLost`] also loses the whole
    /// device, as [`lose_context`](Sim::lose_context).
    ///
    /// # Panics
    /// When the call cannot fail, or `nth` is 0.
    pub fn fail(&self, call: Call, nth: u64, kind: DriverErrorKind) {
        assert!(call.can_fail(), "{} returns no error and cannot fail", call.name());
        assert!(nth > 0, "the next call is number 1");
        self.lock().borrow_mut().faults.planted.push((When::Countdown(call, nth), kind));
    }
    /// The `nth` call of this kind from now on does its work and then panics, as a host function that runs in it may; 1 is the
    /// next. A call that fails does not count.
    ///
    /// # Panics
    /// When `nth` is 0.
    pub fn panic_behind(&self, call: Call, nth: u64) {
        assert!(nth > 0, "the next call is number 1");
        self.lock().borrow_mut().faults.panics.push((call, nth));
    }
    /// Right before the `nth` call of this kind from now on, `then` runs on the thread that makes it; 1 is the next. It stands for
    /// what other threads do while that call is on its way into the driver: no lock of the device is held, so it may make calls of its
    /// own, and wait for threads that do. What has not run when the last reference to the device is dropped is [removed](Sim::clear_faults)
    /// first, or keeps what it holds.
    ///
    /// # Panics
    /// When `nth` is 0.
    pub fn meanwhile(&self, call: Call, nth: u64, then: impl FnOnce() + Send + 'static) {
        assert!(nth > 0, "the next call is number 1");
        self.lock().borrow_mut().faults.meanwhile.push((call, nth, Meanwhile(Box::new(then))));
    }
    /// The next `times` queries and host waits for events answer "not ready", whatever their state, added to those of earlier calls; 0 ends them all.
    pub fn not_ready(&self, times: u32) {
        self.lock().borrow_mut().faults.add_not_ready(times);
    }
    /// This device's context is lost: every later call of it fails, except destructors.
    pub fn lose_context(&self) {
        self.lock().borrow_mut().devices[self.index()].lost = true;
    }
    /// Removes all planted faults that have not struck; a lost context stays lost.
    pub fn clear_faults(&self) {
        let gone = std::mem::take(&mut self.lock().borrow_mut().faults);
        // Only now: what a closure holds may re-enter the simulator when it is dropped.
        drop(gone);
    }
}
