//! A node: everything around its queue pairs, sans-IO like them (docs/spec/transport.md; docs/spec/congestion.md, "QP
//! scheduling").
//!
//! A driver - the simulator in virtual time, the software NIC in real time - passes in packets and the time, polls data
//! packets for the ports that are free, and implements [`NodeHost`]. Scheduling, timers, receive pressure and port
//! status are the node's task, never the driver's:
//!
//! ```text
//! post_send(slot, wr) ──> ┌──────┐ ──poll_transmit(now, free ports) -> (slot, Transmit)
//! handle(place, packet) ─> │ Node │ ──NodeHost: place / feedback / completions / events / endpoint requests
//! handle_timeout(now) ───> └──────┘ ──poll_timeout -> next deadline
//! ```
//!
//! | file | subject |
//! |---|---|
//! | `config` | configuration: where hardware and software differ |
//! | `table`, `ids` | queue pairs and their numbers; names of queue pairs and peers |
//! | `ready`, `timers` | which queue pair sends next, and deadlines |
//! | `ports`, `requests`, `route` | ports of this node and its peers, port status updates, EV probes |
//! | `inquiry`, `limits` | asking a peer which ports are up; how many requests are answered |
//! | `pressure` | how a receiver slows down its senders |
//! | `mtu_proof` | proof of the path MTU |
//! | `probe_budget` | how many probes of condemned paths may be sent |
//! | `receive_waits` | messages that wait for a receive |
//! | `lingering` | destroyed queue pairs that still answer their peers |
//! | `host` | the interface that a driver implements |

mod config;
mod host;
mod ids;
mod inquiry;
mod limits;
mod lingering;
mod mtu_proof;
mod port_mask;
mod ports;
mod pressure;
mod probe_budget;
mod ready;
mod receive_waits;
mod requests;
mod route;
mod stats;
mod table;
mod timers;

use serde::{Deserialize, Serialize};
use std::sync::Arc;

use openmrc_wire::{Body, EndpointOp, Packet};

pub use config::NodeConfig;
pub use host::{NodeHost, ReceiveQueueEmpty};
pub use ids::{PeerId, QpId, Slot};
pub use limits::RequestRates;
pub use lingering::linger_time;
pub use mtu_proof::MtuProgress;
pub use port_mask::PortMaskBase;
pub use ports::PortTrust;
pub use pressure::{Buffers, DestinationControl, PressureConfig};
pub use requests::MAX_EV_PROBES;
pub use route::{ProbeTimeout, Route};
pub use stats::NodeStats;
pub use table::{Numbers, TableFull};

use self::host::{Allowances, QpHost};
use self::limits::UnknownNodes;
use self::lingering::Lingering;
use self::mtu_proof::{MtuProofs, Step};
use self::ports::Ports;
use self::pressure::{Arrived, ReceivePressure};
use self::probe_budget::ProbeBudget;
use self::ready::ReadyRing;
use self::receive_waits::ReceiveWaits;
use self::requests::{Question, Requests, endpoint_response};
use self::table::{Entry, Table};
use self::timers::{Scheduled, Timers};
use crate::api::{
    Fatal, Host, PortSet, PostError, Readiness, Received, TrafficClass, Transmit, Transport, Trim,
    WorkRequest,
};
use crate::time::{Span, Time};

/// A data packet to send.
#[derive(Clone, Copy, Debug)]
pub struct NodeTransmit {
    /// Its queue pair.
    pub qp: QpId,
    /// The packet.
    pub transmit: Transmit,
    /// This packet is the last one of its queue pair's turn.
    pub ends_turn: bool,
}

/// A node and its queue pairs. What packets need comes first: the cache lines behind it are seldom loaded.
#[repr(C)]
#[derive(Serialize, Deserialize)]
pub struct Node<Q> {
    ready: ReadyRing,
    timers: Timers,
    #[serde(skip, default = "NodeConfig::none")]
    config: Arc<NodeConfig>,
    allowances: Allowances,
    pressure: ReceivePressure,
    ports: Ports,
    requests: Requests,
    lingering: Lingering,
    mtu_proofs: MtuProofs,
    table: Table<Q>,
    stats: NodeStats,
    unknown_nodes: UnknownNodes,
}

