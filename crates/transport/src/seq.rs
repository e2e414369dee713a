//! PSNs that do not wrap. The low 24 bits are the PSN on the wire.

use openmrc_wire::Psn;

/// A PSN that does not wrap.
pub(crate) type Seq = u64;

/// The PSN on the wire.
pub(crate) const fn wire(seq: Seq) -> Psn {
    Psn::new(seq as u32)
}

/// A PSN without wrap, so far from zero that no PSN of the connection lies below zero.
pub(crate) fn first_seq(psn: Psn) -> Seq {
    (1 << 32) + u64::from(psn.get())
}

/// The PSN without wrap that is nearest to `near`.
pub(crate) fn expand(psn: Psn, near: Seq) -> Seq {
    near.wrapping_add_signed(i64::from(psn.distance(wire(near))))
}
