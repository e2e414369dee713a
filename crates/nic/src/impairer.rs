//! Applies impairment rules ([`crate::impair`]) to packets that are about to be sent.
//!
//! Without rules the cost is one comparison per run of packets. With rules each packet costs a random draw per rule,
//! and only packets that a rule acts on leave the fast path.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::time::Duration;

use openmrc_transport::{PortSet, Span, Time};
use openmrc_wire::{DscpMap, Ev, Packet};
use rand::{RngExt as _, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::error::{Error, Result};
use crate::impair::{EvSelection, ImpairRule, Impairment, MAX_RULES, PacketClass};
use crate::socket;
use crate::tx::RunKey;

/// A packet that is about to be sent, as bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Outgoing {
    /// Its path, its traffic class and its peer.
    pub key: RunKey,
    pub port: u8,
    pub ev: Ev,
    pub bytes: Vec<u8>,
}

/// The rules that act on a packet: bit i for rule i.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RuleSet(u64);

impl RuleSet {
    /// Whether no rule acts.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    fn contains(self, rule: usize) -> bool {
        self.0 & 1 << rule != 0
    }
}

/// A rule in force, and how often it has acted.
struct Rule {
    rule: ImpairRule,
    start: Time,
    end: Time,
    hits: u64,
    last_hit: Option<Time>,
}

impl Rule {
    fn count_hit(&mut self, now: Time) {
        self.hits += 1;
        self.last_hit = Some(now);
    }
}

/// A packet that is sent at a certain time.
struct Delayed {
    due: Time,
    /// Keeps the order of packets that are due at the same time.
    order: u64,
    packet: Outgoing,
}

impl PartialEq for Delayed {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Delayed {}
impl PartialOrd for Delayed {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Delayed {
    fn cmp(&self, other: &Self) -> Ordering {
        // Reversed: the heap returns its largest element first, and the earliest packet is wanted.
        (other.due, other.order).cmp(&(self.due, self.order))
    }
}

/// A packet that is sent after `remaining` later packets of its port, at `due` at the latest.
struct Reordered {
    remaining: u32,
    due: Time,
    packet: Outgoing,
}

/// When a packet leaves.
#[derive(Clone, Copy)]
enum Departure {
    Now,
    At(Time),
    After { packets: u32, due: Time },
}

/// The rules of a device, and the packets they hold.
pub(crate) struct Impairer {
    rules: Vec<Rule>,
    dscp: DscpMap,
    rng: Xoshiro256PlusPlus,
    seed: u64,
    delayed: BinaryHeap<Delayed>,
    /// Packets delayed so far.
    order: u64,
    reordered: Vec<Reordered>,
}

impl Impairer {
    pub fn new(dscp: DscpMap) -> Self {
        Impairer {
            rules: Vec::new(),
            dscp,
            rng: Xoshiro256PlusPlus::seed_from_u64(0),
            seed: 0,
            delayed: BinaryHeap::new(),
            order: 0,
            reordered: Vec::new(),
        }
    }

    /// Replaces all rules. Their schedules start now, and their random numbers are drawn from `seed` again. Packets
    /// that are held stay held.
    pub fn set(&mut self, now: Time, rules: Vec<ImpairRule>, seed: u64) -> Result<()> {
        rules.iter().try_for_each(ImpairRule::validate)?;
        if rules.len() > MAX_RULES {
            return Err(Error::invalid(format!(
                "{} rules: at most {MAX_RULES} can be in force",
                rules.len()
            )));
        }
        let at = |after: Duration| now + span(after);
        self.rules = rules
            .into_iter()
            .map(|rule| {
                let (start, end) = (at(rule.start), rule.end.map_or(Time::NEVER, at));
                Rule { start, end, hits: 0, last_hit: None, rule }
            })
            .collect();
        self.rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        self.seed = seed;
        Ok(())
    }

    /// How often each rule has acted.
    pub fn hits(&self) -> Vec<u64> {
        self.rules.iter().map(|r| r.hits).collect()
    }

    /// When each rule acted last.
    pub fn last_hits(&self) -> Vec<Option<Time>> {
        self.rules.iter().map(|r| r.last_hit).collect()
    }

