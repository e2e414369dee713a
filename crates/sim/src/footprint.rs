//! Bytes of state of each thing in a run: what the estimate of its memory multiplies with their numbers.

use openmrc_transport::mrc::LoadBalancing;
use openmrc_workload::{Connection, Message};

use crate::config::NetworkConfig;
use crate::event::Event;
use crate::fabric;
use crate::hosts;
use crate::scenario::ScenarioError;
use crate::slab::Slab;
use crate::transport::{MrcCongestion, TransportConfig};

/// Bytes of state of each thing in a run of a network and a transport.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Footprint {
    pub per_port: u64,
    pub per_host: u64,
    /// A host that sends or receives.
    pub per_active_host: u64,
    /// In the simulator, until the run has ended.
    pub per_message: u64,
    /// A message in the results: its row of eight columns, and the lists that the summary is made of.
    pub per_result: u64,
    pub per_connection: u64,
    /// Both queue pairs of an open connection.
    pub per_open_connection: u64,
    /// A packet in the network: its contents and its event.
    pub per_packet: u64,
}

/// Measured: columns, their copies on the way to Python, and the lists of the summary.
const PER_RESULT: u64 = 135;
/// Measured: a queue pair's entries in its node's table, timers and list of peers, and what the allocator adds to its
/// arrays. A queue pair of RoCEv2 has no arrays.
const AROUND_QUEUE_PAIR: u64 = 520;
const AROUND_ROCEV2: u64 = 150;
/// Measured: what a connection of RoCEv2 leaves when it has closed.
const PER_ROCEV2_CONNECTION: u64 = 30;
/// Measured: a node's table, timers and lists, which begin with room for several queue pairs.
const PER_ACTIVE_HOST: u64 = 1_600;
/// Free blocks and half-empty blocks of the calendar, measured.
const SPARE_EVENTS: f64 = 1.1;

impl Footprint {
    pub fn new(config: &NetworkConfig, transport: &TransportConfig) -> Result<Self, ScenarioError> {
        let queue_pairs = hosts::queue_pair_bytes(config, transport)?;
        let (around, used, left) = match transport {
            TransportConfig::Rocev2(rc) => {
                let used = (f64::from(rc.qps) / f64::from(config.fabric.shape().planes)).min(1.0);
                (AROUND_ROCEV2, used, PER_ROCEV2_CONNECTION)
            }
            _ => (AROUND_QUEUE_PAIR, 1.0, 0),
        };
        Ok(Footprint {
            per_port: fabric::bytes_per_port(config, used),
            per_host: hosts::BYTES_PER_HOST as u64,
            per_active_host: PER_ACTIVE_HOST,
            // Laid out first, then as the simulator and the results have it. Most messages wait for one other.
            per_message: (size_of::<Message>() + hosts::BYTES_PER_MESSAGE + 4 * size_of::<u32>()) as u64,
            per_result: PER_RESULT,
            per_connection: (size_of::<Connection>() + hosts::BYTES_PER_CONNECTION) as u64 + left,
            per_open_connection: queue_pairs + 2 * around,
            per_packet: Slab::BYTES_PER_PACKET as u64
                + (size_of::<Event>() as f64 * SPARE_EVENTS) as u64
                + fabric::bytes_per_waiting_packet(config),
        })
    }
}

impl Footprint {
    /// The same in several threads: each has a table of all ports, messages and connections.
    pub fn with_threads(self, threads: u32) -> Self {
        let more = u64::from(threads - 1);
        Footprint {
            per_port: self.per_port * u64::from(threads),
            per_message: self.per_message + more * hosts::BYTES_PER_MESSAGE as u64,
            per_connection: self.per_connection + more * hosts::BYTES_PER_CONNECTION as u64,
            ..self
        }
    }
}

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
