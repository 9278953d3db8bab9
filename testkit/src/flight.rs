//! What threads do to arrays that go from one to the other: copies whose tokens are waited for, dropped or kept, of pinned memory, of
//! shared and of pageable; guards of kernels that other code queues; fills, frees, orders of streams and waits of the host.
//!
//! The verbs are here, once; which threads there are, whose turn it is and what is drawn say the tests: `tests/threads.rs` on a real
//! machine, `tests/threads_shuttle.rs` under the model checker. What each array holds is known, and every read compares it.

use crate::rig;
#[cfg(millpond_mutants)]
use millpond::mutant::Bug;
use millpond::sync::Mutex;
use millpond::units::MIB;
use millpond::{
    Allocator, Config, DeviceArray, Download, Growth, Limit, PinnedArray, Reuse, Stream, Trim, Upload, kernel,
};
use millpond_sim::{Launch, Sim};
use std::fmt::Display;
use std::sync::Arc;

/// Elements of an array.
pub const LEN: usize = 512;
/// The number of arrays in the shared pool, beside those that threads work on.
const LEFT: usize = 3;
/// Tokens that a thread keeps.
const TOKENS: usize = 3;

pub type Array = DeviceArray<u8, Sim>;
pub type Pinned = PinnedArray<u8, Sim>;

/// An array and the value that it holds.
pub type Holding = (Array, u8);

/// Arrays that no thread works on, under a lock that a model checker sees.
pub type Table = Mutex<Vec<Holding>>;

/// Bugs of tokens, guards and wiped memory: threads that do this at random have to convict each.
#[cfg(millpond_mutants)]
pub const BUGS: [Bug; 7] = [
    Bug::PinnedAtOnce,
    Bug::Z14,
    Bug::DeferredAtOnce,
    Bug::GuardSealedEarly,
    Bug::ScrubSkipped,
    Bug::ScrubUnborn,
    Bug::ArrayUseLost,
];

/// A copy that is under way, and what it brings or was brought from.
enum Token {
    Up(Upload<Pinned, Sim>, u8),
    Shared(Upload<Arc<Pinned>, Sim>, u8),
    Down(Download<u8, Sim>, u8),
}

pub fn said(e: impl Display) -> String {
    e.to_string()
}

fn all(found: &[u8], value: u8, what: &str) -> Result<(), String> {
    let wrong = found.iter().find(|&&v| v != value);
    wrong.map_or(Ok(()), |v| Err(format!("{what} is {v} where {value} is to be")))
}

impl Token {
    fn wait(self) -> Result<(), String> {
        match self {
            Token::Up(token, value) => all(&token.wait().map_err(said)?, value, "a source"),
            Token::Shared(token, value) => all(&token.wait().map_err(said)?, value, "a shared source"),
            Token::Down(token, value) => all(&token.wait().map_err(said)?, value, "what was brought"),
        }
    }
}

/// As many arrays as so many threads have at most, and not one more, so that each new one has another's bytes.
pub fn config(threads: usize, scrub: bool) -> Config {
    let bytes = (LEFT + 2 * threads) * LEN;
    Config::default()
        .reuse(Reuse::WithWaits)
        .growth(Growth::Exact)
        .limit(Limit::Bytes(bytes as u64))
        .pinned_limit(MIB)
        .scrub(scrub)
}

/// An array that its stream has yet to fill.
pub fn filled(gpu: &Allocator<Sim>, value: u8, on: &Stream<Sim>) -> Result<Array, String> {
    let mut x = gpu.uninit(LEN, on).map_err(said)?;
    kernel::fill(&mut x, value, on).map_err(said)?;
    Ok(x)
}

/// Pinned memory that the host has just written.
pub fn pinned(gpu: &Allocator<Sim>, len: usize, value: u8) -> Result<Pinned, String> {
    let mut host = gpu.pinned_uninit(len).map_err(said)?;
    host.fill(value);
    Ok(host)
}

/// A kernel of other code writes an array between the two ends of a guard; something else happens in between.
pub fn guarded_write(
    sim: &Sim,
    x: &mut Array,
    value: u8,
    on: &Stream<Sim>,
    between: impl FnOnce(),
) -> Result<(), String> {
    let (at, bytes) = (x.address(), x.size_bytes());
    let theirs = Launch::new("guarded").writes(at, bytes).tag(x.id().ok_or("bytes")?);
    let guard = x.write_on(on).map_err(said)?;
    between();
    let word = u64::from_ne_bytes([value; 8]);
    sim.launch(on.native(), theirs.body(move |memory| memory.fill(at, bytes, word))).map_err(said)?;
    drop(guard);
    Ok(())
}

/// The same, reads it.
pub fn guarded_read(
    sim: &Sim,
    x: &Array,
    holds: u8,
    on: &Stream<Sim>,
    between: impl FnOnce(),
) -> Result<(), String> {
    let word = u64::from_ne_bytes([holds; 8]);
    let theirs = Launch::check_pattern(x.address(), x.size_bytes(), word).tag(x.id().ok_or("bytes")?);
    let guard = x.read_on(on).map_err(said)?;
    between();
    sim.launch(on.native(), theirs).map_err(said)?;
    drop(guard);
    Ok(())
}

