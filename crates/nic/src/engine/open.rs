//! Opening a device: its sockets, its own paths, and the node behind them.

use std::sync::Arc;

use openmrc_sockets::{Epoll, Interest, Netlink, error};
use openmrc_transport::PortSet;
use openmrc_transport::node::{Node, NodeConfig, PressureConfig};
use openmrc_transport::presets::software;

use super::Engine;
use super::connect::{default_cc, span};
use super::egress::Egress;
use super::links::Links;
use super::profiles::Profiles;
use super::receive::Ingress;
use super::transmit::Posting;
use super::verbs::Verbs;
use crate::attr::DEFAULT_PATH_MTU;
use crate::config::{DeviceConfig, MAX_UDP_PORTS};
use crate::datapath::Datapath;
use crate::error::{Error, Result};
use crate::events::AsyncEvent;
use crate::impairer::Impairer;
use crate::network::Network;
use crate::peer::Peers;
use crate::shared::{Shared, TOKEN_LINKS, TOKEN_MORE};
use crate::stats::{Causes, PeerDifferences};
use crate::sys;

impl Engine {
    /// Opens the device's sockets and watches them.
    pub fn open(config: Arc<DeviceConfig>, epoll: &Epoll) -> Result<Self> {
        let seed = match config.seed {
            Some(seed) => seed,
            None => sys::random_u64().map_err(|e| Error::os("seed", e))?,
        };
        let netlink = Netlink::open().map_err(|e| Error::os("netlink socket", e))?;
        let interfaces =
            netlink.interface_addrs().map_err(|e| Error::os("list of interface addresses", e))?;
        let mut datapath = Datapath::open(&config)?;
        let mut net = Network {
            ports: Vec::new(),
            paths: Vec::new(),
            peers: Peers::default(),
            impairer: Impairer::new(config.network.dscp),
            causes: Causes::default(),
            differences: PeerDifferences::default(),
            unreachable: Vec::new(),
            narrow: Vec::new(),
        };
        for (index, port) in config.ports.iter().enumerate() {
            let mut port = datapath.open_port(&mut net, port, &interfaces)?;
            epoll
                .add(port.rx.fd(), Interest::Readable, index as u64)
                .map_err(|e| Error::os("watching a port", e))?;
            for (i, (_, rx)) in port.more.iter().enumerate() {
                let token = TOKEN_MORE + (index * MAX_UDP_PORTS + i) as u64;
                epoll.add(rx.fd(), Interest::Readable, token).map_err(|e| Error::os("watching a port", e))?;
            }
            port.check_link(&interfaces);
            net.ports.push(port);
        }
        // A port whose address is absent is down until it comes. Where no address is of this host, all are wrong.
        if net.ports.iter().all(|port| port.interface.is_none()) {
            let addrs: Vec<_> = net.ports.iter().map(|port| port.addr.to_string()).collect();
            return Err(Error::os(
                format!("receive socket at {}", addrs.join(", ")),
                error::address_unavailable(),
            ));
        }
        // Without netlink, which a sandbox may forbid, interfaces are assumed not to change.
        let watch = datapath
            .watch_links()
            .filter(|links| epoll.add(links.fd(), Interest::Readable, TOKEN_LINKS).is_ok());
        let profiles = Profiles::new(&net, default_cc(&config, DEFAULT_PATH_MTU))?;
        Ok(Engine {
            node: Node::new(&Arc::new(node_config(&config, seed))),
            verbs: Verbs::new(),
            posting: Posting::default(),
            ingress: Ingress::new(
                net.ports.iter().map(|_| datapath.inbox(config.network.dscp)).collect(),
                datapath.inbox(config.network.dscp),
                net.ports.iter().map(|port| port.rx.buffer).min().unwrap_or(0),
            ),
            egress: Egress::new(Arc::clone(&config), net, datapath),
            profiles,
            links: Links::new(netlink, watch),
            turns: 0,
            packets: 0,
            seed,
            config,
        })
    }

    /// Tells the node which ports are up from the start, and the application which are not.
    pub fn start(&mut self, shared: &Shared) {
        let up = self.egress.net.ports_up();
        let now = sys::now();
        for port in PortSet::first(self.egress.net.ports.len()).iter().filter(|&port| !up.contains(port)) {
            shared.events.push(AsyncEvent::PortDown(port));
        }
        self.with_node(shared, now, |node, host| node.set_own_ports(now, up, host));
    }
}

/// The node's configuration for this device.
fn node_config(config: &DeviceConfig, seed: u64) -> NodeConfig {
    let ports = PortSet::first(config.ports.len());
    let pressure = PressureConfig::Buffers { interval: software::LOOK_AT_BUFFERS };
    let base_rtt = span(config.network.base_rtt);
    let mut node =
        NodeConfig { seed, ..NodeConfig::software(ports, base_rtt, config.sockets.burst, pressure) };
    // Others must not be able to guess the numbers of queue pairs.
    node.numbers.key = Some(seed);
    node.numbers.prefix = config.number_slot;
    node.port_mask_base = config.endpoint.port_mask_base;
    node
}
