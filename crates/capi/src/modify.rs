//! The states of queue pairs: what each step needs and takes in either interface (docs/spec/c-interface.md,
//! `mrc_modify_qp` and section 7.6).

use std::sync::Arc;

use openmrc_nic::attr::{RECEIVE_WAIT_FOREVER, default_retries};
use openmrc_nic::profiles::EvLease;
use openmrc_nic::{Access, QpAttr, QpState};
use openmrc_transport::mrc::{Capabilities, QpConfig, RetrySchedule};

use crate::abi::mrc::{self, MAX_VENDOR_CFG_SIZE, MrcQpAttr};
use crate::abi::verbs::{qp_attr as v, *};
use crate::context::mtu_of;
use crate::cq::Api;
use crate::device::GIDS;
use crate::errno::{EINVAL, EOPNOTSUPP, Result};
use crate::hint;
use crate::qp::{Qp, state_code};

/// Attributes without a meaning for MRC, which programs set nevertheless. Their values are not read.
const IGNORED: u32 = v::PORT
    | v::TIMEOUT
    | v::RETRY_CNT
    | v::RNR_RETRY
    | v::MIN_RNR_TIMER
    | v::MAX_QP_RD_ATOMIC
    | v::MAX_DEST_RD_ATOMIC;

const STATES: u32 = v::STATE | v::CUR_STATE;

/// MRC attributes by the step at which they come last.
const MRC_AT_INIT: u32 = mrc::qp_attr::HINT | mrc::qp_attr::EV_PROFILE_ID | mrc::qp_attr::CC_PROFILE_ID;
const MRC_AT_RTR: u32 = mrc::qp_attr::MAX_WIMM_DEST | mrc::qp_attr::MPR_DEST | mrc::qp_attr::CAP;
const MRC_AT_RTS: u32 =
    mrc::qp_attr::MAX_WIMM | mrc::qp_attr::MPR | mrc::qp_attr::RETRY_CNT | mrc::qp_attr::TIMEOUT;
/// What can be changed while the queue pair sends.
const MRC_IN_RTS: u32 = mrc::qp_attr::RETRY_CNT | mrc::qp_attr::TIMEOUT;

/// The numbers among the MRC attributes, for a macro that is called with all of them: bit of the mask, and the name that
/// the NIC's attribute and the member of `struct mrc_qp_attr` share.
macro_rules! mrc_numbers {
    ($callback:ident) => {
        $callback! {
            MPR: mpr, MPR_DEST: mpr_dest, MAX_WIMM: max_wimm, MAX_WIMM_DEST: max_wimm_dest, TIMEOUT: timeout,
            RETRY_CNT: linear_cnt, RETRY_CNT: exp_cnt,
        }
    };
}

/// Most retries of verbs, and their default.
const MOST_RETRIES: u8 = 7;
/// Retries with doubling interval that never end.
const EXP_CNT_FOR_EVER: u8 = 25;
const LONGEST_TIMEOUT: u8 = 24;

/// Of verbs: unlimited retries of a message that finds no receive, and the longest wait between two of them.
const RNR_RETRY_FOR_EVER: u8 = 7;
const LONGEST_RNR_TIMER_MS: u32 = 655;

/// A step in the life of a queue pair.
struct Step {
    from: QpState,
    to: QpState,
    /// Verbs attributes that it needs, in verbs and in MRC.
    needs: (u32, u32),
    /// Verbs attributes that it takes as well.
    takes: (u32, u32),
    mrc: u32,
}

const AT_INIT: u32 = v::PKEY_INDEX | v::PORT | v::ACCESS_FLAGS;
const AT_RTR: u32 = v::AV | v::PATH_MTU | v::DEST_QPN | v::RQ_PSN;

