//! What hosts speak: MRC, RoCEv2, UET or adaptive routing, with the choices of each (spec: transport, baselines).

use openmrc_transport::Span;
use openmrc_transport::mrc::{CustomCc, LoadBalancing, SwiftParams};
use openmrc_transport::rocev2::{DcqcnParams, RcConfig, Recovery};

/// What hosts speak.
#[derive(Clone, Debug)]
pub enum TransportConfig {
    /// MRC.
    Mrc(MrcConfig),
    /// RoCEv2 reliable connections.
    Rocev2(Rocev2Config),
    /// UET in its RUD mode.
    Uet(UetConfig),
    /// Switches spray, NICs tolerate reordering.
    Adaptive(AdaptiveConfig),
}

/// UET, RUD mode (spec: baselines): MRC's machinery of SACKs, NACKs and NSCC, with other headers, entropy values that switches
/// hash, and no notion of a broken path.
#[derive(Clone, Debug)]
pub struct UetConfig {
    /// How entropy values are chosen.
    pub load_balancing: LoadBalancing,
    /// Entropy values of a queue pair, all planes together.
    pub evs: u16,
    /// In-flight window, units of 128 PSNs.
    pub mpr: u8,
}

impl Default for UetConfig {
    /// Recycled entropies; 256 of them, as many as a queue pair can name.
    fn default() -> Self {
        UetConfig { load_balancing: LoadBalancing::Reps, evs: 256, mpr: 8 }
    }
}

/// Switch-side spraying with NICs that place out of order (spec: baselines): one path a plane as far as the sender knows, Swift.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AdaptiveConfig {
    /// Rate control; `None` for Swift's parameters for the network.
    pub swift: Option<SwiftParams>,
    /// In-flight window, units of 128 PSNs.
    pub mpr: u8,
}

impl Default for AdaptiveConfig {
    /// Swift, and a window that does not limit it.
    fn default() -> Self {
        AdaptiveConfig { swift: None, mpr: 16 }
    }
}

/// Choices of RoCEv2 (spec: baselines); the rest are [`RcConfig`]'s defaults.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rocev2Config {
    /// Queue pairs that share each message between a pair of hosts; each takes one plane, in turn, and one ECMP path.
    pub qps: u32,
    /// What is sent again.
    pub recovery: Recovery,
    /// Congestion control; without it everybody sends at line rate.
    pub dcqcn: bool,
    /// Its parameters; `None` for the published ones for the rate of a port.
    pub dcqcn_params: Option<DcqcnParams>,
    /// Retransmission timeout.
    pub timeout: Span,
    /// Timeouts in a row before a connection ends; 255 is for ever.
    pub retry_count: u8,
    /// Packets that may be in flight.
    pub window: u32,
    /// An ACK for every so many packets.
    pub ack_every: u32,
}

impl Default for Rocev2Config {
    fn default() -> Self {
        let rc = RcConfig::new(1, 1, 1);
        Rocev2Config {
            qps: 1,
            recovery: rc.recovery,
            dcqcn: true,
            dcqcn_params: None,
            timeout: rc.timeout,
            retry_count: rc.retry_count,
            window: rc.window,
            ack_every: rc.ack_every,
        }
    }
}

/// Congestion control of MRC.
#[derive(Clone, Debug)]
pub enum MrcCongestion {
    /// `uet-1.0-nscc`.
    Nscc,
    /// A window that never changes, bytes.
    FixedWindow(u64),
    /// A user's own.
    Custom(CustomCc),
}

/// Choices of MRC; the rest follows from the network.
#[derive(Clone, Debug)]
pub struct MrcConfig {
    /// Paths in rotation (spec: paths, EV set).
    pub ev_active: u16,
    /// Paths in reserve.
    pub ev_backup: u16,
    /// In-flight window, units of 128 PSNs.
    pub mpr: u8,
    /// Congestion control.
    pub congestion: MrcCongestion,
    /// How packets are spread over paths.
    pub load_balancing: LoadBalancing,
    /// Receivers press back where their ports are overrun (spec: congestion, destination flow control).
    pub destination_control: bool,
}

impl Default for MrcConfig {
    /// The defaults of the specification.
    fn default() -> Self {
        MrcConfig {
            ev_active: 128,
            ev_backup: 128,
            mpr: 8,
            congestion: MrcCongestion::Nscc,
            load_balancing: LoadBalancing::EvStates,
            destination_control: true,
        }
    }
}
