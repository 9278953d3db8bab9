//! Tokens: they own the host's side of a copy while it is in flight.

use super::source::StableSource;
use super::source::seal::Seal;
use crate::allocator::access::Queued;
use crate::allocator::deferred_drops::{DeferredDrops, Until};
use crate::allocator::{Event, Stream};
use crate::array::PinnedArray;
use crate::driver::Driver;
use crate::error::Error;
use crate::laws::steps;
use bytemuck::Pod;
use core::fmt;
use core::time::Duration;
use std::sync::Arc;

/// A copy to the device that is under way. It owns its source.
///
/// The device's work on the target comes after the copy without it: this token is only about the source. Dropping it never
/// blocks and makes no driver call; the source's memory is freed when the copy is done. Forgetting it costs that memory, the
/// pinned segments that it lies in, and one event, which keeps the device's context; nothing else. Only the last handle of an
/// allocator that is gone waits, at [its end](crate::Allocator#its-end).
///
/// ```
/// use millpond::{Allocator, Config, units::GIB};
/// use millpond_sim::Sim;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let gpu = Allocator::new(Sim::new(GIB), Config::default())?;
/// let stream = gpu.stream()?;
/// let mut x = gpu.zeros::<f32>(1024, &stream)?;
/// let batch = gpu.pinned_from_fn(1024, |i| i as f32)?;
/// let sent = x.copy_from(batch, &stream)?; // the host goes on; the token owns the source meanwhile
/// let batch = sent.wait()?; // the source, ready for the next batch
/// assert_eq!(batch[3], 3.0);
/// # Ok(()) }
/// ```
#[must_use = "it owns the source: wait() gives it back, dropping it lets it go behind the copy"]
pub struct Upload<P: StableSource, D: Driver>(Flight<P, D>);

/// A copy to the host that is under way. It owns its target, whose data can be reached only through
/// [`wait`](Download::wait).
///
/// Dropping it never blocks, but for the last handle of an allocator that is gone, at [its end](crate::Allocator#its-end); the memory is then reused when the copy is done.
/// Forgetting it costs that memory, the pinned segments that it lies in, and one event, which keeps the device's context;
/// nothing else.
///
/// ```
/// # use millpond::{Allocator, Config, units::GIB};
/// # use millpond_sim::Sim;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let gpu = Allocator::new(Sim::new(GIB), Config::default())?;
/// # let s = gpu.stream()?;
/// # let x = gpu.zeros::<f64>(100, &s)?;
/// let back = x.to_pinned(&s)?;
/// let sum: f64 = back.wait()?.iter().sum();
/// # assert_eq!(sum, 0.0);
/// # Ok(()) }
/// ```
/// The same without the wait, which would read before the copy is done, does not compile:
/// ```compile_fail,E0599
/// # use millpond::{Allocator, Config, units::GIB};
/// # use millpond_sim::Sim;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let gpu = Allocator::new(Sim::new(GIB), Config::default())?;
/// # let s = gpu.stream()?;
/// # let x = gpu.zeros::<f64>(100, &s)?;
/// let back = x.to_pinned(&s)?;
/// let sum: f64 = back.iter().sum();
/// # Ok(()) }
/// ```
#[must_use = "its data can be reached only through wait()"]
pub struct Download<T: Pod, D: Driver>(Flight<PinnedArray<T, D>, D>);

/// Host memory that the device uses until an event.
struct Flight<P: StableSource, D: Driver> {
    host: Option<P>,
    /// `None`: there was nothing to copy.
    event: Option<Event<D>>,
    deferred_drops: Arc<DeferredDrops<D>>,
}

