//! EV format profiles: the fields of entropy values.

use openmrc_wire::expansion;

use super::expansion::{described_by, longest};
use super::routes::mode_of;
use super::types::{Move, State, Tables};
use crate::abi::ctl::{EV_FMT_MODE_SRV6, EV_FMT_MODE_STEV, EV_FMT_MODE_UDP};
use crate::context::Context;
use crate::errno::{EBUSY, EINVAL, EOPNOTSUPP, Errno, Result};

/// Attributes that a call gives.
pub struct Change {
    pub step: Move,
    pub mode: Option<i32>,
    pub widths: Option<Vec<u32>>,
}

/// # Errors
/// EINVAL; EBUSY while an EV profile that uses it is ONLINE, and for id 0; E2BIG if the fields do not fit the device;
/// EOPNOTSUPP for a mode that is not the device's.
pub fn modify(context: &Context, id: u64, change: Change) -> Result<()> {
    if id == 0 {
        return Err(EBUSY);
    }
    let mut tables = context.profiles.lock();
    let mut format = tables.formats.get(id);
    let to = change.step.target(format.state)?;
    let gives = change.mode.is_some() || change.widths.is_some();
    if gives && (format.state == State::Online || to == State::Init) {
        return Err(EINVAL);
    }
    let device = context.device.description.config.entropy.format;
    if let Some(mode) = change.mode {
        if ![EV_FMT_MODE_STEV, EV_FMT_MODE_SRV6, EV_FMT_MODE_UDP].contains(&mode) {
            return Err(EINVAL);
        }
        if mode != mode_of(device) {
            return Err(EOPNOTSUPP);
        }
        format.mode = Some(mode);
    }
    if let Some(widths) = change.widths {
        if widths.is_empty() || widths.iter().any(|width| !(1..=255).contains(width)) {
            return Err(EINVAL);
        }
        if widths.iter().sum::<u32>() > longest(device).path_bits() {
            return Err(Errno(libc::E2BIG));
        }
        expansion::check(described_by(device, &widths), &widths, &[]).map_err(|_| EINVAL)?;
        format.widths = widths;
    }
    match (format.state, to) {
        (State::Init, State::Offline) if format.mode.is_none() => return Err(EINVAL),
        (State::Offline, State::Online) if format.widths.is_empty() => return Err(EINVAL),
        (State::Online, State::Offline) if is_used(&tables, id) => return Err(EBUSY),
        (State::Init, State::Offline) => tables.formats.check_room(id)?,
        _ => {}
    }
    format.state = to;
    tables.formats.set(id, format, to);
    Ok(())
}

/// Whether an EV profile with this format is ONLINE.
fn is_used(tables: &Tables, id: u64) -> bool {
    tables.evs.values().any(|ev| ev.state == State::Online && ev.format == Some(id))
}
