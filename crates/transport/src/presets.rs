//! Defaults of NICs where the specification leaves them open. The endpoint and the simulated hosts that are like it take
//! them from here.

use crate::time::Span;

/// Target queueing delay of congestion control over this base RTT (docs/spec/congestion.md, "Numbers").
pub fn target_qdelay(base_rtt: Span, trimming: bool) -> Span {
    if trimming { base_rtt.scaled(0.75) } else { base_rtt }
}

/// A NIC in software, whose packets pass through the sockets of an operating system.
pub mod software {
    use crate::time::Span;

    /// Round-trip time of an idle path: the delay is in the scheduling of the hosts' processors.
    pub const BASE_RTT: Span = Span::from_micros(500);
    /// Most consecutive packets of a queue pair, and of a path: as many of 4096 bytes as fit one system call.
    pub const BURST: u8 = 15;
    /// Bytes received after which a responder sends a SACK unasked: it costs a system call at each end.
    pub const ACK_EVERY_BYTES: u32 = 128 << 10;
    /// Longest time after a packet until it does.
    pub const ACK_DELAY: Span = Span::from_micros(50);
    /// Exponent of the ACK timeout, 17 ms: a process may not be scheduled for some milliseconds.
    pub const TIMEOUT: u8 = 14;
    /// Window of congestion control where the network does not trim, bytes. Sockets neither mark nor trim, and
    /// scheduling looks like queueing to NSCC.
    pub const FIXED_WINDOW: u64 = 1 << 20;
    /// Interval between two looks at the receive buffers.
    pub const LOOK_AT_BUFFERS: Span = Span::from_micros(500);
    /// Bytes that are taken from the receive buffers from one look at them to the next, at least.
    pub const LEAST_PER_LOOK: u64 = 256 << 10;
    /// Memory of the kernel that a queued packet takes in addition to its payload, bytes: its descriptor and unused
    /// room.
    pub const PACKET_MEMORY: u32 = 1024;
}
