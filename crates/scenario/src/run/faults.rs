//! The schedule of faults: what breaks, when, and until when.

use serde::{Deserialize, Serialize};
use std::ops::Range;

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use openmrc_fabric::Fabric;
use openmrc_transport::{Span, Time};

/// What a fault does to a target. Several may be on at once, also the same one twice: a target is down while any of them
/// takes it down, packets and bits have to survive every loss, and the slowest rate and the smallest MTU count.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub enum Effect {
    /// Nothing gets through; packets on the cable are lost.
    Down,
    /// Each packet is lost with this probability.
    Loss(f64),
    /// Each bit is damaged with this probability; a damaged packet is dropped.
    BitErrors(f64),
    /// It runs at this share of its rate.
    Slow(f64),
    /// IP packets of more bytes than this are lost.
    Mtu(u16),
}

impl Effect {
    /// Its name in scenarios and in the log.
    pub const fn name(&self) -> &'static str {
        match self {
            Effect::Down => "down",
            Effect::Loss(_) => "loss",
            Effect::BitErrors(_) => "bit-errors",
            Effect::Slow(_) => "slow",
            Effect::Mtu(_) => "mtu",
        }
    }
}

/// What happens to a target.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub enum Change {
    /// An effect begins.
    Begins(Effect),
    /// An effect that has begun ends. Others that are on stay on.
    Ends(Effect),
}

impl Change {
    /// The effect that begins or ends.
    pub const fn effect(&self) -> Effect {
        match *self {
            Change::Begins(effect) | Change::Ends(effect) => effect,
        }
    }

    /// Its name in the log.
    pub const fn name(&self) -> &'static str {
        match self {
            Change::Begins(effect) => effect.name(),
            Change::Ends(_) => "up",
        }
    }
}

/// What a fault hits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Target {
    /// A link, by its number in the fabric, in both directions. On a host's cable the NIC loses its carrier.
    Link(u32),
    /// A link, away from the hosts only. Its ports keep their carrier.
    Upward(u32),
    /// A link, towards the hosts only. Its ports keep their carrier.
    Downward(u32),
    /// All links of a switch, by its number in the fabric.
    Switch(u32),
}

impl Target {
    /// The number of the link that it is, or is a direction of; none of a switch.
    pub const fn link(self) -> Option<u32> {
        match self {
            Target::Link(link) | Target::Upward(link) | Target::Downward(link) => Some(link),
            Target::Switch(_) => None,
        }
    }
}

/// One entry of the schedule.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FaultEvent {
    /// When.
    pub at: Time,
    /// To what.
    pub target: Target,
    /// What.
    pub change: Change,
}

/// A fault with a target that does not exist, or with a number out of range.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
pub enum FaultError {
    /// No such link or switch.
    #[error("fault {index}: there is no {target:?}: the fabric has {links} links and {switches} switches")]
    Target {
        /// Its place in the schedule.
        index: usize,
        /// What it names.
        target: Target,
        /// Links of the fabric.
        links: u32,
        /// Switches of the fabric.
        switches: u32,
    },
    /// A probability or a share is out of range.
    #[error(
        "fault {index}: {value} is out of range: a probability is 0 to 1, a share of the rate above 0 and at most 1"
    )]
    Number {
        /// Its place in the schedule.
        index: usize,
        /// The number.
        value: f64,
    },
}

/// Checks a schedule against a fabric.
pub fn check(faults: &[FaultEvent], fabric: &Fabric) -> Result<(), FaultError> {
    for (index, fault) in faults.iter().enumerate() {
        let exists = match fault.target {
            Target::Switch(switch) => switch < fabric.switches(),
            of_link => of_link.link().is_some_and(|link| link < fabric.links()),
        };
        if !exists {
            let (links, switches) = (fabric.links(), fabric.switches());
            return Err(FaultError::Target { index, target: fault.target, links, switches });
        }
        let (value, ok) = match fault.change.effect() {
            Effect::Down | Effect::Mtu(_) => (0.0, true),
            Effect::Loss(p) | Effect::BitErrors(p) => (p, (0.0..=1.0).contains(&p)),
            Effect::Slow(share) => (share, share > 0.0 && share <= 1.0),
        };
        if !ok {
            return Err(FaultError::Number { index, value });
        }
    }
    Ok(())
}

/// A link or switch goes down for `down` and is up for `up`, `times` times.
pub fn flap(target: Target, from: Time, down: Span, up: Span, times: u32) -> Vec<FaultEvent> {
    let period = down + up;
    (0..u64::from(times))
        .flat_map(|i| {
            let at = from + period.times(i);
            [
                FaultEvent { at, target, change: Change::Begins(Effect::Down) },
                FaultEvent { at: at + down, target, change: Change::Ends(Effect::Down) },
            ]
        })
        .collect()
}

/// A share of the targets, chosen at random.
pub fn chosen(mut targets: Vec<Target>, share: f64, seed: u64) -> Vec<Target> {
    let mut dice = Xoshiro256PlusPlus::seed_from_u64(seed);
    let count = (share * targets.len() as f64).round() as usize;
    (0..count.min(targets.len())).map(|_| targets.swap_remove(dice.random_range(0..targets.len()))).collect()
}

/// Random failures: `effect` begins at each target after an exponentially distributed time of mean `mtbf`, and
/// ends after one of mean `mttr`, repeatedly in a period.
pub fn random(
    targets: &[Target],
    effect: Effect,
    mtbf: Span,
    mttr: Span,
    period: Range<Time>,
    seed: u64,
) -> Vec<FaultEvent> {
    let mut dice = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut wait = |mean: Span| mean.scaled(-(1.0 - dice.random::<f64>()).ln());
    let mut faults = Vec::new();
    for &target in targets {
        let mut now = period.start + wait(mtbf);
        while now < period.end {
            faults.push(FaultEvent { at: now, target, change: Change::Begins(effect) });
            now += wait(mttr);
            faults.push(FaultEvent { at: now, target, change: Change::Ends(effect) });
            now += wait(mtbf);
        }
    }
    faults.sort_by_key(|f| f.at);
    faults
}
