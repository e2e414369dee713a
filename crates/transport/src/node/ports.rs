//! Ports of this node and of its peers, and the port status updates (docs/spec/transport.md, "Probes and port status").

use openmrc_wire::EndpointOp;
use serde::{Deserialize, Serialize};

use super::host::NodeHost;
use super::ids::PeerId;
use super::inquiry::{Answer, Inquiry, Known, Step, is_reflected};
use super::limits::Bucket;
use super::port_mask::PortMaskBase;
use super::requests::{Requests, endpoint_request};
use super::route::Route;
use super::stats::NodeStats;
use crate::api::{PortSet, TrafficClass};
use crate::time::{Span, Time};

/// An unanswered port status update is sent this many times; the interval starts at one round trip and doubles
/// \[choice\]. A peer that misses all of them learns the status from the traffic.
const MAX_TRANSMISSIONS: u8 = 8;

/// A port status update that awaits its answer.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Update {
    id: u16,
    begun: Time,
    due: Time,
    interval: Span,
    sent: u8,
}

/// What this node knows about the ports of a peer.
#[derive(Serialize, Deserialize)]
struct Peer {
    id: PeerId,
    /// Number of queue pairs connected to it, plus one if the driver has added it.
    users: u32,
    /// Ports at which it can be reached.
    ports: PortSet,
    /// Ports that are up according to the peer.
    up: PortSet,
    /// First bit of its masks, once one of them has shown it. Used where updates are believed.
    mask_base: Option<PortMaskBase>,
    /// Request id of its latest update, and the time of its arrival.
    heard: Option<u16>,
    heard_at: Time,
    update: Option<Update>,
    inquiry: Inquiry,
    /// Answers to its requests.
    answers: Bucket,
}

impl Peer {
    fn known(&self, own: PortSet) -> Known {
        Known { usable: self.ports.and(own), up: self.up }
    }

    /// These of its ports are in question.
    fn question(&mut self, now: Time, ports: PortSet) {
        self.inquiry.question(now, ports.and(self.ports));
    }
}

/// When a peer's port status update takes effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PortTrust {
    /// At once, unless it leaves no plane: in a closed network, such as a simulated one, nobody forges updates.
    AtOnce,
    /// When requests to the ports in question have confirmed it.
    Confirmed,
}

/// The ports of this node and of every peer.
#[derive(Serialize, Deserialize)]
pub(super) struct Ports {
    trust: PortTrust,
    mask_base: PortMaskBase,
    /// Time that an answer may take.
    grace: Span,
    all: PortSet,
    own: PortSet,
    /// Ports of at least one peer are down, or in question.
    watching: bool,
    /// Time at which the next update is due.
    due: Time,
    /// Sorted by id.
    peers: Vec<Peer>,
}

impl Ports {
    /// Starts with all ports up. An answer may take up to `grace`.
    pub fn new(all: PortSet, trust: PortTrust, mask_base: PortMaskBase, grace: Span) -> Self {
        Ports { trust, mask_base, grace, all, own: all, watching: false, due: Time::NEVER, peers: Vec::new() }
    }

    /// The ports of this node that are up.
    pub fn own(&self) -> PortSet {
        self.own
    }

    fn find(&self, peer: PeerId) -> Result<usize, usize> {
        self.peers.binary_search_by_key(&peer, |p| p.id)
    }

    /// A queue pair or the driver starts to use a peer that is reached at these ports.
    pub fn acquire(&mut self, now: Time, peer: PeerId, ports: PortSet, requests: &mut Requests) {
        let index = match self.find(peer) {
            Ok(index) => index,
            Err(index) => {
                if self.peers.is_empty() {
                    self.peers.reserve_exact(1);
                }
                let new = Peer {
                    id: peer,
                    users: 0,
                    ports,
                    up: ports,
                    mask_base: None,
                    heard: None,
                    heard_at: now,
                    update: None,
                    inquiry: Inquiry::new(self.grace),
                    answers: Bucket::default(),
                };
                self.peers.insert(index, new);
                if self.own != self.all {
                    self.announce(now, index, Span::ZERO, requests);
                }
                index
            }
        };
        self.peers[index].users += 1;
    }

    /// The opposite of [`Self::acquire`]. Returns whether the peer is removed.
    pub fn release(&mut self, peer: PeerId) -> bool {
        let Ok(index) = self.find(peer) else { return false };
        self.peers[index].users -= 1;
        let gone = self.peers[index].users == 0;
        if gone {
            self.peers.remove(index);
            self.find_watched();
        }
        gone
    }

