//! Congestion control behind one small trait (docs/spec/congestion.md), and the profile that selects the controller of
//! a queue pair.
//!
//! A controller holds a window and is notified of events. Bytes in flight and the receiver's penalty are handled by the
//! requestor ([`flow`]).

mod fixed;
mod flow;
mod nscc;
mod spacing;
mod swift;
mod window;

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

pub use fixed::FixedWindow;
pub(super) use flow::{Feedback, Flow};
pub use nscc::{Nscc, NsccParams};
pub use swift::{Swift, SwiftParams};

use openmrc_wire::{Packet, ip, udp};

use crate::time::{Span, Time};

/// What congestion control counts outside a packet's UDP payload: UDP length + 40 (docs/spec/congestion.md).
const NOMINAL_OUTSIDE: u32 = (udp::LEN + ip::IPV6_LEN) as u32;

/// Size of a packet as congestion control counts it.
#[inline]
pub(super) fn nominal(packet: &Packet) -> u32 {
    packet.wire_len() as u32 + NOMINAL_OUTSIDE
}

/// State of the receiver's penalty (docs/spec/congestion.md, "On a SACK").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Penalty {
    /// No penalty.
    None,
    /// The penalty has ended, but the window was not restored yet: it may grow from its present size, by equal steps
    /// for all senders.
    Easing,
    /// There is a penalty: the window must not grow. The requestor shrinks it after this call.
    Pressing,
}

/// The contents of a SACK for the controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ack {
    /// Growth of the responder's received-bytes counter, bytes.
    pub newly: u32,
    /// Bytes in flight after `newly` was subtracted; rounding can make it slightly negative.
    pub in_flight: i64,
    /// Round-trip time of the packet that triggered the SACK, if it is certain.
    pub rtt: Option<Span>,
    /// That packet was ECN-marked.
    pub ecn: bool,
    /// State of the receiver's penalty.
    pub penalty: Penalty,
}

/// A sender's congestion controller. Sizes are nominal packet sizes: UDP length + 40 bytes.
pub trait Congestion: Send + Sync {
    /// Congestion window, bytes.
    fn window(&self) -> f64;
    /// Sets the window: the receiver's penalty shrinks or restores it.
    fn set_window(&mut self, bytes: f64);
    /// A SACK came.
    fn on_sack(&mut self, now: Time, ack: &Ack);
    /// A packet was trimmed on its way. `in_flight` no longer counts it.
    fn on_trim(&mut self, now: Time, bytes: u32, in_flight: i64);
    /// A packet was lost without a NACK. `in_flight` no longer counts it.
    fn on_loss(&mut self, now: Time, bytes: u32, in_flight: i64);
    /// A packet was lost without a NACK, and its path delivers: it was probably dropped for want of room.
    fn on_drop(&mut self, now: Time, bytes: u32, in_flight: i64) {
        self.on_loss(now, bytes, in_flight);
    }
    /// A round-trip time that is not that of a packet which a SACK answers: of a NACK, or of a probe.
    fn on_rtt(&mut self, rtt: Span) {
        let _ = rtt;
    }
    /// Nothing is in flight any more.
    fn on_idle(&mut self) {}
    /// Whether the window follows from what the last hop trims: then it is limited to what was in use when a packet was
    /// trimmed there, and if its smallest size is still too large, packets are spaced.
    fn follows_last_hop(&self) -> bool {
        false
    }
}

/// Creates a custom controller for each queue pair.
#[derive(Clone)]
pub struct CustomCc(pub Arc<dyn Fn() -> Box<dyn Congestion> + Send + Sync>);

impl fmt::Debug for CustomCc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CustomCc")
    }
}

/// A congestion control profile: an algorithm and its parameters.
#[derive(Clone, Debug)]
pub enum CcProfile {
    /// `uet-1.0-nscc`.
    Nscc(Arc<NsccParams>),
    /// A fixed window, bytes.
    FixedWindow(u64),
    /// Swift.
    Swift(SwiftParams),
    /// A custom controller.
    Custom(CustomCc),
}

impl CcProfile {
    /// NSCC for a sender of this rate (all planes together, bits per second) over this base RTT.
    pub fn nscc(link_rate_bps: u64, base_rtt: Span, path_mtu: u16, trimming: bool) -> Self {
        CcProfile::Nscc(Arc::new(NsccParams::for_network(link_rate_bps, base_rtt, path_mtu, trimming)))
    }

    fn controller(&self, mtu: u32) -> Controller {
        match self {
            CcProfile::Nscc(params) => Controller::Nscc(Nscc::new(params)),
            CcProfile::FixedWindow(bytes) => Controller::Fixed(FixedWindow::new(*bytes, mtu)),
            CcProfile::Swift(params) => Controller::Swift(Box::new(Swift::new(*params))),
            CcProfile::Custom(make) => Controller::Custom((make.0)()),
        }
    }
}

/// The controller of one queue pair; the built-in ones without indirection.
#[derive(Serialize, Deserialize)]
enum Controller {
    Nscc(Nscc),
    Fixed(FixedWindow),
    Swift(Box<Swift>),
    #[serde(skip)]
    Custom(Box<dyn Congestion>),
}

impl Controller {
    /// After a checkpoint was read: the parameters, where all queue pairs share them.
    fn rejoin(&mut self, profile: &CcProfile) {
        if let (Controller::Nscc(nscc), CcProfile::Nscc(params)) = (self, profile) {
            nscc.rejoin(params);
        }
    }
}

macro_rules! each {
    ($self:ident, $c:ident => $e:expr) => {
        match $self {
            Controller::Nscc($c) => $e,
            Controller::Fixed($c) => $e,
            Controller::Swift($c) => $e,
            Controller::Custom($c) => $e,
        }
    };
}

impl Congestion for Controller {
    #[inline]
    fn window(&self) -> f64 {
        each!(self, c => c.window())
    }
    fn set_window(&mut self, bytes: f64) {
        each!(self, c => c.set_window(bytes))
    }
    fn on_sack(&mut self, now: Time, ack: &Ack) {
        each!(self, c => c.on_sack(now, ack))
    }
    fn on_trim(&mut self, now: Time, bytes: u32, in_flight: i64) {
        each!(self, c => c.on_trim(now, bytes, in_flight))
    }
    fn on_loss(&mut self, now: Time, bytes: u32, in_flight: i64) {
        each!(self, c => c.on_loss(now, bytes, in_flight))
    }
    fn on_drop(&mut self, now: Time, bytes: u32, in_flight: i64) {
        each!(self, c => c.on_drop(now, bytes, in_flight))
    }
    fn on_rtt(&mut self, rtt: Span) {
        each!(self, c => c.on_rtt(rtt))
    }
    fn on_idle(&mut self) {
        each!(self, c => c.on_idle())
    }
    fn follows_last_hop(&self) -> bool {
        each!(self, c => c.follows_last_hop())
    }
}
