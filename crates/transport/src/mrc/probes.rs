//! Reliability probes (0xDE): is the peer there, does a condemned path work again, which path will carry feedback
//! (spec: transport rule 3; paths, "Probing condemned paths", "Reverse EVs").
//!
//! A probe's id names its path in the low byte, so that the answering SACK needs no table to be understood.

use openmrc_wire::{Body, Mark, Packet, Probe, Psn, Timestamp};

use super::QueuePair;
use super::ev_state::{EvInput, EvState};
use super::paths::EvIndex;
use super::window::Stamp;
use crate::api::{EvChange, Host, PortSet, TrafficClass};
use crate::profile::mix;
use crate::time::{Span, Time};

/// A condemned path's next probe is kept in one byte, in units that double with its back-off: a wait has between so many
/// of them and twice as many, which leaves half the byte's range for a timer that comes late.
const WAIT_UNITS: u64 = 16;
const MOST_UNITS: u64 = 100;
/// A condemned path is probed first after so many RTTs ...
const FIRST_RTTS: u64 = 4;
/// ... and at the latest after this.
const LONGEST: Span = Span::from_secs(1);
/// So many answers in a row bring it back \[choice\].
const SUCCESSES: u8 = 3;
/// Probes of condemned paths are at most this share of the data packets sent, or one at a time.
const SHARE: u64 = 100;
/// ... and never more than so many at a time.
const MOST_AT_ONCE: u64 = 8;

/// Probes of reverse paths are the same share of the data packets that come in, and a larger one, though never above this, where
/// those are so few that the last probe is this long ago \[choice\]: a queue pair whose peer sends only some thousand packets a
/// second would otherwise not know for tens of milliseconds that feedback goes nowhere.
const REVERSE_SHARE_AT_MOST: u64 = 16;
const REVERSE_AT_LATEST: Span = Span::from_millis(1);

/// From this tail probe on, each goes out on every plane: with back-offs of a second, asking one plane at a time takes long.
const EVERY_PLANE_FROM: u8 = 4;

pub(super) struct Prober {
    /// Earliest probe of a condemned path.
    condemned_due: Time,
    /// Data packets sent when condemned paths were last probed.
    budget_from: u64,
    /// The last tail probe: the high byte of its id, and when it was sent.
    tail: Option<(u8, Stamp)>,
    /// When the last one fell due, and how many have gone unanswered.
    tail_at: Time,
    tails: u8,
    tail_path: EvIndex,
    /// The last probe of a reverse path, while it is unanswered.
    reverse: Option<EvIndex>,
    reverse_due: Time,
    reverse_from: u64,
    sequence: u8,
    /// Binary logarithm, in picoseconds, of the unit of a first wait.
    due_shift: u8,
    seed: u32,
}

impl Prober {
    pub(super) fn new(seed: u64, base_rtt: Span) -> Self {
        Prober {
            condemned_due: Time::NEVER,
            budget_from: 0,
            tail: None,
            tail_at: Time::ZERO,
            tails: 0,
            tail_path: 0,
            reverse: None,
            reverse_due: Time::ZERO,
            reverse_from: 0,
            sequence: 0,
            due_shift: (base_rtt.times(FIRST_RTTS).0 / WAIT_UNITS).max(1).ilog2() as u8,
            seed: mix(seed) as u32,
        }
    }

    pub(super) fn condemned_due(&self) -> Time {
        self.condemned_due
    }

    /// The peer has given a sign of life.
    pub(super) fn heard(&mut self) {
        self.tails = 0;
    }

    /// A probe reply has come: when the tail probe with this id was sent.
    pub(super) fn tail_answered(&self, id: u16) -> Option<Stamp> {
        self.tail.filter(|&(sent, _)| u16::from(sent) == id >> 8).map(|(_, stamp)| stamp)
    }
}

impl QueuePair {
    fn send_probe(&mut self, now: Time, index: EvIndex, host: &mut dyn Host) {
        self.prober.sequence = self.prober.sequence.wrapping_add(1);
        self.repeat_probe(now, index, host);
    }