    /// Whether packets must be offered to the impairer.
    #[inline]
    pub fn is_active(&self) -> bool {
        !self.rules.is_empty() || !self.reordered.is_empty()
    }

    /// When the next held packet is due.
    pub fn next_due(&self) -> Time {
        let delayed = self.delayed.peek().map_or(Time::NEVER, |d| d.due);
        self.reordered.iter().map(|r| r.due).fold(delayed, Time::min)
    }

    /// Draws which rules act on a packet. A packet on which none acts needs no [`Impairer::apply`], unless
    /// [`Impairer::reorders`] says that others wait for it to leave.
    #[inline]
    pub fn draw(&mut self, now: Time, port: u8, ev: Ev, is_data: bool) -> RuleSet {
        let mut rules = 0;
        for i in 0..self.rules.len() {
            if self.matches(i, now, port, ev, is_data) {
                rules |= 1 << i;
                if matches!(self.rules[i].rule.kind, Impairment::Drop) {
                    break;
                }
            }
        }
        RuleSet(rules)
    }

    /// Whether packets of `port` are held until later ones have left.
    #[inline]
    pub fn reorders(&self, port: u8) -> bool {
        self.reordered.iter().any(|r| r.packet.port == port)
    }

    /// Draws the rules for a packet and applies them.
    #[cfg(test)]
    pub fn submit(&mut self, now: Time, packet: Outgoing, out: &mut Vec<Outgoing>) {
        let is_data = packet.bytes.first().is_some_and(|&opcode| crate::tx::is_data(opcode));
        let rules = self.draw(now, packet.port, packet.ev, is_data);
        self.apply(now, packet, rules, out);
    }

    /// Applies rules to a packet. Appends what must be sent now to `out`.
    pub fn apply(&mut self, now: Time, mut packet: Outgoing, rules: RuleSet, out: &mut Vec<Outgoing>) {
        let port = packet.port;
        let mut copies = 0;
        let mut delayed_until: Option<Time> = None;
        let mut overtaken_by: Option<(u32, Time)> = None;
        for i in (0..self.rules.len()).filter(|&i| rules.contains(i)) {
            match self.rules[i].rule.kind {
                Impairment::Drop => {
                    self.rules[i].count_hit(now);
                    self.release_reordered(now, port, out);
                    return;
                }
                Impairment::Duplicate => copies += 1,
                Impairment::Reorder { packets, at_most } => {
                    overtaken_by = Some((packets, now + span(at_most)));
                }
                Impairment::Corrupt { bits } => self.corrupt(&mut packet.bytes, bits),
                Impairment::Delay { delay, jitter } => {
                    let jitter = Span::from_nanos(self.rng.random_range(0..=span(jitter).as_nanos()));
                    delayed_until = Some(now + span(delay) + jitter);
                }
                Impairment::EcnMark => packet.key.class = socket::marked(packet.key.class),
                Impairment::Trim { last_hop } => {
                    if !self.trim(&mut packet, last_hop) {
                        continue;
                    }
                }
            }
            self.rules[i].count_hit(now);
        }
        for _ in 0..copies {
            let departure = delayed_until.map_or(Departure::Now, Departure::At);
            self.depart(departure, packet.clone(), out);
        }
        let departure = match (delayed_until, overtaken_by) {
            (Some(due), _) => Departure::At(due),
            (None, Some((packets, due))) => Departure::After { packets, due },
            (None, None) => Departure::Now,
        };
        self.depart(departure, packet, out);
        if overtaken_by.is_none() {
            self.release_reordered(now, port, out);
        }
    }

    fn depart(&mut self, departure: Departure, packet: Outgoing, out: &mut Vec<Outgoing>) {
        match departure {
            Departure::Now => out.push(packet),
            Departure::At(due) => {
                self.order += 1;
                self.delayed.push(Delayed { due, order: self.order, packet });
            }
            Departure::After { packets, due } => {
                self.reordered.push(Reordered { remaining: packets, due, packet });
            }
        }
    }

