//! How nodes and queue pairs are made for a network: the paths and the congestion control that they share.

use std::borrow::Cow;
use std::sync::Arc;

use openmrc_fabric::{EvLayout, Fabric, path::EvError, path::Path};
use openmrc_scenario::RunError;
use openmrc_scenario::run::{
    AdaptiveConfig, Encapsulation, LifeConfig, MrcConfig, MrcCongestion, NetworkConfig, Overflow, Routing,
    SoftwareHosts, SwitchConfig, TransportConfig,
};
use openmrc_transport::mrc::{
    self, Capabilities, CcProfile, LoadBalancing, NsccParams, PathConfig, PathModel, QpConfig, SackBatching,
    SwiftParams,
};
use openmrc_transport::node::{NodeConfig, PressureConfig, linger_time};
use openmrc_transport::presets::software;
use openmrc_transport::random::mix;
use openmrc_transport::rocev2::RcConfig;
use openmrc_transport::{EvProfile, PathEntry, PortSet, Span, Time};
use openmrc_wire::{Ev, Packet};

use super::queue_pair::QueuePair;

/// Headers of a UET data packet beyond MRC's 40 bytes: PDS 12 and SES 44, no security (UET 1.0).
const UET_MORE: u32 = 12 + 44 - 40;

/// Makes queue pairs.
pub(crate) struct Endpoints {
    fabric: Fabric,
    template: Template,
    /// Paths between hosts that meet in tier 0, 1, ...
    profiles: Vec<Arc<EvProfile>>,
    seed: u64,
    encapsulation: Encapsulation,
    /// Bytes of a data packet's headers beyond those of MRC.
    more_bytes: u32,
    /// Settings of every host's node.
    pub node: Arc<NodeConfig>,
    /// What connections do beside sending messages.
    pub(super) life: LifeConfig,
    /// How long queue pairs answer their peers after they were destroyed.
    pub(super) linger: Span,
}

/// A queue pair to be made.
pub(super) struct NewQueuePair {
    /// Its own number, and its peer's.
    pub numbers: (u32, u32),
    /// Its own host, and its peer's.
    pub hosts: (u32, u32),
    pub role: Role,
    /// The connection and the end of it: what makes its choices its own.
    pub salt: u64,
}

/// What a queue pair is for: data goes one way over a connection.
#[derive(Clone, Copy)]
pub(super) enum Role {
    /// It sends this number of messages. A send queue with room for more would be most of its memory.
    Requestor(u32),
    Responder,
}

/// Settings that all queue pairs share.
enum Template {
    Mrc(Box<QpConfig>),
    Rocev2(RcConfig),
}

/// Most paths of a profile. Of more paths an even selection is taken.
const MOST_PATHS: u64 = 8192;
/// Entropy values of a port if switches hash them.
const HASHED_EVS: u64 = 256;

