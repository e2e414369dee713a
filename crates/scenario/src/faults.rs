//! What breaks, when, and until when.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use openmrc_fabric::{Fabric, Node};
use openmrc_transport::{Span, Time};

use crate::error::ScenarioError;
use crate::names::{Named, named};
use crate::numbers::{
    Count, Duration, Host, Micros, Probability, Seed, Share, Whole, first_seed, short, three_digits,
};
use crate::read::by_kind;
use crate::run::NetworkConfig;
use crate::run::faults as schedule;
use crate::run::{Change, FaultEvent, Target};

by_kind! {
    /// Something that breaks.
    pub enum Fault {
        /// Nothing gets through.
        "down" => Down,
        /// Packets are lost at random.
        "loss" => Loss,
        /// Bits are damaged at random.
        "bit-errors" => BitErrors,
        /// A link runs at a share of its rate.
        "slow" => Slow,
        /// Down and up again, several times.
        "flap" => Flap,
        /// A switch is gone for a while.
        "reboot" => Reboot,
        /// A host's port has no carrier.
        "nic-port" => NicPort,
        /// Ports of one switch that share a transceiver.
        "transceiver" => Transceiver,
        /// A share of the targets is down for good.
        "broken" => Broken,
        /// Failures and repairs at random times.
        "random" => RandomFailures,
    }
}

/// Names of what a fault hits: links (`p3/t0-17:up5--p3/t1-5`, `h12:p3--p3/t0-0:down12`), ports of hosts (`h12:p3`),
/// switches (`p3/t1-5`); or all `links`, `host-links`, `fabric-links`, `switches`.
pub type Targets = Vec<String>;

/// Nothing gets through. At time 0 it is broken from the start.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Down {
    /// What it hits.
    pub targets: Targets,
    /// When it begins.
    #[serde(default)]
    pub at_us: Micros,
    /// When it is repaired; never if left open.
    #[serde(default)]
    pub until_us: Option<Micros>,
}

/// Packets are lost at random.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Loss {
    /// What it hits.
    pub targets: Targets,
    /// When it begins.
    #[serde(default)]
    pub at_us: Micros,
    /// When it is repaired; never if left open.
    #[serde(default)]
    pub until_us: Option<Micros>,
    /// That a packet is lost.
    pub probability: Probability,
}

/// Bits are damaged at random; a damaged packet is dropped.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BitErrors {
    /// What it hits.
    pub targets: Targets,
    /// When it begins.
    #[serde(default)]
    pub at_us: Micros,
    /// When it is repaired; never if left open.
    #[serde(default)]
    pub until_us: Option<Micros>,
    /// That a bit is damaged.
    pub probability: Probability,
}

/// A link at a share of its rate.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Slow {
    /// What it hits.
    pub targets: Targets,
    /// When it begins.
    #[serde(default)]
    pub at_us: Micros,
    /// When it is repaired; never if left open.
    #[serde(default)]
    pub until_us: Option<Micros>,
    /// What is left of the rate.
    pub share: Share,
}

/// Down and up again, several times.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Flap {
    /// What it hits.
    pub targets: Targets,
    /// When it goes down first.
    #[serde(default)]
    pub at_us: Micros,
    /// How long it is down each time.
    pub down_us: Duration,
    /// How long it is up in between.
    pub up_us: Duration,
    /// How often it goes down.
    #[serde(default = "once")]
    pub times: Count,
}

/// Switches that are gone for a while.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reboot {
    /// The switches.
    pub targets: Targets,
    /// When they go down.
    #[serde(default)]
    pub at_us: Micros,
    /// How long they are gone.
    pub down_us: Duration,
}

/// Ports of hosts without a carrier.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NicPort {
    /// The ports.
    pub targets: Targets,
    /// When it begins.
    #[serde(default)]
    pub at_us: Micros,
    /// When it is repaired; never if left open.
    #[serde(default)]
    pub until_us: Option<Micros>,
}

/// Ports of one switch that share a transceiver go down and up again together.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Transceiver {
    /// The switch.
    pub targets: Targets,
    /// When they go down first.
    #[serde(default)]
    pub at_us: Micros,
    /// Its ports, downlinks counted before uplinks.
    pub ports: Vec<Host>,
    /// How long they are down each time.
    pub down_us: Duration,
    /// How long they are up in between.
    #[serde(default = "a_microsecond")]
    pub up_us: Duration,
    /// How often they go down.
    #[serde(default = "once")]
    pub times: Count,
}

/// A share of the targets, chosen at random, is down and stays so. At time 0 it is broken from the start.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Broken {
    /// The targets chosen from.
    pub targets: Targets,
    /// When it begins.
    #[serde(default)]
    pub at_us: Micros,
    /// How many of them.
    pub share: Share,
    /// Which of them.
    #[serde(default = "first_seed")]
    pub seed: Seed,
}

