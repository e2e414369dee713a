//! What a queue pair is told when it is made. All defaults live here, each with its source.

use std::sync::Arc;

use openmrc_wire::Psn;

use super::cc::CcProfile;
use crate::profile::EvProfile;
use crate::time::Span;

/// Packets that one burst may have where they do not come at once \[choice\]. A host's software is quicker on a path that it has
/// just used, at both ends; but a dead path must not keep many packets.
pub const LASTING_BURST: u8 = 8;

/// Optional behaviour, on only if both ends have it (spec: transport, queue pair attributes, `cap`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// Trimmed packets are answered with a NACK.
    pub trim_nack: bool,
    /// The responder may change its MPR as it goes.
    pub dynamic_mpr: bool,
    /// The responder takes its service time out of reflected timestamps when asked.
    pub service_time: bool,
}

impl Capabilities {
    /// What both ends have.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Capabilities {
            trim_nack: self.trim_nack && other.trim_nack,
            dynamic_mpr: self.dynamic_mpr && other.dynamic_mpr,
            service_time: self.service_time && other.service_time,
        }
    }
}

impl Default for Capabilities {
    fn default() -> Self {
        Capabilities { trim_nack: true, dynamic_mpr: true, service_time: true }
    }
}

/// Everything a queue pair needs to know.
#[derive(Clone, Debug)]
pub struct QpConfig {
    /// This queue pair's number, 24 bits.
    pub local_qp: u32,
    /// The peer's number, 24 bits.
    pub remote_qp: u32,
    /// First PSN sent.
    pub sq_psn: Psn,
    /// First PSN expected.
    pub rq_psn: Psn,
    /// Payload bytes per data packet, 256..=8192.
    pub path_mtu: u16,
    /// In-flight window as requestor, units of 128 PSNs; the smaller of this and the peer's `mpr_dest` holds.
    pub mpr: u8,
    /// In-flight window as responder, units of 128 PSNs.
    pub mpr_dest: u8,
    /// Messages with immediate in flight as requestor.
    pub max_wimm: u16,
    /// Messages with immediate in flight as responder.
    pub max_wimm_dest: u16,
    /// Work requests that may be outstanding.
    pub max_send_wr: usize,
    /// ACK timeout; four measured round trips where they take longer.
    pub timeout: Span,
    /// Retries at a fixed interval, at most 7.
    pub linear_cnt: u8,
    /// Retries with doubling interval after those, at most 25, which is for ever.
    pub exp_cnt: u8,
    /// Optional behaviour agreed with the peer.
    pub caps: Capabilities,
    /// A SACK at least after so many bytes.
    pub ack_every_bytes: u32,
    /// A SACK at the latest so long after a packet.
    pub ack_delay: Span,
    /// The paths.
    pub paths: Arc<EvProfile>,
    /// Paths in rotation.
    pub ev_active: u16,
    /// Paths in reserve.
    pub ev_backup: u16,
    /// Below so many usable paths in rotation condemned ones are retried. Default: a quarter of `ev_active`.
    pub ev_min_active: u16,
    /// Consecutive packets on one path, 1 in hardware. A software NIC sends a few per system call.
    pub ev_burst: u8,
    /// Congestion control.
    pub cc: Arc<CcProfile>,
    /// Seed of this queue pair's choices: order of its paths, jitter of its probes.
    pub seed: u64,
}

/// What of its configuration a queue pair needs as it goes; the rest is in what was made by it.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub local_qp: u32,
    pub remote_qp: u32,
    pub ack_every_bytes: u32,
    pub max_wimm: u16,
    pub mpr: u8,
    pub mpr_dest: u8,
    pub timeout: Span,
    pub ack_delay: Span,
    pub cc: Arc<CcProfile>,
    pub linear_cnt: u8,
    pub exp_cnt: u8,
    pub ev_burst: u8,
    pub caps: Capabilities,
}

