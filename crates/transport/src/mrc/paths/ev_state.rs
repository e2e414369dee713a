//! The state table of a path (docs/spec/paths.md, "EV set"). Nothing else may change the state of a path.
//!
//! ```text
//!                 Marked            Lost            TurnPassed   ProbesGood   ProbesMarked   Deny     Allow
//!  GOOD           SKIP              ASSUMED_BAD     -            -            SKIP           DENIED   -
//!  SKIP           -                 ASSUMED_BAD     GOOD         -            -              DENIED   -
//!  ASSUMED_BAD    -                 -               -            GOOD         SKIP           DENIED   -
//!  DENIED         -                 -               -            -            -              -        GOOD
//! ```
//! Marked: SACK m = SKIP_ONCE or NACK TRIMMED. Lost: an untrimmed loss, or SACK m = ALWAYS_SKIP.

use serde::{Deserialize, Serialize};

/// State of a path, as seen by a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EvState {
    /// In rotation, or ready in the backup set.
    Good,
    /// Congested: misses one turn.
    Skip,
    /// Assumed broken: out of rotation.
    AssumedBad,
    /// Disabled by the controller.
    Denied,
}

impl EvState {
    /// Whether the rotation may use it for data.
    pub const fn usable(self) -> bool {
        matches!(self, EvState::Good | EvState::Skip)
    }
}

/// Events of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EvInput {
    Marked,
    Lost,
    TurnPassed,
    ProbesGood,
    ProbesMarked,
    Deny,
    Allow,
}

/// The state table.
pub const fn next(state: EvState, input: EvInput) -> EvState {
    use EvInput::{Allow, Deny, Lost, Marked, ProbesGood, ProbesMarked, TurnPassed};
    use EvState::{AssumedBad, Denied, Good, Skip};
    match (state, input) {
        (Denied, Allow) => Good,
        (Denied, _) | (_, Deny) => Denied,
        (Good | Skip, Lost) => AssumedBad,
        (Good, Marked | ProbesMarked) => Skip,
        (Skip, TurnPassed) => Good,
        (AssumedBad, ProbesGood) => Good,
        (AssumedBad, ProbesMarked) => Skip,
        (unchanged, Marked | Lost | TurnPassed | ProbesGood | ProbesMarked | Allow) => unchanged,
    }
}

/// The record of a path, two bytes. Of a usable path there is nothing to probe: the back-off is the number of turns that it
/// still misses after the next.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvRecord {
    /// State (2 bits), consecutive answered probes (2 bits), probe back-off exponent (4 bits).
    bits: u8,
    /// When a condemned path is to be probed next, in units of [`super::ConditionProbes`]. Of a usable path: packets
    /// lost since one has arrived.
    pub probe_due: u8,
}

impl EvRecord {
    pub const NEW: EvRecord = EvRecord { bits: 0, probe_due: 0 };
    /// Largest back-off exponent the record holds.
    pub const MAX_BACKOFF: u8 = 15;
    /// Most turns that a congested path misses.
    pub const MOST_TURNS: u8 = Self::MAX_BACKOFF + 1;

    pub const fn state(self) -> EvState {
        match self.bits & 3 {
            0 => EvState::Good,
            1 => EvState::Skip,
            2 => EvState::AssumedBad,
            _ => EvState::Denied,
        }
    }

    pub fn apply(&mut self, input: EvInput) {
        let state = match next(self.state(), input) {
            EvState::Good => 0,
            EvState::Skip => 1,
            EvState::AssumedBad => 2,
            EvState::Denied => 3,
        };
        self.bits = self.bits & !3 | state;
    }

    /// A path is congested: it misses `turns` turns, or as many as it still has to miss if those are more.
    pub fn skip(&mut self, turns: u8) {
        self.apply(EvInput::Marked);
        if self.state() == EvState::Skip {
            let more = turns.saturating_sub(1).min(Self::MAX_BACKOFF);
            self.set_probing(self.successes(), more.max(self.backoff()));
        }
    }

