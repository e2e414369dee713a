//! How long messages take beside their share of the links: latencies and headers from the network's own numbers, and the
//! few numbers that were fitted to the packet engine.

use openmrc_scenario::run::NetworkConfig;
use openmrc_transport::Span;
use openmrc_transport::mrc::ResponderConfig;
use openmrc_transport::random::mix;

use crate::links::uplinks_of_block;

/// Fitted to permutations of 64 to 1,024 hosts without faults (docs/flow.md, "Fitted numbers"): how long the last
/// packet of a message waits where paths of a full fabric meet, each time that the message is twice as long: as a
/// multiple of the time of a packet and of the square root of the number of paths of each tier.
const WAIT_OF_DOUBLING: f64 = 0.175;
/// Fitted to the same: the standard deviation between messages.
const WAIT_DEVIATION: f64 = 0.33;
/// Fitted to faults of single links and switches: base round trips in which packets for a dead path still leave.
const PATH_REACTION: f64 = 3.6;
/// Fitted to faults of ports of hosts: the same for a dead port, which its own host knows at once.
const PORT_REACTION: f64 = 0.75;
/// Fitted to incasts of 8 to 512 senders: what a byte costs that is trimmed in the first round trip, in bytes more.
const TRIMMED: f64 = 0.11;
/// Fitted to long incasts: what each byte costs where many share a port, in bytes more.
const CROWDED: f64 = 0.012;
/// From this number of senders on.
const CROWD: usize = 5;
/// Fitted to all-to-alls with eight messages of each host on the way: what a byte beyond the first costs in bytes more,
/// and how many bandwidth-delay products come first.
const CONTENDED: f64 = 0.23;
const UNCONTENDED: f64 = 0.43;
/// Fitted to a switch that is down for 100 us: condemned paths are probed ever less often, the longer they are dead.
const RETURN_OF_DOWN: f64 = 0.5;
const RETURN: f64 = 8.0;
/// A window at the beginning, and the queue of the last hop, in bandwidth-delay products (docs/spec/congestion.md).
const FIRST_WINDOW: f64 = 1.5;

/// The sizes and times of a network.
pub(crate) struct Timing {
    config: NetworkConfig,
    /// Bytes of a full data packet on a cable, and of a packet's headers alone.
    full: f64,
    headers: u64,
    /// Bytes of feedback for each byte of data, on a cable.
    pub feedback: f64,
    /// Bytes a picosecond of a port.
    pub port_rate: f64,
    planes: u64,
    /// By tier where a path turns: the square roots of the numbers of paths, added up.
    meetings: [f64; 4],
}

/// A message's size on the cable, and the time that it takes beside its share of the links.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passage {
    /// Bytes of all its packets.
    pub wire: f64,
    /// From the departure of its last byte until it is in place.
    pub latency: u64,
}

impl Timing {
    pub fn new(config: &NetworkConfig) -> Self {
        let full = u64::from(config.full_packet_bytes());
        let mtu = u64::from(config.path_mtu);
        // A SACK is due when more than this has come, each packet counted with its headers.
        let packets = u64::from(ResponderConfig::default().ack_every_bytes) / mtu.max(1);
        let mut meetings = [0.0; 4];
        for tier in 0..config.fabric.top() {
            let paths = uplinks_of_block(&config.fabric, tier) as f64;
            meetings[usize::from(tier) + 1] = meetings[usize::from(tier)] + paths.sqrt();
        }
        Timing {
            full: full as f64,
            headers: full - mtu,
            feedback: f64::from(config.sack_bytes()) / (packets.max(1) * full) as f64,
            port_rate: 1.0 / config.picos_per_byte() as f64,
            planes: config.fabric.shape().planes.into(),
            meetings,
            config: config.clone(),
        }
    }

    /// The links are shared out at most this often: half of the time of a packet.
    pub fn grain(&self) -> u64 {
        (self.full / self.port_rate / 2.0) as u64
    }

    /// Whether these bytes are half a packet at least.
    pub fn is_a_packet(&self, bytes: f64) -> bool {
        bytes >= self.full / 2.0
    }

