//! The engine: everything behind the context's lock, and the turns in which it works (spec: architecture, nic). Each
//! turn takes what was posted, sends, receives, and does what is due. Who calls it, the engine's own thread or an
//! application that polls, is the business of [`crate::shared`].
//!
//! | file | subject |
//! |---|---|
//! | `control` | creating, modifying and destroying queue pairs, profiles, ports |
//! | `connect` | what a queue pair needs to become RTR and RTS |
//! | `paths` | EV profiles, paths, next hops |
//! | `transmit` | from the transport's packets to runs on sockets |
//! | `srv6` | frames to and from packet sockets |
//! | `receive`, `next_port` | from datagrams to the transport, and what is refused before; in which order |
//! | `host` | what the transport asks of the NIC: memory, completions, feedback |
//! | `node` | endpoint requests: EV probes and port status |
//! | `pressure` | windows that the receive buffers can hold |
//! | `timers` | deadlines of queue pairs |

mod connect;
mod control;
mod host;
mod next_port;
mod node;
mod paths;
mod pressure;
mod receive;
mod srv6;
mod timers;
mod transmit;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use openmrc_sockets::{LinkWatch, Netlink, RecvBuffer};
use openmrc_transport::endpoint::{Endpoint, PeerId};
use openmrc_transport::mrc;
use openmrc_transport::schedule::ReadyRing;
use openmrc_transport::{PortSet, Readiness, Time, Transmit, Transport, WorkRequest};

use crate::attr::QpAttr;
use crate::cq::Status;
use crate::device::DeviceConfig;
use crate::frames::{FrameBatch, FrameBuffer};
use crate::impairer::{Impairer, Outgoing, RuleSet};
use crate::memory::{Access, MemoryTable};
use crate::nexthop::NextHops;
use crate::path::TxPath;
use crate::peer::Peers;
use crate::port::Port;
use crate::profile::{CcProfiles, Paths, Profiles};
use crate::qp::{QpShared, Wqe};
use crate::qp_state::QpState;
use crate::shared::Shared;
use crate::stats::{Cause, Causes};
use crate::sys;
use crate::tx::TxRun;
use host::QpHost;
use next_port::NextPort;
use pressure::BufferWatch;
use timers::Timers;

/// Everything that works on packets.
pub(crate) struct Engine {
    pub config: Arc<DeviceConfig>,
    pub memory: MemoryTable,
    pub ports: Vec<Port>,
    pub paths: Vec<TxPath>,
    /// In SRv6 mode.
    next_hops: Option<NextHops>,
    /// About this device's network namespace; a poller's may be another.
    netlink: Netlink,
    pub links: Option<LinkWatch>,
    pub peers: Peers,
    pub ev_profiles: Profiles<Paths>,
    pub cc_profiles: CcProfiles,
    pub impairer: Impairer,
    pub causes: Causes,
    pub iterations: u64,
    qps: Vec<Option<Box<Qp>>>,
    /// Generation of the number last given out, by place.
    generations: Vec<u16>,
    /// Places free again, oldest first.
    free_places: VecDeque<u32>,
    endpoint: Endpoint,
    ready: ReadyRing,
    /// READY, but their ports could not take a packet.
    stalled: Vec<u32>,
    timers: Timers,
    /// Room for the list of queue pairs with newly posted sends.
    submitted: Vec<u32>,
    /// Room for the sends being taken from a queue pair.
    taken: VecDeque<Wqe>,
    /// Queue pairs that something has happened to in this turn.
    touched: Vec<u32>,
    /// Feedback waiting to be sent.
    feedback: Vec<Feedback>,
    /// Completion queues that have overrun in this turn.
    overruns: Vec<u32>,
    run: TxRun,
    /// In SRv6 mode, by port: frames on their way out.
    batches: Vec<FrameBatch>,
    inbox: Option<Inbox>,
    next_port: NextPort,
    /// The ports' sockets are watched by epoll.
    watching: bool,
    /// This turn is taken by somebody who polls.
    eager: bool,
    /// Turns for which those who poll are still taken to move much data, not single messages.
    bulk: u32,
    /// Packets passing the impairer.
    impaired: Vec<Outgoing>,
    /// The impairment rules that act on each packet of the run at hand.
    drawn: Vec<RuleSet>,
    pressure: BufferWatch,
    segmentation: bool,
    seed: u64,
}

/// Room for what comes in.
enum Inbox {
    Datagrams(Box<RecvBuffer>),
    Frames(Box<FrameBuffer>),
}

/// A queue pair: the protocol, and what the NIC keeps for it.
struct Qp {
    transport: Option<mrc::QueuePair>,
    io: QpIo,
}

