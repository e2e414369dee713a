//! Congestion control profiles (docs/spec/c-interface.md, section 6.4): attributes to and from the core.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::Arc;

use openmrc_nic::profiles::{CcAlgorithm, CcChange, CcConfig};
use openmrc_transport::Span;

use super::translate::step;
use super::*;
use crate::abi::ctl::*;
use crate::errno::EINVAL;
use crate::mrc::Handle;
use crate::returns::m1;

/// Parameters of a program. A zero is the default for the device's network.
fn config_of(config: &MrcCtlCcNsccCfg) -> CcConfig {
    let nanos = |value: u32| (value != 0).then(|| Span::from_nanos(value.into()));
    let number = |value: f32| (value != 0.0).then_some(f64::from(value));
    CcConfig {
        base_rtt: nanos(config.base_rtt),
        max_wnd: Some(u64::from(config.max_cwnd)).filter(|&bytes| bytes != 0),
        target_qdelay: nanos(config.target_delay),
        fi: number(config.fi),
        eta: number(config.eta),
        fi_scale: number(config.fi_scale),
        gamma: number(config.gamma),
        max_md_jump: number(config.max_md_jump),
        qa_gate: Some(u32::from(config.qa_gate)).filter(|&gate| gate != 0),
        qa_threshold: nanos(config.qa_threshold),
        disable_qa: (config.disable_qa != 0).then_some(true),
        adjust_period: nanos(config.adjust_period_threshold),
        adjust_bytes: Some(config.adjust_bytes_threshold).filter(|&bytes| bytes != 0),
        ..CcConfig::default()
    }
}

/// The inverse of [`config_of`].
fn config_for(config: &CcConfig) -> MrcCtlCcNsccCfg {
    let nanos = |value: Option<Span>| value.map_or(0, |span| span.as_nanos() as u32);
    let number = |value: Option<f64>| value.unwrap_or(0.0) as f32;
    MrcCtlCcNsccCfg {
        disable_qa: config.disable_qa.unwrap_or(false).into(),
        adjust_bytes_threshold: config.adjust_bytes.unwrap_or(0),
        adjust_period_threshold: nanos(config.adjust_period),
        base_rtt: nanos(config.base_rtt),
        eta: number(config.eta),
        fi: number(config.fi),
        fi_scale: number(config.fi_scale),
        gamma: number(config.gamma),
        max_md_jump: number(config.max_md_jump),
        max_cwnd: config.max_wnd.unwrap_or(0) as u32,
        qa_gate: config.qa_gate.unwrap_or(0) as u8,
        qa_threshold: nanos(config.qa_threshold),
        target_delay: nanos(config.target_qdelay),
    }
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
        // SAFETY: the caller's promise.
        let (context, attr, mask) = unsafe { on_profile(mrc_ctx, attr, mask)? };
        check_mask(mask, cc_attr::ALGORITHM | cc_attr::CONFIG, &attr.vendor_cfg)?;
        let mut algorithm = None;
        if mask & cc_attr::ALGORITHM != 0 {
            // SAFETY: the program gives a string, or null.
            let name = (!attr.algorithm.is_null()).then(|| unsafe { CStr::from_ptr(attr.algorithm) });
            algorithm = match name {
                None => Some(CcAlgorithm::None),
                Some(name) if name == NSCC => Some(CcAlgorithm::Nscc),
                Some(_) => return Err(EINVAL),
            };
        }
        let mut config = None;
        if mask & cc_attr::CONFIG != 0 {
            // SAFETY: the program gives the structure of the algorithm, or null.
            let given = unsafe { attr.cc_config.cast::<MrcCtlCcNsccCfg>().as_ref() };
            config = Some(config_of(given.ok_or(EINVAL)?));
        }
        let step = step(mask, attr.profile_state, attr.cur_profile_state)?;
        context.nic.profiles().modify_cc(id, &CcChange { step, algorithm, config })?;
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
        // SAFETY: the caller's promise.
        let (context, attr, mask) = unsafe { on_profile(mrc_ctx, attr, mask)? };
        check_mask(mask, cc_attr::ALGORITHM | cc_attr::CONFIG, &[0; _])?;
        let profile = context.nic.profiles().cc(id);
        let states = (&mut attr.profile_state, &mut attr.cur_profile_state);
        write_state(
            profile.state,
            (mask, cc_attr::ALGORITHM | cc_attr::CONFIG),
            states,
            &mut attr.vendor_cfg,
        )?;
        if mask & cc_attr::ALGORITHM != 0 {
            let nscc = profile.algorithm == Some(CcAlgorithm::Nscc);
            attr.algorithm = if nscc { NSCC.as_ptr() } else { ptr::null() };
        }
        if mask & cc_attr::CONFIG != 0 {
            attr.cc_config = profile.config.as_ref().map_or(ptr::null(), |config| {
                let shown = Arc::new(config_for(config));
                let at = Arc::as_ptr(&shown).cast::<c_void>();
                context.shown_cc.lock().insert(id, shown);
                at
            });
        }
        Ok(0)
    })
}
