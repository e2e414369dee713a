//! The reason why a rank aborts a communicator, in 29 bits, as the other ranks receive it.

use openmrc_schedule::Rank;

/// Why a communicator was given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AbortKind {
    /// Its user asked for it.
    Asked = 1,
    /// A rank is lost.
    Lost,
    /// An operation did not end in time.
    Timeout,
    /// Ranks called different operations.
    Mismatch,
    /// Its NIC or its memory failed.
    Device,
}

/// Who gave up, why, and because of whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AbortCode {
    pub kind: AbortKind,
    pub sender: Rank,
    /// The rank that is lost or called something else.
    pub subject: Rank,
}

const RANK_BITS: u32 = 13;
const RANK_MASK: u32 = (1 << RANK_BITS) - 1;

/// The most ranks of a communicator.
pub const MAX_RANKS: usize = 1 << RANK_BITS;

impl AbortCode {
    /// Never 0.
    pub fn encode(self) -> u32 {
        (self.kind as u32) << (2 * RANK_BITS) | (self.sender as u32) << RANK_BITS | self.subject as u32
    }

    pub fn decode(code: u32) -> AbortCode {
        let kind = match code >> (2 * RANK_BITS) {
            2 => AbortKind::Lost,
            3 => AbortKind::Timeout,
            4 => AbortKind::Mismatch,
            5 => AbortKind::Device,
            _ => AbortKind::Asked,
        };
        let rank = |shift: u32| (code >> shift & RANK_MASK) as Rank;
        AbortCode { kind, sender: rank(RANK_BITS), subject: rank(0) }
    }

    /// In words.
    pub fn describe(self) -> String {
        let AbortCode { kind, sender, subject } = self;
        match kind {
            AbortKind::Asked => format!("rank {sender} has aborted it"),
            AbortKind::Lost => format!("rank {sender} has lost rank {subject}"),
            AbortKind::Timeout => format!("an operation of rank {sender} did not end in time"),
            AbortKind::Mismatch => {
                format!("rank {sender} and rank {subject} have called different operations")
            }
            AbortKind::Device => format!("the NIC or the memory of rank {sender} failed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_survives() {
        for kind in
            [AbortKind::Asked, AbortKind::Lost, AbortKind::Timeout, AbortKind::Mismatch, AbortKind::Device]
        {
            let code = AbortCode { kind, sender: MAX_RANKS - 1, subject: 17 };
            assert_eq!(AbortCode::decode(code.encode()), code);
            assert!(code.encode() < 1 << 29);
        }
    }
}
