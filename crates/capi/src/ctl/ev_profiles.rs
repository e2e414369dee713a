//! EV profiles and their operations (spec: C interface, sections 6.4 and 6.5).

use std::ffi::c_int;

use openmrc_wire::expansion::EvField;

use super::*;
use crate::abi::ctl::*;
use crate::context::Context;
use crate::errno::{EINVAL, Result};
use crate::mrc::Handle;
use crate::profiles::{EvProfile, Move, State, ev};
use crate::returns::m1;

const EV_KNOWN: u32 = ev_attr::MODE
    | ev_attr::FMT_ID
    | ev_attr::COUNT
    | ev_attr::MIN_ACTIVE
    | ev_attr::EVENT_MASK
    | ev_attr::EV_OP
    | ev_attr::EV_FIELDS_OP;

fn core_field(field: &MrcCtlEvField) -> EvField {
    let &MrcCtlEvField { width, init_val, min_val, max_val, mask } = field;
    EvField { width, init: init_val, min: min_val, max: max_val, mask }
}

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
                    fields = Some(list.iter().map(core_field).collect());
                }
                EV_FIELDS_OP_QUERY_FIELDS => {}
                _ => return Err(EINVAL),
            }
        }
        if has(ev_attr::EV_OP) && !(EV_OP_REPLACE_EV..=EV_OP_QUERY_EV_ARRAY).contains(&attr.ev_op.op) {
            return Err(EINVAL);
        }
        let change = ev::Change {
            step: Move { to: None, from: step(mask, 0, attr.cur_profile_state).from },
            mode: has(ev_attr::MODE).then_some(attr.ev_mode),
            format: has(ev_attr::FMT_ID).then_some(attr.ev_fmt_profile_id),
            count: has(ev_attr::COUNT).then_some(attr.ev_count),
            min_active: has(ev_attr::MIN_ACTIVE).then_some(attr.ev_min_active),
            event_mask: has(ev_attr::EVENT_MASK).then_some(attr.ev_event_mask),
            fields,
        };
        modify_ev(&context, id, attr, mask, change)?;
        Ok(0)
    })
}

/// Attributes first, then the operation, then the move.
fn modify_ev(
    context: &Context,
    id: u64,
    attr: &mut MrcCtlEvProfileAttr,
    mask: u32,
    change: ev::Change,
) -> Result<()> {
    let to = (mask & profile_attr::STATE != 0).then_some(attr.profile_state);
    let whole = ev::Change { step: Move { to, ..change.step }, ..change };
    let operates = mask & ev_attr::EV_OP != 0;
    if !operates {
        ev::modify(context, id, whole)?;
    } else {
        let before = context.profiles.lock().evs.get(id).state;
        if before == State::Init {
            // There are no values before the step to OFFLINE.
            ev::modify(context, id, whole)?;
            operate(context, id, attr)?;
        } else {
            ev::modify(context, id, ev::Change { step: Move { to: None, ..whole.step }, ..whole.clone() })?;
            operate(context, id, attr)?;
            let only_step = ev::Change {
                step: Move { to, from: None },
                mode: None,
                format: None,
                count: None,
                min_active: None,
                event_mask: None,
                fields: None,
            };
            ev::modify(context, id, only_step)?;
        }
    }
    if mask & ev_attr::EV_FIELDS_OP != 0 && attr.ev_fields_op.op == EV_FIELDS_OP_QUERY_FIELDS {
        query_ev_fields(context, id, attr)?;
    }
    Ok(())
}

/// One operation on entropy values.
fn operate(context: &Context, id: u64, attr: &mut MrcCtlEvProfileAttr) -> Result<()> {
    match attr.ev_op.op {
        EV_OP_QUERY_EV_ARRAY => {
            let entry = |ev| MrcCtlEvOpEntry { ev, ev_new: MrcCtlEv::UNPOPULATED, state: EV_GOOD, flags: 0 };
            let values = ev::values(context, id)?;
            let mut entries: Vec<_> = values.iter().copied().map(entry).collect();
            // Unpopulated places have no state.
            let populated: Vec<usize> =
                (0..values.len()).filter(|&place| values[place] != MrcCtlEv::UNPOPULATED).collect();
            let evs: Vec<_> = populated.iter().map(|&place| values[place]).collect();
            ev::states(context, id, &evs, |i, state| entries[populated[i]].state = state)?;
            // SAFETY: the program gives an array of this length.
            unsafe { give(attr.ev_op.entries, &mut attr.ev_op.entry_count, &entries) }
        }
        EV_OP_QUERY_EV_STATE => {
            // SAFETY: as above.
            let entries = unsafe { array(attr.ev_op.entries, attr.ev_op.entry_count)? };
            let evs: Vec<_> = entries.iter().map(|entry| entry.ev).collect();
            ev::states(context, id, &evs, |place, state| entries[place].state = state)
        }
        op => {
            // SAFETY: as above.
            let entries = unsafe { array(attr.ev_op.entries, attr.ev_op.entry_count)? };
            ev::operate(context, id, op, entries)
        }
    }
}

fn query_ev_fields(context: &Context, id: u64, attr: &mut MrcCtlEvProfileAttr) -> Result<()> {
    let profile = context.profiles.lock().evs.get(id);
    let fields: Vec<_> = profile
        .fields
        .unwrap_or_default()
        .iter()
        .map(|&EvField { width, init, min, max, mask }| MrcCtlEvField {
            width,
            init_val: init,
            min_val: min,
            max_val: max,
            mask,
        })
        .collect();
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
        let profile = match id {
            0 => EvProfile {
                state: State::Online,
                mode: Some(EV_MODE_AUTO),
                count: Some(ev::values(&context, 0)?.len() as u32),
                event_mask: EV_GOOD | EV_ASSUMED_BAD,
                ..EvProfile::default()
            },
            id => context.profiles.lock().evs.get(id),
        };
        let states = (&mut attr.profile_state, &mut attr.cur_profile_state);
        write_state(profile.state, (mask, EV_KNOWN), states, &mut attr.vendor_cfg)?;
        let count = profile.count.unwrap_or(profile.evs.len() as u32);
        if has(ev_attr::MODE) {
            attr.ev_mode = profile.mode.unwrap_or(0);
        }
        if has(ev_attr::FMT_ID) {
            attr.ev_fmt_profile_id = profile.format.unwrap_or(0);
        }
        if has(ev_attr::COUNT) {
            attr.ev_count = count;
        }
        if has(ev_attr::MIN_ACTIVE) {
            attr.ev_min_active = profile.min_active.unwrap_or(count / 4);
        }
        if has(ev_attr::EVENT_MASK) {
            attr.ev_event_mask = profile.event_mask;
        }
        if has(ev_attr::EV_OP) {
            if !matches!(attr.ev_op.op, EV_OP_QUERY_EV_STATE | EV_OP_QUERY_EV_ARRAY) {
                return Err(EINVAL);
            }
            operate(&context, id, attr)?;
        }
        if has(ev_attr::EV_FIELDS_OP) {
            if attr.ev_fields_op.op != EV_FIELDS_OP_QUERY_FIELDS {
                return Err(EINVAL);
            }
            query_ev_fields(&context, id, attr)?;
        }
        Ok(0)
    })
}
