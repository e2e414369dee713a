//! What a queue pair needs to become RTR and then RTS: a peer, paths, congestion control, and a configuration of the
//! transport from attributes and defaults.

use std::sync::Arc;
use std::time::Duration;

use openmrc_transport::mrc::{self, CcProfile, PathConfig, PathModel, QpConfig, SackBatching};
use openmrc_transport::node::Slot;
use openmrc_transport::{Span, Time};
use openmrc_wire::{MAX_HEADER_LEN, Psn, encap, icrc, ip, udp};

use super::Engine;
use super::verbs::QpLink;
use crate::attr::{DEFAULT_PATH_MTU, DEFAULT_TIMEOUT, QpAttr};
use crate::config::DeviceConfig;
use crate::error::{Error, Result};
use crate::port::Port;
use crate::profiles::engine::{CcProfileConfig, Paths};
use crate::tx::most_in_run;

/// Bytes around the payload on the wire below IP: UDP, the longest data headers, padding, iCRC.
const ENVELOPE: usize = udp::LEN + MAX_HEADER_LEN + 3 + icrc::LEN;

impl Engine {
    /// INIT to RTR: the peer and the paths are known, packets may come.
    pub(super) fn connect_qp(&mut self, now: Time, slot: Slot, attr: &QpAttr) -> Result<()> {
        let (profile, paths) = self.profiles.of_attributes(attr)?;
        let config = self.transport_config(slot, attr, &paths)?;
        let remote = attr.remote.as_deref().unwrap_or_default();
        self.check_mtu(config.path_mtu, remote.len(), self.outside_inner_ip(&paths))?;
        let qp = mrc::QueuePair::new_responder(now, &config)?;
        let peer = self.egress.net.acquire_peer(remote, &paths)?;
        self.node.connect(now, slot, peer, self.peer_ports(peer), qp);
        self.deny_paths(slot, &paths);
        if let Some(io) = self.verbs.get_mut(slot) {
            io.link = Some(QpLink { peer, paths, profile });
        }
        Ok(())
    }

    /// RTR to RTS: what the requestor needs is known too.
    pub(super) fn start_qp(&mut self, now: Time, slot: Slot, attr: &QpAttr) -> Result<()> {
        let (profile, paths) = self.profiles.of_attributes(attr)?;
        let config = self.transport_config(slot, attr, &paths)?;
        let closed = || Error::Closed("the queue pair");
        self.node.update(slot, |qp| qp.start_requestor(now, &config)).ok_or_else(closed)??;
        self.deny_paths(slot, &paths);
        let link = self.verbs.get_mut(slot).and_then(|io| io.link.as_mut()).ok_or_else(closed)?;
        (link.paths, link.profile) = (paths, profile);
        Ok(())
    }

    /// The controller has denied these paths before the queue pair had them.
    fn deny_paths(&mut self, slot: Slot, paths: &Paths) {
        for &path in &paths.denied {
            self.node.update(slot, |qp| qp.set_ev_denied(path, true));
        }
    }

