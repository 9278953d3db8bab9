//! What planted bugs leave of a call that was refused. Libraries built for use do not contain it.

use super::{Door, met};
use crate::index::Hold;
use crate::tag::Tag;
use pond::cuda::Cuda;
use pond::{Allocation, Trim};

impl Door {
    /// A refused use is not recorded.
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
