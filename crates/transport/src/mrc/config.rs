//! Configuration of a queue pair. All defaults are defined here, each with its source.

use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;
use std::sync::Arc;

use openmrc_wire::{Aeth, Named, Psn};

use super::cc::CcProfile;
use super::paths::LoadBalancing;
use crate::presets;
use crate::profile::EvProfile;
use crate::time::Span;

/// A burst of at least this many packets ends when the queue pair runs out of data \[choice\]. Host software is faster
/// on a path that it has just used, at both ends; but a dead path must not collect many packets over time.
pub const LASTING_BURST: u8 = 8;

/// The unit of MPR: PSNs in flight for each step (docs/spec/transport.md, "Queue pair life").
pub const PSNS_PER_MPR: u32 = 128;

/// Default of `mpr` and `mpr_dest` (docs/spec/transport.md, "Queue pair life").
pub const DEFAULT_MPR: u8 = 8;

/// Payload bytes per data packet that a queue pair can be configured for (docs/spec/transport.md, "Queue pair life").
pub const PATH_MTU_RANGE: RangeInclusive<u16> = 256..=8192;

/// Default of `rotation_turns` (docs/spec/paths.md, "Choosing the EV of the next packet").
pub const DEFAULT_ROTATION_TURNS: u16 = 16;

/// Default path MTU (docs/spec/transport.md, "Queue pair life").
pub const DEFAULT_PATH_MTU: u16 = 4096;

/// What the peer can do, and whether dynamic MPR is on (docs/spec/transport.md, "Queue pair life"). The two
/// directions of a queue pair may differ: each end has the peer's capabilities as a responder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// The peer answers trimmed packets with a NACK. If it does not, data is sent in a class that is not trimmed.
    pub trim_nack: bool,
    /// Both ends have enabled dynamic MPR: SACKs carry the responder's window, which may change at any time.
    pub dynamic_mpr: bool,
    /// The peer takes its service time out of the timestamps that it reflects. Nothing depends on it: a requestor
    /// calculates the same way.
    pub service_time: bool,
    /// The peer means by a penalty of [`Pressure::OVERFLOW`](crate::Pressure::OVERFLOW) or more that its receive buffer
    /// has dropped packets, and by any penalty that it may be slow to answer. The specification knows neither, so
    /// two ends agree on it when they are connected, as the handshake of this program does.
    pub overflow_reports: bool,
}

impl Capabilities {
    /// What this program does and announces.
    pub const OWN: Capabilities =
        Capabilities { trim_nack: true, dynamic_mpr: true, service_time: true, overflow_reports: true };
}

impl Default for Capabilities {
    /// The specification's, of a peer about which nothing is known.
    fn default() -> Self {
        Capabilities { overflow_reports: false, ..Capabilities::OWN }
    }
}

/// What is known about the paths before any packet was sent; used for the timing of loss detection and probes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathModel {
    /// Round-trip time of a full packet on the longest idle path.
    pub base_rtt: Span,
    /// Target queueing delay of congestion control.
    pub target_qdelay: Span,
    /// Packets with one entropy value stay in order, so a packet overtaken on its path is lost. False where switches
    /// spray.
    pub ordered: bool,
    /// Switches trim packets rather than drop them, so a packet that is lost without a NACK shows that its path has
    /// failed.
    pub trims: bool,
}

impl PathModel {
    /// Paths with this base RTT that keep packets in order. The target delay is the default of congestion control with
    /// or without trimming (docs/spec/congestion.md, "Numbers").
    pub fn new(base_rtt: Span, trimming: bool) -> Self {
        PathModel {
            base_rtt,
            target_qdelay: presets::target_qdelay(base_rtt, trimming),
            ordered: true,
            trims: trimming,
        }
    }
}

/// Which paths a queue pair uses, and how.
#[derive(Clone, Debug)]
pub struct PathConfig {
    /// The paths.
    pub profile: Arc<EvProfile>,
    /// Paths in rotation, 1 to 256.
    pub active: u16,
    /// Paths in reserve, 0 to 256.
    pub backup: u16,
    /// When fewer paths in rotation are usable, condemned paths are tried again. Default: a quarter of `active`.
    pub min_active: u16,
    /// Consecutive packets on one path: 1 in hardware. A software NIC sends a few per system call.
    pub burst: u8,
    /// Full turns after which the order of the rotation is drawn anew; 0: never. Only [`LoadBalancing::EvStates`] has
    /// a rotation.
    pub rotation_turns: u16,
    /// The load balancing algorithm.
    pub load_balancing: LoadBalancing,
    /// Timing and ordering of the paths.
    pub model: PathModel,
    /// How many bits of a reflected entropy are compared, 1 to 32: as many as the entropy values have. Others may have
    /// been added on the way, such as a flow label of the host's own.
    pub entropy_bits: u8,
}