/// What the NIC keeps for a queue pair.
struct QpIo {
    shared: Arc<QpShared>,
    pd: u32,
    attr: QpAttr,
    access: Access,
    peer: Option<PeerId>,
    paths: Option<Paths>,
    ev_profile: u16,
    /// Sends that the transport has, by number; a ring.
    sends: Box<[Wqe]>,
    /// Number of the next send, and of the oldest that has not completed.
    next_send: u64,
    oldest_send: u64,
    /// A send that failed here, and how: its completion says so instead of "flushed".
    failed: Option<(u64, Status)>,
    /// Earliest entry in the timers.
    scheduled: Time,
    touched: bool,
    /// Data has come in since the last look at the receive buffers.
    receiving: bool,
    /// What was left in its queues when it went to ERROR has been flushed.
    flushed: bool,
}

impl QpIo {
    fn send_mut(&mut self, number: u64) -> &mut Wqe {
        let mask = self.sends.len() as u64 - 1;
        &mut self.sends[(number & mask) as usize]
    }

    fn send(&self, number: u64) -> &Wqe {
        let mask = self.sends.len() as u64 - 1;
        &self.sends[(number & mask) as usize]
    }
}

/// Feedback of a queue pair or the endpoint, waiting to be sent.
struct Feedback {
    peer: PeerId,
    /// Number of the path.
    path: u16,
    transmit: Transmit,
}

/// What became of bytes offered to a socket.
enum Sent {
    Done,
    /// Not now: keep them.
    Later(Option<Time>),
    /// Never.
    Lost(Cause),
}

/// Runs in a turn before looking for packets that have come in.
const RUNS_PER_TURN: usize = 8;

/// Datagrams in a turn before sending again.
const DATAGRAMS_PER_TURN: usize = 32;

/// Eager turns without runs from or to anybody until traffic no longer counts as bulk: some milliseconds.
const BULK_TURNS: u32 = 4096;

/// Eager turns from one look at what is due to the next, where nothing is sent: some ten microseconds.
const TURNS_PER_CLOCK: u64 = 32;

/// Eager turns from one look at all else to the next: links, sockets that are writable again.
const TURNS_PER_LOOK_AT_ALL: u64 = 256;

/// Calls the transport with a host; a macro because the borrows are of single fields.
macro_rules! qp_host {
    ($engine:ident, $io:expr, $shared:expr, $now:expr, $payload:expr) => {
        QpHost {
            io: $io,
            memory: &$engine.memory,
            feedback: &mut $engine.feedback,
            causes: &mut $engine.causes,
            overruns: &mut $engine.overruns,
            shared: $shared,
            payload: $payload,
            now: $now,
        }
    };
}
use qp_host;

impl Engine {
    /// One turn; whether there was anything to do. Who polls wants back as soon as something has come in: an `eager`
    /// turn takes one datagram, and sees to what is due mostly just after something was sent, while the answer is on
    /// its way anyhow. That is for single messages. While whole runs come or go even an eager turn takes what is there, in
    /// the order in which it arrived: a datagram a turn would be less than comes in, and feedback that has to wait for its
    /// turn makes packets look lost.
    #[inline]
    pub fn turn(&mut self, shared: &Shared, eager: bool) -> bool {
        self.iterations += 1;
        self.eager = eager;
        let posted = self.take_submissions(shared);
        let mut worked = posted.is_some() || !self.ready.is_empty();
        if !self.ready.is_empty() {
            self.transmit(shared, posted.unwrap_or_else(sys::now));
        }
        if eager {
            if posted.is_some() || self.iterations.is_multiple_of(TURNS_PER_CLOCK) {
                worked |= self.see_to_due(shared);
            }
            if self.iterations.is_multiple_of(TURNS_PER_LOOK_AT_ALL) {
                self.watch_held(shared);
                self.ready_ports(shared);
            }
            self.bulk = self.bulk.saturating_sub(1);
            worked |= match self.bulk {
                0 => self.receive_polled(shared),
                _ => self.receive(shared, DATAGRAMS_PER_TURN),
            };
        } else {
            worked |= self.receive(shared, DATAGRAMS_PER_TURN);
            worked |= self.see_to_due(shared);
        }
        if !self.overruns.is_empty() {
            self.fail_overrun_queues(shared, sys::now());
        }
        worked
    }

    /// A whole run has been sent, or several packets have come at once.
    fn saw_bulk(&mut self) {
        self.bulk = BULK_TURNS;
    }

    fn see_to_due(&mut self, shared: &Shared) -> bool {
        let now = sys::now();
        let worked = self.expire(shared, now);
        self.settle(shared, now);
        worked
    }

    /// Whether a turn would find something to send.
    pub fn has_work(&self) -> bool {
        !self.ready.is_empty()
    }

    /// When something is due though nothing comes in.
    pub fn next_deadline(&self) -> Time {
        let held = self.ports.iter().map(|p| p.retry_at).min().unwrap_or(Time::NEVER);
        self.timers
            .next()
            .min(self.endpoint.poll_timeout())
            .min(self.impairer.next_due())
            .min(self.pressure.next_look())
            .min(self.next_hops.as_ref().map_or(Time::NEVER, NextHops::due))
            .min(held)
    }

    /// Ports that are up.
    pub fn ports_up(&self) -> PortSet {
        self.port_set(Port::is_up)
    }