const STEPS: [Step; 7] = [
    Step {
        from: QpState::Reset,
        to: QpState::Init,
        needs: (AT_INIT, 0),
        takes: (0, v::PKEY_INDEX | v::ACCESS_FLAGS | IGNORED),
        mrc: MRC_AT_INIT | MRC_AT_RTR | MRC_AT_RTS,
    },
    Step {
        from: QpState::Init,
        to: QpState::Init,
        needs: (0, 0),
        takes: (AT_INIT, v::PKEY_INDEX | v::ACCESS_FLAGS | IGNORED),
        mrc: MRC_AT_INIT | MRC_AT_RTR | MRC_AT_RTS,
    },
    Step {
        from: QpState::Init,
        to: QpState::Rtr,
        needs: (AT_RTR, AT_RTR),
        takes: (
            v::PKEY_INDEX | v::ACCESS_FLAGS | v::MAX_DEST_RD_ATOMIC | v::MIN_RNR_TIMER,
            v::ACCESS_FLAGS | IGNORED,
        ),
        mrc: MRC_AT_RTR | MRC_AT_RTS,
    },
    Step { from: QpState::Rtr, to: QpState::Rtr, needs: (0, 0), takes: (0, IGNORED), mrc: 0 },
    Step {
        from: QpState::Rtr,
        to: QpState::Rts,
        needs: (v::SQ_PSN, v::SQ_PSN),
        takes: (
            v::TIMEOUT
                | v::RETRY_CNT
                | v::RNR_RETRY
                | v::MAX_QP_RD_ATOMIC
                | v::MIN_RNR_TIMER
                | v::ACCESS_FLAGS,
            v::ACCESS_FLAGS | IGNORED,
        ),
        mrc: MRC_AT_RTS,
    },
    Step {
        from: QpState::Rts,
        to: QpState::Rts,
        needs: (0, 0),
        takes: (v::MIN_RNR_TIMER | v::ACCESS_FLAGS, v::ACCESS_FLAGS | IGNORED),
        mrc: MRC_IN_RTS,
    },
    Step { from: QpState::Error, to: QpState::Error, needs: (0, 0), takes: (0, 0), mrc: 0 },
];

fn state_of(code: i32) -> Result<QpState> {
    const STATES: [QpState; 5] = [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Error];
    STATES.into_iter().find(|&state| state_code(state) == code).ok_or(EINVAL)
}

/// No attribute. A new attribute of the NIC has to be named here: as a member of an interface, set below, or as what has
/// none and keeps the device's value.
const NOTHING: QpAttr = QpAttr {
    // Verbs, for both kinds of queue pairs.
    access: None,
    dest_qp_num: None,
    rq_psn: None,
    sq_psn: None,
    remote: None,
    path_mtu: None,
    // MRC; of these, verbs has the retries.
    mpr: None,
    mpr_dest: None,
    max_wimm: None,
    max_wimm_dest: None,
    timeout: None,
    linear_cnt: None,
    exp_cnt: None,
    caps: None,
    ev_profile_id: None,
    cc_profile_id: None,
    // Verbs: from `rnr_retry`.
    receive_wait_ms: None,
    // In neither interface.
    keepalive_ms: None,
    dfc: None,
    seed: None,
};

/// Attributes of `ibv_modify_qp` or `mrc_modify_qp`, with their masks.
pub struct Change<'a> {
    pub verbs: &'a IbvQpAttr,
    pub verbs_mask: u32,
    pub mrc: Option<&'a MrcQpAttr>,
    pub mrc_mask: u32,
}

