//! The functions of `mrc_ctl.h` (spec: C interface, section 6), over the profiles of the process's device.

use std::collections::{BTreeMap, HashSet};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;
use std::time::Duration;
use std::{ptr, slice};

use openmrc_wire::ev::EvField;

use crate::abi::ctl::*;
use crate::abi::mrc::{CURRENT_VERSION, LATEST_VERSION, MAX_VENDOR_CFG_SIZE, version};
use crate::abi::verbs::{IbvContext, IbvGid};
use crate::context::{CONTEXTS, Context};
use crate::cq::{CQS, Cq, Notifier, Source};
use crate::errno::{EINVAL, EOPNOTSUPP, Errno, Result, m1, minus, pointer};
use crate::ev_events::EvEvents;
use crate::modify::check_vendor_cfg;
use crate::mrc::{Handle, MRC_CONTEXTS, create_cq, mrc_query_version};
use crate::profiles::{self, Move, State, cc, ev, format};

const E2BIG: Errno = Errno(libc::E2BIG);

/// The name of the algorithm that there is.
const NSCC: &CStr = c"uet-1.0-nscc";

/// The list of algorithms, which ends with null.
struct Algorithms([*const c_char; 2]);

// SAFETY: pointers to constants.
unsafe impl Sync for Algorithms {}

static ALGORITHMS: Algorithms = Algorithms([NSCC.as_ptr(), ptr::null()]);

fn device_of(mrc_ctx: Handle) -> Result<Arc<Context>> {
    Ok(Arc::clone(&MRC_CONTEXTS.get(mrc_ctx)?.context))
}

// --- device and ports -----------------------------------------------------------------------------------------------

fn attributes(context: &Context) -> Result<MrcCtlDeviceAttr> {
    let device = &context.device.description.config;
    let most = openmrc_nic::config::MAX_PATHS as u32;
    let used: usize = context.profiles.lock().evs.values().map(|profile| profile.evs.len()).sum();
    let planes = u32::from(context.device.planes());
    Ok(MrcCtlDeviceAttr {
        mrc_ctl_protocol_version: MRC_CTL_PROTOCOL_VERSION_1,
        ev_max_fmt_profiles: profiles::MOST as u32,
        ev_max_profiles: profiles::MOST as u32,
        ev_max_count: most,
        ev_free_count: most.saturating_sub(used as u32),
        ev_max_count_profile: ev::MOST_EVS / planes * planes,
        ev_count_align: planes,
        ev_max_width: device.entropy.format.path_bits(),
        ev_fmt_mode_mask: profiles::mode_of(device.entropy.format) as u32,
        ev_mode_mask: (EV_MODE_AUTO | EV_MODE_EXP | EV_MODE_GEN) as u32,
        ev_op_max_entries: 0,
        gap: 0,
        cc_max_profiles: profiles::MOST as u32,
        algorithms: ALGORITHMS.0.as_ptr(),
        phy_port_mask: ((1 << planes) - 1) << 1,
        opt_attr: OPT_CAP_EV_EVENT | OPT_CAP_EV_EVENT_PRECISE_DROP_CNT | OPT_CAP_EP_OP_EV_PROBE,
    })
}

/// # Safety
/// As in `mrc_ctl.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_ctl_query_device(
    context: *mut IbvContext,
    attr: *mut MrcCtlDeviceAttr,
) -> c_int {
    m1(|| {
        if context.is_null() || attr.is_null() {
            return Err(EINVAL);
        }
        let context = CONTEXTS.get(context).map_err(|e| if e == EINVAL { EOPNOTSUPP } else { e })?;
        // SAFETY: checked above.
        unsafe { attr.write(attributes(&context)?) };
        Ok(0)
    })
}