/// Each target fails and is repaired at random times, exponentially distributed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RandomFailures {
    /// What it hits.
    pub targets: Targets,
    /// When failures may begin.
    #[serde(default)]
    pub at_us: Micros,
    /// When failures end; with the run if left open.
    #[serde(default)]
    pub until_us: Option<Micros>,
    /// What a failure does.
    #[serde(default)]
    pub effect: Effect,
    /// Probability of loss or bit errors, or the share of the rate that is left.
    #[serde(default = "nothing")]
    pub amount: Probability,
    /// Mean time between a repair and the next failure.
    pub mtbf_us: Duration,
    /// Mean time to repair.
    pub mttr_us: Duration,
    /// Which times.
    #[serde(default = "first_seed")]
    pub seed: Seed,
}

/// What a random failure does.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// Nothing gets through.
    #[default]
    Down,
    /// Packets are lost.
    Loss,
    /// Bits are damaged.
    BitErrors,
    /// Less rate.
    Slow,
}

/// A fault that is repaired once comes once.
const fn once() -> Count {
    Whole::of(1)
}

/// Not used if the transceiver goes down once.
fn a_microsecond() -> Duration {
    Duration::of(1.0)
}

/// A failure that takes a link or switch down has no amount.
fn nothing() -> Probability {
    Probability::of(0.0)
}

/// How often something goes down that goes down `times` times, or until the run ends.
fn times_until(limit: Duration, at: Micros, down: Duration, up: Duration, times: Count) -> u32 {
    let left = (limit.get() - at.get()).max(0.0);
    times.u32().min(((left / (down.get() + up.get())) as u32).saturating_add(1))
}

impl Fault {
    fn targets(&self) -> &Targets {
        match self {
            Fault::Down(fault) => &fault.targets,
            Fault::Loss(fault) => &fault.targets,
            Fault::BitErrors(fault) => &fault.targets,
            Fault::Slow(fault) => &fault.targets,
            Fault::Flap(fault) => &fault.targets,
            Fault::Reboot(fault) => &fault.targets,
            Fault::NicPort(fault) => &fault.targets,
            Fault::Transceiver(fault) => &fault.targets,
            Fault::Broken(fault) => &fault.targets,
            Fault::RandomFailures(fault) => &fault.targets,
        }
    }

    /// From when until when, for those that have an end.
    fn period(&self) -> Option<(Micros, Option<Micros>)> {
        match self {
            Fault::Down(fault) => Some((fault.at_us, fault.until_us)),
            Fault::Loss(fault) => Some((fault.at_us, fault.until_us)),
            Fault::BitErrors(fault) => Some((fault.at_us, fault.until_us)),
            Fault::Slow(fault) => Some((fault.at_us, fault.until_us)),
            Fault::NicPort(fault) => Some((fault.at_us, fault.until_us)),
            Fault::RandomFailures(fault) => Some((fault.at_us, fault.until_us)),
            Fault::Flap(_) | Fault::Reboot(_) | Fault::Transceiver(_) | Fault::Broken(_) => None,
        }
    }

    /// What happens to a target, for those that do one thing.
    fn change(&self) -> Change {
        match self {
            Fault::Loss(fault) => Change::Loss(fault.probability.get()),
            Fault::BitErrors(fault) => Change::BitErrors(fault.probability.get()),
            Fault::Slow(fault) => Change::Slow(fault.share.get()),
            Fault::RandomFailures(fault) => fault.change(),
            _ => Change::Down,
        }
    }

    /// Checks what is known without the fabric.
    pub(crate) fn check(&self) -> Result<(), ScenarioError> {
        if self.targets().is_empty() {
            return Err(ScenarioError::at("targets", "there are none"));
        }
        if let Some((at, Some(until))) = self.period()
            && until <= at
        {
            let message = format!("{} is not after at_us, {}", short(until.get()), short(at.get()));
            return Err(ScenarioError::at("until_us", message));
        }
        match self {
            Fault::Transceiver(fault) if fault.targets.len() > 1 => {
                Err(ScenarioError::at("targets", "a transceiver is of one switch"))
            }
            Fault::Transceiver(fault) if fault.ports.is_empty() => {
                Err(ScenarioError::at("ports", "there are none"))
            }
            Fault::RandomFailures(fault) => fault.check(),
            _ => Ok(()),
        }
    }

    /// Checks that what it hits exists, and that a slow link is not too slow to simulate.
    pub(crate) fn check_fit(&self, network: &NetworkConfig) -> Result<(), ScenarioError> {
        let fabric = &network.fabric;
        let hit = self.named(fabric).map_err(|error| error.inside("targets"))?;
        let names = || self.targets().join(", ");
        match self {
            Fault::NicPort(_) if !hit.iter().all(|named| named.are_host_links(fabric)) => {
                let message = format!("{} are not all ports of hosts, as h12:p3", names());
                return Err(ScenarioError::at("targets", message));
            }
            Fault::Reboot(_) if !hit.iter().all(|named| named.are_switches()) => {
                let message = format!("{} are not all switches; only a switch reboots", names());
                return Err(ScenarioError::at("targets", message));
            }
            Fault::Transceiver(fault) => {
                fault.links(fabric).map_err(|error| error.inside("targets"))?;
            }
            _ => {}
        }
        let least = NetworkConfig::LEAST_RATE_BPS / network.port_rate_bps as f64;
        match self.change() {
            Change::Slow(share) if share < least => {
                let (share, least) = (short(share), three_digits(least));
                let message = format!("{share} of the rate is too slow to simulate, at least {least}");
                Err(ScenarioError::new(message))
            }
            _ => Ok(()),
        }
    }