impl<Q: Transport> Node<Q> {
    /// A node without queue pairs. All its ports are up.
    pub fn new(config: &Arc<NodeConfig>) -> Self {
        Node {
            config: Arc::clone(config),
            table: Table::default(),
            ready: ReadyRing::default(),
            timers: Timers::default(),
            ports: Ports::new(
                config.ports,
                config.port_trust,
                config.port_mask_base,
                config.base_rtt + config.target_qdelay,
            ),
            requests: Requests::new(config.seed, config.numbers.key),
            lingering: Lingering::new(),
            mtu_proofs: MtuProofs::new(),
            unknown_nodes: UnknownNodes::new(config.request_rates, config.seed),
            pressure: ReceivePressure::new(&config.pressure),
            allowances: Allowances { probe_budget: ProbeBudget::new(), receive_waits: ReceiveWaits::new() },
            stats: NodeStats::default(),
        }
    }

    /// A node that was read from a checkpoint gets back what is not part of one: its settings. `rejoin` does the same
    /// for each queue pair, which it gets with its peer.
    pub fn rejoin(&mut self, config: &Arc<NodeConfig>, mut rejoin: impl FnMut(PeerId, &mut Q)) {
        self.config = Arc::clone(config);
        for (peer, qp) in self.table.queue_pairs() {
            rejoin(peer, qp);
        }
    }

    /// Counters.
    pub fn stats(&self) -> NodeStats {
        self.stats
    }

    // --- queue pairs -----------------------------------------------------------------------------------------------

    /// Reserves a slot for a queue pair that is not connected yet; `context` is the driver's own name for it.
    ///
    /// # Errors
    /// [`TableFull`] if all slots are taken.
    pub fn reserve(&mut self, context: u32) -> Result<Slot, TableFull> {
        self.table.reserve(&self.config.numbers, self.config.seed, context)
    }

    /// The number of a queue pair on the wire.
    pub fn number(&self, slot: Slot) -> u32 {
        self.table.number(&self.config.numbers, slot)
    }

    /// The slot of the queue pair with this number.
    #[inline]
    pub fn find(&self, number: u32) -> Option<Slot> {
        self.table.find(&self.config.numbers, number)
    }

    /// Puts a queue pair into a reserved slot. Its peer is reached at `peer_ports`.
    pub fn connect(&mut self, now: Time, slot: Slot, peer: PeerId, peer_ports: PortSet, mut qp: Q) {
        self.ports.acquire(now, peer, peer_ports, &mut self.requests);
        let (own, up) = (self.ports.own(), self.ports.of_peer(peer));
        if up.and(own) != PortSet::first(PortSet::MAX_PORTS) {
            qp.set_ports_up(now, own, up);
        }
        if let Some(entry) = self.table.get_mut(slot) {
            entry.peer = peer;
            entry.qp = Some(qp);
            entry.receiving = self.pressure.begin();
            self.settle(slot);
        }
    }

    /// Removes the queue pair of a slot, for the transition to RESET. The slot stays reserved.
    pub fn disconnect(&mut self, slot: Slot) -> Option<Q> {
        self.allowances.receive_waits.forget(slot);
        self.lingering.forget(slot);
        self.mtu_proofs.forget(slot);
        let entry = self.table.get_mut(slot)?;
        entry.scheduled = Scheduled::NEVER;
        let (waiting, peer, qp) = (std::mem::take(&mut entry.waiting), entry.peer, entry.qp.take()?);
        if waiting {
            self.ready.remove(slot);
        }
        if self.ports.release(peer) {
            self.requests.forget(peer);
        }
        Some(qp)
    }

    /// Frees a slot and removes its queue pair. The number is not reused soon.
    pub fn release(&mut self, slot: Slot) -> Option<Q> {
        let qp = self.disconnect(slot);
        self.table.release(slot);
        qp
    }

