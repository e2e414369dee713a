//! A bad network on purpose: packets that a port is about to send are dropped, duplicated, reordered, corrupted,
//! delayed, marked or trimmed by rules. For tests and demonstrations; without rules it costs one comparison per run of
//! packets, with rules the dice for each packet, and only runs that are harmed lose the fast way out.
//!
//! Rules are tried in order; each that matches and whose dice fall acts, until one drops the packet. All randomness
//! comes from one seed.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::Duration;

use openmrc_transport::{PortSet, Span, Time};
use openmrc_wire::{DscpMap, Ev, Packet, opcode};
use rand::{RngExt as _, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::error::{Error, Result};
use crate::socket;

/// Most rules in force.
pub const MAX_RULES: usize = u64::BITS as usize;

/// Which packets of the ports a rule looks at.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum PacketClass {
    /// All.
    #[default]
    Any,
    /// RDMA writes.
    Data,
    /// Everything else: feedback, probes, endpoint requests.
    Control,
}

/// Which paths a rule looks at.
#[derive(Clone, PartialEq, Default, Debug)]
pub enum EvSelection {
    /// All.
    #[default]
    All,
    /// These entropy values.
    Set(Vec<Ev>),
    /// A share of all values, 0..=1, chosen by a hash of the value and the seed: always the same ones.
    Fraction(f64),
}

/// What happens to a packet.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Impairment {
    /// It is lost.
    Drop,
    /// It is sent twice.
    Duplicate,
    /// It is sent after so many later packets of its port, or after this time if fewer follow.
    Reorder {
        /// Packets that overtake it.
        packets: u32,
        /// At the latest after this time.
        at_most: Duration,
    },
    /// So many of its bits, anywhere, are flipped.
    Corrupt {
        /// How many.
        bits: u32,
    },
    /// It is sent this much later, plus a random part of `jitter`.
    Delay {
        /// Fixed part.
        delay: Duration,
        /// Largest random part.
        jitter: Duration,
    },
    /// It is marked "congestion experienced".
    EcnMark,
    /// Its payload is cut off as a switch does, and its DSCP says so. Data only.
    Trim {
        /// On the receiver's own downlink.
        last_hop: bool,
    },
}

/// One rule.
#[derive(Clone, PartialEq, Debug)]
pub struct ImpairRule {
    /// Ports it applies to; bit p for port p.
    pub ports: u16,
    /// Paths it applies to.
    pub evs: EvSelection,
    /// Packets it applies to.
    pub class: PacketClass,
    /// What it does.
    pub kind: Impairment,
    /// How likely, 0..=1.
    pub probability: f64,
    /// From so long after the rules are set ...
    pub start: Duration,
    /// ... until so long after; `None`: for ever.
    pub end: Option<Duration>,
}

impl ImpairRule {
    /// A rule for every packet of every port, always, from now on.
    pub fn new(kind: Impairment) -> Self {
        ImpairRule {
            ports: u16::MAX,
            evs: EvSelection::All,
            class: PacketClass::Any,
            kind,
            probability: 1.0,
            start: Duration::ZERO,
            end: None,
        }
    }

    fn validate(&self) -> Result<()> {
        let share = |name: &str, value: f64| {
            if (0.0..=1.0).contains(&value) {
                Ok(())
            } else {
                Err(Error::invalid(format!("{name} must be 0 to 1, not {value}")))
            }
        };
        share("probability", self.probability)?;
        if let EvSelection::Fraction(fraction) = self.evs {
            share("fraction of entropy values", fraction)?;
        }
        if self.end.is_some_and(|end| end <= self.start) {
            return Err(Error::invalid("a rule must end after it starts"));
        }
        Ok(())
    }
}

/// A packet on its way out, in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Outgoing {
    /// Index of the path.
    pub path: u16,
    pub port: u8,
    pub ev: Ev,
    pub peer: u32,
    /// Traffic class octet.
    pub class: u8,
    pub bytes: Vec<u8>,
}

/// A packet that is sent later.
struct Held {
    due: Time,
    /// Keeps the order of packets due at the same time.
    order: u64,
    packet: Outgoing,
}

