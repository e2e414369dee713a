//! Calls into queue pairs: packets, deadlines and work requests in, and then what they want next.

use openmrc_transport::{Host, PostError, Readiness, Time, Transmit, WorkRequest};
use openmrc_wire::Body;

use super::{Event, World};
use crate::world::Subject;
use crate::world::host::{View, most_feedback_per_timeout};
use crate::world::scenario::{Post, Traffic};

impl<T: Subject> World<T> {
    /// Calls a queue pair, then does what it asked for.
    pub(super) fn call(
        &mut self,
        end: usize,
        in_hand: Option<Transmit>,
        most: usize,
        f: impl FnOnce(&mut T, Time, &mut dyn Host),
    ) {
        let now = self.local_of(end);
        let was_dead = self.ends[end].record.fatal.is_some();
        let mut out = std::mem::take(&mut self.out);
        let (records, flows) = (&mut self.ends[end], &mut self.flows);
        let mut view = View {
            end,
            now: self.now,
            record: &mut records.record,
            flows,
            in_hand,
            out: &mut out,
            trace: &mut self.trace,
            verdict: &mut self.verdict,
        };
        f(&mut records.qp, now, &mut view);
        if out.len() > most {
            self.break_rule(end, format!("sends {} packets at once: {out:?}", out.len()));
        }
        let naks = |t: &Transmit| matches!(&t.packet.body, Body::Ack(aeth) if !aeth.is_ack());
        if was_dead && (out.len() > 1 || !out.iter().all(naks)) {
            self.break_rule(end, format!("sends in ERROR: {out:?}"));
        }
        for transmit in out.drain(..) {
            self.queue_feedback(end, transmit);
        }
        self.out = out;
        if self.ends[end].record.fatal.is_some() {
            if self.flows[end].outstanding() > 0 {
                self.break_rule(
                    end,
                    format!("in ERROR with {} sends not flushed", self.flows[end].outstanding()),
                );
            }
            if self.ends[end].qp.error() != self.ends[end].record.fatal.map(|(_, why)| why) {
                self.break_rule(end, "reported a fatal error and is not in ERROR".into());
            }
        }
        self.pump(end);
        self.refresh(end);
    }

    /// Looks at what a queue pair wants now.
    pub(super) fn refresh(&mut self, end: usize) {
        let node = self.ends[end].record.node;
        let state = &self.ends[end];
        if state.record.fatal.is_none() {
            let (counted, expected) = (state.qp.stats().in_flight, state.qp.expected_in_flight());
            if counted != expected {
                self.break_rule(end, format!("counts {counted} bytes in flight, where {expected} are"));
            }
        }
        let state = &mut self.ends[end];
        if state.qp.readiness() == Readiness::Ready {
            self.nodes[node].ring.push(end as u32);
        }
        let deadline = state.qp.poll_timeout();
        if deadline != state.armed {
            state.armed = deadline;
            self.arm(end);
        }
    }

    pub(super) fn arm(&mut self, end: usize) {
        self.ends[end].generation += 1;
        let deadline = self.ends[end].armed;
        if deadline == Time::NEVER {
            return;
        }
        let epoch = self.nodes[self.ends[end].record.node].epoch;
        let late = self.dice.span(self.scenario.timer_slack);
        let generation = self.ends[end].generation;
        self.push(Time(deadline.0.saturating_sub(epoch.0)) + late, Event::Timer { end, generation });
    }

    pub(super) fn at_deadline(&mut self, end: usize, generation: u64) {
        let node = self.ends[end].record.node;
        // A stalled node looks at its timers when it goes on.
        if self.ends[end].generation != generation || self.now < self.nodes[node].stalled_until {
            return;
        }
        self.ends[end].armed = Time::NEVER;
        self.trace.note(self.now, b'T', [end as u64, 0, 0], || format!("{end} timer"));
        self.tick(end);
        let local = self.local_of(end);
        if self.ends[end].armed <= local {
            self.ends[end].spins += 1;
            if self.ends[end].spins > 100 {
                self.break_rule(end, "its deadline does not move".into());
            }
        } else {
            self.ends[end].spins = 0;
        }
        self.service(node);
    }

    /// Lets a queue pair see that time has passed.
    pub(super) fn tick(&mut self, end: usize) {
        let most = most_feedback_per_timeout(self.ends[end].record.denied.len());
        self.call(end, None, most, |qp, now, host| qp.handle_timeout(now, host));
    }

    /// The application posts what it may.
    pub(super) fn pump(&mut self, end: usize) {
        loop {
            if self.ends[end].record.fatal.is_some()
                || self.now < self.nodes[self.ends[end].record.node].stalled_until
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
            let now = self.local_of(end);
            let full = self.flows[end].outstanding() == self.ends[end].record.config.requestor.max_send_wr;
            if full {
                if self.dice.chance(0.1) {
                    let wr =
                        WorkRequest { handle: 0, len: 1, remote_va: 0, rkey: 0, imm: None, solicited: false };
                    let answer = self.ends[end].qp.post_send(now, wr);
                    if !matches!(answer, Err(PostError::QueueFull(_))) {
                        self.break_rule(end, format!("took a work request too many: {answer:?}"));
                    }
                }
                return;
            }
            let solicited = post.imm.is_some_and(|imm| imm % 3 == 0);
            let wr = match self.flows[end].prepare(&post, solicited) {
                Ok(Some(wr)) => wr,
                Ok(None) => return,
                Err(text) => return self.break_rule(end, text),
            };
            if let Err(error) = self.ends[end].qp.post_send(now, wr) {
                return self.break_rule(end, format!("refused a work request: {error}"));
            }
            self.trace.note(self.now, b'W', [end as u64, wr.handle, u64::from(wr.len)], || {
                format!("{end} posts {}: {} bytes, imm {:?}", wr.handle >> 16, wr.len, wr.imm)
            });
            self.ends[end].next_post += 1;
            self.refresh(end);
        }
    }
}
