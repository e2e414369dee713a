//! What breaks, when, and until when.

use openmrc_fabric::{Fabric, Node};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::ScenarioError;
use crate::names::{Named, named};
use crate::numbers::{Count, Duration, Host, Micros, Seed, Share, short, three_digits};
use crate::run::{Change, Effect, FaultEvent, NetworkConfig, Target, faults as schedule};

/// Something that breaks: what it hits, when, and what then happens to it. How it is written, `fault_fields` says.
#[derive(Clone, PartialEq, Debug)]
pub struct Fault {
    /// What it hits.
    pub targets: Targets,
    /// When.
    pub when: When,
    /// What it does to the targets.
    pub effect: Effect,
    /// Which directions of links it hits.
    pub direction: Direction,
}

/// A direction of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Both.
    #[default]
    Both,
    /// Away from the hosts.
    Upward,
    /// Towards the hosts.
    Downward,
}

impl Direction {
    /// This direction of a link. Of a switch there is none.
    const fn of(self, target: Target) -> Target {
        match (self, target) {
            (Direction::Upward, Target::Link(link)) => Target::Upward(link),
            (Direction::Downward, Target::Link(link)) => Target::Downward(link),
            _ => target,
        }
    }
}

/// What a fault hits.
#[derive(Clone, PartialEq, Debug)]
pub struct Targets {
    /// Names of links (`p3/t0-17:up5--p3/t1-5`, `h12:p3--p3/t0-0:down12`), ports of hosts (`h12:p3`), switches
    /// (`p3/t1-5`); or all `links`, `host-links`, `fabric-links`, `switches`.
    pub names: Vec<String>,
    /// Which of them.
    pub which: Which,
}

/// Which of the named targets a fault hits.
#[derive(Clone, PartialEq, Debug)]
pub enum Which {
    /// All of them.
    All,
    /// All of them, which are ports of hosts.
    HostPorts,
    /// All of them, which are switches.
    Switches,
    /// The cables on these ports of the one switch that is named, downlinks counted before uplinks.
    Ports(Vec<Host>),
    /// A share of them, chosen at random.
    Share {
        /// How many of them.
        share: Share,
        /// Which of them.
        seed: Seed,
    },
}

/// When a fault begins and ends.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum When {
    /// Once. At time 0 the targets are broken from the start.
    Once {
        /// When it begins.
        at: Micros,
        /// When it is repaired; never if left open.
        until: Option<Micros>,
    },
    /// Several times.
    Repeated {
        /// When it begins first.
        at: Micros,
        /// How long it lasts each time.
        down: Duration,
        /// How long the targets work in between.
        up: Duration,
        /// How often it begins.
        times: Count,
    },
    /// At random times, exponentially distributed.
    AtRandom {
        /// When failures may begin.
        at: Micros,
        /// When failures end; with the run if left open.
        until: Option<Micros>,
        /// Mean time between a repair and the next failure.
        mtbf: Duration,
        /// Mean time to repair.
        mttr: Duration,
        /// Which times.
        seed: Seed,
    },
}

impl When {
    /// How often it begins in a run that ends at the latest at `limit`; of random failures how often is expected.
    fn times(&self, limit: Duration) -> f64 {
        match *self {
            When::Once { .. } => 1.0,
            When::Repeated { at, down, up, times } => {
                let left = (limit.get() - at.get()).max(0.0);
                // The last time may begin just before the end.
                let fit = ((left / (down.get() + up.get())) as u32).saturating_add(1);
                times.u32().min(fit).into()
            }
            When::AtRandom { at, until, mtbf, mttr, .. } => {
                let period = until.map_or(limit.get(), Micros::get) - at.get();
                period.max(0.0) / (mtbf.get() + mttr.get())
            }
        }
    }
}

impl Fault {
    /// Checks what is known without the fabric.
    pub(crate) fn check(&self) -> Result<(), ScenarioError> {
        if self.targets.names.is_empty() {
            return Err(ScenarioError::at("targets", "there are none"));
        }
        if let When::Once { at, until: Some(until) } | When::AtRandom { at, until: Some(until), .. } =
            self.when
            && until <= at
        {
            let message = format!("{} is not after at_us, {}", short(until.get()), short(at.get()));
            return Err(ScenarioError::at("until_us", message));
        }
        if let Which::Ports(ports) = &self.targets.which {
            if self.targets.names.len() > 1 {
                return Err(ScenarioError::at("targets", "a transceiver is of one switch"));
            }
            if ports.is_empty() {
                return Err(ScenarioError::at("ports", "there are none"));
            }
        }
        if let When::AtRandom { .. } = self.when
            && let Effect::Loss(amount) | Effect::BitErrors(amount) | Effect::Slow(amount) = self.effect
            && amount <= 0.0
        {
            return Err(ScenarioError::at("amount", format!("{} needs one above 0", self.effect.name())));
        }
        Ok(())
    }