impl PartialEq for Held {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Held {}
impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Held {
    fn cmp(&self, other: &Self) -> Ordering {
        // The heap gives its largest first; the earliest is wanted.
        (other.due, other.order).cmp(&(self.due, self.order))
    }
}

/// A packet that lets others overtake it.
struct Overtaken {
    remaining: u32,
    due: Time,
    packet: Outgoing,
}

struct Rule {
    rule: ImpairRule,
    start: Time,
    end: Time,
    hits: u64,
    last_hit: Option<Time>,
}

impl Rule {
    fn hit(&mut self, now: Time) {
        self.hits += 1;
        self.last_hit = Some(now);
    }
}

/// Which rules act on a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Harm(u64);

impl Harm {
    /// Whether none does.
    #[inline]
    pub fn is_none(self) -> bool {
        self.0 == 0
    }
}

/// Whether an opcode is that of an RDMA write.
#[inline]
pub(crate) fn is_data(opcode: u8) -> bool {
    (opcode::WRITE_FIRST..=opcode::WRITE_ONLY_IMM).contains(&opcode)
}

/// The rules of a device and the packets they hold back.
pub(crate) struct Impairer {
    rules: Vec<Rule>,
    dscp: DscpMap,
    rng: Xoshiro256PlusPlus,
    seed: u64,
    held: BinaryHeap<Held>,
    overtaken: Vec<Overtaken>,
    order: u64,
}

impl Impairer {
    pub fn new(dscp: DscpMap) -> Self {
        Impairer {
            rules: Vec::new(),
            dscp,
            rng: Xoshiro256PlusPlus::seed_from_u64(0),
            seed: 0,
            held: BinaryHeap::new(),
            overtaken: Vec::new(),
            order: 0,
        }
    }