/// # Safety
/// As in `mrc_ctl.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_ctl_query_device_ex(
    context: *mut IbvContext,
    mcontext: Handle,
    attr: *mut MrcCtlDeviceAttr,
    supported: *mut c_int,
) -> c_int {
    m1(|| {
        if context.is_null() || attr.is_null() || supported.is_null() {
            return Err(EINVAL);
        }
        let found = CONTEXTS.get(context);
        if !mcontext.is_null() && !Arc::ptr_eq(&device_of(mcontext)?, found.as_ref().map_err(|e| *e)?) {
            return Err(EINVAL);
        }
        let attributes = match found {
            Ok(context) => Some(attributes(&context)?),
            Err(EINVAL) => None,
            Err(dead) => return Err(dead),
        };
        // SAFETY: checked above.
        unsafe {
            supported.write(attributes.is_some().into());
            match attributes {
                Some(attributes) => attr.write(attributes),
                None => ptr::write_bytes(attr, 0, 1),
            }
        }
        Ok(0)
    })
}

/// The versions of both interfaces are the same.
///
/// # Safety
/// As in `mrc_ctl.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_ctl_query_version(
    current: *mut u32,
    last_supported: *mut u32,
    vendor: *mut u32,
    last_supported_vendor: *mut u32,
) {
    // SAFETY: the caller's promise.
    unsafe { mrc_query_version(current, last_supported, vendor, last_supported_vendor) };
}

/// # Safety
/// As in `mrc_ctl.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_ctl_query_port(
    mrc_ctx: Handle,
    port_num: u8,
    attr: *mut MrcCtlPortAttr,
    mask: c_int,
) -> c_int {
    m1(|| {
        let context = device_of(mrc_ctx)?;
        let plane = context.plane(port_num.into())?;
        // SAFETY: the program gives room for a structure, or null.
        let attr = unsafe { attr.as_mut() }.ok_or(EINVAL)?;
        if mask as u32 & !MRC_CTL_PORT_ADMIN_STATE != 0 {
            return Err(EINVAL);
        }
        let up = context.nic.port_states()?.get(plane).is_some_and(|port| port.admin_up);
        if mask as u32 & MRC_CTL_PORT_ADMIN_STATE != 0 {
            attr.port_admin_state = if up { MRC_CTL_PORT_ADMIN_ENABLED } else { MRC_CTL_PORT_ADMIN_DISABLED };
        }
        Ok(0)
    })
}

/// # Safety
/// As in `mrc_ctl.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_ctl_modify_port(
    mrc_ctx: Handle,
    port_num: u8,
    attr: *mut MrcCtlPortAttr,
    mask: c_int,
) -> c_int {
    m1(|| {
        let context = device_of(mrc_ctx)?;
        let plane = context.plane(port_num.into())?;
        // SAFETY: the program gives a structure, or null.
        let attr = unsafe { attr.as_ref() }.ok_or(EINVAL)?;
        if mask as u32 & !MRC_CTL_PORT_ADMIN_STATE != 0 {
            return Err(EINVAL);
        }
        if mask as u32 & MRC_CTL_PORT_ADMIN_STATE != 0 {
            let up = match attr.port_admin_state {
                MRC_CTL_PORT_ADMIN_DISABLED => false,
                MRC_CTL_PORT_ADMIN_ENABLED => true,
                _ => return Err(EINVAL),
            };
            context.nic.set_port_admin(plane, up)?;
        }
        Ok(0)
    })
}

// --- profiles -------------------------------------------------------------------------------------------------------

/// The state attributes of a call.
fn step(mask: u32, state: i32, current: i32) -> Move {
    Move {
        to: (mask & profile_attr::STATE != 0).then_some(state),
        from: (mask & profile_attr::CUR_STATE != 0).then_some(current),
    }
}

/// Checks a call's mask and the vendor's bytes.
fn check_mask(mask: u32, known: u32, vendor_cfg: &[u8; MAX_VENDOR_CFG_SIZE]) -> Result<()> {
    let common = profile_attr::STATE | profile_attr::CUR_STATE | profile_attr::VENDOR_CFG;
    if mask & !(known | common) != 0 {
        return Err(EINVAL);
    }
    check_vendor_cfg(vendor_cfg, mask & profile_attr::VENDOR_CFG != 0)
}

