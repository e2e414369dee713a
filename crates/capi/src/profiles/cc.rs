//! Congestion control profiles: the algorithm and its parameters (spec: C interface, 6.4; congestion, Parameters).

use std::sync::Arc;

use openmrc_nic::CcProfileConfig;
use openmrc_nic::attr::DEFAULT_PATH_MTU;
use openmrc_transport::Span;
use openmrc_transport::mrc::{CcProfile as Algorithm, NsccParams, PathModel};

use super::types::{CcProfile, Move, State};
use crate::abi::ctl::MrcCtlCcNsccCfg;
use crate::context::Context;
use crate::errno::{EBUSY, EINVAL, Result};
use crate::qp::QPS;

/// The window where the algorithm is NULL, bytes: that of a device whose network does not trim.
const FIXED_WINDOW: u64 = 1 << 20;

/// Attributes that a call gives.
pub struct Change {
    pub step: Move,
    pub nscc: Option<bool>,
    pub config: Option<MrcCtlCcNsccCfg>,
}

/// # Errors
/// EINVAL; EBUSY while queue pairs use it, and for id 0.
pub fn modify(context: &Context, id: u64, change: Change) -> Result<()> {
    if id == 0 {
        return Err(EBUSY);
    }
    // Not with the tables locked: a queue pair that is being changed looks for its profile in them.
    let used = is_used(context, id);
    let mut tables = context.profiles.lock();
    let mut profile = tables.ccs.get(id);
    let to = change.step.target(profile.state)?;
    let gives = change.nscc.is_some() || change.config.is_some();
    if gives && (profile.state == State::Online || to == State::Init) {
        return Err(EINVAL);
    }
    profile.nscc = change.nscc.or(profile.nscc);
    if let Some(config) = change.config {
        if profile.nscc == Some(false) {
            return Err(EINVAL);
        }
        check(&config)?;
        profile.config = Some(config);
    }
    match (profile.state, to) {
        (State::Init, State::Offline) => {
            profile.nscc.ok_or(EINVAL)?;
            tables.ccs.check_room(id)?;
        }
        (State::Offline, State::Online) => {
            profile.number = Some(context.nic.create_cc_profile(online(context, &profile)?)?);
        }
        (State::Online, State::Offline) => {
            if used {
                return Err(EBUSY);
            }
            if let Some(number) = profile.number.take() {
                context.nic.destroy_cc_profile(number)?;
            }
        }
        _ => {}
    }
    profile.state = to;
    tables.ccs.set(id, profile, to);
    Ok(())
}

/// Whether a connected queue pair uses it.
fn is_used(context: &Context, id: u64) -> bool {
    let uses = |qp: &crate::qp::Qp| {
        std::ptr::eq(Arc::as_ptr(&qp.context), context)
            && qp.record.lock().mrc.is_some_and(|mrc| mrc.profile.cc_profile_id == id)
    };
    !QPS.all(uses).is_empty()
}

fn check(config: &MrcCtlCcNsccCfg) -> Result<()> {
    let floats = [config.eta, config.fi, config.fi_scale, config.gamma, config.max_md_jump];
    let sane = floats.iter().all(|value| value.is_finite() && *value >= 0.0);
    if sane && config.max_md_jump <= 1.0 && config.qa_gate < 64 { Ok(()) } else { Err(EINVAL) }
}

/// What the NIC is told. A zero is the default for the device's network.
fn online(context: &Context, profile: &CcProfile) -> Result<CcProfileConfig> {
    let device = &context.device.description.config;
    let trims = device.network.trims;
    let device_rtt = Span::from_nanos(device.network.base_rtt.as_nanos() as u64);
    let Some(config) = profile.config.filter(|_| profile.nscc == Some(true)) else {
        return match profile.nscc {
            Some(false) => Ok(CcProfileConfig {
                cc: Arc::new(Algorithm::FixedWindow(FIXED_WINDOW)),
                model: PathModel::new(device_rtt, trims),
            }),
            _ => Err(EINVAL),
        };
    };
    let nanos = |value: u32, otherwise: Span| match value {
        0 => otherwise,
        value => Span::from_nanos(value.into()),
    };
    let base_rtt = nanos(config.base_rtt, device_rtt);
    let mut params = NsccParams::for_network(device.network.link_rate_bps, base_rtt, DEFAULT_PATH_MTU, trims);
    macro_rules! take {
        ($($from:ident => $to:ident),*) => { $(if config.$from != 0.0 { params.$to = config.$from.into(); })* };
    }
    take!(eta => eta, fi => fi, fi_scale => fi_scale, gamma => gamma, max_md_jump => max_md_jump);
    params.disable_qa = config.disable_qa != 0;
    params.adjust_period = nanos(config.adjust_period_threshold, params.adjust_period);
    params.qa_threshold = nanos(config.qa_threshold, params.qa_threshold);
    params.target_qdelay = nanos(config.target_delay, params.target_qdelay);
    if config.adjust_bytes_threshold != 0 {
        params.adjust_bytes = config.adjust_bytes_threshold;
    }
    if config.max_cwnd != 0 {
        params.max_wnd = config.max_cwnd.into();
    }
    if config.qa_gate != 0 {
        params.qa_gate = config.qa_gate.into();
    }
    let model = PathModel { target_qdelay: params.target_qdelay, ..PathModel::new(base_rtt, trims) };
    Ok(CcProfileConfig { cc: Arc::new(Algorithm::Nscc(Arc::new(params))), model })
}