impl PathConfig {
    /// Largest number of paths in rotation, and of paths in reserve (docs/spec/paths.md, "EV set").
    pub const MOST: u16 = 256;

    /// The specification's defaults for these paths.
    pub fn new(profile: Arc<EvProfile>, model: PathModel) -> Self {
        PathConfig {
            profile,
            active: 128,
            backup: 128,
            min_active: 32,
            burst: 1,
            rotation_turns: DEFAULT_ROTATION_TURNS,
            load_balancing: LoadBalancing::EvStates,
            model,
            entropy_bits: 32,
        }
    }
}

/// Limits of the sending side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestorConfig {
    /// First PSN sent.
    pub sq_psn: Psn,
    /// In-flight window, units of [`PSNS_PER_MPR`]; the smaller of this and the peer's `mpr_dest` applies.
    pub mpr: u8,
    /// Messages with immediate in flight.
    pub max_wimm: u16,
    /// Largest number of outstanding work requests.
    pub max_send_wr: usize,
    /// ACK timeout; at least four measured round trips.
    pub timeout: Span,
    /// Retries at a fixed interval, at most 7.
    pub linear_cnt: u8,
    /// Retries with doubling interval after those, at most 25, which means for ever.
    pub exp_cnt: u8,
    /// The host is told if a peer does not answer that was silent for this long. It is probed even while nothing is
    /// under way. `None` is off.
    pub keepalive: Option<Span>,
    /// The peer may hold a message with immediate back until a receive is posted
    /// ([`NoReceive::Waits`](crate::NoReceive::Waits)): while it answers and has everything that was sent, no attempts
    /// are counted.
    pub peer_waits: bool,
    /// Points that the specification leaves to the implementation.
    pub options: RequestorOptions,
}

/// When the congestion window lets a packet go (docs/spec/congestion.md, "Sending"; readings differ).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub enum CanSend {
    /// While a full packet fits: inflight + MTU <= cwnd, as in the UEC specification.
    #[default]
    Mtu,
    /// While there is any room: inflight < cwnd. Overshoots by up to one packet.
    Any,
}

impl Named for CanSend {
    const NAMES: &'static [(Self, &'static str)] = &[(CanSend::Mtu, "mtu"), (CanSend::Any, "any")];
}

/// What the sending side does where the specification leaves a choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestorOptions {
    /// When the congestion window lets a packet go.
    pub can_send: CanSend,
    /// Destination flow control: the receiver's penalty shrinks the window.
    pub dfc: bool,
    /// With NSCC, one probe in the control class measures the RTT past the queues at the start.
    pub start_probe: bool,
    /// A sender whose only packet is trimmed on the last hop waits longer before each next one: its window cannot fall
    /// below one packet.
    pub spacing: bool,
}

impl Default for RequestorOptions {
    fn default() -> Self {
        RequestorOptions { can_send: CanSend::Mtu, dfc: true, start_probe: true, spacing: true }
    }
}

impl Default for RequestorConfig {
    /// The specification's defaults (docs/spec/transport.md, "Queue pair life"); 128 work requests are perftest's.
    fn default() -> Self {
        RequestorConfig {
            sq_psn: Psn::new(0),
            mpr: DEFAULT_MPR,
            max_wimm: 128,
            max_send_wr: 128,
            timeout: QpConfig::timeout_from_exponent(8),
            linear_cnt: 7,
            exp_cnt: 25,
            keepalive: None,
            peer_waits: false,
            options: RequestorOptions::default(),
        }
    }
}

/// The answer to a packet whose PSN lies beyond the window (docs/spec/transport.md, "Responder"; readings differ).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub enum OutOfWindow {
    /// NACK PSN_OOR_WINDOW, at most one per round trip.
    #[default]
    Nack,
    /// None.
    Silent,
}

impl Named for OutOfWindow {
    const NAMES: &'static [(Self, &'static str)] =
        &[(OutOfWindow::Nack, "nack"), (OutOfWindow::Silent, "silent")];
}

