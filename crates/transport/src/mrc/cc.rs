//! Congestion control behind one small trait, and the profile that says which controller a queue pair gets.

use std::fmt;
use std::sync::Arc;

use super::nscc::{Nscc, NsccParams};
use super::selector::LoadBalancing;
use super::swift::{Swift, SwiftParams};
use crate::time::{Span, Time};

/// What a SACK says to the controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CcFeedback {
    /// Growth of the responder's received-bytes counter, in bytes.
    pub newly: u32,
    /// Round-trip time of the packet that triggered the SACK, where it is known beyond doubt.
    pub rtt: Option<Span>,
    /// That packet was ECN-marked.
    pub ecn: bool,
    /// Destination flow control, 0 = none .. 127.
    pub penalty: u8,
    /// The window saved before the penalty may be restored.
    pub restore: bool,
}

/// A sender's congestion controller. Sizes are nominal packet sizes: UDP length + 40 bytes.
pub trait Congestion: Send + Sync {
    /// Whether one more full-size packet may be sent.
    fn open(&self) -> bool;
    /// Whether the next packet should ask for feedback at once.
    fn wants_feedback(&self) -> bool;
    /// A packet was sent.
    fn on_send(&mut self, now: Time, bytes: u32);
    /// A SACK came.
    fn on_sack(&mut self, now: Time, feedback: &CcFeedback);
    /// A packet was refused: trimmed on the way (`congested`), or for want of resources at the responder.
    fn on_nack(&mut self, now: Time, bytes: u32, congested: bool);
    /// A packet is taken for lost without a trace.
    fn on_loss(&mut self, now: Time, bytes: u32);
    /// A packet taken for lost, or refused, has arrived after all before it was sent again: a SACK's `newly` has it as well.
    fn on_found(&mut self, bytes: u32);
    /// Nothing is in flight any more: what is counted beyond rounding is forgotten ([`idle_in_flight`]).
    fn on_idle(&mut self);
    /// Congestion window, bytes.
    fn window(&self) -> u64;
    /// Bytes in flight; rounding can take it just below zero.
    fn in_flight(&self) -> i64;
}

/// What a controller counts as in flight once nothing is: less than a unit of the responder's counter, which rounds up. More is left
/// only where a peer counts otherwise than the specification says.
#[inline]
pub fn idle_in_flight(in_flight: i64) -> i64 {
    in_flight.clamp(-255, 0)
}

/// Makes a user's own controller for each queue pair.
#[derive(Clone)]
pub struct CustomCc(pub Arc<dyn Fn() -> Box<dyn Congestion> + Send + Sync>);

impl fmt::Debug for CustomCc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CustomCc")
    }
}

/// Which controller.
#[derive(Clone, Debug)]
pub enum CcAlgorithm {
    /// `uet-1.0-nscc`.
    Nscc,
    /// A window that never changes, in bytes.
    FixedWindow(u64),
    /// Swift.
    Swift(SwiftParams),
    /// A user's own.
    Custom(CustomCc),
}

/// A congestion control profile: the algorithm and the network it is meant for, and how load is spread there.
#[derive(Clone, Debug)]
pub struct CcProfile {
    /// How packets are spread over the paths.
    pub load_balancing: LoadBalancing,
    /// Packets with one entropy value stay in order, so that one overtaken there is lost. Not where switches spray.
    pub ordered_paths: bool,
    /// The algorithm.
    pub algorithm: CcAlgorithm,
    /// Its parameters, derived from the network; `base_rtt` and `target_qdelay` also time loss detection.
    pub nscc: Arc<NsccParams>,
}

impl CcProfile {
    /// NSCC for a sender of this rate (all planes together, bits per second) over this base RTT.
    pub fn nscc(link_rate_bps: u64, base_rtt: Span, path_mtu: u16, trimming: bool) -> Self {
        CcProfile {
            load_balancing: LoadBalancing::EvStates,
            ordered_paths: true,
            algorithm: CcAlgorithm::Nscc,
            nscc: Arc::new(NsccParams::for_network(link_rate_bps, base_rtt, path_mtu, trimming)),
        }
    }