    /// The last probe once more, on another path.
    fn repeat_probe(&mut self, now: Time, index: EvIndex, host: &mut dyn Host) {
        let probe_id = u16::from(self.prober.sequence) << 8 | u16::from(index);
        let probe = Probe {
            vendor_info: 0,
            probe_id,
            spdcid: self.config.local_qp as u16,
            dpdcid: self.config.remote_qp as u16,
            timestamp: Timestamp { ticks: now.wire_ticks(), service_time: false },
        };
        self.stats.probes += 1;
        let packet = Packet::new(self.config.remote_qp, Psn::new(0), Body::Probe(probe));
        host.transmit(self.paths.transmit(packet, index, TrafficClass::Data, None));
    }

    /// When rule 3 fires: nothing heard for 1.5 RTT + target delay; unanswered probes double the wait, up to a second.
    pub(super) fn tail_due(&self) -> Time {
        let wait = Span(self.srtt.0 + self.srtt.0 / 2) + self.config.cc.nscc.target_qdelay;
        self.heard_at.max(self.prober.tail_at) + wait.times(1 << self.prober.tails.min(30)).min(LONGEST)
    }

    /// Rule 3: packets or messages are outstanding and the peer is silent. Its answer, which tells all it has, counts as a
    /// packet sent now and acknowledged, and so uncovers what was lost before.
    pub(super) fn probe_tail(&mut self, now: Time, host: &mut dyn Host) {
        if self.is_quiet() || now < self.tail_due() {
            return;
        }
        self.prober.tail_at = now;
        self.prober.tails = self.prober.tails.saturating_add(1);
        let last = self.prober.tail_path;
        let Some(index) = self.paths.select(self.ports_up, self.ports_up, Some(last)) else { return };
        self.send_probe(now, index, host);
        self.prober.tail = Some((self.prober.sequence, Stamp::at(now)));
        self.prober.tail_path = index;
        if self.prober.tails >= EVERY_PLANE_FROM {
            let asked = self.paths.plane_of(index);
            for plane in (0..self.paths.plane_count()).filter(|&p| p != asked) {
                if self.ports_up.contains(self.paths.plane_port(plane))
                    && let Some(other) = self.paths.choose_to_probe(plane)
                {
                    self.repeat_probe(now, other, host);
                }
            }
        }
    }

    /// A condemned path gets its first probe after four RTTs.
    pub(super) fn schedule_probing(&mut self, now: Time, index: EvIndex) {
        self.paths.record_mut(index).set_probing(0, 0);
        self.set_due(now, index, self.srtt.times(FIRST_RTTS));
    }

    /// The unit of a path's due time, as a shift.
    fn due_shift(&self, index: EvIndex) -> u32 {
        u32::from(self.prober.due_shift) + u32::from(self.paths.record(index).backoff())
    }

    /// Sets the time of a path's next probe; its back-off must be set already.
    fn set_due(&mut self, now: Time, index: EvIndex, wait: Span) {
        let shift = self.due_shift(index);
        // Rounded up, so that the timer and the path's own clock agree on when the time has come.
        let due = (now.0 >> shift) + (wait.0 >> shift).min(MOST_UNITS) + 1;
        self.paths.probe_due[index as usize] = due as u8;
        self.prober.condemned_due = self.prober.condemned_due.min(Time(due << shift));
    }

    /// Probes the condemned paths whose time has come, within the budget.
    pub(super) fn probe_condemned(&mut self, now: Time, host: &mut dyn Host) {
        if now < self.prober.condemned_due {
            return;
        }
        self.prober.condemned_due = Time::NEVER;
        let budget = (self.stats.data_packets - self.prober.budget_from) / SHARE + 1;
        let mut budget = budget.min(MOST_AT_ONCE);
        self.prober.budget_from = self.stats.data_packets;
        for i in 0..self.paths.len() {
            let index = i as EvIndex;
            if self.paths.state(index) != EvState::AssumedBad {
                continue;
            }
            let shift = self.due_shift(index);
            let remaining = self.paths.probe_due[i].wrapping_sub((now.0 >> shift) as u8) as i8;
            if remaining > 0 {
                let due = (now.0 >> shift) + remaining as u64;
                self.prober.condemned_due = self.prober.condemned_due.min(Time(due << shift));
            } else if budget == 0 || !self.ports_up.contains(self.paths.port(index)) {
                self.set_due(now, index, self.srtt.times(FIRST_RTTS));
            } else {
                budget -= 1;
                let record = self.paths.record(index);
                // A back-off that is still there means that the last probe was not answered.
                let successes = if record.backoff() > 0 { 0 } else { record.successes() };
                self.paths.record_mut(index).set_probing(successes, record.backoff() + 1);
                let wait = self.srtt.times(FIRST_RTTS << record.backoff()).min(LONGEST);
                self.set_due(now, index, self.jitter(now, index, wait));
                self.send_probe(now, index, host);
            }
        }
    }