impl From<&QpConfig> for Settings {
    fn from(config: &QpConfig) -> Self {
        Settings {
            local_qp: config.local_qp,
            remote_qp: config.remote_qp,
            ack_every_bytes: config.ack_every_bytes,
            max_wimm: config.max_wimm,
            mpr: config.mpr,
            mpr_dest: config.mpr_dest,
            timeout: config.timeout,
            ack_delay: config.ack_delay,
            cc: Arc::clone(&config.cc),
            linear_cnt: config.linear_cnt,
            exp_cnt: config.exp_cnt,
            ev_burst: config.ev_burst,
            caps: config.caps,
        }
    }
}

/// An attribute that is out of range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{name} is {value}: {allowed} is allowed")]
pub struct ConfigError {
    /// The attribute.
    pub name: &'static str,
    /// Its value.
    pub value: u64,
    /// What is allowed.
    pub allowed: &'static str,
}

impl QpConfig {
    /// Checks every attribute's range.
    ///
    /// # Errors
    /// [`ConfigError`] for the first that is out of range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let check = |ok: bool, name, value: u64, allowed| match ok {
            true => Ok(()),
            false => Err(ConfigError { name, value, allowed }),
        };
        let qp_ok = |qp: u32| (1..1 << 24).contains(&qp);
        check(qp_ok(self.local_qp), "qp_num", self.local_qp.into(), "1 to 16777215")?;
        check(qp_ok(self.remote_qp), "dest_qp_num", self.remote_qp.into(), "1 to 16777215")?;
        check((256..=8192).contains(&self.path_mtu), "path_mtu", self.path_mtu.into(), "256 to 8192")?;
        check(self.mpr > 0, "mpr", self.mpr.into(), "1 to 255")?;
        check(self.mpr_dest > 0, "mpr_dest", self.mpr_dest.into(), "1 to 255")?;
        let wimm_ok = |n: u16| (1..=16384).contains(&n);
        check(wimm_ok(self.max_wimm), "max_wimm", self.max_wimm.into(), "1 to 16384")?;
        check(wimm_ok(self.max_wimm_dest), "max_wimm_dest", self.max_wimm_dest.into(), "1 to 16384")?;
        let depth_ok = (1..=1 << 20).contains(&self.max_send_wr);
        check(depth_ok, "max_send_wr", self.max_send_wr as u64, "1 to 1048576")?;
        check(self.timeout > Span::ZERO, "timeout", self.timeout.0, "more than 0")?;
        check(self.linear_cnt <= 7, "linear_cnt", self.linear_cnt.into(), "0 to 7")?;
        check(self.exp_cnt <= 25, "exp_cnt", self.exp_cnt.into(), "0 to 25")?;
        check((1..=256).contains(&self.ev_active), "ev_active", self.ev_active.into(), "1 to 256")?;
        check(self.ev_burst > 0, "ev_burst", self.ev_burst.into(), "1 to 255")
    }

    /// ACK timeout for the exponent of the verbs attribute: 1.024 us x 2^`exponent`, 0..=24 (spec: transport).
    pub const fn timeout_from_exponent(exponent: u8) -> Span {
        Span::from_nanos(1024 << if exponent > 24 { 24 } else { exponent })
    }

    /// The defaults of the specification for a simulated network.
    pub fn new(local_qp: u32, remote_qp: u32, paths: Arc<EvProfile>, cc: Arc<CcProfile>) -> Self {
        QpConfig {
            local_qp,
            remote_qp,
            sq_psn: Psn::new(0),
            rq_psn: Psn::new(0),
            path_mtu: 4096,
            mpr: 8,
            mpr_dest: 8,
            max_wimm: 128,
            max_wimm_dest: 128,
            max_send_wr: 128,
            timeout: Self::timeout_from_exponent(8),
            linear_cnt: 7,
            exp_cnt: 25,
            caps: Capabilities::default(),
            ack_every_bytes: 16 * 1024,
            ack_delay: Span::from_micros(4),
            paths,
            ev_active: 128,
            ev_backup: 128,
            ev_min_active: 32,
            ev_burst: 1,
            cc,
            seed: 0,
        }
    }
}
