//! Entropy values, states and modes of `mrc_ctl.h` and of the core.

use openmrc_nic::profiles::{EvMode, EvName, ProfileState, Step};
use openmrc_transport::mrc::EvState;
use openmrc_wire::EvFormat;
use openmrc_wire::expansion::{EvField, EvString};

use crate::abi::ctl::*;
use crate::errno::{EINVAL, Result};

/// A value of a program; all zeros is an unpopulated entry. Ports count from 1 there: no device has the port that 0 gives.
pub fn ev_of(ev: &MrcCtlEv) -> Option<EvName> {
    let name = EvName { value: EvString(ev.val), port: ev.port.wrapping_sub(1) };
    (*ev != MrcCtlEv::UNPOPULATED).then_some(name)
}

/// The inverse of [`ev_of`].
pub fn ev_for(ev: Option<EvName>) -> MrcCtlEv {
    ev.map_or(MrcCtlEv::UNPOPULATED, |ev| MrcCtlEv { val: ev.value.0, port: ev.port + 1 })
}

pub fn state_code(state: ProfileState) -> i32 {
    match state {
        ProfileState::Init => 0,
        ProfileState::Offline => 1,
        ProfileState::Online => 2,
    }
}

fn state_of(code: i32) -> Result<ProfileState> {
    const STATES: [ProfileState; 3] = [ProfileState::Init, ProfileState::Offline, ProfileState::Online];
    STATES.into_iter().find(|&state| state_code(state) == code).ok_or(EINVAL)
}

/// The state attributes of a call.
pub fn step(mask: u32, state: i32, current: i32) -> Result<Step> {
    let given = |bit: u32, code: i32| (mask & bit != 0).then(|| state_of(code)).transpose();
    Ok(Step { to: given(profile_attr::STATE, state)?, from: given(profile_attr::CUR_STATE, current)? })
}

/// The state of a value to set; 0 is GOOD.
pub fn ev_state_of(code: i32) -> Result<EvState> {
    match code {
        0 | EV_GOOD => Ok(EvState::Good),
        EV_ASSUMED_BAD => Ok(EvState::AssumedBad),
        EV_DENIED => Ok(EvState::Denied),
        _ => Err(EINVAL),
    }
}

pub fn ev_state_code(state: EvState) -> i32 {
    match state {
        EvState::Good | EvState::Skip => EV_GOOD,
        EvState::AssumedBad => EV_ASSUMED_BAD,
        EvState::Denied => EV_DENIED,
    }
}

pub fn mode_of(code: i32) -> Result<EvMode> {
    match code {
        EV_MODE_AUTO => Ok(EvMode::Auto),
        EV_MODE_EXP => Ok(EvMode::Explicit),
        EV_MODE_GEN => Ok(EvMode::Generated),
        _ => Err(EINVAL),
    }
}

pub fn mode_code(mode: EvMode) -> i32 {
    match mode {
        EvMode::Auto => EV_MODE_AUTO,
        EvMode::Explicit => EV_MODE_EXP,
        EvMode::Generated => EV_MODE_GEN,
    }
}

pub fn format_of(code: i32) -> Result<EvFormat> {
    match code {
        EV_FMT_MODE_UDP => Ok(EvFormat::Udp),
        EV_FMT_MODE_STEV => Ok(EvFormat::Structured),
        EV_FMT_MODE_SRV6 => Ok(EvFormat::Srv6),
        _ => Err(EINVAL),
    }
}

/// The bit of a format in a mode mask.
pub fn format_code(format: EvFormat) -> i32 {
    match format {
        EvFormat::Udp => EV_FMT_MODE_UDP,
        EvFormat::Structured => EV_FMT_MODE_STEV,
        EvFormat::Srv6 | EvFormat::Srv6Srh => EV_FMT_MODE_SRV6,
    }
}

pub fn field_of(field: &MrcCtlEvField) -> EvField {
    let &MrcCtlEvField { width, init_val, min_val, max_val, mask } = field;
    EvField { width, init: init_val, min: min_val, max: max_val, mask }
}

pub fn field_for(field: &EvField) -> MrcCtlEvField {
    let &EvField { width, init, min, max, mask } = field;
    MrcCtlEvField { width, init_val: init, min_val: min, max_val: max, mask }
}