    fn find_watched(&mut self) {
        self.watching = self.peers.iter().any(|p| p.up != p.ports || p.inquiry.is_open());
    }

    /// The ports of a peer that are up, as far as is known.
    pub fn of_peer(&self, peer: PeerId) -> PortSet {
        self.find(peer).map_or(PortSet::EMPTY, |index| self.peers[index].up)
    }

    /// Sets the ports of this node that are up, and announces them to every peer over the remaining ports.
    pub fn set_own(&mut self, now: Time, up: PortSet, rtt: Span, requests: &mut Requests) {
        let came_up = PortSet(up.0 & !self.own.0);
        self.own = up;
        for index in 0..self.peers.len() {
            self.announce(now, index, rtt, requests);
            if self.trust == PortTrust::Confirmed {
                // While the port was down at this end, the peer could not be asked on it.
                let peer = &mut self.peers[index];
                let down = PortSet(came_up.0 & !peer.up.0);
                peer.question(now, down);
            }
        }
    }

    fn announce(&mut self, now: Time, index: usize, rtt: Span, requests: &mut Requests) {
        let interval = rtt.max(Span::from_micros(1));
        self.peers[index].update =
            Some(Update { id: requests.take_id(), begun: now, due: now, interval, sent: 0 });
        self.due = self.due.min(now);
    }

    /// Time at which [`Self::send_due`] must be called.
    #[inline]
    pub fn due(&self) -> Time {
        self.due
    }

    /// Sends the updates and questions that are due. Each repetition of an update uses the next port. Returns the peers
    /// of which other ports are up than before.
    pub fn send_due(
        &mut self,
        now: Time,
        requests: &mut Requests,
        host: &mut impl NodeHost,
        stats: &mut NodeStats,
    ) -> Vec<(PeerId, PortSet)> {
        let mut changes = Vec::new();
        if now < self.due {
            return changes;
        }
        self.due = Time::NEVER;
        let own = Own { ports: self.own, mask: self.mask_base.encode(self.own) };
        for peer in &mut self.peers {
            send_update(peer, now, own, host, stats);
            if ask(peer, now, own, requests, host, stats) {
                changes.push((peer.id, peer.up));
            }
            let update_due = peer.update.map_or(Time::NEVER, |update| update.due);
            self.due = self.due.min(update_due).min(peer.inquiry.due());
        }
        self.find_watched();
        changes
    }

    /// Handles a peer's port status update. Returns its usable ports if they have changed. An update that is not
    /// believed, or that leaves no plane, puts the ports in question of which it says something new: [`Self::send_due`]
    /// asks. Updates of unknown peers and late updates are ignored.
    pub fn on_update(&mut self, now: Time, peer: PeerId, id: u16, mask: u32) -> Option<PortSet> {
        let index = self.find(peer).ok()?;
        let known = &mut self.peers[index];
        let shown = PortMaskBase::shown_by(mask, known.ports);
        let up_from = |base: PortMaskBase| base.decode(mask).and(known.ports);
        if self.trust == PortTrust::Confirmed {
            // The base that another update has shown may be forged: a mask that shows none is read both ways.
            let readings = shown.map_or([PortMaskBase::Zero, PortMaskBase::One], |base| [base; 2]);
            let [one, other] = readings.map(|base| up_from(base).0 ^ known.up.0);
            known.question(now, PortSet(one | other));
            self.due = self.due.min(known.inquiry.due());
            return None;
        }
        let base = shown.or(known.mask_base);
        let up = up_from(base.unwrap_or(self.mask_base));
        known.mask_base = base;
        if up.and(self.own).is_empty() {
            known.question(now, PortSet(up.0 ^ known.up.0));
            self.due = self.due.min(known.inquiry.due());
            return None;
        }
        let is_newer = known.heard.is_none_or(|last| (id.wrapping_sub(last) as i16) > 0);
        if !is_newer {
            return None;
        }
        known.heard = Some(id);
        known.heard_at = now;
        let changed = std::mem::replace(&mut known.up, up) != up;
        self.find_watched();
        changed.then_some(up)
    }

    /// These ports of a peer are in question, unless they are known to be down.
    pub fn question(&mut self, now: Time, peer: PeerId, ports: PortSet) {
        let Ok(index) = self.find(peer) else { return };
        let known = &mut self.peers[index];
        known.question(now, ports.and(known.up));
        self.due = self.due.min(known.inquiry.due());
    }