/// An array of a program, which may be empty.
///
/// # Safety
/// `list` is null or has `count` members that nothing else changes.
unsafe fn array<'a, T>(list: *mut T, count: c_int) -> Result<&'a mut [T]> {
    match usize::try_from(count) {
        Ok(0) => Ok(&mut []),
        // SAFETY: the caller's promise.
        Ok(count) if !list.is_null() => Ok(unsafe { slice::from_raw_parts_mut(list, count) }),
        _ => Err(EINVAL),
    }
}

/// Gives a list to a program: into its array if that is long enough, else only the length that is needed.
///
/// # Safety
/// As [`array`].
unsafe fn give<T: Copy>(list: *mut T, count: &mut c_int, values: &[T]) -> Result<()> {
    let asks = list.is_null() && *count == 0;
    let room = usize::try_from(*count).map_err(|_| EINVAL)?;
    *count = values.len() as c_int;
    if asks {
        return Ok(());
    }
    if room < values.len() {
        return Err(E2BIG);
    }
    // SAFETY: the caller's promise.
    unsafe { array(list, *count)? }.copy_from_slice(values);
    Ok(())
}

/// # Safety
/// As in `mrc_ctl.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_ctl_modify_ev_fmt_profile(
    mrc_ctx: Handle,
    id: u64,
    attr: *mut MrcCtlEvFmtProfileAttr,
    mask: c_int,
) -> c_int {
    m1(|| {
        let context = device_of(mrc_ctx)?;
        // SAFETY: the program gives a structure, or null.
        let attr = unsafe { attr.as_mut() }.ok_or(EINVAL)?;
        let mask = mask as u32;
        check_mask(mask, fmt_attr::MODE | fmt_attr::OP, &attr.vendor_cfg)?;
        let mut widths = None;
        if mask & fmt_attr::OP != 0 {
            match attr.ev_fmt_op.op {
                EV_FMT_OP_MODIFY_FIELDS => {
                    // SAFETY: the program gives an array of this length.
                    let fields = unsafe { array(attr.ev_fmt_op.fmt_fields, attr.ev_fmt_op.fmt_field_count)? };
                    widths = Some(fields.iter().map(|field| u32::from(field.width)).collect());
                }
                EV_FMT_OP_QUERY_FIELDS => {}
                _ => return Err(EINVAL),
            }
        }
        let mode = (mask & fmt_attr::MODE != 0).then_some(attr.ev_fmt_mode);
        let step = step(mask, attr.profile_state, attr.cur_profile_state);
        format::modify(&context, id, format::Change { step, mode, widths })?;
        if mask & fmt_attr::OP != 0 && attr.ev_fmt_op.op == EV_FMT_OP_QUERY_FIELDS {
            query_fmt_fields(&context, id, attr)?;
        }
        Ok(0)
    })
}

fn query_fmt_fields(context: &Context, id: u64, attr: &mut MrcCtlEvFmtProfileAttr) -> Result<()> {
    let widths = match id {
        0 => vec![context.device.description.config.entropy.format.path_bits()],
        id => context.profiles.lock().formats.get(id).widths,
    };
    let fields: Vec<_> = widths.iter().map(|&width| MrcCtlEvFmtField { width: width as u8 }).collect();
    // SAFETY: the program gives an array of this length.
    unsafe { give(attr.ev_fmt_op.fmt_fields, &mut attr.ev_fmt_op.fmt_field_count, &fields) }
}

