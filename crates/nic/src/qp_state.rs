//! The queue pair states and the transitions between them (docs/spec/transport.md, "Queue pair life"), as in ibverbs
//! with MRC's attributes. [`check_transition`] is the only place that decides what a `modify` call may do.

use std::fmt;

use crate::attr::{AttrMask, QpAttr, QpCap, Step, attributes_of};

/// State of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum QpState {
    /// New, or reset.
    Reset,
    /// Receives may be posted.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send.
    Rts,
    /// Failed, or moved here by the application. All work completes with WR_FLUSH_ERR.
    Error,
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QpState::Reset => "RESET",
            QpState::Init => "INIT",
            QpState::Rtr => "RTR",
            QpState::Rts => "RTS",
            QpState::Error => "ERROR",
        })
    }
}

/// A queue pair as `query` shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QpInfo {
    /// Where it is in its life.
    pub state: QpState,
    /// Its attributes, as far as they are set.
    pub attr: QpAttr,
    /// What it can hold.
    pub cap: QpCap,
    /// Whether every send raises a completion.
    pub sq_sig_all: bool,
}

/// Why a `modify` call was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TransitionError {
    /// The transition does not exist.
    #[error("a queue pair cannot go from {from} to {to}; from {from} it can go to {}", successors(*.from))]
    NoTransition {
        /// Current state.
        from: QpState,
        /// Requested state.
        to: QpState,
    },
    /// Required attributes are missing.
    #[error("{from} to {to} needs {missing} as well")]
    Missing {
        /// Current state.
        from: QpState,
        /// Requested state.
        to: QpState,
        /// The missing attributes.
        missing: AttrMask,
    },
    /// The transition does not take some of the attributes.
    #[error("{from} to {to} does not take {excess}")]
    Excess {
        /// Current state.
        from: QpState,
        /// Requested state.
        to: QpState,
        /// The attributes it does not take.
        excess: AttrMask,
    },
}

fn successors(from: QpState) -> &'static str {
    match from {
        QpState::Reset => "INIT or ERROR",
        QpState::Init => "INIT, RTR, RESET or ERROR",
        QpState::Rtr => "RTS, RESET or ERROR",
        QpState::Rts | QpState::Error => "RESET or ERROR",
    }
}

const ADDRESSING: AttrMask = attributes_of(Step::NeededAtRtr);
const FIRST_PSN: AttrMask = attributes_of(Step::NeededAtRts);
const AT_INIT: AttrMask = attributes_of(Step::UntilRtr).or(attributes_of(Step::UntilRts));

/// The transitions: (from, to, required attributes, optional attributes). Every state may also go to RESET and ERROR.
const TRANSITIONS: [(QpState, QpState, AttrMask, AttrMask); 4] = [
    (QpState::Reset, QpState::Init, AttrMask::NONE, AT_INIT),
    (QpState::Init, QpState::Init, AttrMask::NONE, AT_INIT),
    (QpState::Init, QpState::Rtr, ADDRESSING, AT_INIT.or(attributes_of(Step::AtRtr))),
    (QpState::Rtr, QpState::Rts, FIRST_PSN, attributes_of(Step::UntilRts)),
];

/// Checks the arguments of a `modify` call.
///
/// # Errors
/// [`TransitionError`] says what is wrong and what is allowed.
pub fn check_transition(from: QpState, to: QpState, given: AttrMask) -> Result<(), TransitionError> {
    if matches!(to, QpState::Reset | QpState::Error) {
        return if given.is_empty() {
            Ok(())
        } else {
            Err(TransitionError::Excess { from, to, excess: given })
        };
    }
    let Some(&(_, _, required, optional)) = TRANSITIONS.iter().find(|t| (t.0, t.1) == (from, to)) else {
        return Err(TransitionError::NoTransition { from, to });
    };
    let missing = required.minus(given);
    if !missing.is_empty() {
        return Err(TransitionError::Missing { from, to, missing });
    }
    let excess = given.minus(required.or(optional));
    if excess.is_empty() { Ok(()) } else { Err(TransitionError::Excess { from, to, excess }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(attr: &QpAttr) -> AttrMask {
        attr.mask()
    }

    const STATES: [QpState; 5] = [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Error];

    #[test]
    fn only_reset_to_rts_in_order_and_the_ways_to_reset_and_error_exist() {
        let allowed: Vec<_> = STATES
            .iter()
            .flat_map(|&from| STATES.iter().map(move |&to| (from, to)))
            .filter(|&(from, to)| {
                [AttrMask::NONE, ADDRESSING, FIRST_PSN]
                    .iter()
                    .any(|&mask| check_transition(from, to, mask).is_ok())
            })
            .filter(|&(_, to)| !matches!(to, QpState::Reset | QpState::Error))
            .collect();
        assert_eq!(
            allowed,
            [
                (QpState::Reset, QpState::Init),
                (QpState::Init, QpState::Init),
                (QpState::Init, QpState::Rtr),
                (QpState::Rtr, QpState::Rts)
            ]
        );
        for from in STATES {
            assert_eq!(check_transition(from, QpState::Error, AttrMask::NONE), Ok(()));
            assert_eq!(check_transition(from, QpState::Reset, AttrMask::NONE), Ok(()));
        }
    }

    #[test]
    fn an_mrc_attribute_comes_at_its_step_or_earlier() {
        use QpState::{Init, Reset, Rtr, Rts};
        let steps = [(Reset, Init, AttrMask::NONE), (Init, Rtr, ADDRESSING), (Rtr, Rts, FIRST_PSN)];
        let own_step = [(attributes_of(Step::UntilRtr), 1), (attributes_of(Step::UntilRts), 2)];
        for (attributes, own) in own_step {
            for bit in (0..32).map(|i| AttrMask(1 << i)).filter(|bit| bit.minus(attributes).is_empty()) {
                for (step, (from, to, required)) in steps.into_iter().enumerate() {
                    let taken = check_transition(from, to, required.or(bit)).is_ok();
                    assert_eq!(taken, step <= own, "{bit} from {from} to {to}");
                }
            }
        }
        // Every step without any of them: each keeps its default.
        for (from, to, required) in steps {
            assert_eq!(check_transition(from, to, required), Ok(()));
        }
    }

    #[test]
    fn an_error_names_the_missing_and_the_excess_attributes() {
        let missing = check_transition(
            QpState::Init,
            QpState::Rtr,
            mask(&QpAttr { dest_qp_num: Some(1), ..QpAttr::default() }),
        )
        .unwrap_err();
        assert_eq!(missing.to_string(), "INIT to RTR needs rq_psn, remote as well");
        let excess = check_transition(
            QpState::Rtr,
            QpState::Rts,
            mask(&QpAttr { sq_psn: Some(1), rq_psn: Some(1), ..QpAttr::default() }),
        )
        .unwrap_err();
        assert_eq!(excess.to_string(), "RTR to RTS does not take rq_psn");
        let wrong = check_transition(QpState::Init, QpState::Rts, FIRST_PSN).unwrap_err();
        assert_eq!(
            wrong.to_string(),
            "a queue pair cannot go from INIT to RTS; from INIT it can go to INIT, RTR, RESET or ERROR"
        );
    }
}