    /// A congested path has missed a turn.
    pub fn pass_turn(&mut self) {
        if self.state() != EvState::Skip {
            return;
        }
        match self.backoff() {
            0 => self.apply(EvInput::TurnPassed),
            more => self.set_probing(self.successes(), more - 1),
        }
    }

    /// A packet was lost on this usable path; returns how many in a row.
    pub fn count_loss(&mut self) -> u8 {
        self.probe_due = self.probe_due.saturating_add(1);
        self.probe_due
    }

    /// A packet has arrived on it.
    pub fn forget_losses(&mut self) {
        if self.state().usable() {
            self.probe_due = 0;
        }
    }

    pub const fn successes(self) -> u8 {
        self.bits >> 2 & 3
    }

    pub const fn backoff(self) -> u8 {
        self.bits >> 4
    }

    pub fn set_probing(&mut self, successes: u8, backoff: u8) {
        self.bits = self.bits & 3 | successes.min(3) << 2 | backoff.min(Self::MAX_BACKOFF) << 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [EvState; 4] = [EvState::Good, EvState::Skip, EvState::AssumedBad, EvState::Denied];
    const INPUTS: [EvInput; 7] = [
        EvInput::Marked,
        EvInput::Lost,
        EvInput::TurnPassed,
        EvInput::ProbesGood,
        EvInput::ProbesMarked,
        EvInput::Deny,
        EvInput::Allow,
    ];

    #[test]
    fn only_the_controller_ends_a_denial() {
        for input in INPUTS {
            let expected = if input == EvInput::Allow { EvState::Good } else { EvState::Denied };
            assert_eq!(next(EvState::Denied, input), expected);
        }
    }

    #[test]
    fn only_probes_or_the_controller_end_a_condemnation() {
        for input in INPUTS {
            let stays = !matches!(input, EvInput::ProbesGood | EvInput::ProbesMarked | EvInput::Deny);
            assert_eq!(next(EvState::AssumedBad, input) == EvState::AssumedBad, stays, "{input:?}");
        }
    }

    #[test]
    fn a_second_mark_while_skipping_changes_nothing() {
        assert_eq!(next(EvState::Skip, EvInput::Marked), EvState::Skip);
    }

    #[test]
    fn a_congested_path_misses_the_turns_of_its_longest_mark() {
        for (marks, expected) in [
            (vec![1], 1),
            (vec![3], 3),
            (vec![5, 2], 5),
            (vec![2, 5], 5),
            (vec![0], 1),
            (vec![200], EvRecord::MOST_TURNS),
        ] {
            let mut record = EvRecord::NEW;
            marks.iter().for_each(|&turns| record.skip(turns));
            let mut missed = 0;
            while record.state() == EvState::Skip {
                record.pass_turn();
                missed += 1;
            }
            assert_eq!(missed, expected, "{marks:?}");
            assert!(record == EvRecord::NEW, "nothing is left of it");
        }
    }

    #[test]
    fn a_condemned_path_that_is_marked_keeps_its_probing() {
        let mut record = EvRecord::NEW;
        record.apply(EvInput::Lost);
        record.set_probing(1, 3);
        record.skip(9);
        record.pass_turn();
        assert_eq!((record.state(), record.successes(), record.backoff()), (EvState::AssumedBad, 1, 3));
    }

    #[test]
    fn a_record_keeps_state_and_probing_apart() {
        for state in STATES {
            for input in INPUTS {
                let mut record = EvRecord::NEW;
                match state {
                    EvState::Good => {}
                    EvState::Skip => record.apply(EvInput::Marked),
                    EvState::AssumedBad => record.apply(EvInput::Lost),
                    EvState::Denied => record.apply(EvInput::Deny),
                }
                record.set_probing(2, 9);
                record.apply(input);
                assert_eq!(record.state(), next(state, input));
                assert_eq!((record.successes(), record.backoff()), (2, 9));
            }
        }
    }
}
