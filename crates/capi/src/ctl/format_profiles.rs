//! EV format profiles (spec: C interface, sections 6.1 and 6.4).

use std::ffi::c_int;

use super::*;
use crate::abi::ctl::*;
use crate::context::Context;
use crate::errno::{EINVAL, Result};
use crate::mrc::Handle;
use crate::profiles::{self, State, format};
use crate::returns::m1;

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
        // SAFETY: the caller's promise.
        let (context, attr, mask) = unsafe { on_profile(mrc_ctx, attr, mask)? };
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
        // SAFETY: the caller's promise.
        let (context, attr, mask) = unsafe { on_profile(mrc_ctx, attr, mask)? };
        check_mask(mask, fmt_attr::MODE | fmt_attr::OP, &[0; _])?;
        let (state, mode) = match id {
            0 => (State::Online, Some(profiles::mode_of(context.device.description.config.entropy.format))),
            id => {
                let format = context.profiles.lock().formats.get(id);
                (format.state, format.mode)
            }
        };
        let states = (&mut attr.profile_state, &mut attr.cur_profile_state);
        write_state(state, (mask, fmt_attr::MODE | fmt_attr::OP), states, &mut attr.vendor_cfg)?;
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
