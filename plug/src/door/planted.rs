//! What bugs that can be planted leave of a call that was refused. It is in no library that is built for use.

use super::{Door, met};
use crate::index::Hold;
use crate::tag::Tag;
use pond::cuda::Cuda;
use pond::{Allocation, Trim};

impl Door {
    /// A use that was refused is none.
    pub(super) fn use_was_refused(&self, of: &Allocation<Cuda>, mut hold: Hold<'_>, tag: Tag, handle: usize) {
        if mutant!(DoorUseFirst) {
            hold.set_tag(tag.unknown().word());
        }
        if mutant!(DoorRefusedTrims) {
            let _ = self.gpu.trim(Trim::All);
        }
        if mutant!(DoorUseKept) {
            let _ = met::with(self.number, handle, |lane| of.record_use(&lane.stream).ok());
        }
    }
}
