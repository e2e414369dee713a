"""The whole demo: the undisturbed job, the same job while the network fails, and the same over gloo."""

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

from openmrc.demos.training import faults as schedules
from openmrc.demos.training.faults import FLAP_PERIOD_S, Fault
from openmrc.demos.training.job import Job, Place
from openmrc.demos.training.network import Director, LoopbackNetwork, Network, NoNetwork
from openmrc.demos.training.settings import HEADS, Backend, EndReport, JobSettings, StepReport
from openmrc.errors import ArgumentError
from openmrc.verbs.device import LOOPBACK_PLANES

_TICK_S = 0.25


@dataclass(frozen=True, slots=True)
class Settings:
    """What a user chooses."""

    ranks: int = 4
    steps: int = JobSettings.steps
    planes: int = LOOPBACK_PLANES
    """On loopback."""
    fsdp: bool = JobSettings.fsdp
    layers: int = JobSettings.layers
    width: int = JobSettings.width
    batch: int = JobSettings.batch
    gloo: bool = True
    """Whether the job runs over gloo too."""
    trace: str | None = None
    """Begin of the names of the traces of the undisturbed job."""

    def __post_init__(self) -> None:
        if self.width % HEADS:
            raise ArgumentError(f"width {self.width} is no multiple of the {HEADS} heads of attention")

    def job(self, backend: Backend, *, traced: bool = False) -> JobSettings:
        """The job over a backend."""
        trace = self.trace if traced else None
        return JobSettings(self.steps, backend, self.fsdp, self.layers, self.width, self.batch, trace)


@dataclass
class Training:
    """What one job has reported."""

    name: str
    """``undisturbed``, ``faults`` or ``gloo``, for people and JSON."""
    faults: list[Fault]
    """That happened."""
    reports: list[list[StepReport]]
    """By rank and step."""
    ends: list[EndReport] = field(default_factory=list)
    """By rank."""

    @property
    def steps(self) -> int:
        """Steps that all ranks have ended."""
        return min(len(reports) for reports in self.reports)

    @property
    def losses(self) -> list[str]:
        """Loss of each step, as hexadecimal fractions."""
        return [report.loss for report in self.reports[0]]

    def seconds(self, step: int) -> float:
        """Time of a step, from the end of the one before, over all ranks."""
        end = max(reports[step].ended_ns for reports in self.reports)
        if step:
            begin = max(reports[step - 1].ended_ns for reports in self.reports)
        else:
            begin = min(reports[0].began_ns for reports in self.reports)
        return (end - begin) / 1e9

    def plane_bytes(self, step: int) -> list[int]:
        """Bytes that all ranks have sent on each plane in a step."""
        rows = [
            [after - before for before, after in zip(_plane_bytes(reports, step - 1), now, strict=True)]
            for reports in self.reports
            if (now := reports[step].plane_bytes)
        ]
        return [sum(column) for column in zip(*rows, strict=True)]

    def paths_out(self, step: int) -> list[int]:
        """Paths out of use on each plane, of all ranks, after a step."""
        return [
            sum(column) for column in zip(*(reports[step].paths_out for reports in self.reports), strict=True)
        ]

    @property
    def dropped(self) -> int:
        """Packets that impairments have dropped."""
        return sum(reports[-1].dropped for reports in self.reports if reports)

    @property
    def median_seconds(self) -> float:
        """Median time of a step. The first steps are not counted: memory is touched for the first time."""
        warm = min(3, self.steps - 1)
        return median(self.seconds(step) for step in range(warm, self.steps))


def _plane_bytes(reports: Sequence[StepReport], step: int) -> list[int]:
    return reports[step].plane_bytes if step >= 0 else [0] * len(reports[0].plane_bytes)


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a job, for a display."""

    training: Training
    steps: int
    """That it will have."""
    event: str | None
    """What has just happened to the network."""
    active: Fault | None
    """What is broken now."""


@dataclass(frozen=True)
class Outcome:
    """What all jobs have reported."""

    settings: Settings
    undisturbed: Training
    faults: Training
    gloo: Training | None
    gloo_faults: Training | None = None
    """In the lab: the same faults under gloo."""
    lab: bool = False
    """Whether ranks were hosts of a lab."""
    remark: str | None = None
    """What was left out, and why."""

    @property
    def same(self) -> bool:
        """Whether losses and parameters equal those of the undisturbed job, bit for bit."""
        ours, theirs = self.faults, self.undisturbed
        return ours.losses == theirs.losses and [end.digest for end in ours.ends] == [
            end.digest for end in theirs.ends
        ]


def run(settings: Settings, on_progress: Callable[[Progress], None]) -> Outcome:
    """Runs all jobs on loopback, one after the other.

    Raises:
        ArgumentError: if there are too few steps or planes.
        Error: if a rank fails.
    """
    faults = schedules.on_loopback(settings.steps, settings.planes, settings.ranks)
    variables = {"OPENMRC_SHARED_MEMORY": "0", "OPENMRC_PLANES": str(settings.planes)}
    places = [Place(environment=variables)] * settings.ranks

    def job(backend: Backend, *, traced: bool = False) -> Job:
        return Job(settings.job(backend, traced=traced), places, ("127.0.0.1", _free_port()))

    def undisturbed(name: str, backend: Backend) -> Training:
        with job(backend, traced=backend == "mrc") as ranks:
            return watch(ranks, Training(name, [], _rows(settings)), settings, NoNetwork(), on_progress)

    calm = undisturbed("undisturbed", "mrc")
    with job("mrc") as ranks:
        network = LoopbackNetwork(ranks, settings.ranks)
        disturbed = watch(ranks, Training("faults", faults, _rows(settings)), settings, network, on_progress)
    gloo = undisturbed("gloo", "gloo") if settings.gloo else None
    return Outcome(settings, calm, disturbed, gloo)


def watch(
    job: Job,
    training: Training,
    settings: Settings,
    network: Network,
    on_progress: Callable[[Progress], None],
) -> Training:
    """Follows a job to its end, and makes its faults.

    Raises:
        Error: if a rank fails.
    """
    with _directed(Director(training.faults, network, FLAP_PERIOD_S)) as director:
        done = 0
        while job.running:
            wait = director.wait
            for report in job.poll(_TICK_S if wait is None else min(wait, _TICK_S)):
                if isinstance(report, EndReport):
                    training.ends.append(report)
                else:
                    training.reports[report.rank].append(report)
            director.tick()
            while done < training.steps:
                event = director.ended(done)
                done += 1
                on_progress(Progress(training, settings.steps, event, director.active))
    training.ends.sort(key=lambda end: end.rank)
    return training


@contextmanager
def _directed(director: Director) -> Iterator[Director]:
    try:
        yield director
    finally:
        director.finish()


def _rows(settings: Settings) -> list[list[StepReport]]:
    return [[] for _ in range(settings.ranks)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