/// What the receiving side does where the specification leaves a choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ResponderOptions {
    /// The answer to a PSN beyond the window.
    pub out_of_window: OutOfWindow,
    /// Trimmed packets are answered with a NACK.
    pub trim_nack: bool,
    /// Every reflected timestamp is moved on by the time for which the packet was held. If not, only the delayed SACK
    /// moves its timestamp on.
    pub service_time: bool,
    /// Syndrome of the NAK for too many messages with immediate in flight: 0x65 or 0x61.
    pub wimm_nak_syndrome: u8,
}

impl Default for ResponderOptions {
    fn default() -> Self {
        ResponderOptions {
            out_of_window: OutOfWindow::Nack,
            trim_nack: true,
            service_time: false,
            wimm_nak_syndrome: Aeth::NAK_WIMM_LIMIT,
        }
    }
}

/// What becomes of SACKs that would be sent at once. In software a SACK costs a system call at each end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SackBatching {
    /// They are sent at once.
    None,
    /// They wait until the driver handles timeouts: software handles several packets before that.
    Turn,
    /// The same, but the message of one packet that asks for one is acknowledged at once behind the next data to its
    /// sender, by an ACK.
    BehindData,
}

/// Limits of the receiving side, and the timing of its feedback.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ResponderConfig {
    /// First PSN expected.
    pub rq_psn: Psn,
    /// In-flight window, units of [`PSNS_PER_MPR`].
    pub mpr_dest: u8,
    /// Messages with immediate in flight.
    pub max_wimm_dest: u16,
    /// A SACK is sent when more than this many bytes have come; a small packet counts as 1024.
    pub ack_every_bytes: u32,
    /// A SACK is sent at most this long after a packet.
    pub ack_delay: Span,
    /// What becomes of SACKs that would be sent at once.
    pub batching: SackBatching,
    /// Points that the specification leaves to the implementation.
    pub options: ResponderOptions,
}

impl Default for ResponderConfig {
    /// The specification's defaults (docs/spec/transport.md, "Queue pair life" and "When it answers").
    fn default() -> Self {
        ResponderConfig {
            rq_psn: Psn::new(0),
            mpr_dest: DEFAULT_MPR,
            max_wimm_dest: 128,
            ack_every_bytes: 16 * 1024,
            ack_delay: Span::from_micros(16),
            batching: SackBatching::None,
            options: ResponderOptions::default(),
        }
    }
}

/// Complete configuration of a queue pair.
#[derive(Clone, Debug)]
pub struct QpConfig {
    /// This queue pair's number, 24 bits.
    pub local_qp: u32,
    /// The peer's number, 24 bits.
    pub remote_qp: u32,
    /// Payload bytes per data packet, in [`PATH_MTU_RANGE`].
    pub path_mtu: u16,
    /// Optional behaviour agreed with the peer.
    pub caps: Capabilities,
    /// The sending side.
    pub requestor: RequestorConfig,
    /// The receiving side.
    pub responder: ResponderConfig,
    /// As responder, a message with immediate is acknowledged at once: its receiver may end as soon as it has the
    /// immediate. Default off.
    pub acks_immediates: bool,
    /// The paths.
    pub paths: PathConfig,
    /// Congestion control.
    pub cc: Arc<CcProfile>,
    /// Seed of this queue pair's pseudorandom choices: order of its paths, jitter of its probes.
    pub seed: u64,
}

/// The capabilities on which something depends. There is no room for the others.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct UsedCapabilities {
    pub trim_nack: bool,
    pub dynamic_mpr: bool,
    pub overflow_reports: bool,
}

impl From<Capabilities> for UsedCapabilities {
    fn from(caps: Capabilities) -> Self {
        let Capabilities { trim_nack, dynamic_mpr, overflow_reports, service_time: _ } = caps;
        UsedCapabilities { trim_nack, dynamic_mpr, overflow_reports }
    }
}

/// The part of the configuration that both roles need after creation.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Settings {
    pub local_qp: u32,
    pub remote_qp: u32,
    pub path_mtu: u16,
    pub caps: UsedCapabilities,
    pub acks_immediates: bool,
    pub peer_waits: bool,
    // The fields of the path model: as a struct it would take 8 bytes more, and so would one more flag.
    network: u8,
    base_rtt: Span,
    pub target_qdelay: Span,
}

impl Settings {
    const ORDERED: u8 = 1;
    const TRIMS: u8 = 2;

    pub fn model(&self) -> PathModel {
        let &Settings { base_rtt, target_qdelay, network, .. } = self;
        let (ordered, trims) = (network & Self::ORDERED != 0, network & Self::TRIMS != 0);
        PathModel { base_rtt, target_qdelay, ordered, trims }
    }
}

