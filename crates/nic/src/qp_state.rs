//! The queue pair states and the transitions between them (docs/spec/transport.md, "Queue pair life"), as in ibverbs
//! with MRC's attributes. [`check_transition`] is the only place that decides what a `modify` call may do.

use std::fmt;

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

/// A set of `modify` attributes, one bit each.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct AttrMask(pub u32);

/// Names in the order of the bits.
const NAMES: [&str; 21] = [
    "pkey_index",
    "access_flags",
    "remote_address",
    "dest_qp_num",
    "rq_psn",
    "path_mtu",
    "mpr_dest",
    "max_wimm_dest",
    "sq_psn",
    "mpr",
    "max_wimm",
    "timeout",
    "linear_cnt",
    "exp_cnt",
    "cap",
    "ev_profile_id",
    "cc_profile_id",
    "seed",
    "keepalive_ms",
    "dfc",
    "receive_wait_ms",
];

#[allow(missing_docs)] // Each constant is the attribute with its name.
impl AttrMask {
    pub const NONE: AttrMask = AttrMask(0);
    pub const PKEY_INDEX: AttrMask = AttrMask(1);
    pub const ACCESS_FLAGS: AttrMask = AttrMask(1 << 1);
    pub const REMOTE_ADDRESS: AttrMask = AttrMask(1 << 2);
    pub const DEST_QP_NUM: AttrMask = AttrMask(1 << 3);
    pub const RQ_PSN: AttrMask = AttrMask(1 << 4);
    pub const PATH_MTU: AttrMask = AttrMask(1 << 5);
    pub const MPR_DEST: AttrMask = AttrMask(1 << 6);
    pub const MAX_WIMM_DEST: AttrMask = AttrMask(1 << 7);
    pub const SQ_PSN: AttrMask = AttrMask(1 << 8);
    pub const MPR: AttrMask = AttrMask(1 << 9);
    pub const MAX_WIMM: AttrMask = AttrMask(1 << 10);
    pub const TIMEOUT: AttrMask = AttrMask(1 << 11);
    pub const LINEAR_CNT: AttrMask = AttrMask(1 << 12);
    pub const EXP_CNT: AttrMask = AttrMask(1 << 13);
    pub const CAP: AttrMask = AttrMask(1 << 14);
    pub const EV_PROFILE_ID: AttrMask = AttrMask(1 << 15);
    pub const CC_PROFILE_ID: AttrMask = AttrMask(1 << 16);
    pub const SEED: AttrMask = AttrMask(1 << 17);
    pub const KEEPALIVE_MS: AttrMask = AttrMask(1 << 18);
    pub const DFC: AttrMask = AttrMask(1 << 19);
    pub const RECEIVE_WAIT_MS: AttrMask = AttrMask(1 << 20);

    /// The union of both sets.
    #[must_use]
    pub const fn or(self, other: AttrMask) -> AttrMask {
        AttrMask(self.0 | other.0)
    }

    /// The attributes of `self` that are not in `other`.
    #[must_use]
    pub const fn minus(self, other: AttrMask) -> AttrMask {
        AttrMask(self.0 & !other.0)
    }

    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for AttrMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = NAMES.iter().enumerate().filter(|(i, _)| self.0 >> i & 1 == 1).map(|(_, name)| *name);
        f.write_str(names.next().unwrap_or("none"))?;
        names.try_for_each(|name| write!(f, ", {name}"))
    }
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

const ADDRESSING: AttrMask = AttrMask::REMOTE_ADDRESS.or(AttrMask::DEST_QP_NUM).or(AttrMask::RQ_PSN);
// MRC's attributes by their step. All are optional: one that is left out keeps its default. One may come at an earlier
// step than its own, not at a later one. A profile may still come at RTR: in SRv6 mode it belongs to one peer, whose
// address is an attribute of that step.
const PROFILES: AttrMask = AttrMask::EV_PROFILE_ID.or(AttrMask::CC_PROFILE_ID).or(AttrMask::SEED);
const MRC_AT_RTR: AttrMask = AttrMask::MPR_DEST.or(AttrMask::MAX_WIMM_DEST).or(AttrMask::CAP);
const MRC_AT_RTS: AttrMask = AttrMask::MPR
    .or(AttrMask::MAX_WIMM)
    .or(AttrMask::TIMEOUT)
    .or(AttrMask::LINEAR_CNT)
    .or(AttrMask::EXP_CNT)
    .or(AttrMask::KEEPALIVE_MS)
    .or(AttrMask::DFC)
    .or(AttrMask::RECEIVE_WAIT_MS);
const AT_INIT: AttrMask =
    AttrMask::PKEY_INDEX.or(AttrMask::ACCESS_FLAGS).or(PROFILES).or(MRC_AT_RTR).or(MRC_AT_RTS);

/// The transitions: (from, to, required attributes, optional attributes). Every state may also go to RESET and ERROR.
const TRANSITIONS: [(QpState, QpState, AttrMask, AttrMask); 4] = [
    (QpState::Reset, QpState::Init, AttrMask::NONE, AT_INIT),
    (QpState::Init, QpState::Init, AttrMask::NONE, AT_INIT),
    (
        QpState::Init,
        QpState::Rtr,
        ADDRESSING,
        AttrMask::PATH_MTU.or(AttrMask::ACCESS_FLAGS).or(PROFILES).or(MRC_AT_RTR).or(MRC_AT_RTS),
    ),
    (QpState::Rtr, QpState::Rts, AttrMask::SQ_PSN, MRC_AT_RTS),
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

    const STATES: [QpState; 5] = [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Error];

    #[test]
    fn only_reset_to_rts_in_order_and_the_ways_to_reset_and_error_exist() {
        let allowed: Vec<_> = STATES
            .iter()
            .flat_map(|&from| STATES.iter().map(move |&to| (from, to)))
            .filter(|&(from, to)| {
                [AttrMask::NONE, ADDRESSING, AttrMask::SQ_PSN]
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
        let steps = [(Reset, Init, AttrMask::NONE), (Init, Rtr, ADDRESSING), (Rtr, Rts, AttrMask::SQ_PSN)];
        let own_step = [(PROFILES, 1), (MRC_AT_RTR, 1), (MRC_AT_RTS, 2)];
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
        let missing = check_transition(QpState::Init, QpState::Rtr, AttrMask::DEST_QP_NUM).unwrap_err();
        assert_eq!(missing.to_string(), "INIT to RTR needs remote_address, rq_psn as well");
        let excess =
            check_transition(QpState::Rtr, QpState::Rts, AttrMask::SQ_PSN.or(AttrMask::RQ_PSN)).unwrap_err();
        assert_eq!(excess.to_string(), "RTR to RTS does not take rq_psn");
        let wrong = check_transition(QpState::Init, QpState::Rts, AttrMask::SQ_PSN).unwrap_err();
        assert_eq!(
            wrong.to_string(),
            "a queue pair cannot go from INIT to RTS; from INIT it can go to INIT, RTR, RESET or ERROR"
        );
    }
}