/// Moves a queue pair to another state and sets attributes. On an error nothing has changed.
///
/// # Errors
/// EINVAL; EOPNOTSUPP for bytes of a vendor.
pub fn modify(qp: &Qp, change: &Change<'_>) -> Result<()> {
    // One change at a time.
    let mut attributes = qp.attributes.lock();
    let from = qp.nic.state();
    let Change { verbs, verbs_mask: mask, .. } = *change;
    if mask & v::CUR_STATE != 0 && verbs.cur_qp_state != state_code(from) {
        return Err(EINVAL);
    }
    let to = if mask & v::STATE != 0 { state_of(verbs.qp_state)? } else { from };
    let mrc = mrc_attributes(change)?;
    if mask & v::STATE != 0 && matches!(to, QpState::Reset | QpState::Error) {
        if mask & !STATES != 0 || mrc.is_some_and(|_| change.mrc_mask != 0) {
            return Err(EINVAL);
        }
        qp.nic.modify(to, &QpAttr::default())?;
        if to == QpState::Reset {
            if let Some(hint) = attributes.hint.take() {
                hint.release();
            }
            *attributes = Default::default();
        }
        qp.show_state();
        return Ok(());
    }
    let step = STEPS.iter().find(|step| (step.from, step.to) == (from, to)).ok_or(EINVAL)?;
    let of_api = |(verbs, mrc): (u32, u32)| if qp.api == Api::Verbs { verbs } else { mrc };
    let (needs, takes) = (of_api(step.needs), of_api(step.takes));
    let vendor = mrc::qp_attr::VENDOR_CFG;
    if needs & !mask != 0
        || mask & !(STATES | needs | takes) != 0
        || change.mrc_mask & !(step.mrc | vendor) != 0
    {
        return Err(EINVAL);
    }
    let mut attr = NOTHING;
    if qp.api == Api::Verbs && to == QpState::Rtr {
        // Until the modification to RTS sets the number of retries. A receiver may never get there.
        attr.receive_wait_ms = Some(RECEIVE_WAIT_FOREVER);
    }
    verbs_attributes(qp, verbs, mask, &mut attr)?;
    let mut new_hint = None;
    let mut new_lease = None;
    if let Some(mrc) = mrc {
        new_hint = known_attributes(qp, mrc, change.mrc_mask, &mut attr)?;
        new_lease = named_profiles(qp, mrc, change.mrc_mask, &mut attr)?;
    }
    match (from, to) {
        (QpState::Rts, QpState::Rts) | (QpState::Rtr, QpState::Rtr) | (QpState::Error, QpState::Error) => {
            qp.nic.set_retries(attr.timeout, attr.linear_cnt, attr.exp_cnt)?;
        }
        (QpState::Rtr, QpState::Rts) => {
            let access = attr.access.take();
            qp.nic.modify(to, &attr)?;
            attr.access = access;
        }
        (QpState::Init, QpState::Rtr) => {
            if let Some(lease) = &mut attributes.lease {
                attr.ev_profile_id = Some(lease.paths_to(attr.remote.as_deref().unwrap_or_default())?);
            }
            qp.nic.modify(to, &attr)?;
        }
        _ => qp.nic.modify(to, &attr)?,
    }
    if let (QpState::Rtr | QpState::Rts, Some(access), true) = (from, attr.access, from != QpState::Init) {
        qp.nic.set_access(access)?;
    }
    if change.mrc_mask & mrc::qp_attr::EV_PROFILE_ID != 0 {
        attributes.lease = new_lease;
    }
    if change.mrc_mask & mrc::qp_attr::HINT != 0 {
        if let Some(hint) = &new_hint {
            hint.acquire();
        }
        if let Some(old) = std::mem::replace(&mut attributes.hint, new_hint) {
            old.release();
        }
    }
    remember(&mut attributes.verbs, verbs, mask);
    if let Some(mrc) = mrc {
        let kept = attributes.mrc.get_or_insert_with(defaults);
        remember_mrc(kept, mrc, change.mrc_mask);
    }
    qp.show_state();
    Ok(())
}

/// The MRC attributes, if the mask names any.
fn mrc_attributes<'a>(change: &Change<'a>) -> Result<Option<&'a MrcQpAttr>> {
    if change.mrc_mask == 0 {
        return Ok(None);
    }
    let attr = change.mrc.ok_or(EINVAL)?;
    check_vendor_cfg(&attr.vendor_cfg, change.mrc_mask & mrc::qp_attr::VENDOR_CFG != 0)?;
    Ok(Some(attr))
}

/// A vendor's bytes are taken only where they say nothing.
pub fn check_vendor_cfg(bytes: &[u8; MAX_VENDOR_CFG_SIZE], given: bool) -> Result<()> {
    if given && bytes.iter().any(|&byte| byte != 0) { Err(EOPNOTSUPP) } else { Ok(()) }
}

