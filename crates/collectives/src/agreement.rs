//! What finds ranks that have called different operations although no message of one meets the other: a rank that waits
//! announces its call. Also who has not called an operation that takes long.

use std::collections::VecDeque;
use std::time::Duration;

use openmrc_schedule::Rank;

use crate::error::{Error, Result};
use crate::header::Signature;

/// Age of an operation at which it is announced to every rank, so that all know who has not called it.
pub const TELL_ALL: Duration = Duration::from_secs(5);

/// Operations that have ended and can still be compared.
const KEPT: usize = 64;

/// The calls of this rank that have ended, and those of others that it has not reached.
pub struct Agreement {
    /// Number and arguments of operations that have ended, the newest last.
    ended: VecDeque<(u64, Signature)>,
    /// By rank: a call that it has announced before this rank made it.
    ahead: Vec<Option<(u64, Signature)>>,
    /// Last call that was announced to the ranks it waits for.
    asked: u64,
    /// Last call that was announced to all.
    told: u64,
}

impl Agreement {
    pub fn new(ranks: usize) -> Agreement {
        Agreement { ended: VecDeque::new(), ahead: vec![None; ranks], asked: 0, told: 0 }
    }

    /// An operation of this rank has ended.
    pub fn ended(&mut self, number: u64, signature: Signature) {
        if self.ended.len() == KEPT {
            self.ended.pop_front();
        }
        self.ended.push_back((number, signature));
    }

    /// This rank has called an operation.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if a rank has announced another call with its number.
    pub fn called(&mut self, number: u64, ours: &Signature) -> Result<()> {
        for (rank, ahead) in self.ahead.iter_mut().enumerate() {
            if let Some((_, theirs)) = ahead.take_if(|(theirs, _)| *theirs <= number) {
                compare(rank, number, &theirs, ours)?;
            }
        }
        Ok(())
    }

    /// A rank has announced a call; `ours` is this rank's call with its number, if it is under way.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if this rank's call with this number was another.
    pub fn announced(
        &mut self,
        rank: Rank,
        number: u64,
        theirs: Signature,
        ours: Option<Signature>,
        calls: u64,
    ) -> Result<()> {
        match ours.or_else(|| self.find(number)) {
            Some(ours) => compare(rank, number, &theirs, &ours),
            None if number > calls => {
                self.ahead[rank] = Some((number, theirs));
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// The error of a message that no operation of this rank expects.
    pub fn stray(&self, rank: Rank, number: u64, theirs: &Signature, ours: Option<Signature>) -> Error {
        let ours = ours.or_else(|| self.find(number));
        Error::Mismatch {
            rank,
            theirs: format!("{} as call {number}", theirs.describe()),
            ours: match ours {
                Some(ours) if ours == *theirs => format!("{}, which expects less of it", ours.describe()),
                Some(ours) => format!("{} as call {number}", ours.describe()),
                None => format!("another operation as call {number}"),
            },
        }
    }

    /// Whether the call with this number must be announced now: to all, or to the ranks that it waits for.
    pub fn must_tell(&mut self, number: u64, all: bool) -> bool {
        let last = if all { &mut self.told } else { &mut self.asked };
        let must = *last < number;
        *last = number;
        must
    }

    /// Whether all ranks that have called the operation with this number have had the time to say so.
    pub fn is_told(&self, number: u64) -> bool {
        self.told >= number
    }

    fn find(&self, number: u64) -> Option<Signature> {
        self.ended.iter().find(|(ended, _)| *ended == number).map(|(_, signature)| *signature)
    }
}

fn compare(rank: Rank, number: u64, theirs: &Signature, ours: &Signature) -> Result<()> {
    if theirs == ours {
        return Ok(());
    }
    Err(Error::Mismatch {
        rank,
        theirs: format!("{} as call {number}", theirs.describe()),
        ours: format!("{} as call {number}", ours.describe()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reduce(root: u32) -> Signature {
        Signature { count: 4, root, kind: 5, dtype: 1, op: 0, algorithm: 4 }
    }

    #[test]
    fn a_call_is_compared_when_both_ranks_have_made_it() {
        let mut agreement = Agreement::new(3);
        // Announced before it is called here, while it is under way, and after it has ended.
        agreement.announced(1, 7, reduce(0), None, 6).unwrap();
        assert!(agreement.called(7, &reduce(0)).is_ok());
        agreement.announced(1, 8, reduce(1), None, 7).unwrap();
        assert!(matches!(agreement.called(8, &reduce(0)), Err(Error::Mismatch { rank: 1, .. })));
        assert!(agreement.announced(2, 8, reduce(0), Some(reduce(0)), 8).is_ok());
        assert!(agreement.announced(2, 8, reduce(2), Some(reduce(0)), 8).is_err());
        agreement.ended(8, reduce(0));
        assert!(agreement.announced(2, 8, reduce(0), None, 9).is_ok());
        assert!(agreement.announced(2, 8, reduce(2), None, 9).is_err());
    }

    #[test]
    fn a_call_is_announced_once_to_those_it_waits_for_and_once_to_all() {
        let mut agreement = Agreement::new(3);
        assert!(agreement.must_tell(7, false) && !agreement.must_tell(7, false));
        assert!(!agreement.is_told(7) && agreement.must_tell(7, true) && !agreement.must_tell(7, true));
        assert!(agreement.is_told(7) && agreement.must_tell(8, false));
    }
}