impl From<&QpConfig> for Settings {
    fn from(config: &QpConfig) -> Self {
        let model = &config.paths.model;
        Settings {
            local_qp: config.local_qp,
            remote_qp: config.remote_qp,
            path_mtu: config.path_mtu,
            caps: UsedCapabilities::from(config.caps),
            peer_waits: config.requestor.peer_waits,
            acks_immediates: config.acks_immediates,
            network: (u8::from(model.ordered) * Settings::ORDERED)
                | (u8::from(model.trims) * Settings::TRIMS),
            base_rtt: model.base_rtt,
            target_qdelay: model.target_qdelay,
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
    /// The allowed values.
    pub allowed: &'static str,
}

fn check(
    ok: bool,
    name: &'static str,
    value: impl Into<u64>,
    allowed: &'static str,
) -> Result<(), ConfigError> {
    if ok { Ok(()) } else { Err(ConfigError { name, value: value.into(), allowed }) }
}

impl QpConfig {
    /// The defaults of the specification for a simulated network.
    pub fn new(local_qp: u32, remote_qp: u32, paths: PathConfig, cc: Arc<CcProfile>) -> Self {
        QpConfig {
            local_qp,
            remote_qp,
            path_mtu: DEFAULT_PATH_MTU,
            caps: Capabilities::default(),
            requestor: RequestorConfig::default(),
            responder: ResponderConfig::default(),
            acks_immediates: false,
            paths,
            cc,
            seed: 0,
        }
    }

    /// Checks every attribute's range.
    ///
    /// # Errors
    /// [`ConfigError`] for the first that is out of range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let qp_ok = |qp: u32| (1..1 << 24).contains(&qp);
        check(qp_ok(self.local_qp), "qp_num", self.local_qp, "1 to 16777215")?;
        check(qp_ok(self.remote_qp), "dest_qp_num", self.remote_qp, "1 to 16777215")?;
        check(PATH_MTU_RANGE.contains(&self.path_mtu), "path_mtu", self.path_mtu, "256 to 8192")?;
        self.requestor.validate()?;
        self.responder.validate()?;
        let (active, backup) = (self.paths.active, self.paths.backup);
        check((1..=PathConfig::MOST).contains(&active), "ev_active", active, "1 to 256")?;
        check(backup <= PathConfig::MOST, "ev_backup", backup, "0 to 256")?;
        check(self.paths.burst > 0, "ev_burst", self.paths.burst, "1 to 255")?;
        let bits = self.paths.entropy_bits;
        check((1..=32).contains(&bits), "entropy_bits", bits, "1 to 32")
    }

    /// ACK timeout for the exponent of the verbs attribute: 1.024 us x 2^`exponent`, 0..=24 (docs/spec/transport.md).
    pub const fn timeout_from_exponent(exponent: u8) -> Span {
        Span::from_nanos(1024 << if exponent > 24 { 24 } else { exponent })
    }
}

const WIMM_RANGE: RangeInclusive<u16> = 1..=16384;

impl RequestorConfig {
    fn validate(&self) -> Result<(), ConfigError> {
        check(self.mpr > 0, "mpr", self.mpr, "1 to 255")?;
        check(WIMM_RANGE.contains(&self.max_wimm), "max_wimm", self.max_wimm, "1 to 16384")?;
        let depth_ok = (1..=1 << 20).contains(&self.max_send_wr);
        check(depth_ok, "max_send_wr", self.max_send_wr as u64, "1 to 1048576")?;
        check(self.timeout > Span::ZERO, "timeout", self.timeout.0, "more than 0")?;
        check(self.linear_cnt <= 7, "linear_cnt", self.linear_cnt, "0 to 7")?;
        check(self.exp_cnt <= 25, "exp_cnt", self.exp_cnt, "0 to 25")?;
        check(self.keepalive != Some(Span::ZERO), "keepalive", 0u8, "more than 0")
    }
}

impl ResponderConfig {
    fn validate(&self) -> Result<(), ConfigError> {
        check(self.mpr_dest > 0, "mpr_dest", self.mpr_dest, "1 to 255")?;
        check(WIMM_RANGE.contains(&self.max_wimm_dest), "max_wimm_dest", self.max_wimm_dest, "1 to 16384")?;
        let syndrome = self.options.wimm_nak_syndrome;
        let known = [Aeth::NAK_WIMM_LIMIT, Aeth::NAK_INVALID_REQUEST].contains(&syndrome);
        check(known, "wimm_nak_syndrome", syndrome, "0x65 (101) or 0x61 (97)")
    }
}

#[cfg(test)]
mod tests;
