"""A workload on a fabric in virtual time."""

import tempfile
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from openmrc.errors import ArgumentError
from openmrc.workload import chakra
from openmrc.workload.node_times import NodeTimes
from openmrc.workload.placement import place_all
from openmrc.workload.program import Workload
from openmrc.workload.timeline import write_timeline
from openmrc.workload.volume import volume
from openmrc.workload.waits import critical_path, operations, waited_for

if TYPE_CHECKING:
    from openmrc.sim import Progress, Results, Scenario

MOST_NODES = 10_000_000
"""Nodes of all ranks together that a run takes: each becomes messages in memory."""
_LIMIT_US = 1e9
"""When a run ends at the latest, unless its scenario says so: the longest that there is."""
PLANES, RADIX = 8, 64
"""The fabric of a run without a scenario."""


@dataclass(frozen=True)
class StepResults:
    """What a step took."""

    step_us: float
    """From the begin to the end of the last node."""
    compute_us: float
    """Computations of the busiest rank."""
    ideal_us: float
    """The step without a network: computations, scale-up operations, and waiting for other stages."""
    finished: bool
    """Whether it came to its end: if not, the times are those until the limit or the interrupt."""
    results: "Results"
    """Everything that the simulation knows."""
    times: NodeTimes
    """When each node began and ended."""
    hosts: Sequence[int]
    """The host of each rank."""

    @property
    def exposed_us(self) -> float:
        """What the fabric adds: communication that no computation hides."""
        return self.step_us - self.ideal_us

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON has them."""
        return {
            "step_us": self.step_us,
            "compute_us": self.compute_us,
            "ideal_us": self.ideal_us,
            "exposed_us": self.exposed_us,
            "finished": self.finished,
            "data_packets": self.results.totals["data_packets"],
            "retransmits": self.results.totals["retransmits"],
            "condemned": self.results.totals["condemned"],
            "skipped": None if self.results.skipped is None else self.results.skipped.to_dict(),
            "critical_path_us": self.critical_path_us(),
            "operations": [asdict(row) for row in operations(self.times)],
            "waited_for": [asdict(row) for row in waited_for(self.times)],
        }

    def write_timeline(self, path: Path | str) -> None:
        """Writes when each node of each rank began and ended, for ui.perfetto.dev.

        The faults of the run are marked. The format is the Trace Event Format, JSON.

        Raises:
            OSError: if it cannot be written.
        """
        write_timeline(Path(path), [(self.times, self.hosts)], self.results.scenario.faults)

    def critical_path_us(self) -> dict[str, float]:
        """What the end of the step waited for: microseconds by what was done, the most first.

        Together they are the step. Empty if the step has not ended.
        """
        found: dict[str, float] = {}
        for stretch in critical_path(self.times):
            found[stretch.what] = found.get(stretch.what, 0.0) + stretch.us
        return dict(sorted(found.items(), key=lambda each: -each[1]))


def default_scenario(ranks: int) -> "Scenario":
    """The fabric of a run that names none: a host for each rank, 8 planes, MRC; traffic is to be replaced."""
    from openmrc import sim

    topology = sim.Topology(hosts=max(ranks, 2), planes=PLANES, radix=RADIX)
    return sim.Scenario(topology=topology, traffic=[sim.Permutation(bytes=1)])


def run(
    workload: Workload,
    scenario: "Scenario | None" = None,
    progress: "Callable[[Progress], object] | None" = None,
    placement: str = "t0",
    engine: Literal["packets", "auto", "flow"] | None = None,
) -> StepResults:
    """Runs a step.

    Args:
        workload: A workload without problems.
        scenario: The fabric, its transport and faults; its traffic is replaced. Default: as many hosts as
            ranks, 8 planes, MRC.
        progress: Called now and then with how far the run has come.
        placement: Hosts of the ranks: one of ``PLACEMENTS``. ``t0``: rank i is host i. ``random`` takes the
            scenario's seed.
        engine: What executes it; default: the scenario's.

    Raises:
        ArgumentError: if the job is larger than its fabric or than a run takes, or the scenario cannot run.
        OSError: if the temporary files of the run cannot be written.
    """
    return run_jobs([workload], scenario, progress, placement, engine)[0]


def run_jobs(
    jobs: Sequence[Workload],
    scenario: "Scenario | None" = None,
    progress: "Callable[[Progress], object] | None" = None,
    placement: str = "t0",
    engine: Literal["packets", "auto", "flow"] | None = None,
) -> list[StepResults]:
    """Runs a step of several jobs on one fabric at the same time; they begin together.

    Args:
        jobs: Workloads without problems.
        scenario: As :func:`run` takes it; default: as many hosts as all jobs have ranks.
        progress: As :func:`run` takes it.
        placement: ``t0`` and ``rail``: each job on the hosts after those of the job before it; ``random``:
            any hosts of the fabric.
        engine: As :func:`run` takes it.

    Returns:
        The results of each job; they share those of the simulation.

    Raises:
        ArgumentError: as :func:`run`.
        OSError: as :func:`run`.
    """
    from openmrc import sim

    ranks, nodes = sum(len(job.ranks) for job in jobs), sum(job.nodes() for job in jobs)
    if nodes > MOST_NODES:
        raise ArgumentError(
            f"{nodes:,} nodes of {ranks:,} ranks are too many for a run: at most {MOST_NODES:,};"
            " fewer microbatches or replicas have fewer"
        )
    scenario = default_scenario(ranks) if scenario is None else scenario
    hosts = place_all(jobs, placement, scenario.topology.hosts, scenario.seed)
    with tempfile.TemporaryDirectory(prefix="openmrc-workload-") as directory:
        traffic = []
        for number, job in enumerate(jobs):
            prefix = Path(directory) / f"job{number}"
            chakra.write(job, prefix)
            traffic.append(sim.Recorded(file=str(prefix), ranks=hosts[number]))
        limit_us = scenario.limit_us if "limit_us" in scenario.model_fields_set else _LIMIT_US
        record = scenario.record.model_copy(update={"nodes": True})
        change: dict[str, Any] = {"traffic": traffic, "limit_us": limit_us, "record": record}
        if engine is not None:
            change["engine"] = engine
        results = sim.run(scenario.model_copy(update=change), progress)
    return [_step(job, number, hosts[number], results) for number, job in enumerate(jobs)]


def _step(workload: Workload, number: int, hosts: Sequence[int], results: "Results") -> StepResults:
    """What a job's step took, of the results of all jobs."""
    pattern = results.nodes["pattern"]
    rows = slice(bisect_left(pattern, number), bisect_left(pattern, number + 1))
    times = NodeTimes(workload, {name: column[rows] for name, column in results.nodes.items()})
    figures = volume(workload)
    end_ps = results.totals["end_ps"] if times.end_ps is None else times.end_ps
    return StepResults(
        step_us=end_ps / 1e6,
        compute_us=figures.compute_ns / 1e3,
        ideal_us=figures.ideal_ns / 1e3,
        finished=times.end_ps is not None,
        results=results,
        times=times,
        hosts=hosts,
    )