/// # Safety
/// As in `mrc_ctl.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_ctl_query_ev_fmt_profile(
    mrc_ctx: Handle,
    id: u64,
    attr: *mut MrcCtlEvFmtProfileAttr,
    mask: c_int,
) -> c_int {
    m1(|| {
        let context = device_of(mrc_ctx)?;
        // SAFETY: the program gives a structure, or null.
        let attr = unsafe { attr.as_mut() }.ok_or(EINVAL)?;
        let mask = mask as u32;
        check_mask(mask, fmt_attr::MODE | fmt_attr::OP, &[0; _])?;
        let (state, mode) = match id {
            0 => (State::Online, Some(profiles::mode_of(context.device.description.config.entropy.format))),
            id => {
                let format = context.profiles.lock().formats.get(id);
                (format.state, format.mode)
            }
        };
        if mask & profile_attr::STATE != 0 {
            attr.profile_state = state.code();
        }
        if mask & profile_attr::CUR_STATE != 0 {
            attr.cur_profile_state = state.code();
        }
        if mask & profile_attr::VENDOR_CFG != 0 {
            attr.vendor_cfg = [0; _];
        }
        if state == State::Init && mask & (fmt_attr::MODE | fmt_attr::OP) != 0 {
            return Err(EINVAL);
        }
        if mask & fmt_attr::MODE != 0 {
            attr.ev_fmt_mode = mode.unwrap_or(0);
        }
        if mask & fmt_attr::OP != 0 {
            if attr.ev_fmt_op.op != EV_FMT_OP_QUERY_FIELDS {
                return Err(EINVAL);
            }
            query_fmt_fields(&context, id, attr)?;
        }
        Ok(0)
    })
}

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
        let context = device_of(mrc_ctx)?;
        // SAFETY: the program gives a structure, or null.
        let attr = unsafe { attr.as_mut() }.ok_or(EINVAL)?;
        let mask = mask as u32;
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
        let context = device_of(mrc_ctx)?;
        // SAFETY: the program gives a structure, or null.
        let attr = unsafe { attr.as_mut() }.ok_or(EINVAL)?;
        let mask = mask as u32;
        check_mask(mask, EV_KNOWN, &[0; _])?;
        let has = |bit: u32| mask & bit != 0;
        let profile = match id {
            0 => ev::EvProfile {
                state: State::Online,
                mode: Some(EV_MODE_AUTO),
                count: Some(ev::values(&context, 0)?.len() as u32),
                event_mask: EV_GOOD | EV_ASSUMED_BAD,
                ..ev::EvProfile::default()
            },
            id => context.profiles.lock().evs.get(id),
        };
        if has(profile_attr::STATE) {
            attr.profile_state = profile.state.code();
        }
        if has(profile_attr::CUR_STATE) {
            attr.cur_profile_state = profile.state.code();
        }
        if has(profile_attr::VENDOR_CFG) {
            attr.vendor_cfg = [0; _];
        }
        if profile.state == State::Init && mask & EV_KNOWN != 0 {
            return Err(EINVAL);
        }
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

/// # Safety
/// As in `mrc_ctl.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_ctl_modify_cc_profile(
    mrc_ctx: Handle,
    id: u64,
    attr: *mut MrcCtlCcProfileAttr,
    mask: c_int,
) -> c_int {
    m1(|| {
        let context = device_of(mrc_ctx)?;
        // SAFETY: the program gives a structure, or null.
        let attr = unsafe { attr.as_ref() }.ok_or(EINVAL)?;
        let mask = mask as u32;
        check_mask(mask, cc_attr::ALGORITHM | cc_attr::CONFIG, &attr.vendor_cfg)?;
        let mut nscc = None;
        if mask & cc_attr::ALGORITHM != 0 {
            // SAFETY: the program gives a string, or null.
            let name = (!attr.algorithm.is_null()).then(|| unsafe { CStr::from_ptr(attr.algorithm) });
            nscc = match name {
                None => Some(false),
                Some(name) if name == NSCC => Some(true),
                Some(_) => return Err(EINVAL),
            };
        }
        let mut config = None;
        if mask & cc_attr::CONFIG != 0 {
            // SAFETY: the program gives the structure of the algorithm, or null.
            config =
                Some(unsafe { attr.cc_config.cast::<MrcCtlCcNsccCfg>().as_ref() }.copied().ok_or(EINVAL)?);
        }
        let step = step(mask, attr.profile_state, attr.cur_profile_state);
        cc::modify(&context, id, cc::Change { step, nscc, config })?;
        Ok(0)
    })
}

