//! What happens next, in 32 bytes.
//!
//! A packet on its way is an event: everything that a switch needs to forward it is in here, so that the packet itself
//! (in its slab, another cache line) is touched only where it begins and where it ends.

/// What an event is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A packet's last bit has arrived at port `at`.
    Arrive,
    /// A port of host `at` can take packets again.
    Wake,
    /// Queue pair `at` may want [`handle_timeout`](openmrc_transport::Transport::handle_timeout).
    Timer,
    /// Message `at` is to be posted.
    Post,
    /// Fault `at` of the schedule happens.
    Fault,
    /// Routing reacts to a fault, for the `at`-th time.
    Reroute,
    /// Queue pair `at` learns which ports are up.
    PortStatus,
    /// The cable at port `at` is free; where ports have real queues.
    Depart,
    /// The peer of port `at` tells it to stop sending data (`flags` 1) or to go on (0).
    Pause,
}

/// What there is to know of a packet on its way, beside its contents.
pub(crate) mod flag {
    /// Goes in the control queue.
    pub const CONTROL: u8 = 1;
    /// Congestion experienced.
    pub const CE: u8 = 2;
    /// Payload cut off inside the fabric.
    pub const TRIMMED: u8 = 4;
    /// Payload cut off on the last hop.
    pub const TRIMMED_LAST_HOP: u8 = 8;
    /// May be ECN-marked and trimmed: data.
    pub const DATA: u8 = 16;
}

/// One event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Event {
    /// When, picoseconds.
    pub time: u64,
    /// Port, host, queue pair, message or fault.
    pub at: u32,
    /// The packet's place in the slab; of a wake, the queue pair whose turn it probably is.
    pub packet: u32,
    /// Destination host; of an event that is not a packet, the host it happens at.
    pub dst: u32,
    /// Entropy value.
    pub ev: u32,
    /// The connection: what ECMP hashes as addresses and port numbers.
    pub connection: u32,
    /// Bytes on the cable, everything counted.
    pub bytes: u16,
    /// See [`flag`].
    pub flags: u8,
    /// What it is about.
    pub kind: Kind,
}

impl Event {
    /// Becomes `event`, field by field: what has just been written as fields cannot be read as a whole before it has reached the
    /// cache, and nothing is to wait for that.
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