    /// A packet of `port` has left: releases the packets that waited for it as the last of their number.
    fn release_reordered(&mut self, now: Time, port: u8, out: &mut Vec<Outgoing>) {
        for waiting in self.reordered.iter_mut().filter(|r| r.packet.port == port) {
            waiting.remaining = waiting.remaining.saturating_sub(1);
        }
        let released = self.reordered.extract_if(.., |r| r.remaining == 0 || r.due <= now);
        out.extend(released.map(|r| r.packet));
    }

    /// Appends the packets that have been held long enough to `out`.
    pub fn take_due(&mut self, now: Time, out: &mut Vec<Outgoing>) {
        while let Some(delayed) = self.delayed.peek_mut().filter(|d| d.due <= now) {
            out.push(PeekMut::pop(delayed).packet);
        }
        out.extend(self.reordered.extract_if(.., |r| r.due <= now).map(|r| r.packet));
    }

    fn matches(&mut self, rule: usize, now: Time, port: u8, ev: Ev, is_data: bool) -> bool {
        let Rule { rule, start, end, .. } = &self.rules[rule];
        let class = match rule.class {
            // Only data can be trimmed.
            PacketClass::Any => is_data || !matches!(rule.kind, Impairment::Trim { .. }),
            PacketClass::Data => is_data,
            PacketClass::Control => !is_data,
        };
        if !class || !PortSet(rule.ports).contains(port) || !(*start..*end).contains(&now) {
            return false;
        }
        let path = match &rule.evs {
            EvSelection::All => true,
            EvSelection::Set(evs) => evs.contains(&ev),
            EvSelection::Fraction(fraction) => {
                let mut hash = Xoshiro256PlusPlus::seed_from_u64(self.seed ^ u64::from(ev.0) << 16);
                hash.random::<f64>() < *fraction
            }
        };
        path && (rule.probability >= 1.0 || self.rng.random::<f64>() < rule.probability)
    }