    /// The application has destroyed a queue pair. What is outstanding is dropped without completions, and feedback that
    /// is owed is sent. For `linger` ([`linger_time`]) the queue pair still answers duplicates and probes of its peer;
    /// then it is removed, its slot becomes free, and [`NodeHost::lingered`] is called.
    pub fn retire(&mut self, now: Time, slot: Slot, linger: Span, host: &mut impl NodeHost) {
        if self.update_with(now, slot, host, |qp, host| qp.retire(now, host)).is_some() {
            self.mtu_proofs.forget(slot);
            self.lingering.begin(slot, now + linger);
        }
    }

    /// Proves that packets of the path MTU reach the peer of a queue pair, which has sent nothing yet: sends one on each
    /// port, several times if it is not answered, for about a second. A port on which the peer answers nothing at all is
    /// not waited for once it is known to be down; the peer is asked about it. Paths that the controller has switched off
    /// are left out. [`NodeHost::mtu_proven`] tells the end, which comes early if the queue pair goes to ERROR.
    /// Returns whether the queue pair can send.
    pub fn prove_mtu(&mut self, now: Time, slot: Slot, host: &mut impl NodeHost) -> bool {
        let Some(question) = self.qp(slot).and_then(Transport::mtu_question) else { return false };
        self.mtu_proofs.begin(now, slot, question);
        self.continue_mtu_proofs(now, host);
        true
    }

    /// The queue pair of a slot.
    #[inline]
    pub fn qp(&self, slot: Slot) -> Option<&Q> {
        self.table.get(slot)?.qp.as_ref()
    }

    /// The peer of a connected queue pair.
    #[inline]
    pub fn peer(&self, slot: Slot) -> Option<PeerId> {
        self.table.get(slot).filter(|entry| entry.qp.is_some()).map(|entry| entry.peer)
    }

    /// The driver's own name for the queue pair of a slot.
    pub fn context(&self, slot: Slot) -> Option<u32> {
        self.table.get(slot).map(|entry| entry.id(slot).context)
    }

    /// Every connected queue pair.
    pub fn iter(&self) -> impl Iterator<Item = (Slot, &Q)> {
        self.table.iter().filter_map(|(slot, entry)| Some((slot, entry.qp.as_ref()?)))
    }

    /// Bytes at the beginning of a node that packets need.
    pub const PACKET_BYTES: usize = std::mem::offset_of!(Self, stats);

    /// Loads a slot into the cache.
    #[inline(always)]
    pub fn prefetch(&self, slot: Slot) {
        self.table.prefetch(slot);
    }

    /// Changes a queue pair, then updates its turn and its deadline.
    pub fn update<R>(&mut self, slot: Slot, change: impl FnOnce(&mut Q) -> R) -> Option<R> {
        let result = change(self.table.get_mut(slot)?.qp.as_mut()?);
        self.settle(slot);
        Some(result)
    }

    /// Posts a message on a queue pair.
    ///
    /// # Errors
    /// [`PostError`]; the message was not taken and nothing has changed.
    pub fn post_send(&mut self, now: Time, slot: Slot, wr: WorkRequest) -> Result<(), PostError> {
        self.update(slot, |qp| qp.post_send(now, wr)).unwrap_or(Err(PostError::NotReady))
    }

    /// Like [`Node::update`], for changes during which the queue pair calls its host.
    pub fn update_with<R>(
        &mut self,
        now: Time,
        slot: Slot,
        host: &mut impl NodeHost,
        change: impl FnOnce(&mut Q, &mut dyn Host) -> R,
    ) -> Option<R> {
        let entry = self.table.get_mut(slot)?;
        let id = entry.id(slot);
        let allowances = &mut self.allowances;
        let result = change(entry.qp.as_mut()?, &mut QpHost { qp: id, host, now, allowances });
        self.settle(slot);
        Some(result)
    }

    /// Sends a queue pair to ERROR.
    pub fn abort(&mut self, now: Time, slot: Slot, why: Fatal, host: &mut impl NodeHost) {
        self.update_with(now, slot, host, |qp, host| qp.abort(now, why, host));
    }