    /// The configuration for the transport. Defaults that are not the specification's are explained in [`QpAttr`].
    pub(super) fn transport_config(&self, slot: Slot, given: &QpAttr, paths: &Paths) -> Result<QpConfig> {
        let io = self.io(slot)?;
        let mut attr = QpAttr::defaults();
        attr.update(given);
        let path_mtu = attr.path_mtu.unwrap_or(DEFAULT_PATH_MTU);
        let CcProfileConfig { cc, model } = match attr.cc_profile_id {
            None | Some(0) => default_cc(&self.config, path_mtu),
            Some(id) => self.profiles.cc.get(id)?,
        };
        let paths = PathConfig {
            active: paths.active,
            backup: paths.backup,
            min_active: paths.min_active,
            burst: self.config.sockets.burst.min(most_in_run(path_mtu)),
            entropy_bits: self.config.entropy.bits(),
            rotation_turns: self.config.choices.rotation_turns,
            ..PathConfig::new(Arc::clone(&paths.profile), model)
        };
        let mut config = QpConfig::new(io.shared.num, attr.dest_qp_num.unwrap_or_default(), paths, cc);
        config.seed = self.seed ^ u64::from(io.shared.num) << 32;
        config.requestor.max_send_wr = io.shared.cap.max_send_wr as usize;
        config.requestor.options = self.config.choices.requestor;
        config.responder.options = self.config.choices.responder;
        config.responder.ack_every_bytes = self.config.sacks.every_bytes;
        config.responder.ack_delay = span(self.config.sacks.delay);
        config.responder.batching = match self.config.choices.answers_behind_data {
            true => SackBatching::BehindData,
            false => SackBatching::Turn,
        };
        macro_rules! set {
            ($to:expr, $($name:ident),*) => { $(if let Some(value) = attr.$name { $to.$name = value; })* };
        }
        set!(config, path_mtu, caps, seed);
        set!(config.requestor, mpr, max_wimm, linear_cnt, exp_cnt);
        set!(config.requestor.options, dfc);
        set!(config.responder, mpr_dest, max_wimm_dest);
        config.requestor.sq_psn = Psn::new(attr.sq_psn.unwrap_or(0));
        config.responder.rq_psn = Psn::new(attr.rq_psn.unwrap_or(0));
        config.requestor.timeout = QpConfig::timeout_from_exponent(attr.timeout.unwrap_or(DEFAULT_TIMEOUT));
        config.requestor.keepalive =
            attr.keepalive_ms.filter(|&ms| ms > 0).map(|ms| Span::from_millis(ms.into()));
        config.requestor.peer_waits = attr.receive_wait_ms.is_some_and(|ms| ms > 0);
        config.acks_immediates = self.config.choices.acks_immediates;
        Ok(config)
    }

    /// The most payload bytes per packet that fit the interface of every port; in SRv6 mode with the longest headers.
    pub fn largest_path_mtu(&self) -> usize {
        let outside = if self.config.entropy.is_srv6() { encap::overhead(true) } else { 0 };
        let fits = |port: &Port| {
            let around = outside + if port.addr.is_ipv4() { ip::IPV4_LEN } else { ip::IPV6_LEN };
            let mtu = port.rx.socket().mtu_of(port.interface.as_deref()?)?;
            Some(mtu.saturating_sub(ENVELOPE + around))
        };
        self.egress.net.ports.iter().filter_map(fits).min().unwrap_or(usize::from(DEFAULT_PATH_MTU))
    }

    /// Bytes of headers outside the IP header that encloses UDP, on the longest of these paths.
    fn outside_inner_ip(&self, paths: &Paths) -> usize {
        let route = |(_, number)| self.egress.net.paths[usize::from(number)].route();
        paths.iter().filter_map(route).map(|r| encap::overhead(r.segment.is_some())).max().unwrap_or(0)
    }

    /// Whether packets of this path MTU, with `outside` bytes outside their IP header, fit the interfaces of the first
    /// `ports` ports.
    fn check_mtu(&self, path_mtu: u16, ports: usize, outside: usize) -> Result<()> {
        for port in self.egress.net.ports.iter().take(ports) {
            let around = outside + if port.addr.is_ipv4() { ip::IPV4_LEN } else { ip::IPV6_LEN };
            let needed = usize::from(path_mtu) + ENVELOPE + around;
            let Some(interface) = &port.interface else { continue };
            if let Some(mtu) = port.rx.socket().mtu_of(interface).filter(|&mtu| mtu < needed) {
                let most = mtu.saturating_sub(ENVELOPE + around) / 4 * 4;
                return Err(Error::invalid(format!(
                    "path_mtu {path_mtu} needs an interface MTU of {needed}, {interface} has {mtu}: at most {most}"
                )));
            }
        }
        Ok(())
    }
}

/// The device's own congestion control for packets of this size.
pub(super) fn default_cc(config: &DeviceConfig, path_mtu: u16) -> CcProfileConfig {
    let base_rtt = span(config.network.base_rtt);
    let cc = match config.network.default_window() {
        Some(bytes) => CcProfile::FixedWindow(bytes),
        None => CcProfile::nscc(config.network.link_rate_bps, base_rtt, path_mtu, config.network.trims),
    };
    CcProfileConfig { cc: Arc::new(cc), model: PathModel::new(base_rtt, config.network.trims) }
}

/// A configured duration as the transport counts it.
pub(super) fn span(duration: Duration) -> Span {
    Span::from_nanos(duration.as_nanos().min(1 << 53) as u64)
}