impl Endpoints {
    pub fn new(
        config: &NetworkConfig,
        switch: &SwitchConfig,
        transport: &TransportConfig,
    ) -> Result<Self, RunError> {
        let fabric = config.fabric;
        let settings = match transport {
            TransportConfig::Mrc(mrc) => Cow::Borrowed(mrc),
            TransportConfig::Uet(uet) => Cow::Owned(MrcConfig {
                ev_active: uet.evs,
                ev_backup: 0,
                mpr: uet.mpr,
                congestion: uet.congestion.clone(),
                load_balancing: uet.load_balancing.clone(),
                destination_control: uet.destination_control,
                spacing: uet.spacing,
                life: LifeConfig::default(),
            }),
            TransportConfig::Adaptive(adaptive) => Cow::Owned(MrcConfig {
                ev_active: fabric.shape().planes as u16,
                ev_backup: 0,
                mpr: adaptive.mpr,
                congestion: MrcCongestion::Nscc,
                load_balancing: LoadBalancing::Oblivious,
                destination_control: false,
                spacing: false,
                life: LifeConfig::default(),
            }),
            TransportConfig::Rocev2(rocev2) => {
                let mut template = RcConfig::new(1, 1, config.port_rate_bps);
                template.path_mtu = config.path_mtu;
                template.recovery = rocev2.recovery;
                template.dcqcn = rocev2.dcqcn_params.or(template.dcqcn).filter(|_| rocev2.dcqcn);
                template.timeout = rocev2.timeout;
                template.retry_count = rocev2.retry_count;
                template.window = rocev2.window;
                template.ack_every = rocev2.ack_every;
                return Ok(Endpoints {
                    fabric,
                    template: Template::Rocev2(template),
                    profiles: Vec::new(),
                    seed: config.seed,
                    encapsulation: config.encapsulation,
                    more_bytes: 0,
                    node: Arc::new(node_config(config, false)),
                    life: LifeConfig::default(),
                    linger: Span::ZERO,
                });
            }
        };
        let profiles = (0..fabric.tiers())
            .map(|turn| match config.routing {
                _ if matches!(transport, TransportConfig::Adaptive(_)) => Ok(one_path_a_plane(&fabric)),
                Routing::SourceRouted => named_paths(&fabric, turn),
                Routing::Ecmp | Routing::Adaptive => Ok(hashed_paths(&fabric)),
            })
            .collect::<Result<Vec<_>, _>>()?;
        let trimming = switch.overflow == Overflow::Trim;
        let rate = config.port_rate_bps * u64::from(fabric.shape().planes);
        let nscc = || CcProfile::nscc(rate, config.base_rtt(), config.path_mtu, trimming);
        let cc = match (transport, &settings.congestion) {
            (TransportConfig::Adaptive(AdaptiveConfig { swift, .. }), _) => {
                let mtu = u32::from(config.path_mtu) + NsccParams::OVERHEAD;
                let params = swift.unwrap_or_else(|| SwiftParams::for_network(rate, config.base_rtt(), mtu));
                CcProfile::Swift(params)
            }
            (_, MrcCongestion::Nscc) => nscc(),
            (_, MrcCongestion::FixedWindow(bytes)) => CcProfile::FixedWindow(*bytes),
            (_, MrcCongestion::Custom(make)) => CcProfile::Custom(make.clone()),
        };
        let base_rtt = config.software.map_or(config.base_rtt(), |software| software.base_rtt);
        let model =
            PathModel { ordered: config.routing != Routing::Adaptive, ..PathModel::new(base_rtt, trimming) };
        let paths = PathConfig {
            active: settings.ev_active,
            backup: settings.ev_backup,
            min_active: settings.ev_active / 4,
            load_balancing: settings.load_balancing.clone(),
            burst: config.software.map_or(1, |software| software.burst),
            ..PathConfig::new(profiles[0].clone(), model)
        };
        let mut template = QpConfig::new(1, 1, paths, Arc::new(cc));
        template.path_mtu = config.path_mtu;
        template.requestor.mpr = settings.mpr;
        template.requestor.options.spacing = settings.spacing;
        template.requestor.peer_waits =
            settings.life.receives.is_some_and(|receives| receives.longest_wait != Some(Span::ZERO));
        template.responder.mpr_dest = settings.mpr;
        template.caps = Capabilities { trim_nack: trimming, ..Capabilities::OWN };
        if config.software.is_some() {
            template.responder.ack_every_bytes = software::ACK_EVERY_BYTES;
            template.responder.ack_delay = software::ACK_DELAY;
            template.responder.batching = SackBatching::Turn;
            template.requestor.timeout = QpConfig::timeout_from_exponent(software::TIMEOUT);
        }
        template.validate().map_err(|e| RunError::Range {
            name: e.name,
            value: e.value,
            allowed: e.allowed,
        })?;
        Ok(Endpoints {
            fabric,
            life: settings.life,
            linger: linger_time(template.requestor.timeout),
            template: Template::Mrc(Box::new(template)),
            profiles,
            seed: config.seed,
            encapsulation: config.encapsulation,
            more_bytes: if matches!(transport, TransportConfig::Uet(_)) { UET_MORE } else { 0 },
            node: Arc::new(node_config(config, settings.destination_control)),
        })
    }

    /// Makes a queue pair.
    pub(super) fn make(&self, now: Time, new: &NewQueuePair) -> QueuePair {
        let &NewQueuePair { numbers: (local, remote), hosts: (here, there), role, salt } = new;
        let seed = mix(self.seed ^ mix(salt));
        match &self.template {
            Template::Mrc(template) => {
                let mut config = (**template).clone();
                (config.local_qp, config.remote_qp, config.seed) = (local, remote, seed);
                config.paths.profile = self.profiles[self.fabric.turn(here, there) as usize].clone();
                let made = match role {
                    Role::Requestor(messages) => {
                        let room = &mut config.requestor.max_send_wr;
                        *room = messages.clamp(1, *room as u32) as usize;
                        mrc::QueuePair::new(now, &config)
                    }
                    Role::Responder => mrc::QueuePair::new_responder(now, &config),
                };
                match made {
                    Ok(qp) => QueuePair::Mrc(Box::new(qp)),
                    Err(error) => unreachable!("the template was checked: {error}"),
                }
            }
            Template::Rocev2(template) => {
                // Both ends of a connection use the same plane. The lowest bit tells them apart.
                let port = ((salt >> 1) % u64::from(self.fabric.shape().planes)) as u8;
                let ev = Ev(seed as u32 & 0xFFFF);
                let config = RcConfig { local_qp: local, remote_qp: remote, ev, port, ..*template };
                QueuePair::Rocev2(Box::new(openmrc_transport::rocev2::QueuePair::new(config)))
            }
        }
    }

    /// A queue pair between two hosts that was read from a checkpoint gets back what all queue pairs share.
    pub(super) fn rejoin(&self, (here, there): (u32, u32), qp: &mut QueuePair) {
        if let (Template::Mrc(template), QueuePair::Mrc(qp)) = (&self.template, qp) {
            qp.rejoin(&self.profiles[self.fabric.turn(here, there) as usize], &template.cc);
        }
    }

