//! Calls into nodes with packets, deadlines and work requests, and the handling of what the nodes ask for.

use openmrc_transport::node::{Node, Slot};
use openmrc_transport::{PostError, Span, Time, Transmit, WorkRequest};
use openmrc_wire::Body;

use super::{Event, World};
use crate::world::Subject;
use crate::world::host::{MAX_FEEDBACK_PER_PACKET, View, max_feedback_per_timeout};
use crate::world::scenario::{Action, Post, Traffic};

/// Limit of the feedback caused by a call.
#[derive(Clone, Copy)]
pub(super) enum Most {
    /// A packet was delivered to, or polled from, the queue pair of this end.
    PerPacket(usize),
    /// Time has passed, for all queue pairs.
    PerTimeout,
    /// No queue pair is called.
    None,
}

impl<T: Subject> World<T> {
    /// Calls a node, then carries out its requests. `in_hand` is the data packet that is delivered, if any. A queue
    /// pair may send at most `most` packets of feedback.
    pub(super) fn call(
        &mut self,
        node: usize,
        in_hand: Option<Transmit>,
        most: Most,
        f: impl FnOnce(&mut Node<T>, Time, &mut View<'_>),
    ) {
        let now = self.local(node);
        let mut out = std::mem::take(&mut self.out);
        let driven = &mut self.nodes[node];
        let mut view = View {
            now: self.now,
            local: now,
            ends: &mut self.ends,
            flows: &mut self.flows,
            in_hand,
            feedback: &mut out.feedback,
            requests: &mut out.requests,
            probes: &mut driven.probes,
            fill: 0.0,
            trace: &mut self.trace,
            verdict: &mut self.verdict,
        };
        view.fill = self.dice.chance(0.5).into();
        f(&mut driven.node, now, &mut view);
        self.check_feedback(&out.feedback, most);
        let mut touched: Vec<usize> = match most {
            Most::PerTimeout => self.nodes[node].ends.clone(),
            Most::PerPacket(end) => vec![end],
            Most::None => Vec::new(),
        };
        for (end, transmit) in out.feedback.drain(..) {
            self.queue_feedback(end, transmit);
            if !touched.contains(&end) {
                touched.push(end);
            }
        }
        for (peer, route, packet, class) in out.requests.drain(..) {
            self.queue_request(node, peer as usize, route, packet, class);
        }
        self.out = out;
        for end in touched {
            self.judge(end);
            self.pump(end);
            self.retire_if_done(end);
        }
        self.arm(node);
    }

    /// Begins the proof of an end's path MTU. Its traffic begins when the proof ends.
    pub fn prove_mtu(&mut self, end: usize) {
        let (node, slot) = (self.ends[end].record.node, self.ends[end].slot);
        self.ends[end].record.mtu = Some(None);
        // Its last turn begins within a second and is as long as the longest. Timers may be late in each turn, and what
        // stops a node or moves its clock comes on top.
        let moved = self.scenario.actions.iter().map(|(_, action)| match action {
            Action::Stall { length, .. } | Action::Jump { length, .. } => *length,
            _ => Span::ZERO,
        });
        let late = moved.fold(self.scenario.timer_slack.times(20), |sum, length| sum + length);
        self.ends[end].record.mtu_ends_by = self.local(node) + Span::from_millis(1_160) + late;
        self.call(node, None, Most::PerTimeout, |node, now, host| {
            assert!(node.prove_mtu(now, slot, host), "an end in RTS can send");
        });
        self.service(node);
    }

    /// The application destroys its queue pair once everything is done.
    fn retire_if_done(&mut self, end: usize) {
        let Some(linger) = self.scenario.linger else { return };
        if self.ends[end].record.retired.is_some() || !self.knows_all_done(end) {
            return;
        }
        let (node, slot) = (self.ends[end].record.node, self.ends[end].slot);
        self.ends[end].record.retired = Some((self.local(node), linger));
        self.trace.note(self.now, b'D', [end as u64, 0, 0], || format!("{end} is destroyed"));
        self.call(node, None, Most::PerPacket(end), |node, now, host| node.retire(now, slot, linger, host));
    }

    fn check_feedback(&mut self, feedback: &[(usize, Transmit)], most: Most) {
        for of_end in feedback.chunk_by(|a, b| a.0 == b.0) {
            let end = of_end[0].0;
            let most = match most {
                Most::PerTimeout => max_feedback_per_timeout(self.ends[end].record.denied.len()),
                Most::PerPacket(_) | Most::None => MAX_FEEDBACK_PER_PACKET,
            };
            if of_end.len() > most {
                self.break_rule_of(end, format!("sends {} packets at once: {of_end:?}", of_end.len()));
            }
            let naks =
                |(_, t): &(usize, Transmit)| matches!(&t.packet.body, Body::Ack(aeth) if !aeth.is_ack());
            // The NAK that reports the error is sent during the transition to ERROR.
            let dead = self.ends[end].record.fatal.is_some_and(|(at, _)| at < self.now);
            if dead && (of_end.len() > 1 || !of_end.iter().all(naks)) {
                self.break_rule_of(end, format!("sends in ERROR: {of_end:?}"));
            }
        }
    }

    /// Checks the state of a queue pair between two calls.
    pub(super) fn judge(&mut self, end: usize) {
        if self.ends[end].record.is_gone {
            return;
        }
        let (fatal, error) = (self.ends[end].record.fatal.map(|(_, why)| why), self.qp(end).error());
        if error != fatal {
            self.break_rule_of(end, "reported a fatal error and is not in ERROR".into());
        }
        if fatal.is_some() {
            let left = self.flows[end].outstanding();
            if left > 0 {
                self.break_rule_of(end, format!("in ERROR with {left} sends not flushed"));
            }
            return;
        }
        let (counted, expected) = (self.qp(end).stats().in_flight, self.qp(end).expected_in_flight());
        if counted != expected {
            self.break_rule_of(end, format!("counts {counted} bytes in flight, where {expected} are"));
        }
    }

    /// Schedules an event for the node's next deadline.
    pub(super) fn arm(&mut self, node: usize) {
        let deadline = self.nodes[node].node.poll_timeout();
        if deadline == self.nodes[node].armed {
            return;
        }
        self.rearm(node);
    }

    pub(super) fn rearm(&mut self, node: usize) {
        let deadline = self.nodes[node].node.poll_timeout();
        let driven = &mut self.nodes[node];
        driven.armed = deadline;
        driven.generation += 1;
        if deadline == Time::NEVER {
            return;
        }
        let (generation, due) = (driven.generation, Time(deadline.0.saturating_sub(driven.epoch.0)));
        let late = self.dice.span(self.scenario.timer_slack);
        self.push(due + late, Event::Timer { node, generation });
    }

    pub(super) fn at_deadline(&mut self, node: usize, generation: u64) {
        // A stalled node serves its timers when it resumes.
        if self.nodes[node].generation != generation || self.now < self.nodes[node].stalled_until {
            return;
        }
        self.nodes[node].armed = Time::NEVER;
        self.trace.note(self.now, b'T', [node as u64, 0, 0], || format!("node {node} timer"));
        self.tick(node);
        let local = self.local(node);
        let driven = &mut self.nodes[node];
        // A deadline that has passed is served one picosecond later.
        driven.spins = if driven.armed <= local + Span(1) { driven.spins + 1 } else { 0 };
        if driven.spins > 100 {
            self.break_rule(format_args!("node {node}"), "its deadline does not move".into());
        }
        self.service(node);
    }

    /// Calls the `handle_timeout` of a node.
    pub(super) fn tick(&mut self, node: usize) {
        self.call(node, None, Most::PerTimeout, |node, now, host| node.handle_timeout(now, host));
    }

    /// Calls a queue pair's `handle_timeout` though nothing may be due.
    pub(super) fn tick_end(&mut self, end: usize) {
        let slot = self.ends[end].slot;
        self.call(self.ends[end].record.node, None, Most::PerTimeout, |node, now, host| {
            node.update_with(now, slot, host, |qp, host| qp.handle_timeout(now, host));
        });
    }

    /// The application posts messages while the send queue has space.
    pub(super) fn pump(&mut self, end: usize) {
        let node = self.ends[end].record.node;
        loop {
            let record = &self.ends[end].record;
            if record.mtu == Some(None) {
                return;
            }
            if record.fatal.is_some() || record.retired.is_some() || self.now < self.nodes[node].stalled_until
            {
                return;
            }
            let post = match &self.ends[end].traffic {
                Traffic::List(posts) => match posts.get(self.ends[end].next_post) {
                    Some(post) => *post,
                    None => return,
                },
                Traffic::Endless { len, imm } => Post {
                    len: *len,
                    imm: imm.then_some(self.ends[end].next_post as u32),
                    not_before: Time::ZERO,
                },
            };
            if post.not_before > self.now {
                if self.ends[end].post_at != post.not_before {
                    self.ends[end].post_at = post.not_before;
                    self.push(post.not_before, Event::Post { end });
                }
                return;
            }
            let full = self.flows[end].outstanding() == self.ends[end].record.config.requestor.max_send_wr;
            if full {
                if self.dice.chance(0.1) {
                    let wr =
                        WorkRequest { handle: 0, len: 1, remote_va: 0, rkey: 0, imm: None, solicited: false };
                    let answer = self.post(end, wr);
                    if !matches!(answer, Err(PostError::QueueFull(_))) {
                        self.break_rule_of(end, format!("took a work request too many: {answer:?}"));
                    }
                }
                return;
            }
            let solicited = post.imm.is_some_and(|imm| imm % 3 == 0);
            let wr = match self.flows[end].prepare(&post, solicited) {
                Ok(Some(wr)) => wr,
                Ok(None) => return,
                Err(text) => return self.break_rule_of(end, text),
            };
            if let Err(error) = self.post(end, wr) {
                return self.break_rule_of(end, format!("refused a work request: {error}"));
            }
            self.trace.note(self.now, b'W', [end as u64, wr.handle, u64::from(wr.len)], || {
                format!("{end} posts {}: {} bytes, imm {:?}", wr.handle >> 16, wr.len, wr.imm)
            });
            self.ends[end].next_post += 1;
            self.arm(node);
        }
    }

    fn post(&mut self, end: usize, wr: WorkRequest) -> Result<(), PostError> {
        let (node, slot, now) = (self.ends[end].record.node, self.ends[end].slot, self.local_of(end));
        self.nodes[node].node.post_send(now, slot, wr)
    }
}