    fn port_set(&self, fits: impl Fn(&Port) -> bool) -> PortSet {
        let mut set = PortSet::EMPTY;
        for (i, port) in self.ports.iter().enumerate() {
            if fits(port) {
                set = set.with(i as u8);
            }
        }
        set
    }

    /// Gives newly posted sends to the transport. If there were any, says when that was.
    fn take_submissions(&mut self, shared: &Shared) -> Option<Time> {
        if !shared.any_submitted() {
            return None;
        }
        let mut list = std::mem::take(&mut self.submitted);
        shared.take_submissions(&mut list);
        let now = sys::now();
        for index in list.drain(..) {
            self.take_pending(shared, now, index);
        }
        self.submitted = list;
        if !self.touched.is_empty() {
            self.settle(shared, now);
        }
        Some(now)
    }

    fn take_pending(&mut self, shared: &Shared, now: Time, index: u32) {
        let Some(Qp { transport, io }) = self.qps.get_mut(index as usize).and_then(Option::as_deref_mut)
        else {
            return;
        };
        // Before looking: whoever posts from now on announces it again.
        io.shared.submitted.store(false, Ordering::Release);
        if io.shared.state() != QpState::Rts {
            // Posted just as it went to ERROR: flushed like what was there before.
            io.flushed = false;
            self.touch(index);
            return;
        }
        let Some(transport) = transport else { return };
        // Taken out whole, so that whoever posts does not wait while the transport works.
        std::mem::swap(&mut *io.shared.pending.lock(), &mut self.taken);
        while let Some(wqe) = self.taken.pop_front() {
            let request = WorkRequest {
                handle: io.next_send,
                len: wqe.len,
                remote_va: wqe.remote_addr,
                rkey: wqe.rkey,
                imm: wqe.imm,
                solicited: wqe.solicited,
            };
            let readable = host::readable(&self.memory, io.pd, &wqe);
            if !readable {
                // It takes its place behind those before it, and fails there.
                io.failed = Some((io.next_send, Status::LocProtErr));
            }
            if transport.post_send(now, request).is_err() {
                // The rings are equally large, so this is a queue pair in ERROR: flushed with the rest.
                self.taken.push_front(wqe);
                break;
            }
            *io.send_mut(io.next_send) = wqe;
            io.next_send += 1;
            if !readable {
                break;
            }
        }
        if !self.taken.is_empty() {
            let mut pending = io.shared.pending.lock();
            while let Some(wqe) = self.taken.pop_back() {
                pending.push_front(wqe);
            }
        }
        if io.failed.is_some() {
            let mut host = qp_host!(self, io, shared, now, &[]);
            transport.abort(now, openmrc_transport::Fatal::Local, &mut host);
            self.touch(index);
        } else if transport.readiness() == Readiness::Ready {
            self.ready.push(index);
        }
    }

    fn touch(&mut self, index: u32) {
        let qp = self.qps[index as usize].as_mut();
        if let Some(qp) = qp.filter(|qp| !qp.io.touched) {
            qp.io.touched = true;
            self.touched.push(index);
        }
    }

    /// After something has happened to queue pairs: whose turn it is, what is due, and what must be flushed.
    fn settle(&mut self, shared: &Shared, now: Time) {
        while let Some(index) = self.touched.pop() {
            let Some(qp) = &mut self.qps[index as usize] else { continue };
            let Qp { transport, io } = &mut **qp;
            io.touched = false;
            let Some(transport) = transport else { continue };
            if transport.readiness() == Readiness::Ready {
                self.ready.push(index);
            }
            let due = transport.poll_timeout();
            if due < io.scheduled {
                io.scheduled = due;
                self.timers.schedule(due, index);
            }
            if io.shared.state() == QpState::Error && !io.flushed {
                qp_host!(self, io, shared, now, &[]).flush_queues();
            }
        }
    }

    /// Does what is due.
    fn expire(&mut self, shared: &Shared, now: Time) -> bool {
        let mut worked = false;
        while let Some((due, index)) = self.timers.pop_due(now) {
            let Some(qp) = self.qps.get_mut(index as usize).and_then(Option::as_mut) else { continue };
            let Qp { transport, io } = &mut **qp;
            if io.scheduled != due {
                continue;
            }
            io.scheduled = Time::NEVER;
            if let Some(transport) = transport {
                worked = true;
                let mut host = qp_host!(self, io, shared, now, &[]);
                transport.handle_timeout(now, &mut host);
                self.touch(index);
            }
        }
        if self.endpoint.poll_timeout() <= now {
            self.endpoint_timeout(shared, now);
            worked = true;
        }
        if self.pressure.next_look() <= now {
            self.relieve_pressure(now);
        }
        if self.next_hops.as_ref().is_some_and(|hops| hops.due() <= now) {
            self.refresh_next_hops(now);
        }
        self.send_feedback(now);
        if self.impairer.next_due() <= now {
            self.send_impaired_due(now);
        }
        for port in 0..self.ports.len() {
            if self.ports[port].retry_at <= now {
                self.retry_held(shared, port, now);
            }
        }
        worked
    }
}
