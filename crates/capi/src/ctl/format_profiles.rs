//! EV format profiles (docs/spec/c-interface.md, sections 6.1 and 6.4): attributes to and from the core.

use std::ffi::c_int;

use openmrc_nic::profiles::{EvFormatChange, EvFormatProfile};

use super::translate::{format_code, format_of, step};
use super::*;
use crate::abi::ctl::*;
use crate::errno::{EINVAL, Result};
use crate::mrc::Handle;
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
        let profiles = context.nic.profiles();
        let mode = (mask & fmt_attr::MODE != 0).then(|| format_of(attr.ev_fmt_mode)).transpose()?;
        let step = step(mask, attr.profile_state, attr.cur_profile_state)?;
        profiles.modify_ev_format(id, &EvFormatChange { step, ev_format: mode, widths })?;
        if mask & fmt_attr::OP != 0 && attr.ev_fmt_op.op == EV_FMT_OP_QUERY_FIELDS {
            query_fields(&profiles.ev_format(id)?, attr)?;
        }
        Ok(0)
    })
}

fn query_fields(profile: &EvFormatProfile, attr: &mut MrcCtlEvFmtProfileAttr) -> Result<()> {
    let fields: Vec<_> =
        profile.widths.iter().map(|&width| MrcCtlEvFmtField { width: width as u8 }).collect();
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
        let profile = context.nic.profiles().ev_format(id)?;
        let states = (&mut attr.profile_state, &mut attr.cur_profile_state);
        write_state(profile.state, (mask, fmt_attr::MODE | fmt_attr::OP), states, &mut attr.vendor_cfg)?;
        if mask & fmt_attr::MODE != 0 {
            attr.ev_fmt_mode = profile.ev_format.map_or(0, format_code);
        }
        if mask & fmt_attr::OP != 0 {
            if attr.ev_fmt_op.op != EV_FMT_OP_QUERY_FIELDS {
                return Err(EINVAL);
            }
            query_fields(&profile, attr)?;
        }
        Ok(0)
    })
}