impl<P: StableSource, D: Driver> Flight<P, D> {
    fn is_done(&self) -> Result<bool, Error> {
        self.event.as_ref().map_or(Ok(true), Event::is_complete)
    }
    fn wait_for(&self, limit: Duration) -> Result<(), Error> {
        self.event.as_ref().map_or(Ok(()), |e| e.synchronize(limit))
    }
    /// The host's memory, which the device no longer uses.
    fn into_inner(mut self) -> P {
        self.host.take().expect("taken only here and in the drop, which both end it")
    }
    fn wait(self) -> Result<P, Error> {
        steps::wait_then_take(|| self.wait_for(Duration::MAX))?;
        Ok(self.into_inner())
    }
    fn try_into_inner(self) -> Result<P, Self> {
        if matches!(self.is_done(), Ok(true)) { Ok(self.into_inner()) } else { Err(self) }
    }
    fn fmt(&self, what: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.host, &self.event) {
            (Some(host), Some(e)) => write!(f, "{what}({:?} elements until {e:?})", host.shape()),
            _ => write!(f, "{what}(nothing)"),
        }
    }
}

impl<P: StableSource, D: Driver> Drop for Flight<P, D> {
    fn drop(&mut self) {
        if let (Some(host), Some(event)) = (self.host.take(), &self.event)
            && let Err(host) = host.drop_behind(event, Seal(()))
        {
            self.deferred_drops.keep(Until::Event(event.clone()), 0, Box::new(host));
        }
    }
}

impl<P: StableSource, D: Driver> Upload<P, D> {
    /// Blocks the host until the copy is done; returns the source, ready for the next batch.
    ///
    /// # Errors
    /// The driver's: then the source is released as by a drop.
    pub fn wait(self) -> Result<P, Error> {
        self.0.wait()
    }
    /// Waits for the copy, for at most `limit`, and keeps the token: [`Upload::wait`].
    ///
    /// # Errors
    /// [`Error::TimedOut`], or the driver's.
    pub fn wait_for(&self, limit: Duration) -> Result<(), Error> {
        self.0.wait_for(limit)
    }
    /// Whether the copy is done.
    ///
    /// # Errors
    /// The driver's; an error never means done.
    pub fn is_done(&self) -> Result<bool, Error> {
        self.0.is_done()
    }
    /// The source, if the copy is known to be done; else the token again. The host does not wait.
    ///
    /// # Errors
    /// The token: the copy is under way, or the driver's query failed.
    pub fn try_into_inner(self) -> Result<P, Upload<P, D>> {
        self.0.try_into_inner().map_err(Upload)
    }
    /// The event right behind the copy, for other streams to wait for; `None` if there was nothing to copy.
    pub fn event(&self) -> Option<&Event<D>> {
        self.0.event.as_ref()
    }
}

impl<T: Pod, D: Driver> Download<T, D> {
    /// Blocks the host until the copy is done; returns its data.
    ///
    /// # Errors
    /// The driver's: then the memory is released as by a drop.
    pub fn wait(self) -> Result<PinnedArray<T, D>, Error> {
        self.0.wait()
    }
    /// Waits for the copy, for at most `limit`, and keeps the token: [`Download::wait`].
    ///
    /// # Errors
    /// [`Error::TimedOut`], or the driver's.
    pub fn wait_for(&self, limit: Duration) -> Result<(), Error> {
        self.0.wait_for(limit)
    }
    /// Whether the copy is done.
    ///
    /// # Errors
    /// The driver's; an error never means done.
    pub fn is_done(&self) -> Result<bool, Error> {
        self.0.is_done()
    }
    /// The data, if the copy is known to be done; else the token again. The host does not wait.
    ///
    /// # Errors
    /// The token: the copy is under way, or the driver's query failed.
    pub fn try_into_inner(self) -> Result<PinnedArray<T, D>, Download<T, D>> {
        self.0.try_into_inner().map_err(Download)
    }
    /// The event right behind the copy; `None` if there was nothing to copy.
    pub fn event(&self) -> Option<&Event<D>> {
        self.0.event.as_ref()
    }
}

impl<P: StableSource, D: Driver> fmt::Debug for Upload<P, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt("Upload", f)
    }
}
impl<T: Pod, D: Driver> fmt::Debug for Download<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt("Download", f)
    }
}

/// A copy that failed, with the host's memory that was passed to it.
///
/// It turns into an [`Error`] by `?`, which drops the memory.
#[non_exhaustive]
pub struct Refused<P> {
    /// What was passed to the copy. `None` if the device may still use it, because the driver failed behind the copy: then
    /// it is dropped when all that the stream held by then is done.
    pub host: Option<P>,
    /// Why.
    pub error: Error,
}

