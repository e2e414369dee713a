//! The engine: everything behind the context's lock, and the turns in which it works (docs/architecture.md). It
//! drives a node of the transport on real packets; each turn takes posted sends, transmits, receives, and handles
//! timers. Which thread calls it is the business of [`crate::driver`].
//!
//! | file | subject |
//! |---|---|
//! | `open` | opening the device's sockets |
//! | `control`, `connect` | creating, modifying and destroying queue pairs; what one needs to become RTR and RTS |
//! | `links` | peers, ports and interfaces; proof of the path MTU |
//! | `profiles` | EV profiles |
//! | `verbs` | the NIC's part of queue pairs: memory, posted sends, completions |
//! | `host` | what the node asks of the NIC |
//! | `transmit`, `egress` | from posted sends to packets; the sending side |
//! | `receive`, `arrival`, `next_port` | from datagrams to the node; in which order they are handled |

// An import circle: `Engine` has parts that are defined in `links`, `profiles`, `receive` and `transmit`, and
// these files also implement the engine's methods that need several parts.
mod arrival;
mod connect;
mod control;
mod egress;
mod host;
mod links;
mod next_port;
mod open;
mod profiles;
mod receive;
mod transmit;
mod verbs;

use std::any::Any;
use std::os::fd::RawFd;
use std::sync::Arc;

use openmrc_transport::node::Node;
use openmrc_transport::{PortSet, Time, mrc};

use crate::config::DeviceConfig;
use crate::shared::Shared;
use crate::stats::{ContextStats, PathStats};
use crate::sys;
use egress::Egress;
use host::Environment;
use links::Links;
use profiles::Profiles;
use receive::{DATAGRAMS_PER_TURN, Ingress};
use transmit::Posting;
use verbs::Verbs;

/// Everything that works on packets.
pub(crate) struct Engine {
    config: Arc<DeviceConfig>,
    node: Node<mrc::QueuePair>,
    pub verbs: Verbs,
    posting: Posting,
    pub egress: Egress,
    ingress: Ingress,
    pub profiles: Profiles,
    links: Links,
    /// Turns taken.
    turns: u64,
    /// Data packets sent, and packets received.
    packets: u64,
    seed: u64,
}

/// Eager turns between checks of the timers while nothing is sent: about ten microseconds.
const TURNS_PER_CLOCK: u64 = 32;

/// Eager turns between checks of everything else: links, sockets that can be written again.
const TURNS_PER_LOOK_AT_ALL: u64 = 256;

/// Most queue pairs whose timers are handled in a turn: not more than datagrams, as the timers may wait for these.
const TIMERS_PER_TURN: usize = DATAGRAMS_PER_TURN;

