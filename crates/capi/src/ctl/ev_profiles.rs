//! EV profiles and their operations (docs/spec/c-interface.md, sections 6.4 and 6.5): attributes and entries to and
//! from the core.

use std::ffi::c_int;

use openmrc_nic::Error;
use openmrc_nic::profiles::{EvAttr, EvChange, Profiles, Replace};

use super::translate::*;
use super::*;
use crate::abi::ctl::*;
use crate::errno::{EINVAL, Errno, Result};
use crate::mrc::Handle;
use crate::returns::m1;
use crate::told;

const EV_KNOWN: u32 = ev_attr::MODE
    | ev_attr::FMT_ID
    | ev_attr::COUNT
    | ev_attr::MIN_ACTIVE
    | ev_attr::EVENT_MASK
    | ev_attr::EV_OP
    | ev_attr::EV_FIELDS_OP;

/// # Safety
/// As in `mrc_ctl.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_ctl_modify_ev_profile(
    mrc_ctx: Handle,
    id: u64,
    attr: *mut MrcCtlEvProfileAttr,
    mask: c_int,
) -> c_int {
    m1(|| {
        // SAFETY: the caller's promise.
        let (context, attr, mask) = unsafe { on_profile(mrc_ctx, attr, mask)? };
        check_mask(mask, EV_KNOWN, &attr.vendor_cfg)?;
        let has = |bit: u32| mask & bit != 0;
        if has(ev_attr::EV_OP) && has(ev_attr::EV_FIELDS_OP) {
            return Err(EINVAL);
        }
        let mut fields = None;
        if has(ev_attr::EV_FIELDS_OP) {
            match attr.ev_fields_op.op {
                EV_FIELDS_OP_MODIFY_FIELDS => {
                    // SAFETY: the program gives an array of this length.
                    let list = unsafe { array(attr.ev_fields_op.fields, attr.ev_fields_op.field_count)? };
                    fields = Some(list.iter().map(field_of).collect());
                }
                EV_FIELDS_OP_QUERY_FIELDS => {}
                _ => return Err(EINVAL),
            }
        }
        if has(ev_attr::EV_OP) && !(EV_OP_REPLACE_EV..=EV_OP_QUERY_EV_ARRAY).contains(&attr.ev_op.op) {
            return Err(EINVAL);
        }
        let given = EvAttr {
            mode: has(ev_attr::MODE).then(|| mode_of(attr.ev_mode)).transpose()?,
            format_profile: has(ev_attr::FMT_ID).then_some(attr.ev_fmt_profile_id),
            count: has(ev_attr::COUNT).then_some(attr.ev_count),
            min_active: has(ev_attr::MIN_ACTIVE).then_some(attr.ev_min_active),
            event_mask: has(ev_attr::EVENT_MASK).then_some(attr.ev_event_mask as u32),
            fields,
            ..EvAttr::default()
        };
        let profiles = context.nic.profiles();
        let step = step(mask, attr.profile_state, attr.cur_profile_state)?;
        let change = EvChange { step, attr: given };
        match has(ev_attr::EV_OP) {
            false => profiles.modify_ev(id, &change).inspect_err(|error| tell(id, error))?,
            true => profiles.modify_ev_with(id, change, || operate(profiles, id, attr))?,
        }
        if has(ev_attr::EV_FIELDS_OP) && attr.ev_fields_op.op == EV_FIELDS_OP_QUERY_FIELDS {
            query_fields(profiles, id, attr)?;
        }
        Ok(0)
    })
}

/// The number of the kernel's error says neither which source port it was nor why.
fn tell(id: u64, error: &Error) {
    if let Error::Os { source, .. } = error {
        let is_refused = source.raw_os_error() == Some(libc::EACCES);
        let hint = if is_refused { "; ports below 1024 need CAP_NET_BIND_SERVICE" } else { "" };
        told::once(format!("EV profile {id}: {error}{hint}"));
    }
}