    /// A peer has answered. Returns whether that was the answer to the latest update or to a question, and its ports if
    /// they have changed.
    pub fn on_answer(&mut self, now: Time, peer: PeerId, id: u16, ticks: u16) -> (bool, Option<PortSet>) {
        let Ok(index) = self.find(peer) else { return (false, None) };
        let peer = &mut self.peers[index];
        if peer.update.is_some_and(|update| update.id == id && is_reflected(ticks, update.begun, now)) {
            peer.update = None;
            return (true, None);
        }
        let answer = peer.inquiry.answered(now, id, ticks, peer.up);
        self.due = self.due.min(peer.inquiry.due());
        let port = match answer {
            Answer::Unexpected => return (false, None),
            Answer::Expected => return (true, None),
            Answer::Returned(port) => port,
        };
        peer.up = peer.up.with(port);
        let up = peer.up;
        self.find_watched();
        (true, Some(up))
    }

    /// Takes an answer to a request of a peer at this rate per second. `None` if the node is not a peer.
    pub fn take_answer(&mut self, now: Time, peer: PeerId, per_second: u32) -> Option<bool> {
        let index = self.find(peer).ok()?;
        Some(self.peers[index].answers.take(now, per_second))
    }

    /// Whether [`Self::heard_on`] must be told of traffic: ports of at least one peer are down, or in question.
    #[inline]
    pub fn watches_traffic(&self) -> bool {
        self.watching
    }

    /// A valid packet of a peer has arrived on a port. A port in question is up then. If the peer reported more than
    /// the grace time ago that this port is down, the port is taken as up again, or asked whether it is: returns the
    /// peer's ports after a change.
    pub fn heard_on(&mut self, now: Time, peer: PeerId, port: u8) -> Option<PortSet> {
        let index = self.find(peer).ok()?;
        let known = &mut self.peers[index];
        known.inquiry.heard(now, port, known.up);
        let contradicts = known.ports.contains(port) && !known.up.contains(port);
        if !contradicts || now.since(known.heard_at) <= self.grace {
            return None;
        }
        if self.trust == PortTrust::Confirmed {
            known.heard_at = now;
            known.question(now, PortSet::one(port));
            self.due = self.due.min(known.inquiry.due());
            return None;
        }
        known.up = known.up.with(port);
        let up = known.up;
        self.find_watched();
        Some(up)
    }
}

/// The ports of this node that are up, and how they are written in a port status update.
#[derive(Clone, Copy)]
struct Own {
    ports: PortSet,
    mask: u32,
}

/// Sends the port status update to a peer, if it is due.
fn send_update(peer: &mut Peer, now: Time, own: Own, host: &mut impl NodeHost, stats: &mut NodeStats) {
    let Some(update) = &mut peer.update else { return };
    if now < update.due {
        return;
    }
    if update.sent == MAX_TRANSMISSIONS {
        peer.update = None;
        return;
    }
    if !own.ports.is_empty() {
        let turn = u32::from(update.sent) % own.ports.len();
        let port = own.ports.iter().nth(turn as usize).unwrap_or(0);
        let request = endpoint_request(now, update.id, EndpointOp::PortStatusUpdate, own.mask);
        stats.port_updates_sent += 1;
        host.transmit_request(peer.id, Route::Port(port), request, TrafficClass::Control);
    }
    update.sent += 1;
    update.due = now + update.interval;
    update.interval = update.interval.times(2);
}

/// Asks a peer on the ports in question, if that is due. Every device answers port status updates, so an update of this
/// node's own ports is the question. Returns whether the inquiry has ended and ports of the peer are down.
fn ask(
    peer: &mut Peer,
    now: Time,
    own: Own,
    requests: &mut Requests,
    host: &mut impl NodeHost,
    stats: &mut NodeStats,
) -> bool {
    match peer.inquiry.advance(now, peer.known(own.ports)) {
        Step::Wait => false,
        Step::Ask(ports) => {
            for port in ports.iter() {
                let id = requests.take_id();
                peer.inquiry.asked(now, port, id);
                let request = endpoint_request(now, id, EndpointOp::PortStatusUpdate, own.mask);
                stats.ports_asked += 1;
                host.transmit_request(peer.id, Route::Port(port), request, TrafficClass::Control);
            }
            false
        }
        Step::Down(ports) => {
            let up = PortSet(peer.up.0 & !ports.0);
            let changed = up != peer.up;
            stats.port_updates_applied += u64::from(changed);
            peer.up = up;
            changed
        }
    }
}
