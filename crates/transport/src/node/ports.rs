//! Ports of this node and of its peers, and the port status updates that tell of them (spec: transport, "Probes and port
//! status").

use openmrc_wire::EndpointOp;

use super::host::NodeHost;
use super::requests::{Requests, endpoint_request};
use super::route::Route;
use super::stats::NodeStats;
use super::table::PeerId;
use crate::api::{PortSet, TrafficClass};
use crate::time::{Span, Time};

/// A port status update that is not answered is sent this often, its interval doubling from a round trip on \[choice\]. A peer
/// that misses all of them learns from the traffic.
const MOST_SENT: u8 = 8;

/// A port status update that is not answered yet.
#[derive(Clone, Copy)]
struct Update {
    id: u16,
    due: Time,
    interval: Span,
    sent: u8,
}

/// What is known of a peer's ports.
struct Peer {
    id: PeerId,
    /// Queue pairs connected to it, and whether the driver has added it.
    users: u32,
    /// Ports at which it can be reached.
    ports: PortSet,
    /// Ports that are up by its own word.
    up: PortSet,
    /// Request id of its latest update, and when that came.
    heard: Option<u16>,
    heard_at: Time,
    update: Option<Update>,
}

/// Ports of this node, and of every peer.
pub(super) struct Ports {
    all: PortSet,
    own: PortSet,
    /// Some peer says that not all of its ports are up.
    restricted: bool,
    /// When the next update is to be sent.
    due: Time,
    /// In the order of their ids.
    peers: Vec<Peer>,
}

impl Ports {
    /// Ports that are all up.
    pub fn new(all: PortSet) -> Self {
        Ports { all, own: all, restricted: false, due: Time::NEVER, peers: Vec::new() }
    }

    /// Ports that are up here.
    pub fn own(&self) -> PortSet {
        self.own
    }

    fn place(&self, peer: PeerId) -> Result<usize, usize> {
        self.peers.binary_search_by_key(&peer, |p| p.id)
    }

    /// A queue pair, or the driver, has to do with a peer that is reached at these ports.
    pub fn acquire(&mut self, now: Time, peer: PeerId, ports: PortSet, requests: &mut Requests) {
        let place = match self.place(peer) {
            Ok(place) => place,
            Err(place) => {
                if self.peers.is_empty() {
                    self.peers.reserve_exact(1);
                }
                let new =
                    Peer { id: peer, users: 0, ports, up: ports, heard: None, heard_at: now, update: None };
                self.peers.insert(place, new);
                if self.own != self.all {
                    self.announce(now, place, Span::ZERO, requests);
                }
                place
            }
        };
        self.peers[place].users += 1;
    }

    /// It has no more to do with it. Says whether the peer is forgotten.
    pub fn release(&mut self, peer: PeerId) -> bool {
        let Ok(place) = self.place(peer) else { return false };
        self.peers[place].users -= 1;
        let gone = self.peers[place].users == 0;
        if gone {
            self.peers.remove(place);
            self.find_restriction();
        }
        gone
    }

    fn find_restriction(&mut self) {
        self.restricted = self.peers.iter().any(|p| p.up != p.ports);
    }

    /// Ports of a peer that are up as far as is known.
    pub fn of_peer(&self, peer: PeerId) -> PortSet {
        self.place(peer).map_or(PortSet::EMPTY, |place| self.peers[place].up)
    }

    /// Ports that are up here from now on. Every peer is told on those that are left.
    pub fn set_own(&mut self, now: Time, up: PortSet, rtt: Span, requests: &mut Requests) {
        self.own = up;
        for place in 0..self.peers.len() {
            self.announce(now, place, rtt, requests);
        }
    }

    fn announce(&mut self, now: Time, place: usize, rtt: Span, requests: &mut Requests) {
        let interval = rtt.max(Span::from_micros(1));
        self.peers[place].update = Some(Update { id: requests.take_id(), due: now, interval, sent: 0 });
        self.due = self.due.min(now);
    }

    /// When [`Self::send_due`] is to be called.
    #[inline]
    pub fn due(&self) -> Time {
        self.due
    }

    /// Sends the updates that are due, each on the next port in turn.
    pub fn send_due(&mut self, now: Time, host: &mut impl NodeHost, stats: &mut NodeStats) {
        if now < self.due {
            return;
        }
        self.due = Time::NEVER;
        let ports: Vec<u8> = self.own.iter().collect();
        for peer in &mut self.peers {
            let Some(update) = &mut peer.update else { continue };
            if now >= update.due {
                if update.sent == MOST_SENT {
                    peer.update = None;
                    continue;
                }
                if !ports.is_empty() {
                    let port = ports[usize::from(update.sent) % ports.len()];
                    let request = endpoint_request(now, update.id, EndpointOp::PortStatusUpdate, self.own);
                    stats.port_updates_sent += 1;
                    host.transmit_request(peer.id, Route::Port(port), request, TrafficClass::Control);
                }
                update.sent += 1;
                update.due = now + update.interval;
                update.interval = update.interval.times(2);
            }
            self.due = self.due.min(update.due);
        }
    }

    /// A peer says which of its ports are up. Its usable ports, if that changes them. Unknown peers, late updates and one
    /// that leaves no port at all change nothing.
    pub fn on_update(&mut self, now: Time, peer: PeerId, id: u16, mask: PortSet) -> Option<PortSet> {
        let place = self.place(peer).ok()?;
        let known = &mut self.peers[place];
        let is_newer = known.heard.is_none_or(|last| (id.wrapping_sub(last) as i16) > 0);
        let up = mask.and(known.ports);
        if !is_newer || up.is_empty() {
            return None;
        }
        known.heard = Some(id);
        known.heard_at = now;
        let changed = std::mem::replace(&mut known.up, up) != up;
        self.find_restriction();
        changed.then_some(up)
    }

    /// A peer has answered an update. Says whether it is the latest.
    pub fn on_answer(&mut self, peer: PeerId, id: u16) -> bool {
        let Ok(place) = self.place(peer) else { return false };
        let update = &mut self.peers[place].update;
        let is_latest = update.is_some_and(|update| update.id == id);
        if is_latest {
            *update = None;
        }
        is_latest
    }

    /// Whether some peer says that not all of its ports are up.
    #[inline]
    pub fn any_peer_restricted(&self) -> bool {
        self.restricted
    }

    /// A good packet of a peer has come in on a port. If the peer said longer than `grace` ago that the port is down, this
    /// proves more than its word: returns the ports that it has now.
    pub fn heard_on(&mut self, now: Time, peer: PeerId, port: u8, grace: Span) -> Option<PortSet> {
        let place = self.place(peer).ok()?;
        let known = &mut self.peers[place];
        let contradicts = known.ports.contains(port) && !known.up.contains(port);
        if !contradicts || now.since(known.heard_at) <= grace {
            return None;
        }
        known.up = known.up.with(port);
        let up = known.up;
        self.find_restriction();
        Some(up)
    }
}