    /// Replaces all rules; their schedules start now, and their dice anew from `seed`. Packets held back stay so.
    pub fn set(&mut self, now: Time, rules: Vec<ImpairRule>, seed: u64) -> Result<()> {
        rules.iter().try_for_each(ImpairRule::validate)?;
        if rules.len() > MAX_RULES {
            return Err(Error::invalid(format!(
                "{} rules: at most {MAX_RULES} can be in force",
                rules.len()
            )));
        }
        let at = |after: Duration| now + Span::from_nanos(after.as_nanos().min(1 << 53) as u64);
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

    /// When each rule acted last, if it has.
    pub fn last_hits(&self) -> Vec<Option<Time>> {
        self.rules.iter().map(|r| r.last_hit).collect()
    }

    /// Whether packets must come by here.
    #[inline]
    pub fn active(&self) -> bool {
        !self.rules.is_empty() || !self.overtaken.is_empty()
    }

    /// When something held back is due.
    pub fn next_due(&self) -> Time {
        let held = self.held.peek().map_or(Time::NEVER, |h| h.due);
        self.overtaken.iter().map(|o| o.due).fold(held, Time::min)
    }

    /// Rolls the dice for a packet: bit i is set if rule i acts on it. Packets that nothing happens to need not come
    /// by [`Impairer::harm`], unless others wait for them to pass.
    #[inline]
    pub fn roll(&mut self, now: Time, port: u8, ev: Ev, is_data: bool) -> Harm {
        let mut harm = 0;
        for i in 0..self.rules.len() {
            if self.matches(i, now, port, ev, is_data) {
                harm |= 1 << i;
                if matches!(self.rules[i].rule.kind, Impairment::Drop) {
                    break;
                }
            }
        }
        Harm(harm)
    }

    /// Whether packets of `port` are held back until others have passed.
    #[inline]
    pub fn holds(&self, port: u8) -> bool {
        self.overtaken.iter().any(|o| o.packet.port == port)
    }

    /// Takes a packet; what is to be sent now, if anything, is appended to `out`.
    #[cfg(test)]
    pub fn submit(&mut self, now: Time, packet: Outgoing, out: &mut Vec<Outgoing>) {
        let is_data = packet.bytes.first().is_some_and(|&opcode| is_data(opcode));
        let harm = self.roll(now, packet.port, packet.ev, is_data);
        self.harm(now, packet, harm, out);
    }

    /// Does to a packet what [`Impairer::roll`] said; what is to be sent now, if anything, is appended to `out`.
    pub fn harm(&mut self, now: Time, mut packet: Outgoing, harm: Harm, out: &mut Vec<Outgoing>) {
        let mut copies = 1;
        let mut later: Option<Time> = None;
        let mut behind: Option<(u32, Time)> = None;
        for i in 0..self.rules.len() {
            if harm.0 & 1 << i == 0 {
                continue;
            }
            match self.rules[i].rule.kind {
                Impairment::Drop => {
                    self.rules[i].hit(now);
                    self.release_overtaken(now, packet.port, out);
                    return;
                }
                Impairment::Duplicate => copies += 1,
                Impairment::Reorder { packets, at_most } => behind = Some((packets, now + span(at_most))),
                Impairment::Corrupt { bits } => self.corrupt(&mut packet.bytes, bits),
                Impairment::Delay { delay, jitter } => {
                    let jitter = self.rng.random_range(0..=jitter.as_nanos().min(1 << 53) as u64);
                    later = Some(now + span(delay) + Span::from_nanos(jitter));
                }
                Impairment::EcnMark => packet.class = socket::marked(packet.class),
                Impairment::Trim { last_hop } => {
                    if !self.trim(&mut packet, last_hop) {
                        continue;
                    }
                }
            }
            self.rules[i].hit(now);
        }
        for _ in 1..copies {
            self.place(later, None, packet.clone(), out);
        }
        let port = packet.port;
        self.place(later, behind, packet, out);
        if behind.is_none() {
            self.release_overtaken(now, port, out);
        }
    }

    fn place(
        &mut self,
        later: Option<Time>,
        behind: Option<(u32, Time)>,
        packet: Outgoing,
        out: &mut Vec<Outgoing>,
    ) {
        match (later, behind) {
            (Some(due), _) => {
                self.order += 1;
                self.held.push(Held { due, order: self.order, packet });
            }
            (None, Some((remaining, due))) => self.overtaken.push(Overtaken { remaining, due, packet }),
            (None, None) => out.push(packet),
        }
    }

    /// A packet of `port` has passed: those waiting for it get closer, or go.
    fn release_overtaken(&mut self, now: Time, port: u8, out: &mut Vec<Outgoing>) {
        let mut i = 0;
        while i < self.overtaken.len() {
            let waiting = &mut self.overtaken[i];
            if waiting.packet.port == port {
                waiting.remaining = waiting.remaining.saturating_sub(1);
            }
            if waiting.remaining == 0 || waiting.due <= now {
                out.push(self.overtaken.remove(i).packet);
            } else {
                i += 1;
            }
        }
    }

    /// What has waited long enough.
    pub fn take_due(&mut self, now: Time, out: &mut Vec<Outgoing>) {
        while let Some(held) = self.held.peek_mut().filter(|h| h.due <= now) {
            out.push(std::collections::binary_heap::PeekMut::pop(held).packet);
        }
        let mut i = 0;
        while i < self.overtaken.len() {
            if self.overtaken[i].due <= now {
                out.push(self.overtaken.remove(i).packet);
            } else {
                i += 1;
            }
        }
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

    /// Whether there was something to cut off.
    fn trim(&self, packet: &mut Outgoing, last_hop: bool) -> bool {
        let Ok((parsed, payload)) = Packet::parse(&packet.bytes) else { return false };
        if payload.is_empty() {
            return false;
        }
        packet.bytes.truncate(parsed.header_len());
        let dscp = if last_hop { self.dscp.trimmed_last_hop } else { self.dscp.trimmed };
        packet.class = socket::traffic_class(dscp, false);
        true
    }
}

fn span(duration: Duration) -> Span {
    Span::from_nanos(duration.as_nanos().min(1 << 53) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(port: u8, tag: u8) -> Outgoing {
        let mut bytes = vec![tag; 64];
        bytes[0] = opcode::WRITE_FIRST;
        Outgoing { path: 0, port, ev: Ev(1000 + u32::from(tag)), peer: 0, class: 2, bytes }
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
    fn a_reordered_packet_comes_after_as_many_others_of_its_port() {
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
        assert_eq!(out.len(), 1, "nothing overtook it: time released it");
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