    /// A fixed window of `bytes` over a network of this base RTT.
    pub fn fixed_window(bytes: u64, base_rtt: Span, path_mtu: u16) -> Self {
        let rate = (bytes as f64 * 8.0 / base_rtt.as_secs_f64()) as u64;
        CcProfile { algorithm: CcAlgorithm::FixedWindow(bytes), ..Self::nscc(rate, base_rtt, path_mtu, true) }
    }

    pub(super) fn controller(&self) -> Controller {
        match &self.algorithm {
            CcAlgorithm::Nscc => Controller::Nscc(Nscc::new(&self.nscc)),
            CcAlgorithm::FixedWindow(bytes) => Controller::Fixed(FixedWindow {
                window: (*bytes).max(u64::from(self.nscc.mtu)),
                mtu: self.nscc.mtu,
                in_flight: 0,
            }),
            CcAlgorithm::Swift(params) => Controller::Custom(Box::new(Swift::new(*params))),
            CcAlgorithm::Custom(make) => Controller::Custom((make.0)()),
        }
    }
}

/// A controller whose window never changes.
#[derive(Clone, Debug)]
pub struct FixedWindow {
    window: u64,
    mtu: u32,
    in_flight: i64,
}

impl Congestion for FixedWindow {
    fn open(&self) -> bool {
        self.in_flight + i64::from(self.mtu) <= self.window as i64
    }
    fn wants_feedback(&self) -> bool {
        self.window as i64 - self.in_flight < i64::from(self.mtu)
    }
    fn on_send(&mut self, _now: Time, bytes: u32) {
        self.in_flight += i64::from(bytes);
    }
    fn on_sack(&mut self, _now: Time, feedback: &CcFeedback) {
        self.in_flight -= i64::from(feedback.newly);
    }
    fn on_nack(&mut self, _now: Time, bytes: u32, _congested: bool) {
        self.in_flight -= i64::from(bytes);
    }
    fn on_loss(&mut self, _now: Time, bytes: u32) {
        self.in_flight -= i64::from(bytes);
    }
    fn on_found(&mut self, bytes: u32) {
        self.in_flight += i64::from(bytes);
    }
    fn on_idle(&mut self) {
        self.in_flight = idle_in_flight(self.in_flight);
    }
    fn window(&self) -> u64 {
        self.window
    }
    fn in_flight(&self) -> i64 {
        self.in_flight
    }
}

/// The controller of one queue pair; the common one without indirection.
pub(super) enum Controller {
    Nscc(Nscc),
    Fixed(FixedWindow),
    Custom(Box<dyn Congestion>),
}

macro_rules! each {
    ($self:ident, $c:ident => $e:expr) => {
        match $self {
            Controller::Nscc($c) => $e,
            Controller::Fixed($c) => $e,
            Controller::Custom($c) => $e,
        }
    };
}

impl Congestion for Controller {
    fn open(&self) -> bool {
        each!(self, c => c.open())
    }
    fn wants_feedback(&self) -> bool {
        each!(self, c => c.wants_feedback())
    }
    fn on_send(&mut self, now: Time, bytes: u32) {
        each!(self, c => c.on_send(now, bytes))
    }
    fn on_sack(&mut self, now: Time, feedback: &CcFeedback) {
        each!(self, c => c.on_sack(now, feedback))
    }
    fn on_nack(&mut self, now: Time, bytes: u32, congested: bool) {
        each!(self, c => c.on_nack(now, bytes, congested))
    }
    fn on_loss(&mut self, now: Time, bytes: u32) {
        each!(self, c => c.on_loss(now, bytes))
    }
    fn on_found(&mut self, bytes: u32) {
        each!(self, c => c.on_found(bytes))
    }
    fn on_idle(&mut self) {
        each!(self, c => c.on_idle())
    }
    fn window(&self) -> u64 {
        each!(self, c => c.window())
    }
    fn in_flight(&self) -> i64 {
        each!(self, c => c.in_flight())
    }
}