    /// Sets how long a message with immediate may wait for a receive at a queue pair; zero, the default, refuses it at
    /// once. [`Node::disconnect`] ends the setting.
    pub fn set_receive_wait(&mut self, slot: Slot, longest: Span) {
        self.allowances.receive_waits.set(slot, longest);
    }

    /// Receives were posted: the message that waits for one is offered again.
    pub fn receives_posted(&mut self, now: Time, slot: Slot, host: &mut impl NodeHost) {
        self.update_with(now, slot, host, |qp, host| qp.receives_posted(now, host));
    }

    // --- packets ---------------------------------------------------------------------------------------------------

    /// Handles a packet of `bytes` on the wire from the peer of this queue pair. Its iCRC must be correct, or the
    /// packet trimmed. Returns whether the slot holds a queue pair.
    #[inline]
    pub fn handle(
        &mut self,
        now: Time,
        slot: Slot,
        received: &Received,
        bytes: u32,
        host: &mut impl NodeHost,
    ) -> bool {
        let Some(entry) = self.table.get_mut(slot) else { return false };
        let id = entry.id(slot);
        let Entry { qp: Some(qp), waiting, scheduled, receiving, .. } = entry else { return false };
        let arrived = Arrived {
            is_data: received.packet.is_data(),
            is_probe: matches!(received.packet.body, Body::Probe(_)),
            bytes,
            refused: received.trim == Some(Trim::LastHop),
        };
        self.pressure.on_packet(now, slot, receiving, qp, &arrived);
        if let Body::Sack(sack) = &received.packet.body {
            self.mtu_proofs.on_sack(now, slot, sack);
        }
        qp.handle_packet(now, received, &mut QpHost { qp: id, host, now, allowances: &mut self.allowances });
        self.timers.schedule(scheduled, qp.poll_timeout(), slot);
        offer_turn(&mut self.ready, qp, waiting, slot);
        if self.ports.watches_traffic()
            && received.trim.is_none()
            && let Some(up) = self.ports.heard_on(now, id.peer, received.port)
        {
            self.stats.ports_contradicted += 1;
            self.peer_ports_changed(now, id.peer, up, host);
        }
        true
    }

    /// A receive buffer was full and packets were dropped. Must be called before the packets behind them are handled,
    /// so that their SACKs already slow the senders down.
    pub fn overflowed(&mut self, now: Time, host: &mut impl NodeHost) {
        self.stats.overflows += 1;
        self.pressure.overflowed(now, || host.receive_buffers());
    }

    /// Handles an endpoint packet with a correct iCRC. Requests of any node are answered, up to a rate; port status is
    /// accepted only from a peer. Returns whether the packet was valid.
    pub fn handle_endpoint(
        &mut self,
        now: Time,
        peer: PeerId,
        received: &Received,
        host: &mut impl NodeHost,
    ) -> bool {
        let Received { packet, ev, port, .. } = *received;
        let id = packet.psn.get() as u16;
        let valid = match &packet.body {
            Body::EndpointRequest(request) => {
                let of_peer = self.ports.take_answer(now, peer, self.config.request_rates.peer);
                if of_peer.unwrap_or_else(|| self.unknown_nodes.allow(now, peer.into())) {
                    self.stats.requests_answered += 1;
                    let response = endpoint_response(packet.psn, request);
                    host.transmit_request(peer, Route::Reply { ev, port }, response, TrafficClass::Control);
                } else {
                    self.stats.requests_limited += 1;
                }
                if request.op == EndpointOp::PortStatusUpdate {
                    if let Some(up) = self.ports.on_update(now, peer, id, request.port_status_mask) {
                        self.stats.port_updates_applied += 1;
                        self.peer_ports_changed(now, peer, up, host);
                    }
                    self.send_port_requests(now, host);
                }
                true
            }
            // By id alone: readings differ on where the answer has its operation.
            Body::EndpointResponse(response) => {
                let (is_expected, up) = self.ports.on_answer(now, peer, id, response.timestamp);
                if let Some(up) = up {
                    self.peer_ports_changed(now, peer, up, host);
                }
                is_expected || self.requests.on_answer(now, peer, id, response.timestamp, host)
            }
            _ => false,
        };
        self.stats.endpoint_invalid += u64::from(!valid);
        valid
    }

