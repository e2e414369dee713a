"""The whole demo: the undisturbed job, the same job while the network fails, and the same over gloo."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from statistics import median

from openmrc.collectives.bench import Place
from openmrc.demos.director import Director, Fault
from openmrc.demos.training.faults import on_loopback
from openmrc.demos.training.job import Job
from openmrc.demos.training.settings import HEADS, Backend, EndReport, JobSettings, StepReport
from openmrc.errors import ArgumentError
from openmrc.verbs.device import LOOPBACK_PLANES

_TICK_S = 0.25


@dataclass(frozen=True, kw_only=True)
class Settings(JobSettings):
    """What a user chooses."""

    ranks: int = 4
    planes: int = LOOPBACK_PLANES
    """On loopback."""
    gloo: bool = True
    """Whether the job runs over gloo too."""

    def __post_init__(self) -> None:
        if self.width % HEADS:
            raise ArgumentError(f"width {self.width} is no multiple of the {HEADS} heads of attention")

    def job(self, backend: Backend, *, traced: bool = False) -> JobSettings:
        """The job over a backend."""
        trace = self.trace if traced else None
        return JobSettings(self.steps, backend, self.fsdp, self.layers, self.width, self.batch, trace)


@dataclass
class JobReport:
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

    training: JobReport
    done: int
    """Steps that are reported."""
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
    undisturbed: JobReport
    faults: JobReport
    gloo: JobReport | None
    gloo_faults: JobReport | None = None
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


Change = Callable[[Job, Fault, bool], None]
"""Makes a fault under a job if the flag is set, or repairs it."""
OnProgress = Callable[[Progress], None]
"""Called after each step, and with each fault and repair."""


def run(settings: Settings, on_progress: OnProgress) -> Outcome:
    """Runs all jobs on loopback, one after the other.

    Raises:
        ArgumentError: if there are too few steps or planes.
        Error: if a rank fails.
    """
    faults = on_loopback(settings.steps, settings.planes, settings.ranks)
    variables = {"OPENMRC_SHARED_MEMORY": "0", "OPENMRC_PLANES": str(settings.planes)}
    places = [Place(environment=variables)] * settings.ranks

    def change(job: Job, fault: Fault, down: bool) -> None:
        # The rules are in force some milliseconds later.
        for rank in range(settings.ranks) if fault.ranks is None else fault.ranks:
            job.impair(rank, fault.rules if down else (), faults.index(fault))

    train = partial(train_once, settings, places, change, on_progress)
    calm = train("undisturbed", "mrc", [])
    disturbed = train("faults", "mrc", faults)
    gloo = train("gloo", "gloo", []) if settings.gloo else None
    return Outcome(settings, calm, disturbed, gloo)


def train_once(
    settings: Settings,
    places: Sequence[Place],
    change: Change,
    on_progress: OnProgress,
    name: str,
    backend: Backend,
    faults: list[Fault],
) -> JobReport:
    """Runs one job to its end, with faults.

    Args:
        settings: What a user chose.
        places: Where its ranks run.
        change: Makes and repairs a fault.
        on_progress: Called with the progress.
        name: Of the training.
        backend: What it communicates over.
        faults: In steps.

    Raises:
        Error: if a rank fails.
    """
    training = JobReport(name, faults, [[] for _ in places])
    traced = backend == "mrc" and not faults
    with Job(settings.job(backend, traced=traced), places) as job:
        director = TrainingDirector(job, training, settings.steps, change, on_progress)
        director.direct(faults)
        director.wait()
    training.ends.sort(key=lambda end: end.rank)
    return training


class TrainingDirector(Director):
    """Follows a job; time is the last step that all ranks have ended."""

    flap_period_s = 0.3
    """A link that flaps changes its state after this time."""

    def __init__(
        self, job: Job, training: JobReport, steps: int, change: Change, on_progress: OnProgress
    ) -> None:
        super().__init__()
        self._job = job
        self._training = training
        self._steps = steps
        self._apply = change
        self._on_progress = on_progress
        self._done = 0
        self._down = False
        self._flap = inf
        """When a link that flaps changes its state."""

    @property
    def now(self) -> float:
        """The last step."""
        return self._done - 1

    @property
    def running(self) -> bool:
        """Whether a rank runs, or a step has not been shown."""
        return self._job.running or self._done < self._training.steps

    def look(self, left: float) -> None:
        """Shows one step, or waits for the next; meanwhile a link may flap."""
        if self._done < self._training.steps:
            self._done += 1
            self._show()
            return
        for report in self._job.poll(min(_TICK_S, max(0.0, self._flap - time.monotonic()))):
            if isinstance(report, EndReport):
                self._training.ends.append(report)
            else:
                self._training.reports[report.rank].append(report)
        if time.monotonic() >= self._flap:
            self._change(self.broken[0], down=not self._down)

    def begin(self, fault: Fault) -> None:
        """Makes it, and shows it."""
        self._change(fault, down=True)
        self._show(fault.title)

    def end(self, fault: Fault) -> None:
        """Repairs it unless it is a link that is up at the moment."""
        if self._down:
            self._change(fault, down=False)
        self._flap = inf
        self._show(f"{fault.title}: repaired")

    def _change(self, fault: Fault, *, down: bool) -> None:
        self._apply(self._job, fault, down)
        self._down = down
        if fault.kind == "flap":
            self._flap = time.monotonic() + self.flap_period_s

    def _show(self, event: str | None = None) -> None:
        active = self.broken[0] if self.broken else None
        self._on_progress(Progress(self._training, self._done, self._steps, event, active))