/// # Safety
/// As in `mrc_ctl.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_ctl_query_cc_profile(
    mrc_ctx: Handle,
    id: u64,
    attr: *mut MrcCtlCcProfileAttr,
    mask: c_int,
) -> c_int {
    m1(|| {
        let context = device_of(mrc_ctx)?;
        // SAFETY: the program gives a structure, or null.
        let attr = unsafe { attr.as_mut() }.ok_or(EINVAL)?;
        let mask = mask as u32;
        check_mask(mask, cc_attr::ALGORITHM | cc_attr::CONFIG, &[0; _])?;
        let mut tables = context.profiles.lock();
        let mut profile = tables.ccs.get(id);
        if id == 0 {
            let nscc = context.device.description.config.network.trims;
            profile = cc::CcProfile { state: State::Online, nscc: Some(nscc), ..profile };
        }
        if mask & profile_attr::STATE != 0 {
            attr.profile_state = profile.state.code();
        }
        if mask & profile_attr::CUR_STATE != 0 {
            attr.cur_profile_state = profile.state.code();
        }
        if mask & profile_attr::VENDOR_CFG != 0 {
            attr.vendor_cfg = [0; _];
        }
        if profile.state == State::Init && mask & (cc_attr::ALGORITHM | cc_attr::CONFIG) != 0 {
            return Err(EINVAL);
        }
        if mask & cc_attr::ALGORITHM != 0 {
            attr.algorithm = if profile.nscc == Some(true) { NSCC.as_ptr() } else { ptr::null() };
        }
        if mask & cc_attr::CONFIG != 0 {
            attr.cc_config = match profile.config {
                None => ptr::null(),
                Some(config) => {
                    let shown = Arc::new(config);
                    let at = Arc::as_ptr(&shown).cast::<c_void>();
                    if let Some(kept) = tables.ccs.get_mut(id) {
                        kept.shown = Some(shown);
                    }
                    at
                }
            };
        }
        Ok(0)
    })
}

// --- events ---------------------------------------------------------------------------------------------------------

/// # Safety
/// As in `mrc_ctl.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_ctl_create_ev_event_cq(
    mrc_ctx: Handle,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: Handle,
    comp_vector: c_int,
) -> Handle {
    let make = |context: &Context, cqe: usize, notifier: Notifier| {
        let events = Arc::new(EvEvents::new(cqe, notifier));
        context.profiles.routes.add_queue(&events);
        Ok(Source::Ev(events))
    };
    pointer(|| create_cq(mrc_ctx, cqe, cq_context, channel, comp_vector, make))
}

/// # Safety
/// As in `mrc_ctl.h`: `ev_event` has room for this many events of the program's version.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_ctl_poll_ev_event(
    ev_cq: Handle,
    num_entries: c_int,
    ev_event: *mut MrcCtlEvEvent,
) -> c_int {
    minus(|| {
        let cq: Arc<Cq> = CQS.get(ev_cq)?;
        let Source::Ev(events) = &cq.source else { return Err(EINVAL) };
        let most = usize::try_from(num_entries).map_err(|_| EINVAL)?;
        if most > 0 && ev_event.is_null() {
            return Err(EINVAL);
        }
        let used = MRC_CONTEXTS.get(ptr::with_exposed_provenance::<c_void>(cq.parent))?.api_version;
        let is_old = used != 0 && used != LATEST_VERSION && used < version(1, 0, 1);
        debug_assert!(CURRENT_VERSION == version(1, 0, 1));
        let stride = if is_old { OLD_EV_EVENT } else { size_of::<MrcCtlEvEvent>() };
        let taken = events.take(most);
        for (i, event) in taken.iter().enumerate() {
            // SAFETY: the program gives room for that many events of this size.
            unsafe {
                let to = ev_event.byte_add(i * stride).cast::<u8>();
                ptr::copy_nonoverlapping((&raw const *event).cast::<u8>(), to, stride);
            }
        }
        Ok(taken.len() as c_int)
    })
}

// --- endpoint operations --------------------------------------------------------------------------------------------