fn verbs_attributes(qp: &Qp, from: &IbvQpAttr, mask: u32, to: &mut QpAttr) -> Result<()> {
    let has = |bit: u32| mask & bit != 0;
    if has(v::PKEY_INDEX) && from.pkey_index != 0 {
        return Err(EINVAL);
    }
    if has(v::PORT) && qp.api == Api::Verbs {
        qp.context.plane(from.port_num.into())?;
    }
    if has(v::ACCESS_FLAGS) {
        let writes = from.qp_access_flags & IBV_ACCESS_REMOTE_WRITE != 0;
        to.access = Some(if writes { Access::REMOTE_WRITE } else { Access::LOCAL_READ });
    }
    if has(v::PATH_MTU) {
        if !(1..=5).contains(&from.path_mtu)
            || (qp.api == Api::Verbs && from.path_mtu > qp.context.active_mtu())
        {
            return Err(EINVAL);
        }
        to.path_mtu = Some(mtu_of(from.path_mtu.min(qp.context.active_mtu())) as u16);
    }
    if has(v::DEST_QPN) {
        if from.dest_qp_num >> 24 != 0 {
            return Err(EINVAL);
        }
        to.dest_qp_num = Some(from.dest_qp_num);
    }
    if has(v::AV) {
        let ah = &from.ah_attr;
        if ah.is_global != 1 || u32::from(ah.grh.sgid_index) >= GIDS {
            return Err(EINVAL);
        }
        to.remote = Some(qp.context.peer(ah.grh.dgid, from.dest_qp_num)?);
    }
    const PSN: u32 = (1 << 24) - 1;
    to.rq_psn = has(v::RQ_PSN).then_some(from.rq_psn & PSN);
    to.sq_psn = has(v::SQ_PSN).then_some(from.sq_psn & PSN);
    if qp.api == Api::Verbs && has(v::TIMEOUT) {
        if from.timeout > 31 {
            return Err(EINVAL);
        }
        to.timeout = Some(mrc_timeout(from.timeout));
    }
    if qp.api == Api::Verbs && has(v::RETRY_CNT) {
        if from.retry_cnt > MOST_RETRIES {
            return Err(EINVAL);
        }
        to.linear_cnt = Some(from.retry_cnt);
    }
    if let (Some(timeout), verbs) = (to.timeout, from.timeout) {
        let retries = to.linear_cnt.unwrap_or(MOST_RETRIES);
        to.exp_cnt = Some(if verbs == 0 { EXP_CNT_FOR_EVER } else { doubling_retries(timeout, retries) });
    }
    if qp.api == Api::Verbs && has(v::RNR_RETRY) {
        to.receive_wait_ms = Some(match from.rnr_retry {
            retries @ 0..RNR_RETRY_FOR_EVER => (u32::from(retries) + 1) * LONGEST_RNR_TIMER_MS,
            RNR_RETRY_FOR_EVER => RECEIVE_WAIT_FOREVER,
            _ => return Err(EINVAL),
        });
    }
    Ok(())
}

/// MRC's timeout for one of verbs: 4.096 us x 2^t there is 1.024 us x 2^(t+2) here; 0 is never.
fn mrc_timeout(verbs: u8) -> u8 {
    match verbs {
        0 => LONGEST_TIMEOUT,
        timeout => (timeout + 2).min(LONGEST_TIMEOUT),
    }
}

/// How many retries with doubling interval follow the `retries` of verbs. Hardware gives up after them; a process may
/// be stopped for longer. So each retry has one more that doubles, unless fewer last as long as those of the NIC's
/// default. Without any retry there is one, as a trimmed packet counts as an attempt.
fn doubling_retries(timeout: u8, retries: u8) -> u8 {
    let most = retries.max(1);
    let enough = default_retries().lasts();
    (0..most).find(|&doubling| schedule(timeout, retries, doubling).lasts() >= enough).unwrap_or(most)
}