impl<P> Refused<P> {
    pub(super) fn unused(host: P, error: impl Into<Error>) -> Refused<P> {
        Refused { host: Some(host), error: error.into() }
    }
}
impl<P> fmt::Debug for Refused<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused").field("error", &self.error).finish_non_exhaustive()
    }
}
impl<P> fmt::Display for Refused<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}
// By hand: it stands for its `error`, source and all, whatever `P` is.
impl<P> std::error::Error for Refused<P> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}
impl<P> From<Refused<P>> for Error {
    fn from(refused: Refused<P>) -> Error {
        refused.error
    }
}

/// The host's memory while a copy that uses it is queued. Unless it is taken out, because the copy was refused or a token owns it, it is kept until
/// all that the stream holds by then is done: the driver failed behind the copy, or panicked.
struct Launching<'a, P: StableSource, D: Driver> {
    host: Option<P>,
    stream: &'a Stream<D>,
}

impl<P: StableSource, D: Driver> Launching<'_, P, D> {
    fn take(&mut self) -> P {
        self.host.take().expect("taken once")
    }
}

impl<P: StableSource, D: Driver> Drop for Launching<'_, P, D> {
    fn drop(&mut self) {
        if let Some(host) = self.host.take() {
            self.stream.keep(Box::new(host));
        }
    }
}

/// Runs a copy in which the device uses `host`. Whatever happens, even a panic, `host` is not
/// dropped before the device is done with it.
fn fly<P: StableSource, D: Driver>(
    host: P,
    stream: &Stream<D>,
    copy: impl FnOnce(&P) -> Result<Queued<D>, Error>,
) -> Result<Flight<P, D>, Refused<P>> {
    let mut launching = Launching { host: Some(host), stream };
    let queued = copy(launching.host.as_ref().expect("not taken yet"));
    let event = match queued {
        Err(error) => return Err(Refused::unused(launching.take(), error)),
        Ok(queued) => queued.event,
    };
    match event {
        Ok(event) => {
            let deferred_drops = Arc::clone(stream.deferred_drops());
            Ok(Flight { host: Some(launching.take()), event, deferred_drops })
        }
        // It is queued, and no event says when it is done: a wait for the whole stream does. In a lost context nothing runs any more.
        Err(error) => match stream.synchronize() {
            Err(e) if !e.is_context_lost() => Err(Refused { host: None, error }),
            _ => Err(Refused::unused(launching.take(), error)),
        },
    }
}

impl<P: StableSource, D: Driver> Upload<P, D> {
    pub(super) fn fly(
        source: P,
        stream: &Stream<D>,
        copy: impl FnOnce(&P) -> Result<Queued<D>, Error>,
    ) -> Result<Upload<P, D>, Refused<P>> {
        if let Err(e) = source.wait_ready(Seal(())) {
            return Err(Refused::unused(source, e));
        }
        fly(source, stream, copy).map(Upload)
    }
    /// A token for an empty copy.
    pub(super) fn of_nothing(source: P, stream: &Stream<D>) -> Upload<P, D> {
        Upload(Flight {
            host: Some(source),
            event: None,
            deferred_drops: Arc::clone(stream.deferred_drops()),
        })
    }
}

impl<T: Pod, D: Driver> Download<T, D> {
    pub(super) fn fly(
        target: PinnedArray<T, D>,
        stream: &Stream<D>,
        copy: impl FnOnce(&PinnedArray<T, D>) -> Result<Queued<D>, Error>,
    ) -> Result<Download<T, D>, Refused<PinnedArray<T, D>>> {
        fly(target, stream, copy).map(Download)
    }
    /// A token for an empty copy.
    pub(super) fn of_nothing(target: PinnedArray<T, D>, stream: &Stream<D>) -> Download<T, D> {
        Download(Flight {
            host: Some(target),
            event: None,
            deferred_drops: Arc::clone(stream.deferred_drops()),
        })
    }
}