    fn named(&self, fabric: &Fabric) -> Result<Vec<Named>, ScenarioError> {
        self.targets().iter().map(|name| named(fabric, name)).collect()
    }

    /// How many entries of the schedule it makes; of random failures how many are expected.
    pub(crate) fn volume(&self, fabric: &Fabric, limit: Duration) -> Result<u64, ScenarioError> {
        let targets = self.named(fabric)?.iter().map(|named| named.count(fabric)).sum::<u64>();
        let both = 2u64.saturating_mul(targets);
        Ok(match self {
            Fault::Flap(f) => {
                let times = times_until(limit, f.at_us, f.down_us, f.up_us, f.times);
                both.saturating_mul(times.into())
            }
            Fault::Transceiver(f) => {
                let times = times_until(limit, f.at_us, f.down_us, f.up_us, f.times);
                2 * u64::from(times) * f.ports.len() as u64
            }
            Fault::RandomFailures(f) => {
                let end = f.until_us.map_or(limit.get(), Micros::get);
                (both as f64 * end / (f.mtbf_us.get() + f.mttr_us.get())) as u64
            }
            _ => both,
        })
    }

    /// What happens when, in a run that ends at the latest at `limit`.
    pub(crate) fn schedule(
        &self,
        fabric: &Fabric,
        limit: Duration,
    ) -> Result<Vec<FaultEvent>, ScenarioError> {
        let hit = self.named(fabric).map_err(|error| error.inside("targets"))?;
        let targets: Vec<Target> = hit.into_iter().flat_map(|named| named.targets(fabric)).collect();
        Ok(match self {
            Fault::Flap(f) => {
                let times = times_until(limit, f.at_us, f.down_us, f.up_us, f.times);
                flap(&targets, f.at_us.time(), f.down_us.span(), f.up_us.span(), times)
            }
            Fault::Reboot(f) => flap(&targets, f.at_us.time(), f.down_us.span(), Span::ZERO, 1),
            Fault::Transceiver(f) => {
                let links = f.links(fabric).map_err(|error| error.inside("targets"))?;
                let times = times_until(limit, f.at_us, f.down_us, f.up_us, f.times);
                flap(&links, f.at_us.time(), f.down_us.span(), f.up_us.span(), times)
            }
            Fault::Broken(f) => schedule::broken(&targets, f.share.get(), f.at_us.time(), f.seed.get()),
            Fault::RandomFailures(f) => {
                let end = f.until_us.map_or(limit.time(), Micros::time);
                let (mtbf, mttr) = (f.mtbf_us.span(), f.mttr_us.span());
                schedule::random(&targets, self.change(), mtbf, mttr, end, f.seed.get())
            }
            _ => {
                let (at, until) = self.period().unwrap_or_default();
                let change = self.change();
                let entries = |&target: &Target| {
                    let begin = FaultEvent { at: at.time(), target, change };
                    let end = until.map(|end| FaultEvent { at: end.time(), target, change: Change::Up });
                    [Some(begin), end]
                };
                targets.iter().flat_map(entries).flatten().collect()
            }
        })
    }
}

fn flap(targets: &[Target], at: Time, down: Span, up: Span, times: u32) -> Vec<FaultEvent> {
    targets.iter().flat_map(|&target| schedule::flap(target, at, down, up, times)).collect()
}

impl Transceiver {
    /// The cables on its ports.
    fn links(&self, fabric: &Fabric) -> Result<Vec<Target>, ScenarioError> {
        let name = self.targets.first().map_or("", String::as_str);
        let node = fabric.node_named(name).map_err(|error| ScenarioError::new(error.to_string()))?;
        let Node::Switch(switch) = node else {
            return Err(ScenarioError::new(format!("{name} is not a switch")));
        };
        let link = |port: &Host| {
            let link = fabric.link_at(switch, port.u32());
            let link = link
                .ok_or_else(|| ScenarioError::new(format!("{name} has no cable on port {}", port.get())))?;
            Ok(Target::Link(fabric.link_number(link)))
        };
        self.ports.iter().map(link).collect()
    }
}

impl RandomFailures {
    fn check(&self) -> Result<(), ScenarioError> {
        let name = match self.effect {
            Effect::Down => return Ok(()),
            Effect::Loss => "loss",
            Effect::BitErrors => "bit-errors",
            Effect::Slow => "slow",
        };
        if self.amount.get() > 0.0 {
            return Ok(());
        }
        Err(ScenarioError::at("amount", format!("{name} needs one above 0")))
    }

    fn change(&self) -> Change {
        let amount = self.amount.get();
        match self.effect {
            Effect::Down => Change::Down,
            Effect::Loss => Change::Loss(amount),
            Effect::BitErrors => Change::BitErrors(amount),
            Effect::Slow => Change::Slow(amount),
        }
    }
}