    /// Checks that what it hits exists, and that a slow link is not too slow to simulate.
    pub(crate) fn check_fit(&self, network: &NetworkConfig) -> Result<(), ScenarioError> {
        self.targets.check_fit(&network.fabric).map_err(|error| error.inside("targets"))?;
        if self.direction != Direction::Both
            && self.targets.named(&network.fabric)?.iter().any(|named| named.are_switches())
        {
            return Err(ScenarioError::at("direction", "a switch has none; name links"));
        }
        let least = NetworkConfig::LEAST_RATE_BPS / network.port_rate_bps as f64;
        match self.effect {
            Effect::Slow(share) if share < least => {
                let (share, least) = (short(share), three_digits(least));
                let message = format!("{share} of the rate is too slow to simulate, at least {least}");
                Err(ScenarioError::new(message))
            }
            _ => Ok(()),
        }
    }

    /// How many entries of the schedule it makes; of random failures how many are expected.
    pub(crate) fn volume(&self, fabric: &Fabric, limit: Duration) -> Result<u64, ScenarioError> {
        let begun = self.targets.count(fabric)? as f64 * self.when.times(limit);
        Ok((2.0 * begun) as u64)
    }

    /// What happens when, in a run that ends at the latest at `limit`.
    pub(crate) fn schedule(
        &self,
        fabric: &Fabric,
        limit: Duration,
    ) -> Result<Vec<FaultEvent>, ScenarioError> {
        let mut targets = self.targets.find(fabric).map_err(|error| error.inside("targets"))?;
        targets.iter_mut().for_each(|target| *target = self.direction.of(*target));
        Ok(match self.when {
            When::Once { at, until } => {
                let entries = |&target: &Target| {
                    let begin = FaultEvent { at: at.time(), target, change: Change::Begins(self.effect) };
                    let end = until.map(|end| FaultEvent {
                        at: end.time(),
                        target,
                        change: Change::Ends(self.effect),
                    });
                    [Some(begin), end]
                };
                targets.iter().flat_map(entries).flatten().collect()
            }
            When::Repeated { at, down, up, .. } => {
                let times = self.when.times(limit) as u32;
                let flap =
                    |&target: &Target| schedule::flap(target, at.time(), down.span(), up.span(), times);
                targets.iter().flat_map(flap).collect()
            }
            When::AtRandom { at, until, mtbf, mttr, seed } => {
                let period = at.time()..until.map_or(limit.time(), Micros::time);
                schedule::random(&targets, self.effect, mtbf.span(), mttr.span(), period, seed.get())
            }
        })
    }
}

impl Targets {
    fn named(&self, fabric: &Fabric) -> Result<Vec<Named>, ScenarioError> {
        self.names.iter().map(|name| named(fabric, name)).collect()
    }

    fn check_fit(&self, fabric: &Fabric) -> Result<(), ScenarioError> {
        let hit = self.named(fabric)?;
        let (fits, wanted) = match &self.which {
            Which::All | Which::Share { .. } => return Ok(()),
            Which::HostPorts => {
                (hit.iter().all(|named| named.are_host_links(fabric)), "ports of hosts, as h12:p3")
            }
            Which::Switches => {
                (hit.iter().all(|named| named.are_switches()), "switches; only a switch reboots")
            }
            Which::Ports(ports) => return self.cables(ports, fabric).map(drop),
        };
        if fits {
            return Ok(());
        }
        Err(ScenarioError::new(format!("{} are not all {wanted}", self.names.join(", "))))
    }

    /// How many links and switches are named; of a share all that it is chosen from.
    fn count(&self, fabric: &Fabric) -> Result<u64, ScenarioError> {
        match &self.which {
            Which::Ports(ports) => Ok(ports.len() as u64),
            _ => Ok(self.named(fabric)?.iter().map(|named| named.count(fabric)).sum()),
        }
    }

    /// The links and switches that are hit.
    fn find(&self, fabric: &Fabric) -> Result<Vec<Target>, ScenarioError> {
        if let Which::Ports(ports) = &self.which {
            return self.cables(ports, fabric);
        }
        let all = self.named(fabric)?.into_iter().flat_map(|named| named.targets(fabric)).collect();
        Ok(match &self.which {
            Which::Share { share, seed } => schedule::chosen(all, share.get(), seed.get()),
            _ => all,
        })
    }

    /// The cables on ports of the switch that is named.
    fn cables(&self, ports: &[Host], fabric: &Fabric) -> Result<Vec<Target>, ScenarioError> {
        let name = self.names.first().map_or("", String::as_str);
        let node = fabric.node_named(name).map_err(|error| ScenarioError::new(error.to_string()))?;
        let Node::Switch(switch) = node else {
            return Err(ScenarioError::new(format!("{name} is not a switch")));
        };
        let cable = |port: &Host| match fabric.link_at(switch, port.u32()) {
            Some(link) => Ok(Target::Link(fabric.link_number(link))),
            None => Err(ScenarioError::new(format!("{name} has no cable on port {}", port.get()))),
        };
        ports.iter().map(cable).collect()
    }
}
