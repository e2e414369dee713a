//! Destination flow control: how a receiver slows down its senders (docs/spec/congestion.md, "On a SACK").
//!
//! Switches do not mark on the last hop and no other path avoids it, so only the receiver can resolve an incast. A
//! sender that receives the penalty `p` reduces its window by `p / 128` of every byte acknowledged and does not grow
//! it.

mod buffers;
mod last_hop;

pub use buffers::Buffers;
pub use last_hop::DestinationControl;
use serde::{Deserialize, Serialize};

use self::buffers::BufferWatch;
use super::ids::Slot;
use super::table::{Receiving, Table};
use crate::api::Transport;
use crate::time::{Span, Time};

/// How a node notices that its senders overrun it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PressureConfig {
    /// Not at all.
    Off,
    /// Switches trim on the last hop: the node compares the arrivals with the capacity of its ports.
    LastHop {
        /// Rate of all ports together, bits per second.
        rate_bps: u64,
        /// Interval of the comparison: a base RTT.
        period: Span,
    },
    /// The receive buffers of the host fill up: the driver reports how full they are
    /// ([`super::NodeHost::receive_buffers`]).
    Buffers {
        /// Interval of the checks while data arrives.
        interval: Span,
    },
}

/// The properties of a received packet that matter here.
pub(super) struct Arrived {
    pub is_data: bool,
    /// A reliability probe; it is answered with a SACK too.
    pub is_probe: bool,
    /// Size on the wire.
    pub bytes: u32,
    /// Trimmed on the last hop.
    pub refused: bool,
}

/// State of the receive pressure of a node.
#[derive(Serialize, Deserialize)]
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

    /// A packet has arrived for this queue pair. Sets the pressure that the queue pair reports to its sender, where
    /// that changes with each packet. `refused` data was trimmed on the last hop.
    #[inline]
    pub fn on_packet<Q: Transport>(
        &mut self,
        now: Time,
        slot: Slot,
        receiving: &mut Receiving,
        qp: &mut Q,
        packet: &Arrived,
    ) {
        match self {
            ReceivePressure::Off => {}
            ReceivePressure::LastHop(control) => {
                if packet.is_data {
                    let pressure = control.on_packet(now, packet.bytes, packet.refused, receiving);
                    qp.set_receive_pressure(pressure);
                }
            }
            ReceivePressure::Buffers(watch) => {
                if packet.is_data {
                    watch.received(now, slot, receiving, packet.bytes);
                }
                if packet.is_data || packet.is_probe {
                    qp.set_receive_pressure(watch.pressure(receiving));
                    qp.set_advertised_mpr(watch.mpr());
                }
            }
        }
    }

    /// A queue pair may report without a new packet: an overflow since its last packet is reported as well.
    #[inline]
    pub fn before_report<Q: Transport>(&self, receiving: &mut Receiving, qp: &mut Q) {
        if let ReceivePressure::Buffers(watch) = self
            && watch.has_unreported_overflow(receiving)
        {
            qp.set_receive_pressure(watch.pressure(receiving));
        }
    }

    /// A receive buffer has overflowed: every queue pair that receives reports it.
    pub fn overflowed(&mut self, now: Time, buffers: impl FnOnce() -> Buffers) {
        if let ReceivePressure::Buffers(watch) = self {
            watch.overflowed(now, &buffers());
        }
    }

    /// Initial state for a queue pair that has just been connected: earlier overflows do not concern its sender.
    pub fn begin(&self) -> Receiving {
        let reported = if let ReceivePressure::Buffers(watch) = self { watch.overflows() } else { 0 };
        Receiving { reported, ..Receiving::default() }
    }

    /// Time at which [`Self::look`] must be called.
    #[inline]
    pub fn due(&self) -> Time {
        match self {
            ReceivePressure::Off | ReceivePressure::LastHop(_) => Time::NEVER,
            ReceivePressure::Buffers(watch) => watch.due(),
        }
    }

    /// Checks the receive buffers and sets the pressure of the queue pairs that receive.
    pub fn look<Q: Transport>(&mut self, now: Time, table: &mut Table<Q>, buffers: impl FnOnce() -> Buffers) {
        if let ReceivePressure::Buffers(watch) = self {
            watch.look(now, table, buffers);
        }
    }
}
