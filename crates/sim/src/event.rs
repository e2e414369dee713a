//! Events of 32 bytes. A packet in flight is an event, which holds all that a switch needs to forward it. Its contents,
//! in another cache line (see [`crate::slab`]), are read only at hosts.

use serde::{Deserialize, Serialize};

/// What happens. Of events at the same node and time, those of the first kind happen first: a packet that arrives when
/// another one has left finds its room.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A transmission at port `at` has ended. Only ports with real queues have these events.
    Depart,
    /// A packet has arrived at port `at`, and the node has processed it.
    Arrive,
    /// A port of host `at` can take packets again.
    Wake,
    /// A host of software comes to a packet that has waited in the receive buffer of port `at`.
    Serve,
    /// A deadline of host `at` may have come.
    Timer,
    /// Message `at` is due.
    Post,
    /// A message that message `at` waits for has arrived at another host.
    Release,
    /// The requestor of connection `at` has closed it.
    Close,
    /// Fault `at` of the schedule happens.
    Fault,
    /// Routing reacts to a fault, for the `at`-th time.
    Reroute,
    /// Host `at` learns which of its ports have a carrier.
    Carrier,
    /// The peer of port `at` tells it to stop sending data (`flags` 1) or to go on (0).
    Pause,
    /// The receiver of connection `at` posts a receive.
    Receive,
    /// Host `at` may have to probe, or to close an interval of its probes.
    Probe,
    /// A probe of host `dst` to itself has arrived at port `at`. Its event has all of it: the interval in place of the
    /// connection, and in place of a packet the number of its loop and its own, 16 bits each.
    Loop,
    /// Message `at` arrives without packets, if it has not gone back to them. Its sender knows after `packet` picoseconds.
    Skipped,
    /// The sender of message `at`, which arrived without packets, knows.
    Finish,
    /// The sender of connection `at` goes back to packets.
    Resume,
}

/// Flags of a packet in flight.
pub(crate) mod flag {
    /// It goes in the control queue.
    pub const CONTROL: u8 = 1;
    /// Congestion experienced.
    pub const CE: u8 = 2;
    /// Payload cut off inside the fabric.
    pub const TRIMMED: u8 = 4;
    /// Payload cut off on the last hop.
    pub const TRIMMED_LAST_HOP: u8 = 8;
    /// It is data: it may be marked and trimmed.
    pub const DATA: u8 = 16;
    /// Packets before it did not fit in the receive buffer.
    pub const AFTER_GAP: u8 = 32;
    /// It is for the requestor of its connection, not for the responder.
    pub const TO_REQUESTOR: u8 = 64;
    /// A T0 forwards it by the uplink that its entropy value names, wherever it is for, and takes the flag away.
    pub const UP_FIRST: u8 = 128;
}

/// One event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Event {
    /// Time, picoseconds.
    pub time: u64,
    /// Port, host, queue pair, message or fault.
    pub at: u32,
    /// Index of the packet in the slab. For a wake, the queue pair whose turn it probably is.
    pub packet: u32,
    /// Destination host. For an event that is not a packet, the host it happens at.
    pub dst: u32,
    /// Entropy value.
    pub ev: u32,
    /// The connection. ECMP hashes it in place of addresses and port numbers.
    pub connection: u32,
    /// Bytes on the cable, all headers included.
    pub bytes: u16,
    /// See [`flag`].
    pub flags: u8,
    /// What happens.
    pub kind: Kind,
}

impl Event {
    /// Copies `event` field by field. Its fields have often just been written; reading them as a whole would wait until
    /// they reach the cache.
    #[inline(always)]
    pub fn set(&mut self, event: Event) {
        self.time = event.time;
        self.at = event.at;
        self.packet = event.packet;
        self.dst = event.dst;
        self.ev = event.ev;
        self.connection = event.connection;
        self.bytes = event.bytes;
        self.flags = event.flags;
        self.kind = event.kind;
    }

    /// Whether it happens before another event at the same node. Events of the same time are ordered by their kind and
    /// their port, message or connection, so that the order does not depend on when other nodes scheduled them. Events
    /// that are equal in all that come from one node, in the order in which it scheduled them.
    #[inline(always)]
    pub fn is_before(&self, other: &Event) -> bool {
        self.time < other.time || self.time == other.time && self.tie() < other.tie()
    }

    /// What orders events of the same node and time.
    #[inline(always)]
    pub fn tie(&self) -> (u8, u32) {
        (self.kind as u8, self.at)
    }

    /// An event that is not a packet.
    pub const fn plain(time: u64, kind: Kind, at: u32, host: u32) -> Self {
        Event { time, at, packet: 0, dst: host, ev: 0, connection: 0, bytes: 0, flags: 0, kind }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_event_takes_half_a_cache_line() {
        assert_eq!(size_of::<super::Event>(), 32);
    }
}
