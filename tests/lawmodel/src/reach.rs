//! How the tasks of a run access its one world, and a pool's lock. This file does not know the laws.

use crate::truth::*;
use crate::world::*;
use std::ops::{Deref, DerefMut};

/// The world, from any task of the run.
#[derive(Clone, Copy)]
pub struct WorldRef(pub *mut World);

impl Deref for WorldRef {
    type Target = World;
    fn deref(&self) -> &World {
        // SAFETY: all tasks of a run are polled by one thread and die before its world; no reference is kept over a
        // `pause` or over a call that is given a copy of this.
        unsafe { &*self.0 }
    }
}

impl DerefMut for WorldRef {
    fn deref_mut(&mut self) -> &mut World {
        // SAFETY: as above.
        unsafe { &mut *self.0 }
    }
}

/// Takes a pool's lock, after its holder released it.
pub async fn lock(mut w: WorldRef, p: usize) {
    while w.pools[p].lock {
        w.blocked = true;
        pause().await
    }
    w.pools[p].lock = true;
}

/// Releases it.
pub fn unlock(mut w: WorldRef, p: usize) {
    w.pools[p].lock = false
}

/// Whether stream `u`'s pool is closed; `X` and `CTX` have none.
pub fn closed(w: WorldRef, u: usize) -> bool {
    u < w.cfg.ns && w.pools[u].closed
}
