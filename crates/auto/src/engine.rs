//! The engine: a packet world with a [`Policy`].

use openmrc_scenario::run::{NetworkConfig, TransportConfig};
use openmrc_scenario::{Engine, Footprint, Progress, Results, Run, RunError, SkipTotals};
use openmrc_sim::World;
use openmrc_workload::Task;

use crate::policy::Policy;
use crate::suited;

/// A run in packets where something changes.
pub struct AutoWorld {
    world: World,
    /// Why packets carry everything.
    packets_only: Option<&'static str>,
}

impl AutoWorld {
    /// The world of the packet engine that executes it.
    pub fn packets(&self) -> &World {
        &self.world
    }

    /// The same, to finish its record.
    pub fn packets_mut(&mut self) -> &mut World {
        &mut self.world
    }
}

impl Engine for AutoWorld {
    fn footprint(
        network: &NetworkConfig,
        transport: &TransportConfig,
        threads: u32,
    ) -> Result<Footprint, RunError> {
        let packets = World::footprint(network, transport, threads)?;
        Ok(Footprint { per_message: packets.per_message + size_of::<Task>() as u64, ..packets })
    }

    fn new(run: &Run) -> Result<Self, RunError> {
        let packets_only = suited::reason(run);
        let world = match packets_only {
            Some(_) => World::new(run)?,
            None => {
                run.check()?;
                World::with_skipper(run, Box::new(Policy::new(run)))?
            }
        };
        Ok(AutoWorld { world, packets_only })
    }

    fn advance(&mut self, events: u64) -> bool {
        self.world.advance(events)
    }

    fn progress(&self) -> Progress {
        self.world.progress()
    }

    fn results(&self) -> Results {
        let results = self.world.results();
        match self.packets_only {
            Some(_) => {
                let skips = SkipTotals { packets_only: self.packets_only, ..SkipTotals::default() };
                Results { skips, ..results }
            }
            None => results,
        }
    }
}
