//! `openmrc._core.ProbedSimulation`: a run in the packet engine whose hosts probe their links. Converts; decides nothing.

use openmrc_scenario::run::{ProbeConfig, ProbeLoop, Stall};
use openmrc_scenario::{Engine, OwnParts, ScenarioError};
use openmrc_transport::{Span, Time};
use pyo3::prelude::*;

use super::{CheckedScenario, refused};
use crate::prober;

/// Loops of each host: plane, and uplink of the T0, or `None` where it turns there.
type Loops = Vec<Vec<(u32, Option<u32>)>>;

/// Adds the class to `openmrc._core`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<ProbedSimulation>()
}

/// A run in virtual time whose hosts probe.
#[pyclass(module = "openmrc._core")]
struct ProbedSimulation(openmrc_sim::World);

#[pymethods]
impl ProbedSimulation {
    /// Builds the network and schedules messages, faults and probes. `stalls` are hosts that are scheduled away: number,
    /// from when, until when, in microseconds. Raises `ArgumentError` if that is not possible.
    #[new]
    #[pyo3(signature = (scenario, loops, *, rate, interval_ms, grace_ms, stalls))]
    fn new(
        py: Python<'_>,
        scenario: &CheckedScenario,
        loops: Loops,
        rate: u32,
        interval_ms: u32,
        grace_ms: u32,
        stalls: Vec<(u32, u64, u64)>,
    ) -> PyResult<Self> {
        let loops_of = |host: Vec<(u32, Option<u32>)>| {
            host.into_iter().map(|(plane, uplink)| ProbeLoop { plane, uplink }).collect()
        };
        let at = |us| Time::ZERO + Span::from_micros(us);
        let probes = ProbeConfig {
            loops: loops.into_iter().map(loops_of).collect(),
            rate,
            interval: Span::from_millis(interval_ms.into()),
            grace: Span::from_millis(grace_ms.into()),
            stalls: (stalls.into_iter())
                .map(|(host, from, until)| Stall { host, from: at(from), until: at(until) })
                .collect(),
        };
        let made = py.detach(|| {
            let mut run = scenario.0.build(OwnParts::default())?;
            run.probes = Some(probes);
            openmrc_sim::World::new(&run).map_err(ScenarioError::from)
        });
        made.map(ProbedSimulation).map_err(|error| refused(py, &error))
    }

    /// Runs until this time, microseconds.
    fn run_until(&mut self, py: Python<'_>, us: u64) {
        py.detach(|| self.0.run_until(Time::ZERO + Span::from_micros(us)));
    }

    /// The intervals of a host that were closed since the last call, oldest first: of each loop, probes sent and lost.
    fn take(&mut self, host: u32) -> Vec<Vec<(u32, u32)>> {
        let closed = self.0.take_probes(host).into_iter();
        closed.map(|each| each.counts.iter().map(|c| (c.sent, c.sent - c.received)).collect()).collect()
    }

    /// What a host's prober has done, by name.
    fn totals(&self, host: u32) -> Vec<(&'static str, u64)> {
        prober::named(&self.0.probe_totals(host))
    }

    /// Counters of the whole network, by name.
    fn network_totals(&self) -> Vec<(&'static str, u64)> {
        self.0.results().totals.named().to_vec()
    }
}
