//! Destination flow control: how hard a receiver presses its senders (spec: congestion, `rcv_cwnd_pen`).
//!
//! The last hop neither marks nor is helped by another path, so an incast is the receiver's to resolve: it alone sees that
//! several senders overrun it. Senders told a penalty `p` take `p / 128` of every byte acknowledged off their windows and do
//! not grow.

mod buffers;
mod last_hop;

pub use buffers::Buffers;
pub use last_hop::DestinationControl;

use self::buffers::BufferWatch;
use super::table::{Place, Receiving, Table};
use crate::api::Transport;
use crate::time::{Span, Time};

/// How a node finds out that its senders overrun it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PressureConfig {
    /// It does not.
    Off,
    /// Switches trim on the last hop: what comes in is compared with what the ports can carry.
    LastHop {
        /// Rate of all ports together, bits per second.
        rate_bps: u64,
        /// From one look to the next: a base RTT.
        period: Span,
    },
    /// The host's receive buffers fill: the driver is asked how full they are ([`super::NodeHost::receive_buffers`]).
    Buffers {
        /// From one look to the next, while data comes in.
        interval: Span,
    },
}

/// A packet, as far as pressure goes.
pub(super) struct Arrived {
    pub is_data: bool,
    /// Its answer is a SACK as well.
    pub is_probe: bool,
    /// On the wire.
    pub bytes: u32,
    /// Trimmed on the last hop.
    pub refused: bool,
}

/// The receiving node's view.
pub(super) enum ReceivePressure {
    Off,
    LastHop(DestinationControl),
    Buffers(BufferWatch),
}

impl ReceivePressure {
    pub fn new(config: &PressureConfig) -> Self {
        match *config {
            PressureConfig::Off => ReceivePressure::Off,
            PressureConfig::LastHop { rate_bps, period } => {
                ReceivePressure::LastHop(DestinationControl::new(rate_bps, period))
            }
            PressureConfig::Buffers { interval } => ReceivePressure::Buffers(BufferWatch::new(interval)),
        }
    }

    /// A packet has come for this queue pair: what it is to tell its sender from now on, if that is said at every packet.
    /// Data of `bytes` on the wire counts; `refused` if its payload was trimmed on the last hop.
    #[inline]
    pub fn on_packet<Q: Transport>(
        &mut self,
        now: Time,
        place: Place,
        receiving: &mut Receiving,
        qp: &mut Q,
        packet: &Arrived,
    ) {
        match self {
            ReceivePressure::Off => {}
            ReceivePressure::LastHop(control) => {
                if packet.is_data {
                    control.on_packet(now, packet.bytes, packet.refused);
                    qp.set_receive_pressure(control.pressure());
                }
            }
            ReceivePressure::Buffers(watch) => {
                if packet.is_data {
                    watch.received(now, place, receiving, packet.bytes);
                }
                if packet.is_data || packet.is_probe {
                    qp.set_receive_pressure(watch.pressure(receiving));
                    qp.set_advertised_mpr(watch.mpr());
                }
            }
        }
    }

    /// A queue pair may report without a new packet: what has been found since its last one is told as well.
    #[inline]
    pub fn before_report<Q: Transport>(&self, receiving: &mut Receiving, qp: &mut Q) {
        if let ReceivePressure::Buffers(watch) = self
            && watch.is_untold(receiving)
        {
            qp.set_receive_pressure(watch.pressure(receiving));
        }
    }

    /// A receive buffer was full: whoever sends now is told.
    pub fn overflowed(&mut self, now: Time, buffers: impl FnOnce() -> Buffers) {
        if let ReceivePressure::Buffers(watch) = self {
            watch.overflowed(now, &buffers());
        }
    }

    /// The state of a queue pair that has just been connected: earlier overflows do not concern its sender.
    pub fn begin(&self) -> Receiving {
        let told = if let ReceivePressure::Buffers(watch) = self { watch.overflows() } else { 0 };
        Receiving { active: false, told }
    }

    /// When [`Self::look`] is to be called.
    #[inline]
    pub fn due(&self) -> Time {
        match self {
            ReceivePressure::Off | ReceivePressure::LastHop(_) => Time::NEVER,
            ReceivePressure::Buffers(watch) => watch.due(),
        }
    }

    /// Looks at the receive buffers and tells the queue pairs that receive.
    pub fn look<Q: Transport>(&mut self, now: Time, table: &mut Table<Q>, buffers: impl FnOnce() -> Buffers) {
        if let ReceivePressure::Buffers(watch) = self {
            watch.look(now, table, buffers);
        }
    }
}
