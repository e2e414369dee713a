//! The test world detects every kind of fault: each one, built into an otherwise correct queue pair, is found within a
//! few dozen seeds.

mod world;

use world::sabotage::{PlantedFault, Sabotaged};
use world::seeds::run_one;
use world::{Expect, Scenario, Subject};

/// The error of the first run, of `seeds` runs, in which the fault was detected.
fn first_complaint<T: Subject>(seeds: u64) -> Option<String> {
    (0..seeds).find_map(|seed| {
        let mut scenario = Scenario::generate(seed);
        // A fault that only slows the run down is not awaited.
        scenario.max_events = 300_000;
        let expect = scenario.expect;
        match run_one::<T>(scenario, false) {
            Err(text) => Some(text),
            Ok(outcome) if expect == Expect::Completes && outcome.fatal.iter().any(Option::is_some) => {
                Some(format!("failed: {:?}", outcome.fatal))
            }
            Ok(_) => None,
        }
    })
}

/// Asserts that fault number `FAULT` is detected, and for an expected reason.
fn assert_noticed<const FAULT: u8>(reasons: &[&str]) {
    let fault = PlantedFault::ALL[FAULT as usize];
    assert_eq!(fault as u8, FAULT);
    let text = first_complaint::<Sabotaged<FAULT>>(300).unwrap_or_else(|| panic!("{fault:?} goes unnoticed"));
    assert!(
        reasons.iter().any(|reason| text.contains(reason)),
        "{fault:?} is noticed as something else: {text}"
    );
}

macro_rules! noticed {
    ($($name:ident: $fault:ident, $reasons:expr;)*) => {
        $(
            #[test]
            fn $name() {
                assert_noticed::<{ PlantedFault::$fault as u8 }>(&$reasons);
            }
        )*
    };
}

noticed! {
    placing_a_duplicate_is_noticed: PlacesDuplicates, ["a second time"];
    not_placing_is_noticed: SkipsPlacement, ["has arrived", "complete"];
    placing_beside_is_noticed: Misplaces, ["not what the packet says"];
    completing_early_is_noticed: CompletesEarly, ["before the responder has all of it", "before its immediate", "before an ACK of it"];
    a_forgotten_completion_is_noticed: ForgetsCompletion, ["is next", "not finished", "not flushed", "a work request too many"];
    a_double_completion_is_noticed: CompletesTwice, ["is next", "completion too many"];
    a_changed_immediate_is_noticed: ChangesImmediate, ["is reported as"];
    an_immediate_that_overtakes_is_noticed: DeliversEarly, ["overtakes", "is reported as"];
    a_lying_sack_is_noticed: ClaimsMore, ["SACK says"];
    a_loss_that_is_never_made_good_is_noticed: NeverRetransmits, ["not finished", "no end"];
    a_retransmission_that_hides_is_noticed: HidesRetransmission, ["has RTX false"];
    a_port_that_was_not_offered_is_noticed: TakesAnyPort, ["was not offered", "is down"];
    a_psn_beyond_the_window_is_noticed: SkipsPsns, ["skips", "names no packet", "is beyond the window"];
    // The queue pair echoes the packet it received: data is not feedback, and a probe is not in the class of feedback.
    sending_in_error_is_noticed: SendsInError, ["in ERROR", "unexpected feedback", "feedback in class"];
    using_a_denied_path_is_noticed: IgnoresDenial, ["is DENIED", "twice"];
    too_much_feedback_is_noticed: FloodsFeedback, ["packets at once"];
    a_deadline_that_does_not_move_is_noticed: FreezesDeadline, ["deadline does not move"];
}

#[test]
fn every_fault_has_a_test() {
    for (number, fault) in PlantedFault::ALL.iter().enumerate() {
        assert_eq!(*fault as usize, number);
    }
}