    /// Packets of a message.
    fn packets(&self, bytes: u32) -> u64 {
        u64::from(bytes).div_ceil(self.config.path_mtu.into())
    }

    /// A message on idle links between hosts whose path turns in tier `turn`.
    pub fn passage(&self, turn: u8, bytes: u32) -> Passage {
        let packets = self.packets(bytes);
        let last = u64::from(bytes) - (packets - 1) * u64::from(self.config.path_mtu) + self.headers;
        let wire = u64::from(bytes) + packets * self.headers;
        // The plane with most packets: whether its last one is the message's last, which may be short.
        let rounds = packets.div_ceil(self.planes);
        let end = if packets % self.planes == 1 || self.planes == 1 { last } else { self.full as u64 };
        let of_plane = (rounds - 1) as f64 * self.full + end as f64;
        // Planes take whole packets.
        let uneven = (of_plane - wire as f64 / self.planes as f64) / self.port_rate;
        let end_bytes = end as u32;
        let way = self.config.one_way_over(turn, end_bytes).0 - self.config.serialization(end).0;
        Passage { wire: wire as f64, latency: way + uneven.max(0.0) as u64 }
    }

    /// From a message's arrival until its sender knows.
    pub fn answer(&self, turn: u8) -> Span {
        self.config.one_way_over(turn, self.config.sack_bytes())
    }

    /// How long the last packet of a message waits where paths meet, of uplinks with this load. `salt` makes the choice.
    pub fn wait(&self, turn: u8, bytes: u32, load: f64, salt: u64) -> u64 {
        let meetings = self.meetings[usize::from(turn)];
        if meetings == 0.0 {
            return 0;
        }
        let packets = self.packets(bytes) as f64;
        let packets = meetings * (WAIT_OF_DOUBLING * packets.log2() + WAIT_DEVIATION * self.chance(salt));
        let load = load.clamp(0.0, 1.0);
        (packets.max(0.0) * load * load * load * self.full / self.port_rate) as u64
    }

    /// A number of the normal distribution for something that `salt` names.
    pub fn chance(&self, salt: u64) -> f64 {
        normal(mix(self.config.seed ^ mix(salt)))
    }

    /// The bandwidth-delay product of a host, bytes.
    fn product(&self) -> f64 {
        self.planes as f64 * self.port_rate * self.config.base_rtt().0 as f64
    }

    /// The share of a host's ports that data uses when this number of flows arrives at once.
    pub fn crowded(&self, flows: usize) -> f64 {
        if flows < CROWD { 1.0 } else { 1.0 / (1.0 + CROWDED) }
    }

    /// What trimming costs a message that arrives with others at the rate of `senders` hosts, bytes: the first windows
    /// of all find room for one in the queue of the last hop.
    pub fn trimmed(&self, wire: f64, senders: f64) -> f64 {
        let window = FIRST_WINDOW * self.product();
        let first = wire.min(window);
        let excess = ((senders - 1.0) * first - window).max(0.0) / (senders * first);
        TRIMMED * excess * first
    }

    /// What contention costs a message between hosts of which both have several on the way, where the uplinks are full,
    /// in bytes.
    pub fn contended(&self, wire: f64) -> f64 {
        CONTENDED * (wire - UNCONTENDED * self.product()).max(0.0)
    }

    /// How long after its repair a link between switches that was down for `down` is used again.
    pub fn path_return(&self, down: u64) -> u64 {
        (RETURN_OF_DOWN * down as f64 + RETURN * self.config.base_rtt().0 as f64) as u64
    }

    /// How long senders use a path that has died.
    pub fn path_reaction(&self) -> f64 {
        PATH_REACTION * self.config.base_rtt().0 as f64
    }

    /// How long senders use a plane in which a port has died.
    pub fn port_reaction(&self) -> f64 {
        PORT_REACTION * self.config.base_rtt().0 as f64
    }
}

/// A number of the normal distribution, nearly: twelve uniform numbers added up.
fn normal(seed: u64) -> f64 {
    let uniform = |n: u64| (mix(seed.wrapping_add(n)) >> 11) as f64 / (1u64 << 53) as f64;
    (0..12).map(uniform).sum::<f64>() - 6.0
}
