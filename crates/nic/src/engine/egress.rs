//! The sending side: data in runs, feedback at once; both after packets that the impairer or the kernel holds back.

use std::net::SocketAddr;
use std::sync::Arc;

use openmrc_transport::mrc::PATH_MTU_RANGE;
use openmrc_transport::node::PeerId;
use openmrc_transport::{Time, TrafficClass};
use openmrc_wire::{DscpClass, DscpMap, Packet};

use crate::config::DeviceConfig;
use crate::datapath::Datapath;
use crate::network::Network;
use crate::piece::Piece;
use crate::port::Port;
use crate::socket;
use crate::tx::RunKey;

/// The payload of a probe of full size.
static ZEROS: [u8; *PATH_MTU_RANGE.end() as usize] = [0; *PATH_MTU_RANGE.end() as usize];

/// The sending side of a device.
pub(crate) struct Egress {
    pub net: Network,
    pub datapath: Datapath,
    config: Arc<DeviceConfig>,
    /// Packets without payload of an application, waiting to be sent.
    waiting: Vec<(RunKey, Packet)>,
}

impl Egress {
    pub fn new(config: Arc<DeviceConfig>, net: Network, datapath: Datapath) -> Self {
        Egress { net, datapath, config, waiting: Vec::new() }
    }

    fn key(&self, peer: PeerId, path: u16, packet: &Packet, class: TrafficClass) -> RunKey {
        let trims = self.config.network.trims && class != TrafficClass::DataNoTrim;
        let dscp = match class {
            TrafficClass::Control => DscpClass::Control,
            _ => DscpMap::class_of(packet, trims),
        };
        let dscp = self.config.network.dscp.code(dscp);
        // Data and probes are ECN-capable.
        RunKey { path, peer, class: socket::traffic_class(dscp, class != TrafficClass::Control) }
    }

    /// A packet without payload of an application, sent with [`Egress::send_waiting`].
    pub fn queue(&mut self, peer: PeerId, path: u16, packet: Packet, class: TrafficClass) {
        let key = self.key(peer, path, &packet, class);
        self.waiting.push((key, packet));
    }

    /// Sends an endpoint response to a node that is not a peer, on any path of this port. In SRv6 mode there is no path
    /// to an unknown node, and nothing is sent.
    pub fn answer(&mut self, port: u8, dest: SocketAddr, packet: &Packet, now: Time) {
        let path = self.net.ports.get_mut(usize::from(port)).and_then(Port::any_path);
        let Some(path) = path else { return };
        let RunKey { class, .. } = self.key(PeerId::MAX, path, packet, TrafficClass::Control);
        self.datapath.answer(&mut self.net, path, dest, packet, class, now);
    }

    /// Adds a data packet to the next run or batch. Its payload is in `pieces`, which must stay valid until it is sent.
    #[inline]
    pub fn push(
        &mut self,
        peer: PeerId,
        path: u16,
        packet: &Packet,
        class: TrafficClass,
        pieces: &[Piece],
        now: Time,
    ) {
        let key = self.key(peer, path, packet, class);
        self.datapath.push(&mut self.net, key, packet, pieces, now);
    }

    /// Sends all added packets, and behind them those without payload that wait.
    #[inline]
    pub fn flush(&mut self, now: Time) {
        for (key, packet) in self.waiting.drain(..) {
            // Only a duplicate that probes a path for long packets has any; its contents do not matter.
            let zeros = &ZEROS[..usize::from(packet.payload_len)];
            // SAFETY: they are static.
            let pieces = [unsafe { Piece::of_memory(zeros.as_ptr(), zeros.len()) }];
            let pieces = if zeros.is_empty() { &[][..] } else { &pieces };
            self.datapath.push(&mut self.net, key, &packet, pieces, now);
        }
        self.datapath.flush(&mut self.net, now);
    }

    /// Sends the packets without payload that wait, if there are any.
    #[inline]
    pub fn send_waiting(&mut self, now: Time) {
        if !self.waiting.is_empty() {
            self.flush(now);
        }
    }

    /// The next deadline.
    pub fn next_due(&self) -> Time {
        let held = self.net.ports.iter().map(|port| port.retry_at).min().unwrap_or(Time::NEVER);
        held.min(self.net.impairer.next_due()).min(self.datapath.next_refresh())
    }

    /// Does everything that is due; returns whether there was anything.
    pub fn handle_due(&mut self, now: Time) -> bool {
        if self.next_due() > now {
            return false;
        }
        let Egress { net, datapath, .. } = self;
        if datapath.next_refresh() <= now {
            datapath.refresh_next_hops(net, now);
        }
        if net.impairer.next_due() <= now {
            datapath.send_impaired_due(net, now);
        }
        for port in 0..net.ports.len() {
            if net.ports[port].retry_at <= now {
                datapath.retry_held(net, port, now);
            }
        }
        true
    }
}
