//! How a transport fills a network with packets: for the estimate of memory, measured.

use openmrc_transport::mrc::LoadBalancing;

use crate::run::{MrcCongestion, NetworkConfig, TransportConfig};

/// How a transport fills the network: packets in flight of a host that sends for long, as multiples of the
/// bandwidth-delay product of all its ports.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Filling {
    /// Bandwidth-delay product of a host, packets.
    pub product: f64,
    /// On idle paths: data on the way, and SACKs on the way back.
    pub idle: f64,
    /// More of them where paths are loaded unevenly.
    pub queued: f64,
    /// The most that a host has if it sends to many, or shares its receivers with many.
    pub crowded: f64,
    /// Packets that a connection has in flight at most, where queues do not grow without end.
    pub window: f64,
    /// Packets that a queue pair may have in flight.
    pub limit: f64,
}

impl Filling {
    pub fn new(config: &NetworkConfig, transport: &TransportConfig) -> Self {
        let shape = config.fabric.shape();
        let packet = f64::from(config.full_packet_bytes());
        let product = config.host_rate_bps() as f64 / 8.0 * config.base_rtt().as_secs_f64() / packet;
        // A packet is on its way for a little more than half of a round trip, and one SACK answers several.
        let across = 0.67;
        // Hosts under the sender's T0 are nearer.
        let near = f64::from(shape.hosts_per_t0.min(shape.hosts).saturating_sub(1))
            / f64::from(shape.hosts.max(2) - 1);
        let shorter = config.one_way_over(0, 1).as_secs_f64() / config.one_way(1).as_secs_f64();
        let idle = across * (1.0 - near * (1.0 - shorter));
        let nscc = 1.5 * product;
        let (queued, crowded, window) = match transport {
            TransportConfig::Mrc(mrc) => {
                let window = match mrc.congestion {
                    MrcCongestion::FixedWindow(bytes) => bytes as f64 / packet,
                    MrcCongestion::Nscc | MrcCongestion::Custom(_) => nscc,
                };
                // One processor behind the buffers of all ports: measured.
                let queued = match config.software {
                    Some(_) => (0.65 * f64::from(shape.planes)).min(1.9),
                    None => unevenness(config, mrc.ev_active),
                };
                (queued, 1.7, window.min(f64::from(mrc.mpr) * 128.0))
            }
            TransportConfig::Uet(uet) => {
                let spread = if matches!(uet.load_balancing, LoadBalancing::Oblivious) { 0.6 } else { 0.5 };
                (spread, 1.7, nscc)
            }
            TransportConfig::Adaptive(_) => (0.4, 1.7, 2.0 * product),
            // Each queue pair has one path on one plane: it fills this plane, and the buffers where paths meet.
            TransportConfig::Rocev2(rc) => {
                let plane = product / f64::from(shape.planes);
                let deep = if rc.qps > 1 { 2.5 } else { 2.0 };
                (0.0, 1.1 / f64::from(shape.planes), f64::from(rc.window).min(deep * plane))
            }
        };
        let limit = match transport {
            TransportConfig::Rocev2(rc) => f64::from(rc.window),
            _ => window,
        };
        Filling { product, idle, queued, crowded, window, limit }
    }

    /// Packets in flight of a connection of RoCEv2 to a receiver that others send to: pauses keep most of its message
    /// in the buffers. Measured.
    pub fn paused(&self, to_send: f64, qps: f64) -> f64 {
        (0.6 * to_send / qps).min(self.limit) * qps
    }

    /// Packets in flight of a host that has this number of packets to send, on one connection or on many at once.
    pub fn packets(&self, to_send: f64, connections: f64, rocev2_qps: Option<f64>) -> f64 {
        let (product, crowded) = (self.product, connections > 1.0);
        if let Some(qps) = rocev2_qps {
            // While a message is being sent, a little more than half of it has arrived.
            let each = (0.45 * to_send / qps).min(self.window);
            return if crowded { self.crowded * product } else { each * qps };
        }
        let relative = to_send.min(self.window * connections) / product;
        if crowded {
            return product * relative.min(self.crowded);
        }
        // Measured: what arrives while the rest is being sent, and queues that grow with the length of the message.
        let idle = relative.min(0.39 + 0.35 * (relative - 0.39).max(0.0)).min(self.idle);
        let length = to_send / product;
        // Windows of few packets: one packet more or less is a large share.
        let coarse = if length > 1.0 { 14.0 / product } else { 0.0 };
        (product * (idle + coarse + self.queued * (length / 4.0).min(1.0))).min(to_send)
    }
}

/// How much longer queues are where the paths of queue pairs load links unevenly. A queue pair with fewer paths than
/// there are in a plane leaves links out, and a link has as many more or fewer of them as chance has it.
fn unevenness(config: &NetworkConfig, ev_active: u16) -> f64 {
    let shape = config.fabric.shape();
    if shape.tiers < 2 {
        return 0.0;
    }
    let paths: f64 = shape.uplinks[..shape.tiers as usize - 1].iter().map(|&up| f64::from(up)).product();
    let chosen = (f64::from(ev_active) / f64::from(shape.planes)).min(paths).max(1.0);
    let below = f64::from(shape.hosts_per_t0.min(shape.hosts));
    let on_a_link = below * chosen / f64::from(shape.uplinks[0].max(1));
    let deviation = ((1.0 - chosen / paths) / on_a_link).sqrt();
    (4.0 * deviation - 0.1).clamp(0.0, 0.85)
}