fn schedule(timeout: u8, linear_cnt: u8, exp_cnt: u8) -> RetrySchedule {
    RetrySchedule { timeout: QpConfig::timeout_from_exponent(timeout), linear_cnt, exp_cnt }
}

/// Sets the MRC attributes in `to`; returns the hint, if one is given.
fn known_attributes(
    qp: &Qp,
    from: &MrcQpAttr,
    mask: u32,
    to: &mut QpAttr,
) -> Result<Option<Arc<hint::Hint>>> {
    use mrc::qp_attr as m;
    let has = |bit: u32| mask & bit != 0;
    if has(m::CAP) && from.cap & !7 != 0 {
        return Err(EINVAL);
    }
    macro_rules! take {
        ($($bit:ident: $name:ident),* $(,)?) => { $(to.$name = has(m::$bit).then_some(from.$name);)* };
    }
    mrc_numbers!(take);
    to.caps = has(m::CAP).then_some(Capabilities {
        trim_nack: from.cap & mrc::MRC_QP_CAP_TRIM_NACK_DEST_UNSUPPORTED == 0,
        dynamic_mpr: from.cap & mrc::MRC_QP_CAP_DYNAMIC_MPR != 0,
        service_time: from.cap & mrc::MRC_QP_CAP_SVC_TIME_DEST_UNSUPPORTED == 0,
        // A program cannot know it of a peer.
        overflow_reports: false,
    });
    if !has(m::HINT) || from.qp_hint.is_null() {
        return Ok(None);
    }
    let hint = hint::HINTS.get(from.qp_hint)?;
    if hint.parent != qp.parent {
        return Err(EINVAL);
    }
    Ok(Some(hint))
}

/// Sets the profiles in `to`; returns the hold on the EV profile. Id 0 is the device's own.
///
/// # Errors
/// EINVAL if a profile is not ONLINE.
fn named_profiles(qp: &Qp, from: &MrcQpAttr, mask: u32, to: &mut QpAttr) -> Result<Option<EvLease>> {
    let profiles = qp.context.nic.profiles();
    let ids = from.profile;
    if mask & mrc::qp_attr::CC_PROFILE_ID != 0 {
        let number = if ids.cc_profile_id == 0 { Some(0) } else { profiles.cc_number(ids.cc_profile_id) };
        to.cc_profile_id = Some(number.ok_or(EINVAL)?);
    }
    if mask & mrc::qp_attr::EV_PROFILE_ID == 0 {
        return Ok(None);
    }
    if ids.ev_profile_id == 0 {
        to.ev_profile_id = Some(0);
        return Ok(None);
    }
    let lease = profiles.lease(ids.ev_profile_id)?;
    to.ev_profile_id = lease.number();
    Ok(Some(lease))
}

/// Takes over what the mask names.
fn remember(kept: &mut IbvQpAttr, new: &IbvQpAttr, mask: u32) {
    macro_rules! take {
        ($($bit:ident: $field:ident),* $(,)?) => { $(if mask & v::$bit != 0 { kept.$field = new.$field; })* };
    }
    take! {
        ACCESS_FLAGS: qp_access_flags, PKEY_INDEX: pkey_index, PORT: port_num, AV: ah_attr, PATH_MTU: path_mtu,
        TIMEOUT: timeout, RETRY_CNT: retry_cnt, RNR_RETRY: rnr_retry, RQ_PSN: rq_psn,
        MAX_QP_RD_ATOMIC: max_rd_atomic, MIN_RNR_TIMER: min_rnr_timer, SQ_PSN: sq_psn,
        MAX_DEST_RD_ATOMIC: max_dest_rd_atomic, DEST_QPN: dest_qp_num,
    }
}

fn remember_mrc(kept: &mut MrcQpAttr, new: &MrcQpAttr, mask: u32) {
    macro_rules! take {
        ($($bit:ident: $($field:ident).+),* $(,)?) => { $(if mask & mrc::qp_attr::$bit != 0 { kept.$($field).+ = new.$($field).+; })* };
    }
    mrc_numbers!(take);
    take! { EV_PROFILE_ID: profile.ev_profile_id, CC_PROFILE_ID: profile.cc_profile_id, HINT: qp_hint, CAP: cap }
}