/// # Safety
/// As in `mrc_ctl.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_ctl_ep_batch_send_wait(
    mrc_ctx: Handle,
    req_tc: u8,
    op_type: c_int,
    req: *mut MrcCtlEpReq,
    num_req: c_int,
    rsp_timeout: u32,
    rsp: *mut MrcCtlEpRsp,
    num_rsp: *mut c_int,
) -> c_int {
    m1(|| {
        let context = device_of(mrc_ctx)?;
        // SAFETY: the program gives a number, or null.
        let num_rsp = unsafe { num_rsp.as_mut() }.ok_or(EINVAL)?;
        *num_rsp = 0;
        if req_tc > 63 || !matches!(op_type, EP_OP_EV_PROBE | EP_OP_PORT_STATUS_UPDATE) {
            return Err(EINVAL);
        }
        // SAFETY: the program gives arrays of this length.
        let (requests, responses) = unsafe { (array(req, num_req)?, array(rsp, num_req)?) };
        check_requests(&context, requests)?;
        if requests.is_empty() {
            return Ok(0);
        }
        if op_type == EP_OP_PORT_STATUS_UPDATE {
            // The device tells its peers itself, when a port changes.
            return Err(EOPNOTSUPP);
        }
        let answers = probe(&context, requests, Duration::from_nanos(rsp_timeout.into()))?;
        for (to, answer) in responses.iter_mut().zip(&answers) {
            *to = *answer;
        }
        *num_rsp = answers.len() as c_int;
        if answers.len() == requests.len() { Ok(0) } else { Err(Errno(libc::ETIMEDOUT)) }
    })
}

fn check_requests(context: &Context, requests: &[MrcCtlEpReq]) -> Result<()> {
    let mut ids = HashSet::new();
    let mode = profiles::mode_of(context.device.description.config.entropy.format);
    for request in requests {
        if !ids.insert(request.req_id) || request.sgid != context.device.gid() {
            return Err(EINVAL);
        }
        if request.ev_fmt_mode != mode {
            return Err(EOPNOTSUPP);
        }
        context.plane(request.req_ev.port.into())?;
    }
    Ok(())
}

/// The answers, in the order in which they came.
fn probe(context: &Context, requests: &[MrcCtlEpReq], timeout: Duration) -> Result<Vec<MrcCtlEpRsp>> {
    let mut by_peer: BTreeMap<[u8; 16], Vec<&MrcCtlEpReq>> = BTreeMap::new();
    for request in requests {
        by_peer.entry(request.dgid.0).or_default().push(request);
    }
    let known = known_paths(context);
    let ask = |gid: &[u8; 16], requests: &[&MrcCtlEpReq]| {
        let peer = context.peer(IbvGid(*gid), 0)?;
        let path = |request: &&MrcCtlEpReq| {
            known.iter().find(|(ev, _)| *ev == request.req_ev).map(|(_, path)| *path).ok_or(EINVAL)
        };
        let paths = requests.iter().map(path).collect::<Result<Vec<_>>>()?;
        let results = context.nic.ev_probe(&peer, &paths, timeout)?;
        let answered = results.iter().zip(requests).filter_map(|(result, request)| {
            let rtt = u32::try_from(result.rtt?.as_nanos()).unwrap_or(u32::MAX);
            Some(MrcCtlEpRsp { req_id: request.req_id, port: request.req_ev.port, rtt, adj_svc_time: 0 })
        });
        Ok(answered.collect::<Vec<_>>())
    };
    let answers: Vec<Result<Vec<_>>> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            by_peer.iter().map(|(gid, requests)| scope.spawn(|| ask(gid, requests))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or(Err(crate::errno::EIO))).collect()
    });
    let mut all = answers.into_iter().collect::<Result<Vec<_>>>()?.concat();
    all.sort_by_key(|answer| answer.rtt);
    Ok(all)
}

/// Every path of the device, with what programs call it.
fn known_paths(context: &Context) -> Vec<(MrcCtlEv, openmrc_transport::PathEntry)> {
    let ids = context.profiles.lock().evs.ids();
    let online = ids.into_iter().chain([0]).filter_map(|id| ev::paths(context, id).ok());
    online.flatten().collect()
}