    /// Bytes that a packet takes on the cable.
    #[inline]
    pub(super) fn wire_bytes(&self, packet: &Packet) -> u32 {
        let more = if packet.is_data() { self.more_bytes } else { 0 };
        self.encapsulation.wire_bytes(packet.wire_len() as u32 + more)
    }

    /// An entropy value for a packet that leaves on a port and belongs to no queue pair.
    pub(super) fn ev_on(&self, here: u32, there: u32, port: u8, salt: u64) -> Ev {
        let choice = mix(self.seed ^ mix(salt ^ u64::from(here) << 32 ^ u64::from(there)));
        let profile = self.profiles.get(self.fabric.turn(here, there) as usize);
        let path =
            profile.and_then(|profile| Some(profile.entries()[usize::from(profile.path_on(port, choice)?)]));
        path.map_or(Ev(choice as u32 & 0xFFFF), |path| path.ev)
    }
}

/// Bytes of the two queue pairs of a connection between two hosts, one message posted.
pub(crate) fn queue_pair_bytes(config: &NetworkConfig, transport: &TransportConfig) -> Result<u64, RunError> {
    let switch = config.switch.unwrap_or_else(|| config.default_switch());
    let endpoints = Endpoints::new(config, &switch, transport)?;
    let bytes = |role| {
        let new = NewQueuePair { numbers: (3, 4), hosts: (0, 1), role, salt: 0 };
        endpoints.make(Time::ZERO, &new).bytes() as u64
    };
    Ok(bytes(Role::Requestor(1)) + bytes(Role::Responder))
}

/// A host's node: a NIC in hardware, whose senders are pressed if there is destination flow control.
fn node_config(config: &NetworkConfig, destination_control: bool) -> NodeConfig {
    let planes = config.fabric.shape().planes;
    let rate_bps = config.port_rate_bps * u64::from(planes);
    let pressure = if destination_control {
        PressureConfig::LastHop { rate_bps, period: config.base_rtt() }
    } else {
        PressureConfig::Off
    };
    let ports = PortSet::first(planes as usize);
    if let Some(SoftwareHosts { burst, base_rtt, .. }) = config.software {
        let pressure = PressureConfig::Buffers { interval: software::LOOK_AT_BUFFERS };
        return NodeConfig {
            seed: mix(config.seed),
            ..NodeConfig::software(ports, base_rtt, burst, pressure)
        };
    }
    NodeConfig { seed: mix(config.seed), ..NodeConfig::hardware(ports, config.base_rtt(), pressure) }
}

/// The paths between hosts that meet in tier `turn`. Their EVs are the same for all such hosts.
fn named_paths(fabric: &Fabric, turn: u8) -> Result<Arc<EvProfile>, EvError> {
    let layout = EvLayout::new(fabric)?;
    let shape = fabric.shape();
    let per_plane: u64 = shape.uplinks[..turn as usize].iter().map(|&u| u64::from(u)).product();
    let keep = per_plane.min(MOST_PATHS / u64::from(shape.planes));
    let mut entries = Vec::new();
    for plane in 0..shape.planes {
        for n in 0..keep {
            // Evenly selected, in lowest-terms steps through the mixed-radix number of the path.
            let mut rest = n * per_plane / keep;
            let mut uplinks = [0; 3];
            for tier in (0..turn as usize).rev() {
                uplinks[tier] = (rest % u64::from(shape.uplinks[tier])) as u32;
                rest /= u64::from(shape.uplinks[tier]);
            }
            let ev = Path { src: 0, dst: 0, plane, uplinks }.ev(&layout);
            entries.push(PathEntry { ev, port: plane as u8 });
        }
    }
    Ok(profile(&entries))
}

/// Entropy values that switches hash.
fn hashed_paths(fabric: &Fabric) -> Arc<EvProfile> {
    let planes = u64::from(fabric.shape().planes);
    let entries: Vec<_> = (0..planes * HASHED_EVS)
        .map(|n| PathEntry { ev: Ev(mix(n) as u32 & 0xFFFF | (n as u32) << 16), port: (n % planes) as u8 })
        .collect();
    profile(&entries)
}

/// A path for each plane, if switches spray and entropy has no effect.
fn one_path_a_plane(fabric: &Fabric) -> Arc<EvProfile> {
    let entry = |plane| PathEntry { ev: Ev(plane), port: plane as u8 };
    profile(&(0..fabric.shape().planes).map(entry).collect::<Vec<_>>())
}

fn profile(entries: &[PathEntry]) -> Arc<EvProfile> {
    match EvProfile::new(entries) {
        Ok(profile) => Arc::new(profile),
        Err(error) => {
            unreachable!("a fabric has between 1 and {MOST_PATHS} paths, on at most 16 ports: {error}")
        }
    }
}