/// What MRC attributes are where nothing was said.
pub fn defaults() -> MrcQpAttr {
    let default = QpAttr::defaults();
    macro_rules! known {
        ($($bit:ident: $name:ident),* $(,)?) => {
            MrcQpAttr {
                $($name: default.$name.unwrap_or_default(),)*
                profile: mrc::ProfileIds::default(),
                qp_hint: std::ptr::null_mut(),
                cap: mrc::MRC_QP_CAP_DYNAMIC_MPR,
                vendor_cfg: [0; MAX_VENDOR_CFG_SIZE],
            }
        };
    }
    mrc_numbers!(known)
}

/// The attributes as they were set, with the present state.
pub fn query(qp: &Qp) -> (IbvQpAttr, MrcQpAttr) {
    let attributes = qp.attributes.lock();
    let state = state_code(qp.nic.state());
    let verbs = IbvQpAttr { qp_state: state, cur_qp_state: state, cap: qp.init.cap, ..attributes.verbs };
    (verbs, attributes.mrc.unwrap_or_else(defaults))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(verbs_timeout: u8, retries: u8) -> f64 {
        let timeout = mrc_timeout(verbs_timeout);
        let retries = schedule(timeout, retries, doubling_retries(timeout, retries));
        retries.lasts().map_or(f64::INFINITY, |silence| silence.as_secs_f64())
    }

    #[test]
    fn what_perftest_sets_survives_a_stop_of_15_s_and_ends_within_a_minute() {
        assert!((30.0..60.0).contains(&seconds(14, 7)), "{}", seconds(14, 7));
    }

    #[test]
    fn silence_lasts_as_long_as_on_hardware_at_least_and_no_longer_than_a_minute_otherwise() {
        for timeout in 1..=22 {
            for retries in 0..=MOST_RETRIES {
                let hardware = 4.096e-6 * f64::from(1 << timeout) * f64::from(retries + 1);
                let range = 0.99 * hardware..=(1.2 * hardware).max(60.0);
                assert!(range.contains(&seconds(timeout, retries)), "{timeout} {retries}");
            }
        }
    }

    #[test]
    fn the_page_shows_the_times_that_are_computed() {
        let page = include_str!("../../../docs/c-interface.md");
        let rows = page.lines().skip_while(|line| !line.contains("`timeout` \\ `retry_cnt`")).skip(2);
        let rows: Vec<_> = rows.take_while(|line| line.trim_start().starts_with('|')).collect();
        for row in &rows {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let timeout: u8 = cells[1].split(' ').next().unwrap().parse().unwrap();
            for (retries, cell) in [0, 1, 3, 5, 7].into_iter().zip(&cells[2..]) {
                let (shown, computed) = (cell.parse::<f64>().unwrap(), seconds(timeout, retries));
                assert!(
                    (shown / computed - 1.0).abs() < 0.05,
                    "{timeout}, {retries}: {cell}, not {computed}"
                );
            }
        }
        assert_eq!(rows.len(), 4);
        let default = default_retries().lasts().unwrap().as_secs_f64();
        assert!(page.contains(&format!("unless fewer last for {default:.0} s in all")), "{default}");
    }

    #[test]
    fn fewer_retries_and_shorter_timeouts_end_earlier() {
        for timeout in 2..=18 {
            for retries in 1..=MOST_RETRIES {
                assert!(seconds(timeout, retries) > seconds(timeout, retries - 1), "{timeout} {retries}");
                assert!(seconds(timeout, retries) > seconds(timeout - 1, retries), "{timeout} {retries}");
            }
        }
        assert!(
            [(8, 7), (12, 7), (14, 3), (14, 0)]
                .iter()
                .all(|&(timeout, retries)| seconds(timeout, retries) < 10.0)
        );
        assert_eq!(doubling_retries(mrc_timeout(20), 7), 0);
    }
}