    /// The response to a request of a node to which no queue pair is connected, if its rate allows one. `source` is
    /// the driver's name for its address.
    pub fn answer_unknown(&mut self, now: Time, source: u64, packet: &Packet) -> Option<Packet> {
        let Body::EndpointRequest(request) = &packet.body else {
            self.stats.endpoint_invalid += 1;
            return None;
        };
        if !self.unknown_nodes.allow(now, source) {
            self.stats.requests_limited += 1;
            return None;
        }
        self.stats.requests_answered += 1;
        Some(endpoint_response(packet.psn, request))
    }

    /// The next data packet to send on one of the `free` ports, those that can take a packet now. Queue pairs take
    /// turns.
    ///
    /// `None` while [`Node::has_ready`] is true means that every READY queue pair waits for a port that is not free.
    #[inline]
    pub fn poll_transmit(
        &mut self,
        now: Time,
        free: PortSet,
        host: &mut impl NodeHost,
    ) -> Option<NodeTransmit> {
        let free = free.and(self.ports.own());
        let mut refused = 0;
        while let Some(slot) = self.ready.first() {
            if free.is_empty() || refused == self.ready.len() {
                return None;
            }
            let Some(entry) = self.table.get_mut(slot) else {
                self.ready.drop_first();
                continue;
            };
            let id = entry.id(slot);
            let Entry { qp: Some(qp), waiting, scheduled, .. } = entry else {
                self.ready.drop_first();
                continue;
            };
            let was_waiting_for_peer = qp.is_waiting();
            let transmit = qp.poll_transmit(now, free);
            let ready = transmit.is_some() || qp.readiness() == Readiness::Ready;
            if !ready {
                *waiting = false;
                if self.config.feedback_behind_data {
                    qp.report_early(now, &mut QpHost { qp: id, host, now, allowances: &mut self.allowances });
                }
                self.timers.schedule(scheduled, qp.poll_timeout(), slot);
                self.ready.drop_first();
                continue;
            }
            let Some(transmit) = transmit else {
                refused += 1;
                self.timers.schedule(scheduled, qp.poll_timeout(), slot);
                self.ready.end_turn();
                continue;
            };
            self.allowances.probe_budget.count_data_packet();
            // While an answer of the peer is outstanding, sending more does not move any deadline earlier.
            if !was_waiting_for_peer {
                self.timers.schedule(scheduled, qp.poll_timeout(), slot);
            }
            let ends_turn = self.ready.count_sent(self.config.packets_per_turn);
            if ends_turn {
                if self.config.feedback_behind_data {
                    qp.report_early(now, &mut QpHost { qp: id, host, now, allowances: &mut self.allowances });
                }
                self.ready.end_turn();
            }
            return Some(NodeTransmit { qp: id, transmit, ends_turn });
        }
        None
    }

    /// The queue pair that will probably send next.
    #[inline]
    pub fn next_ready(&self) -> Option<Slot> {
        self.ready.first()
    }

    /// Whether any queue pair is READY.
    #[inline]
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    // --- time ------------------------------------------------------------------------------------------------------

    /// Time at which [`Node::handle_timeout`] must be called; [`Time::NEVER`] if not at all. It may be earlier than
    /// necessary.
    #[inline]
    pub fn poll_timeout(&self) -> Time {
        self.timers
            .next()
            .min(self.ports.due())
            .min(self.requests.due())
            .min(self.pressure.due())
            .min(self.allowances.receive_waits.due())
            .min(self.lingering.due())
            .min(self.mtu_proofs.due())
    }

    /// Handles every deadline that has passed. A call at any other time has no effect.
    pub fn handle_timeout(&mut self, now: Time, host: &mut impl NodeHost) {
        self.handle_timeouts(now, usize::MAX, host);
    }