/// One operation on entropy values: in order, up to the first that fails.
fn operate(profiles: &Profiles, id: u64, attr: &mut MrcCtlEvProfileAttr) -> Result<()> {
    if attr.ev_op.op == EV_OP_QUERY_EV_ARRAY {
        let profile = profiles.ev(id)?;
        profile.check_not_init("query_evs").map_err(|e| Errno::from(Error::from(e)))?;
        let entry = |ev| MrcCtlEvOpEntry { ev, ev_new: MrcCtlEv::UNPOPULATED, state: EV_GOOD, flags: 0 };
        let mut entries: Vec<_> = profile.evs.iter().map(|&ev| entry(ev_for(ev))).collect();
        // Unpopulated places have no state.
        let (places, evs): (Vec<_>, Vec<_>) =
            profile.evs.iter().enumerate().filter_map(|(place, ev)| Some((place, (*ev)?))).unzip();
        profiles.ev_states(id, &evs, |i, state| entries[places[i]].state = ev_state_code(state))?;
        // SAFETY: the program gives an array of this length.
        return unsafe { give(attr.ev_op.entries, &mut attr.ev_op.entry_count, &entries) };
    }
    // SAFETY: as above.
    let entries = unsafe { array(attr.ev_op.entries, attr.ev_op.entry_count)? };
    entries.iter_mut().try_for_each(|entry| operate_on(profiles, id, attr.ev_op.op, entry))
}

fn operate_on(profiles: &Profiles, id: u64, op: c_int, entry: &mut MrcCtlEvOpEntry) -> Result<()> {
    let ev = ev_of(&entry.ev);
    if op == EV_OP_QUERY_EV_STATE {
        return Ok(
            profiles.ev_states(id, &[ev.ok_or(EINVAL)?], |_, state| entry.state = ev_state_code(state))?
        );
    }
    if entry.flags & !EV_OP_F_ALL_COPIES != 0 {
        return Err(EINVAL);
    }
    let all_copies = entry.flags & EV_OP_F_ALL_COPIES != 0;
    let state = ev_state_of(entry.state)?;
    match op {
        EV_OP_REPLACE_EV => {
            let new = ev_of(&entry.ev_new).ok_or(EINVAL)?;
            profiles.replace_ev(id, &Replace { current: ev, new, state, all_copies })?;
        }
        EV_OP_MODIFY_EV_STATE => {
            // Only a replacement may leave its state out.
            let ev = ev.filter(|_| entry.state != 0).ok_or(EINVAL)?;
            profiles.set_ev_state(id, ev, state)?;
        }
        _ => return Err(EINVAL),
    }
    Ok(())
}

fn query_fields(profiles: &Profiles, id: u64, attr: &mut MrcCtlEvProfileAttr) -> Result<()> {
    let fields: Vec<_> = profiles.ev(id)?.attr.fields.unwrap_or_default().iter().map(field_for).collect();
    // SAFETY: the program gives an array of this length.
    unsafe { give(attr.ev_fields_op.fields, &mut attr.ev_fields_op.field_count, &fields) }
}

/// # Safety
/// As in `mrc_ctl.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_ctl_query_ev_profile(
    mrc_ctx: Handle,
    id: u64,
    attr: *mut MrcCtlEvProfileAttr,
    mask: c_int,
) -> c_int {
    m1(|| {
        // SAFETY: the caller's promise.
        let (context, attr, mask) = unsafe { on_profile(mrc_ctx, attr, mask)? };
        check_mask(mask, EV_KNOWN, &[0; _])?;
        let has = |bit: u32| mask & bit != 0;
        let profiles = context.nic.profiles();
        let profile = profiles.ev(id)?;
        let states = (&mut attr.profile_state, &mut attr.cur_profile_state);
        write_state(profile.state, (mask, EV_KNOWN), states, &mut attr.vendor_cfg)?;
        if has(ev_attr::MODE) {
            attr.ev_mode = profile.attr.mode.map_or(0, mode_code);
        }
        if has(ev_attr::FMT_ID) {
            attr.ev_fmt_profile_id = profile.attr.format_profile.unwrap_or(0);
        }
        if has(ev_attr::COUNT) {
            attr.ev_count = profile.count();
        }
        if has(ev_attr::MIN_ACTIVE) {
            attr.ev_min_active = profile.min_active();
        }
        if has(ev_attr::EVENT_MASK) {
            attr.ev_event_mask = profile.event_mask() as i32;
        }
        if has(ev_attr::EV_OP) {
            if !matches!(attr.ev_op.op, EV_OP_QUERY_EV_STATE | EV_OP_QUERY_EV_ARRAY) {
                return Err(EINVAL);
            }
            operate(profiles, id, attr)?;
        }
        if has(ev_attr::EV_FIELDS_OP) {
            if attr.ev_fields_op.op != EV_FIELDS_OP_QUERY_FIELDS {
                return Err(EINVAL);
            }
            query_fields(profiles, id, attr)?;
        }
        Ok(0)
    })
}