    /// Three quarters to all of `wait`, so that queue pairs do not probe in step.
    fn jitter(&self, now: Time, index: EvIndex, wait: Span) -> Span {
        let random = mix(now.0 ^ u64::from(self.prober.seed) << 8 ^ u64::from(index)) % 256;
        Span(wait.0 - wait.0 / 1024 * random)
    }

    /// Something sent on this path was answered.
    pub(super) fn path_answered(
        &mut self,
        now: Time,
        index: EvIndex,
        probe: bool,
        mark: Mark,
        host: &mut dyn Host,
    ) {
        self.reverse.confirm(now, &self.paths, index);
        if self.prober.reverse == Some(index) {
            self.prober.reverse = None;
        }
        match mark {
            Mark::AlwaysSkip => self.condemn(now, index, host),
            Mark::SkipOnce if !probe => self.paths.mark(index),
            Mark::SkipOnce | Mark::None => {}
        }
        if probe && mark != Mark::AlwaysSkip && self.paths.state(index) == EvState::AssumedBad {
            self.probe_succeeded(now, index, mark, host);
        }
    }

    fn probe_succeeded(&mut self, now: Time, index: EvIndex, mark: Mark, host: &mut dyn Host) {
        let successes = self.paths.record(index).successes() + 1;
        if mark == Mark::None && successes < SUCCESSES {
            self.paths.record_mut(index).set_probing(successes, 0);
            self.set_due(now, index, Span::ZERO);
            return;
        }
        let input = if mark == Mark::None { EvInput::ProbesGood } else { EvInput::ProbesMarked };
        if self.paths.restore(index, input) {
            self.tell(index, EvChange::Good, host);
            self.probe_siblings(now, index);
        }
    }

    /// One path of a plane is back: the others may be too, so they need not sit out their back-off.
    pub(super) fn probe_siblings(&mut self, now: Time, index: EvIndex) {
        self.probe_soon(now, PortSet::one(self.paths.port(index)));
    }

    /// Condemned paths on these ports are probed next.
    pub(super) fn probe_soon(&mut self, now: Time, ports: PortSet) {
        for i in 0..self.paths.len() {
            let index = i as EvIndex;
            if self.paths.state(index) == EvState::AssumedBad && ports.contains(self.paths.port(index)) {
                let successes = self.paths.record(index).successes();
                self.paths.record_mut(index).set_probing(successes, 0);
                self.set_due(now, index, Span::ZERO);
            }
        }
    }

    /// Where a queue pair receives and does not send, its own data cannot tell which paths work for feedback: one probe
    /// a round trip on a path chosen at random does, and never more than one for a hundred packets received, or one a
    /// millisecond for sixteen.
    pub(super) fn keep_reverse_fresh(&mut self, now: Time, host: &mut dyn Host) {
        let received = self.stats.data_packets_in;
        let few = received < self.prober.reverse_from + (SHARE - REVERSE_SHARE_AT_MOST);
        if !self.window.is_empty()
            || received < self.prober.reverse_from
            || now < self.prober.reverse_due
            || few && now < self.prober.reverse_due + REVERSE_AT_LATEST
        {
            return;
        }
        if let Some(silent) = self.prober.reverse.take() {
            self.reverse.doubt(&self.paths, silent);
        }
        let random = mix(now.0 ^ u64::from(self.prober.seed)) as usize % self.paths.len();
        let index = random as EvIndex;
        self.prober.reverse_due = now + self.srtt.times(2);
        self.prober.reverse_from = received + REVERSE_SHARE_AT_MOST;
        if self.paths.state(index) != EvState::Denied && self.ports_up.contains(self.paths.port(index)) {
            self.send_probe(now, index, host);
            self.prober.reverse = Some(index);
        }
    }
}
