//! The transport of the hosts: MRC, RoCEv2, UET or adaptive routing, with the choices of each (docs/spec/transport.md,
//! docs/spec/baselines.md). Their defaults are those of [`crate::Transport`].

use openmrc_transport::Span;
use openmrc_transport::mrc::{CustomCc, LoadBalancing, SwiftParams};
use openmrc_transport::rocev2::{DcqcnParams, Recovery};

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

/// UET, RUD mode (docs/spec/baselines.md): SACKs, NACKs and NSCC as MRC, other headers, entropy values that switches
/// hash, no knowledge of broken paths.
#[derive(Clone, Debug)]
pub struct UetConfig {
    /// Congestion control.
    pub congestion: MrcCongestion,
    /// How entropy values are chosen.
    pub load_balancing: LoadBalancing,
    /// Entropy values of a queue pair, all planes together.
    pub evs: u16,
    /// In-flight window, units of 128 PSNs.
    pub mpr: u8,
    /// Whether receivers slow down senders that overrun their ports.
    pub destination_control: bool,
    /// Whether a sender whose only packet is trimmed on the last hop waits longer before each next one.
    pub spacing: bool,
}

/// Switches spray, NICs place out of order (docs/spec/baselines.md): the sender knows one path for each plane; Swift.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AdaptiveConfig {
    /// Rate control; `None` for Swift's parameters for the network.
    pub swift: Option<SwiftParams>,
    /// In-flight window, units of 128 PSNs.
    pub mpr: u8,
}

/// Choices of RoCEv2 (docs/spec/baselines.md).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rocev2Config {
    /// Queue pairs that share each message; each has one plane, in turn, and one ECMP path.
    pub qps: u32,
    /// What is sent again after a loss.
    pub recovery: Recovery,
    /// Congestion control; without it hosts send at line rate.
    pub dcqcn: bool,
    /// Its parameters; `None` for the published ones for the rate of a port.
    pub dcqcn_params: Option<DcqcnParams>,
    /// Retransmission timeout.
    pub timeout: Span,
    /// Timeouts in a row before a connection ends; 255 for no end.
    pub retry_count: u8,
    /// Packets that may be in flight.
    pub window: u32,
    /// An ACK for every n packets.
    pub ack_every: u32,
}

/// Congestion control of MRC and UET.
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
    /// Paths in rotation (docs/spec/paths.md, "EV set").
    pub ev_active: u16,
    /// Paths in reserve.
    pub ev_backup: u16,
    /// In-flight window, units of 128 PSNs.
    pub mpr: u8,
    /// Congestion control.
    pub congestion: MrcCongestion,
    /// How packets are spread over paths.
    pub load_balancing: LoadBalancing,
    /// Whether receivers slow down senders that overrun their ports (docs/spec/congestion.md, "On a SACK").
    pub destination_control: bool,
    /// Whether a sender whose only packet is trimmed on the last hop waits longer before each next one.
    pub spacing: bool,
    /// What connections do before and after their messages, and what receivers do for each.
    pub life: LifeConfig,
}

/// What connections do beside sending messages.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LifeConfig {
    /// A connection proves its path MTU before its first message.
    pub prove_mtu: bool,
    /// Ends are destroyed as soon as they have all they wait for, and answer their peers for a while.
    pub linger: bool,
    /// Every message needs a receive.
    pub receives: Option<ReceivesConfig>,
}

/// Receives of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReceivesConfig {
    /// How many are posted at the beginning.
    pub posted: u32,
    /// A receive is posted again this long after a message has taken it. If none is posted at the beginning, one is posted
    /// this long after a message has come that waits for it.
    pub repost: Span,
    /// How long a message waits that finds none; `None` for as long as it takes, zero refuses it at once.
    pub longest_wait: Option<Span>,
}
