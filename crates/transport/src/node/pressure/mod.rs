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
use super::table::{Place, Table};
use crate::api::Transport;
use crate::time::{Span, Time};

/// What SACKs tell the senders.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pressure {
    /// 0 = none .. 127: take `penalty / 128` of every byte acknowledged off the window.
    pub penalty: u8,
    /// With no penalty: the window saved before it may be restored, the incast is over.
    pub restore: bool,
}

impl Pressure {
    /// Nothing holds the senders back.
    pub const NONE: Pressure = Pressure { penalty: 0, restore: true };
    /// Grow from where you are.
    pub(super) const GROW: Pressure = Pressure { penalty: 0, restore: false };
}

impl From<u8> for Pressure {
    /// This penalty; with none, windows are restored.
    fn from(penalty: u8) -> Self {
        Pressure { penalty, restore: penalty == 0 }
    }
}

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

    /// A data packet of `bytes` on the wire has come for this queue pair; `refused` if its payload was trimmed on the last
    /// hop. What the queue pair is to tell its sender from now on, if that has to be said at every packet.
    #[inline]
    pub fn on_data(
        &mut self,
        now: Time,
        place: Place,
        receiving: &mut bool,
        bytes: u32,
        refused: bool,
    ) -> Option<Pressure> {
        match self {
            ReceivePressure::Off => None,
            ReceivePressure::LastHop(control) => {
                control.on_packet(now, bytes, refused);
                Some(control.pressure())
            }
            ReceivePressure::Buffers(watch) => {
                watch.received(bytes);
                if !std::mem::replace(receiving, true) {
                    watch.receives(now, place);
                }
                None
            }
        }
    }

    /// A receive buffer was full: everybody who sends now is pressed as hard as possible.
    pub fn overflowed<Q: Transport>(&mut self, now: Time, table: &mut Table<Q>) {
        if let ReceivePressure::Buffers(watch) = self {
            watch.overflowed(now, table);
        }
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
