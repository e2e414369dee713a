//! Which identifications of an IPv4 header a peer's iCRCs may be right for (docs/spec/wire.md, "iCRC"). The iCRC covers
//! the identification, and a UDP socket does not report it.

use std::cell::Cell;

/// Most packets into which a kernel or a NIC cuts one message: `UDP_MAX_SEGMENTS` since Linux 6.9. It numbers them from 0.
const MOST_SEGMENTS: u16 = 128;

/// How a peer numbers its IPv4 packets, as far as it has shown.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Shown {
    /// All are 0, or the place in a message that was cut: 25 of the iCRC's 32 bits protect.
    #[default]
    Places,
    /// The last packet had another identification, or was corrupt: one in 65,536 corrupt packets looks like that.
    Once,
    /// Two packets in a row had: the peer has a counter or random numbers. 16 bits protect.
    Any,
}

/// Decides which identifications of a peer are accepted.
#[derive(Default, Debug)]
pub(crate) struct Numbering(Cell<Shown>);

impl Numbering {
    /// Whether a packet is accepted whose iCRC is right for this identification, and for no other.
    #[inline]
    pub fn accepts(&self, identification: u16) -> bool {
        if identification < MOST_SEGMENTS {
            if self.0.get() == Shown::Once {
                self.0.set(Shown::Places);
            }
            return true;
        }
        let before = self.0.replace(Shown::Once);
        if before != Shown::Places {
            self.0.set(Shown::Any);
        }
        before != Shown::Places
    }

    /// Whether the peer has shown that it numbers its packets in a way of its own.
    pub fn is_own(&self) -> bool {
        self.0.get() == Shown::Any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_in_a_message_is_always_accepted() {
        let numbering = Numbering::default();
        assert!((0..128).all(|place| numbering.accepts(place)));
        assert!(!numbering.is_own());
    }

    #[test]
    fn other_numbers_are_accepted_from_the_second_in_a_row() {
        let numbering = Numbering::default();
        for corrupt in [128, 0x1234, 0xFFFF] {
            assert!(!numbering.accepts(corrupt), "single ones are taken for corrupt packets");
            assert!(numbering.accepts(3));
        }
        assert!(!numbering.accepts(40_000));
        assert!(numbering.accepts(40_001) && numbering.is_own());
        assert!(numbering.accepts(0) && numbering.accepts(9));
        assert!(numbering.accepts(128), "a counter that has wrapped around");
    }
}
