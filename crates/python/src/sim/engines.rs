//! The engine that a scenario names.

use std::path::Path;

use openmrc_auto::AutoWorld;
use openmrc_flow::FlowWorld;
use openmrc_scenario::run::NetworkConfig;
use openmrc_scenario::{Checked, Engine, EngineKind, Estimate, OwnParts, Progress, Results, ScenarioError};
use openmrc_sim::{CheckpointError, PlaneNow, Recorder};
use openmrc_workload::Connection;

/// A run in the engine of its scenario. Only packets leave a record; without it no packet and no connection is asked for.
pub(super) enum World {
    Packets(Box<openmrc_sim::World>),
    Flow(Box<FlowWorld>),
    Auto(Box<AutoWorld>),
}

/// The estimate of a run's memory in the engine of its scenario.
pub(super) fn estimate(checked: &Checked) -> Result<Estimate, ScenarioError> {
    match checked.scenario().engine {
        EngineKind::Packets => checked.estimate::<openmrc_sim::World>(),
        EngineKind::Flow => checked.estimate::<FlowWorld>(),
        EngineKind::Auto => checked.estimate::<AutoWorld>(),
    }
}

/// Builds the network in the engine of its scenario, and throws it away.
pub(super) fn try_network(checked: &Checked) -> Result<(), ScenarioError> {
    match checked.scenario().engine {
        EngineKind::Packets => checked.try_network::<openmrc_sim::World>(),
        EngineKind::Flow => checked.try_network::<FlowWorld>(),
        EngineKind::Auto => checked.try_network::<AutoWorld>(),
    }
}

impl World {
    pub fn new(checked: &Checked, own: OwnParts) -> Result<Self, ScenarioError> {
        let run = checked.build(own)?;
        Ok(match checked.scenario().engine {
            EngineKind::Packets => World::Packets(Box::new(openmrc_sim::World::new(&run)?)),
            EngineKind::Flow => World::Flow(Box::new(FlowWorld::new(&run)?)),
            EngineKind::Auto => World::Auto(Box::new(AutoWorld::new(&run)?)),
        })
    }

    pub fn advance(&mut self, events: u64) -> bool {
        match self {
            World::Packets(world) => world.advance(events),
            World::Flow(world) => world.advance(events),
            World::Auto(world) => world.advance(events),
        }
    }

    pub fn progress(&self) -> Progress {
        match self {
            World::Packets(world) => world.progress(),
            World::Flow(world) => world.progress(),
            World::Auto(world) => world.progress(),
        }
    }

    /// Writes a checkpoint of the run of the scenario with this number.
    pub fn checkpoint(&self, path: &Path, scenario: u64) -> Result<(), CheckpointError> {
        match self {
            World::Packets(world) => world.checkpoint(path, scenario),
            World::Auto(_) => Err(CheckpointError::Unsupported("a run of the auto engine")),
            World::Flow(_) => Err(CheckpointError::Unsupported("a run of the flow engine")),
        }
    }

    /// Goes on from a checkpoint.
    pub fn resume(&mut self, path: &Path, scenario: u64) -> Result<(), CheckpointError> {
        match self {
            World::Packets(world) => world.resume(path, scenario),
            World::Auto(_) => Err(CheckpointError::Unsupported("a run of the auto engine")),
            World::Flow(_) => Err(CheckpointError::Unsupported("a run of the flow engine")),
        }
    }

    /// The planes as they are now; none where there are no queues.
    pub fn planes(&self) -> Vec<PlaneNow> {
        self.packets().map_or_else(Vec::new, openmrc_sim::World::planes)
    }

    pub fn results(&self) -> Results {
        match self {
            World::Packets(world) => world.results(),
            World::Flow(world) => world.results(),
            World::Auto(world) => world.results(),
        }
    }

    pub fn config(&self) -> &NetworkConfig {
        match self {
            World::Packets(world) => world.config(),
            World::Flow(world) => world.config(),
            World::Auto(world) => world.packets().config(),
        }
    }

    /// The ports of a link: the one that sends up, and the one that sends down.
    pub fn link_ports(&self, link: u32) -> [u32; 2] {
        match self {
            World::Packets(world) => world.link_ports(link),
            World::Flow(_) => FlowWorld::link_ports(link),
            World::Auto(world) => world.packets().link_ports(link),
        }
    }

    // What packets leave.

    fn packets(&self) -> Option<&openmrc_sim::World> {
        match self {
            World::Packets(world) => Some(world),
            World::Auto(world) => Some(world.packets()),
            World::Flow(_) => None,
        }
    }

    fn packets_mut(&mut self) -> Option<&mut openmrc_sim::World> {
        match self {
            World::Packets(world) => Some(world),
            World::Auto(world) => Some(world.packets_mut()),
            World::Flow(_) => None,
        }
    }

    pub fn recorder(&self) -> Option<&Recorder> {
        self.packets()?.recorder()
    }

    pub fn recorder_mut(&mut self) -> Option<&mut Recorder> {
        self.packets_mut()?.recorder_mut()
    }

    pub fn finish_record(&mut self) {
        if let Some(world) = self.packets_mut() {
            world.finish_record();
        }
    }

    /// The hosts of a connection in the record.
    pub fn connection(&self, connection: u32) -> Option<Connection> {
        self.packets().map(|world| world.connection(connection))
    }

    /// The bytes of a captured packet.
    pub fn frame(&self, packet: &openmrc_sim::Captured) -> Vec<u8> {
        self.packets().map_or_else(Vec::new, |world| world.frame(packet))
    }
}