impl Engine {
    /// Calls `work` with the node and its environment.
    #[inline]
    fn with_node<R>(
        &mut self,
        shared: &Shared,
        now: Time,
        work: impl FnOnce(&mut Node<mrc::QueuePair>, &mut Environment<'_>) -> R,
    ) -> R {
        let Engine { node, verbs, egress, .. } = self;
        work(node, &mut Environment { verbs, egress, shared, payload: &[], now })
    }

    /// One turn; returns whether there was anything to do. An application that polls returns after the first
    /// datagram, for latency: an `eager` turn takes one datagram, and handles timers mostly right after sending,
    /// while the answer is on its way. This is for single messages. While runs are sent or received, an eager turn
    /// takes all waiting datagrams: with one per turn the queue would grow, and late feedback makes packets look
    /// lost.
    #[inline]
    pub fn turn(&mut self, shared: &Shared, eager: bool) -> bool {
        self.turns += 1;
        self.ingress.eager = eager;
        let posted = self.take_submissions(shared);
        let mut worked = posted.is_some();
        if self.node.has_ready() {
            worked |= self.transmit(shared, posted.unwrap_or_else(sys::now));
        }
        if eager {
            if posted.is_some() || self.turns.is_multiple_of(TURNS_PER_CLOCK) {
                worked |= self.handle_due(shared);
            }
            if self.turns.is_multiple_of(TURNS_PER_LOOK_AT_ALL) {
                self.watch_held(shared);
                self.ready_ports(shared);
            }
        }
        worked |= self.receive(shared);
        // The acknowledgements of received messages are sent before their completions can be polled.
        if !eager || !self.verbs.held_receives.is_empty() {
            worked |= self.handle_due(shared);
        }
        self.end_of_work(shared, sys::now);
        worked
    }

    /// A turn in place of callers that drive and do not take one: handles what has arrived on these ports and what is
    /// due. `others`: epoll reports something besides. Returns whether anything was sent or had arrived.
    pub fn turn_for_callers(&mut self, shared: &Shared, ports: PortSet, others: bool) -> bool {
        self.turns += 1;
        self.ingress.eager = true;
        let posted = self.take_submissions(shared);
        let mut worked = posted.is_some();
        if self.node.has_ready() {
            worked |= self.transmit(shared, posted.unwrap_or_else(sys::now));
        }
        if others {
            self.watch_held(shared);
            self.ready_ports(shared);
        }
        worked |= self.receive_from(shared, ports);
        self.handle_due(shared);
        self.end_of_work(shared, sys::now);
        worked
    }

    /// The sockets of the ports, in their order.
    pub fn sockets(&self) -> Vec<RawFd> {
        self.egress.net.ports.iter().map(|port| port.rx.fd()).collect()
    }

    /// After any work: flushes sends that are left in queue pairs in ERROR, and fails the queue pairs of completion
    /// queues that have overrun.
    #[inline]
    fn end_of_work(&mut self, shared: &Shared, now: impl Fn() -> Time) {
        self.verbs.release_receives();
        self.verbs.flush_failed();
        while !self.verbs.overruns.is_empty() {
            self.fail_overrun_queues(shared, now());
            self.verbs.flush_failed();
        }
    }

    /// Handles timers; returns whether any was due.
    fn handle_due(&mut self, shared: &Shared) -> bool {
        let now = sys::now();
        let worked = self.egress.handle_due(now) | self.handle_timers(shared, now);
        if !self.egress.net.unreachable.is_empty() {
            self.question_unreachable(shared, now);
        }
        if !self.egress.net.narrow.is_empty() {
            self.leave_narrow_ports(shared, now);
        }
        worked
    }

    /// Handles the node's timers; returns whether any was due.
    #[inline]
    fn handle_timers(&mut self, shared: &Shared, now: Time) -> bool {
        let due = self.node.poll_timeout() <= now;
        if due {
            self.with_node(shared, now, |node, host| node.handle_timeouts(now, TIMERS_PER_TURN, host));
            self.egress.send_waiting(now);
        }
        due
    }

    /// Data packets sent, and packets received.
    #[inline]
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Whether the next turn can send something.
    pub fn has_work(&self) -> bool {
        self.node.has_ready() && !self.posting.blocked
    }

    /// The next deadline.
    pub fn next_deadline(&self) -> Time {
        self.node.poll_timeout().min(self.egress.next_due())
    }

    pub fn stats(&self) -> ContextStats {
        let net = &self.egress.net;
        ContextStats {
            ports: net.ports.iter().map(|port| port.stats).collect(),
            causes: net.causes.clone(),
            differences: net.differences.clone(),
            node: self.node.stats(),
            iterations: self.turns,
            sleeps: 0,
            send_descriptors: self.egress.datapath.send_descriptors(net) as u64,
        }
    }

    pub fn path_stats(&self) -> Vec<PathStats> {
        self.egress.net.paths.iter().map(PathStats::new).collect()
    }

    /// Ends everything: outstanding work is flushed, sockets are closed, regions forgotten. The owners of the regions
    /// are returned, to be dropped without locks held.
    #[must_use]
    pub fn close(&mut self, shared: &Shared) -> Vec<Box<dyn Any + Send>> {
        let now = sys::now();
        for slot in self.verbs.slots() {
            // A slot may be empty; there is nothing to flush then.
            let _ = self.abort_qp(shared, now, slot);
            self.node.release(slot);
        }
        self.links.close();
        self.egress.net.ports.clear();
        self.egress.net.paths.clear();
        self.egress.datapath.close();
        self.verbs.clear()
    }
}
