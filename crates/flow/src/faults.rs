//! Which links of each plane are down or slow.

use std::collections::BTreeMap;

use openmrc_fabric::{Fabric, Link};
use openmrc_scenario::run::{Change, Effect, FaultEvent, Target};

/// The state of a link that is not as it should be.
#[derive(Clone, Debug, Default)]
pub(crate) struct LinkState {
    /// Faults that take it down.
    down: u32,
    /// The shares of its rate that slow faults leave.
    slow: Vec<f64>,
}

impl LinkState {
    pub fn is_down(&self) -> bool {
        self.down > 0
    }

    /// The share of its rate that it carries.
    pub fn carries(&self) -> f64 {
        if self.is_down() { 0.0 } else { self.slow.iter().copied().fold(1.0, f64::min) }
    }

    fn is_whole(&self) -> bool {
        self.down == 0 && self.slow.is_empty()
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Begins(Effect::Slow(share)) => self.slow.push(share),
            Change::Ends(Effect::Slow(share)) => {
                if let Some(at) = self.slow.iter().position(|&other| other == share) {
                    self.slow.swap_remove(at);
                }
            }
            Change::Begins(_) => self.down += 1,
            Change::Ends(_) => self.down = self.down.saturating_sub(1),
        }
    }
}

/// The links of a plane that are down or slow.
#[derive(Clone, Debug, Default)]
pub(crate) struct PlaneFaults(BTreeMap<Link, LinkState>);

impl PlaneFaults {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn links(&self) -> impl Iterator<Item = (&Link, &LinkState)> {
        self.0.iter()
    }

    /// Applies a fault or a repair to a link.
    pub fn apply(&mut self, link: Link, change: Change) {
        let state = self.0.entry(link).or_default();
        state.apply(change);
        if state.is_whole() {
            self.0.remove(&link);
        }
    }
}

/// The links that a fault changes.
pub(crate) fn links_of(fabric: &Fabric, fault: &FaultEvent) -> Vec<Link> {
    match fault.target {
        Target::Switch(number) => fabric.switch_at(number).map_or_else(Vec::new, |switch| {
            let ports = fabric.downlinks(switch.tier) + fabric.uplinks(switch.tier);
            (0..ports).filter_map(|port| fabric.link_at(switch, port)).collect()
        }),
        // A direction can only lose packets, which this engine refuses.
        of_link => of_link.link().and_then(|number| fabric.link(number)).into_iter().collect(),
    }
}