    fn corrupt(&mut self, bytes: &mut [u8], bits: u32) {
        for _ in 0..bits {
            if !bytes.is_empty() {
                let bit = self.rng.random_range(0..bytes.len() * 8);
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }

    /// Cuts off the payload; returns whether there was one.
    fn trim(&self, packet: &mut Outgoing, last_hop: bool) -> bool {
        let Ok((parsed, payload)) = Packet::parse(&packet.bytes) else { return false };
        if payload.is_empty() {
            return false;
        }
        packet.bytes.truncate(parsed.header_len());
        let dscp = if last_hop { self.dscp.trimmed_last_hop } else { self.dscp.trimmed };
        packet.key.class = socket::traffic_class(dscp, false);
        true
    }
}

fn span(duration: Duration) -> Span {
    Span::from_nanos(duration.as_nanos().min(1 << 53) as u64)
}

#[cfg(test)]
mod tests {
    use openmrc_wire::opcode;

    use super::*;

    fn packet(port: u8, tag: u8) -> Outgoing {
        let mut bytes = vec![tag; 64];
        bytes[0] = opcode::WRITE_FIRST;
        let key = RunKey { path: 0, class: 2, peer: 0 };
        Outgoing { key, port, ev: Ev(1000 + u32::from(tag)), bytes }
    }

    fn impairer(rules: Vec<ImpairRule>) -> Impairer {
        let mut impairer = Impairer::new(DscpMap::DEFAULT);
        impairer.set(Time(0), rules, 42).unwrap();
        impairer
    }

    fn run(impairer: &mut Impairer, now: Time, packets: impl IntoIterator<Item = Outgoing>) -> Vec<u8> {
        let mut out = Vec::new();
        packets.into_iter().for_each(|p| impairer.submit(now, p, &mut out));
        out.iter().map(|p| p.bytes[1]).collect()
    }

    #[test]
    fn a_share_is_dropped_and_counted() {
        let rule = ImpairRule { probability: 0.25, ..ImpairRule::new(Impairment::Drop) };
        let mut impairer = impairer(vec![rule]);
        let passed = run(&mut impairer, Time(0), (0..4000).map(|i| packet(0, i as u8))).len();
        assert!((2800..3200).contains(&passed), "{passed}");
        assert_eq!(impairer.hits()[0] as usize, 4000 - passed);
    }

    #[test]
    fn rules_choose_by_port_class_path_and_time() {
        let drop = || ImpairRule::new(Impairment::Drop);
        let ms = |n| Duration::from_millis(n);
        let mut impairer = impairer(vec![
            ImpairRule { ports: 1 << 3, ..drop() },
            ImpairRule { evs: EvSelection::Set(vec![Ev(1007)]), ..drop() },
            ImpairRule { start: ms(1), end: Some(ms(2)), ..drop() },
            ImpairRule { class: PacketClass::Control, ..drop() },
        ]);
        assert_eq!(run(&mut impairer, Time(0), [packet(3, 1), packet(2, 2), packet(2, 7)]), [2]);
        let at = |ms| Time(0) + Span::from_millis(ms);
        assert!(run(&mut impairer, at(1), [packet(2, 2)]).is_empty());
        assert_eq!(run(&mut impairer, at(2), [packet(2, 2)]), [2]);
        let mut control = packet(2, 2);
        control.bytes[0] = opcode::SACK;
        assert!(run(&mut impairer, at(2), [control]).is_empty());
        assert_eq!(impairer.hits(), [1, 1, 1, 1]);
    }

    #[test]
    fn a_reordered_packet_leaves_after_later_ones_of_its_port() {
        let rule = ImpairRule {
            evs: EvSelection::Set(vec![Ev(1000)]),
            ..ImpairRule::new(Impairment::Reorder { packets: 2, at_most: Duration::from_millis(1) })
        };
        let mut impairer = impairer(vec![rule]);
        let packets = [packet(0, 0), packet(0, 1), packet(1, 9), packet(0, 2), packet(0, 3)];
        assert_eq!(run(&mut impairer, Time(0), packets), [1, 9, 2, 0, 3]);
        assert!(run(&mut impairer, Time(0), [packet(0, 0)]).is_empty());
        let mut out = Vec::new();
        impairer.take_due(impairer.next_due(), &mut out);
        assert_eq!(out.len(), 1, "no packet overtook it, so time releases it");
    }

    #[test]
    fn delayed_packets_come_when_due_and_duplicates_twice() {
        let delay = Impairment::Delay { delay: Duration::from_micros(50), jitter: Duration::ZERO };
        let mut impairer = impairer(vec![ImpairRule::new(Impairment::Duplicate), ImpairRule::new(delay)]);
        assert!(run(&mut impairer, Time(0), [packet(0, 1), packet(0, 2)]).is_empty());
        assert_eq!(impairer.next_due(), Time(0) + Span::from_micros(50));
        let mut out = Vec::new();
        impairer.take_due(Time(0) + Span::from_micros(49), &mut out);
        assert!(out.is_empty());
        impairer.take_due(Time(0) + Span::from_micros(50), &mut out);
        assert_eq!(out.iter().map(|p| p.bytes[1]).collect::<Vec<_>>(), [1, 1, 2, 2]);
    }

    #[test]
    fn the_same_seed_hits_the_same_packets_and_the_same_paths() {
        let rules = || {
            vec![
                ImpairRule { evs: EvSelection::Fraction(0.5), ..ImpairRule::new(Impairment::Drop) },
                ImpairRule { probability: 0.3, ..ImpairRule::new(Impairment::Corrupt { bits: 3 }) },
            ]
        };
        let all = |impairer: &mut Impairer| {
            let mut out = Vec::new();
            (0..200).for_each(|i| impairer.submit(Time(0), packet(0, i), &mut out));
            out
        };
        let (a, b) = (all(&mut impairer(rules())), all(&mut impairer(rules())));
        assert_eq!(a, b);
        assert!((60..140).contains(&a.len()), "{}", a.len());
    }

    #[test]
    fn an_impossible_rule_is_refused() {
        let mut impairer = Impairer::new(DscpMap::DEFAULT);
        let rule = ImpairRule { probability: 1.5, ..ImpairRule::new(Impairment::Drop) };
        assert!(impairer.set(Time(0), vec![rule], 1).unwrap_err().to_string().contains("1.5"));
    }
}
