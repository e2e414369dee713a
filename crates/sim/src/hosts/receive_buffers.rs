//! Receive buffers of a host whose NIC is software: as the sockets of the endpoint, one for each port, and one
//! processor that takes what is in them in the order of arrival.

use openmrc_scenario::run::SoftwareHosts;
use openmrc_transport::node::Buffers;
use openmrc_transport::presets::software::{LEAST_PER_LOOK, PACKET_MEMORY};
use serde::{Deserialize, Serialize};

/// The receive buffer of a port.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
struct PortBuffer {
    /// Bytes of memory in use: now, at the last look, and the most seen by a look since the node asked.
    queued: u64,
    seen: u64,
    peak: u64,
    /// Packets were dropped since the last one that found room.
    gap: bool,
}

/// The receive buffers of a host.
#[derive(Serialize, Deserialize)]
pub(super) struct ReceiveBuffers {
    size: u64,
    picos_per_byte: u64,
    full_packet: u32,
    ports: Vec<PortBuffer>,
    /// When the processor has handled all that waits, picoseconds.
    busy_until: u64,
    /// Packets were dropped of which the node does not know.
    untold: bool,
    /// Bytes handled since the last look.
    unsampled: u64,
}

impl ReceiveBuffers {
    /// Empty buffers of `ports` ports.
    pub fn new(config: &SoftwareHosts, ports: usize, full_packet: u32) -> Self {
        ReceiveBuffers {
            size: config.receive_buffer,
            picos_per_byte: (8_000_000_000_000 / config.service_rate_bps).max(1),
            full_packet,
            ports: vec![PortBuffer::default(); ports],
            busy_until: 0,
            untold: false,
            unsampled: 0,
        }
    }

    /// A packet has come. When it will be handled, and whether packets before it were dropped; `None` if it does not
    /// fit.
    pub fn put(&mut self, now: u64, port: u8, bytes: u32) -> Option<(u64, bool)> {
        let memory = u64::from(bytes) + u64::from(PACKET_MEMORY);
        let port = &mut self.ports[usize::from(port)];
        if port.queued + memory > self.size {
            port.gap = true;
            self.untold = true;
            return None;
        }
        port.queued += memory;
        self.busy_until = self.busy_until.max(now) + u64::from(bytes) * self.picos_per_byte;
        Some((self.busy_until, std::mem::take(&mut port.gap)))
    }

    /// A packet is taken out to be handled. Whether the node is to be told of an overflow before.
    pub fn take(&mut self, port: u8, bytes: u32, after_gap: bool) -> bool {
        let memory = u64::from(bytes) + u64::from(PACKET_MEMORY);
        self.ports[usize::from(port)].queued -= memory;
        self.unsampled += memory;
        let looks = after_gap || self.unsampled >= LEAST_PER_LOOK.min(self.size / 2);
        if looks {
            self.unsampled = 0;
            for port in &mut self.ports {
                port.seen = port.queued;
                port.peak = port.peak.max(port.queued);
            }
        }
        looks && std::mem::take(&mut self.untold)
    }

    /// What the node asks for.
    pub fn look(&mut self) -> Buffers {
        let fills =
            self.ports.iter_mut().map(|port| std::mem::take(&mut port.peak) as f64 / self.size as f64);
        let (sum, count) =
            fills.filter(|&fill| fill > 0.0).fold((0.0, 0.0), |(sum, n), fill| (sum + fill, n + 1.0));
        Buffers {
            bytes: self.size * self.ports.len() as u64,
            queued: self.ports.iter().map(|port| port.seen).sum(),
            fill: if count > 0.0 { sum / count } else { 0.0 },
            packet: self.full_packet + PACKET_MEMORY,
        }
    }
}