    /// As [`Node::handle_timeout`], for at most `most` queue pairs, the longest overdue first; the others stay due. For
    /// software, which answers late where it has much to do: thousands of queue pairs that ask their peers again,
    /// before the answers that have come are read, would leave no time to read them.
    pub fn handle_timeouts(&mut self, now: Time, most: usize, host: &mut impl NodeHost) {
        for _ in 0..most {
            let Some((due, slot)) = self.timers.pop_due(now) else { break };
            let Some(entry) = self.table.get_mut(slot) else { continue };
            if !entry.scheduled.expire(due) {
                continue;
            }
            let id = entry.id(slot);
            let Entry { qp: Some(qp), waiting, scheduled, receiving, .. } = entry else { continue };
            if qp.poll_timeout() <= now {
                self.pressure.before_report(receiving, qp);
                qp.handle_timeout(now, &mut QpHost { qp: id, host, now, allowances: &mut self.allowances });
            }
            // The next deadline is at least 1 ps later, so that one queue pair cannot keep this call from returning.
            self.timers.schedule(scheduled, qp.poll_timeout().max(now + Span(1)), slot);
            offer_turn(&mut self.ready, qp, waiting, slot);
        }
        self.send_port_requests(now, host);
        if self.requests.due() <= now {
            self.requests.expire(now, host, &mut self.stats);
        }
        if self.pressure.due() <= now {
            self.pressure.look(now, &mut self.table, || host.receive_buffers());
        }
        if self.allowances.receive_waits.due() <= now {
            self.refuse_overdue(now, host);
        }
        if self.lingering.due() <= now {
            self.end_lingering(now, host);
        }
        if self.mtu_proofs.due() <= now {
            self.continue_mtu_proofs(now, host);
        }
    }

    /// Goes on with the proofs that are due.
    #[cold]
    fn continue_mtu_proofs(&mut self, now: Time, host: &mut impl NodeHost) {
        while let Some(slot) = self.mtu_proofs.next(now) {
            let Some(entry) = self.table.get(slot) else { return self.mtu_proofs.forget(slot) };
            let id = entry.id(slot);
            let usable = self.ports.own().and(self.ports.of_peer(id.peer));
            let question = entry.qp.as_ref().and_then(Transport::mtu_question);
            match self.mtu_proofs.advance(now, slot, usable, question) {
                Step::Wait => {}
                Step::Send(packets, silent) => {
                    packets.into_iter().for_each(|transmit| host.feedback(id, transmit));
                    // A port that answers nothing is probably down.
                    if !silent.is_empty() {
                        self.question_ports(now, id.peer, silent, host);
                    }
                }
                Step::End(progress) => host.mtu_proven(id, progress),
            }
        }
    }

    /// Removes the queue pairs that have lingered for their time.
    #[cold]
    fn end_lingering(&mut self, now: Time, host: &mut impl NodeHost) {
        while let Some(slot) = self.lingering.over(now) {
            let id = self.table.get(slot).map(|entry| entry.id(slot));
            self.release(slot);
            if let Some(id) = id {
                host.lingered(id);
            }
        }
    }

    /// Refuses the messages that have waited for a receive for too long, unless receives have been posted meanwhile.
    #[cold]
    fn refuse_overdue(&mut self, now: Time, host: &mut impl NodeHost) {
        while let Some(slot) = self.allowances.receive_waits.overdue(now) {
            self.receives_posted(now, slot, host);
            self.allowances.receive_waits.end(slot);
        }
    }

    /// After something has happened to a queue pair: its turn, and its deadline.
    fn settle(&mut self, slot: Slot) {
        if let Some(Entry { qp: Some(qp), waiting, scheduled, .. }) = self.table.get_mut(slot) {
            self.timers.schedule(scheduled, qp.poll_timeout(), slot);
            offer_turn(&mut self.ready, qp, waiting, slot);
        }
    }

    // --- ports and peers ---------------------------------------------------------------------------------------------

    /// Ports that are up at this node.
    pub fn own_ports(&self) -> PortSet {
        self.ports.own()
    }

