//! Ports of this node and of its peers, and the port status updates (spec: transport, "Probes and port status").

use openmrc_wire::EndpointOp;

use super::host::NodeHost;
use super::requests::{Requests, endpoint_request};
use super::route::Route;
use super::stats::NodeStats;
use super::table::PeerId;
use crate::api::{PortSet, TrafficClass};
use crate::time::{Span, Time};

/// An unanswered port status update is sent this many times; the interval starts at one round trip and doubles
/// \[choice\]. A peer that misses all of them learns the status from the traffic.
const MAX_TRANSMISSIONS: u8 = 8;

/// A port status update that awaits its answer.
#[derive(Clone, Copy)]
struct Update {
    id: u16,
    due: Time,
    interval: Span,
    sent: u8,
}

/// What this node knows about the ports of a peer.
struct Peer {
    id: PeerId,
    /// Number of queue pairs connected to it, plus one if the driver has added it.
    users: u32,
    /// Ports at which it can be reached.
    ports: PortSet,
    /// Ports that are up according to the peer.
    up: PortSet,
    /// Request id of its latest update, and the time of its arrival.
    heard: Option<u16>,
    heard_at: Time,
    update: Option<Update>,
}

/// The ports of this node and of every peer.
pub(super) struct Ports {
    all: PortSet,
    own: PortSet,
    /// At least one peer has reported that not all of its ports are up.
    restricted: bool,
    /// Time at which the next update is due.
    due: Time,
    /// Sorted by id.
    peers: Vec<Peer>,
}

impl Ports {
    /// Starts with all ports up.
    pub fn new(all: PortSet) -> Self {
        Ports { all, own: all, restricted: false, due: Time::NEVER, peers: Vec::new() }
    }

    /// The ports of this node that are up.
    pub fn own(&self) -> PortSet {
        self.own
    }

    fn place(&self, peer: PeerId) -> Result<usize, usize> {
        self.peers.binary_search_by_key(&peer, |p| p.id)
    }

    /// A queue pair or the driver starts to use a peer that is reached at these ports.
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

    /// The opposite of [`Self::acquire`]. Returns whether the peer is removed.
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

    /// The ports of a peer that are up, as far as is known.
    pub fn of_peer(&self, peer: PeerId) -> PortSet {
        self.place(peer).map_or(PortSet::EMPTY, |place| self.peers[place].up)
    }

    /// Sets the ports of this node that are up, and announces them to every peer over the remaining ports.
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

    /// Time at which [`Self::send_due`] must be called.
    #[inline]
    pub fn due(&self) -> Time {
        self.due
    }

    /// Sends the updates that are due. Each repetition uses the next port.
    pub fn send_due(&mut self, now: Time, host: &mut impl NodeHost, stats: &mut NodeStats) {
        if now < self.due {
            return;
        }
        self.due = Time::NEVER;
        let ports: Vec<u8> = self.own.iter().collect();
        for peer in &mut self.peers {
            let Some(update) = &mut peer.update else { continue };
            if now >= update.due {
                if update.sent == MAX_TRANSMISSIONS {
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

    /// Handles a peer's port status update. Returns its usable ports if they have changed. Updates of unknown peers,
    /// late updates and updates that leave no port are ignored.
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

    /// A peer has answered an update. Returns whether it is the latest one.
    pub fn on_answer(&mut self, peer: PeerId, id: u16) -> bool {
        let Ok(place) = self.place(peer) else { return false };
        let update = &mut self.peers[place].update;
        let is_latest = update.is_some_and(|update| update.id == id);
        if is_latest {
            *update = None;
        }
        is_latest
    }

    /// Whether at least one peer has reported that not all of its ports are up.
    #[inline]
    pub fn any_peer_restricted(&self) -> bool {
        self.restricted
    }

    /// A valid packet of a peer has arrived on a port. If the peer reported more than `grace` ago that this port is
    /// down, the port is taken as up again: returns the peer's ports after the change.
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