/// One thread.
pub struct Thread<'a> {
    pub gpu: &'a Allocator<Sim>,
    pub streams: &'a [Stream<Sim>],
    pub table: &'a Table,
    /// Fresh memory reads zero.
    pub scrubbed: bool,
    /// One of so many.
    pub draw: &'a mut dyn FnMut(usize) -> usize,
}

impl<'a> Thread<'a> {
    /// So many steps.
    ///
    /// # Errors
    /// What was read that is wrong, or a call that failed.
    pub fn work(mut self, steps: usize) -> Result<(), String> {
        let mut tokens = Vec::new();
        for _ in 0..steps {
            let taken = {
                let mut arrays = self.table.lock();
                let n = arrays.len();
                (n >= LEFT || n > 0 && (self.draw)(3) > 0).then(|| arrays.swap_remove((self.draw)(n)))
            };
            let held = match taken {
                Some((x, holds)) => self.step(x, holds, &mut tokens)?,
                None => Some(self.fresh()?),
            };
            self.table.lock().extend(held);
            while tokens.len() > TOKENS {
                drop(tokens.swap_remove((self.draw)(TOKENS)));
            }
        }
        tokens.into_iter().try_for_each(Token::wait)
    }

    fn any(&mut self) -> &'a Stream<Sim> {
        &self.streams[(self.draw)(self.streams.len())]
    }

    /// In reused bytes, and filled on any stream.
    fn fresh(&mut self) -> Result<Holding, String> {
        let mut x = self.gpu.uninit(LEN, self.any()).map_err(said)?;
        if self.scrubbed {
            all(&x.to_vec(self.any()).map_err(said)?, 0, "fresh memory")?;
        }
        let value = (self.draw)(256) as u8;
        kernel::fill(&mut x, value, self.any()).map_err(said)?;
        Ok((x, value))
    }

    fn step(
        &mut self,
        mut x: Array,
        mut holds: u8,
        tokens: &mut Vec<Token>,
    ) -> Result<Option<Holding>, String> {
        let (on, other, value) = (self.any(), self.any(), (self.draw)(256) as u8);
        let marks = (self.draw)(2) == 0;
        let between = || drop(marks.then(|| on.record().expect("no call fails")));
        match (self.draw)(14) {
            0 => {
                kernel::fill(&mut x, value, on).map_err(said)?;
                holds = value;
            }
            1 => {
                let token = x.copy_from(pinned(self.gpu, LEN, value)?, on).map_err(said)?;
                tokens.push(Token::Up(token, value));
                holds = value;
            }
            2 => {
                // Dropped at once, and another thread gets the pinned memory.
                drop(x.copy_from(pinned(self.gpu, LEN, value)?, on).map_err(said)?);
                drop(pinned(self.gpu, LEN, !value)?);
                holds = value;
            }
            3 => {
                let source = Arc::new(pinned(self.gpu, LEN, value)?);
                let token = x.copy_from(source, on).map_err(said)?;
                if marks {
                    tokens.push(Token::Shared(token, value));
                } else {
                    drop(token);
                    drop(pinned(self.gpu, LEN, !value)?);
                }
                holds = value;
            }
            4 => {
                x.copy_from_slice(&[value; LEN], on).map_err(said)?;
                holds = value;
            }
            5 => all(&x.to_vec(on).map_err(said)?, holds, "an array")?,
            6 => tokens.push(Token::Down(x.to_pinned(on).map_err(said)?, holds)),
            7 => {
                drop(x.to_pinned(on).map_err(said)?);
                drop(pinned(self.gpu, LEN, value)?);
            }
            8 if !tokens.is_empty() => tokens.swap_remove((self.draw)(tokens.len())).wait()?,
            9 => {
                guarded_write(self.gpu.driver(), &mut x, value, on, between)?;
                holds = value;
            }
            10 => guarded_read(self.gpu.driver(), &x, holds, on, between)?,
            11 => {
                let other = self.table.lock().pop();
                if let Some((from, theirs)) = other {
                    x.copy_from_device(&from, on).map_err(said)?;
                    holds = theirs;
                    self.table.lock().push((from, theirs));
                }
            }
            12 => return Ok(None),
            _ => match (self.draw)(8) {
                0..4 => on.wait_stream(other).map_err(said)?,
                4 | 5 => on.synchronize().map_err(said)?,
                6 => self.gpu.synchronize().map_err(said)?,
                _ => drop(self.gpu.trim(Trim::All).map_err(said)?),
            },
        }
        Ok(Some((x, holds)))
    }
}

/// The end of a program: every array is read once more, and nothing is left.
///
/// # Errors
/// What was read that is wrong; the oracle's verdict.
pub fn end(gpu: Allocator<Sim>, streams: Vec<Stream<Sim>>, arrays: Vec<Holding>) -> Result<(), String> {
    for (x, holds) in &arrays {
        all(&x.to_vec(&streams[0]).map_err(said)?, *holds, "an array")?;
    }
    let sim = gpu.driver().clone();
    drop((arrays, streams));
    sim.run_until_idle();
    sim.verdict().map_err(said)?;
    rig::all_clean(&sim, gpu);
    Ok(())
}