    /// Ports of a peer that are up as far as is known.
    pub fn peer_ports(&self, peer: PeerId) -> PortSet {
        self.ports.of_peer(peer)
    }

    /// Sets the ports of this node that are up. Every queue pair learns it at once; every peer is notified.
    pub fn set_own_ports(&mut self, now: Time, up: PortSet, host: &mut impl NodeHost) {
        if up == self.ports.own() {
            return;
        }
        self.ports.set_own(now, up, self.config.base_rtt, &mut self.requests);
        for slot in 0..self.table.len() {
            self.update_ports(now, slot);
        }
        self.mtu_proofs.ports_changed(now);
        self.send_port_requests(now, host);
    }

    /// The driver has a reason to doubt that these ports of a peer are up: the peer is asked. Ports that are silent
    /// while others answer are down, and asked again until they answer.
    pub fn question_ports(&mut self, now: Time, peer: PeerId, ports: PortSet, host: &mut impl NodeHost) {
        self.ports.question(now, peer, ports);
        self.send_port_requests(now, host);
    }

    /// Sends what is due of port status updates and questions, and tells queue pairs what came of the questions.
    fn send_port_requests(&mut self, now: Time, host: &mut impl NodeHost) {
        for (peer, up) in self.ports.send_due(now, &mut self.requests, host, &mut self.stats) {
            self.peer_ports_changed(now, peer, up, host);
        }
    }

    fn update_ports(&mut self, now: Time, slot: Slot) {
        let Some(peer) = self.peer(slot) else { return };
        let (own, up) = (self.ports.own(), self.ports.of_peer(peer));
        self.update(slot, |qp| qp.set_ports_up(now, own, up));
    }

    fn peer_ports_changed(&mut self, now: Time, peer: PeerId, up: PortSet, host: &mut impl NodeHost) {
        self.mtu_proofs.ports_changed(now);
        for slot in 0..self.table.len() {
            if self.peer(slot) == Some(peer) {
                self.update_ports(now, slot);
                if let Some(entry) = self.table.get(slot) {
                    host.peer_ports(entry.id(slot), up);
                }
            }
        }
    }

    /// Adds a peer without a queue pair: it is notified when ports go down, and its port status is accepted.
    pub fn add_peer(&mut self, now: Time, peer: PeerId, ports: PortSet) {
        self.ports.acquire(now, peer, ports, &mut self.requests);
    }

    /// Removes a peer that was added, unless a queue pair is connected to it. Returns whether it was removed.
    pub fn remove_peer(&mut self, peer: PeerId) -> bool {
        let gone = self.ports.release(peer);
        if gone {
            self.requests.forget(peer);
        }
        gone
    }

    /// Sends an EV probe to find out whether a path to a peer is alive. Returns the id for [`NodeHost::probe_done`];
    /// `None` if [`MAX_EV_PROBES`] are outstanding.
    pub fn probe(
        &mut self,
        now: Time,
        peer: PeerId,
        route: Route,
        timeout: Span,
        host: &mut impl NodeHost,
    ) -> Option<u16> {
        self.requests.ask(now, (peer, route), Question::EvProbe, timeout, host)
    }

    /// Tells a peer once, on one port, that these ports of this node are up; its answer comes as that to an EV probe.
    /// What this node itself reports when a port changes stays as it is. `None` as [`Node::probe`].
    pub fn send_port_status(
        &mut self,
        now: Time,
        (peer, port): (PeerId, u8),
        up: PortSet,
        timeout: Span,
        host: &mut impl NodeHost,
    ) -> Option<u16> {
        let question = Question::PortStatus(self.config.port_mask_base.encode(up));
        self.stats.port_updates_sent += 1;
        self.requests.ask(now, (peer, Route::Port(port)), question, timeout, host)
    }
}

/// Puts a READY queue pair into the ready ring.
#[inline]
fn offer_turn(ready: &mut ReadyRing, qp: &impl Transport, waiting: &mut bool, slot: Slot) {
    if !*waiting && qp.readiness() == Readiness::Ready {
        *waiting = true;
        ready.push(slot);
    }
}

#[cfg(test)]
mod tests;
