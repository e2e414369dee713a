"""What a run of the demo says: the loss curves compared, and what each fault cost."""

from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from openmrc.demos.training.run import JobReport, Outcome


@dataclass(frozen=True, slots=True)
class FaultFigures:
    """Times of steps around a fault, seconds."""

    title: str
    begin: int
    """It happened after this step ..."""
    end: int
    """... and was repaired after this one."""
    before: float
    """Median over as many steps before it as it lasted."""
    during: float
    """Median."""
    longest: float
    """The longest step during the fault or right after its repair."""
    after: float
    """Median over as many steps after its repair."""


@dataclass(frozen=True, slots=True)
class JobFigures:
    """One job."""

    name: str
    backend: str
    seconds: float
    """Median time of a step."""
    last_loss: float
    faults: list[FaultFigures]


@dataclass(frozen=True, slots=True)
class Figures:
    """A run of the demo."""

    same: bool
    """Whether losses and parameters equal those of the undisturbed job, bit for bit."""
    first_difference: int | None
    """The first step whose loss differs."""
    ranks: int
    steps: int
    parameters: int
    sharded: bool
    """FSDP2 instead of DDP."""
    planes: int
    dropped: int | None
    """Packets that impairments have dropped; in the lab, links lose them."""
    jobs: list[JobFigures]
    gloo_distance: float | None
    """Largest distance of a loss of gloo's from ours."""
    sample: str
    """What the model writes after its training."""
    remark: str | None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def figures(outcome: Outcome) -> Figures:
    """All figures of a run."""
    ours, theirs = outcome.faults, outcome.undisturbed
    differing = [
        step for step, pair in enumerate(zip(ours.losses, theirs.losses, strict=False)) if pair[0] != pair[1]
    ]
    jobs = [_job(theirs, "mrc"), _job(ours, "mrc")]
    jobs += [_job(each, "gloo") for each in (outcome.gloo, outcome.gloo_faults) if each is not None]
    distance = None
    if outcome.gloo is not None:
        pairs = zip(outcome.gloo.losses, ours.losses, strict=True)
        distance = max(abs(float.fromhex(a) - float.fromhex(b)) for a, b in pairs)
    return Figures(
        same=outcome.same,
        first_difference=differing[0] if differing else None,
        ranks=len(ours.reports),
        steps=ours.steps,
        parameters=ours.ends[0].parameters,
        sharded=outcome.settings.fsdp,
        planes=len(ours.reports[0][0].plane_bytes),
        dropped=None if outcome.lab else ours.dropped,
        jobs=jobs,
        gloo_distance=distance,
        sample=ours.ends[0].sample,
        remark=outcome.remark,
    )


def _job(training: JobReport, backend: str) -> JobFigures:
    return JobFigures(
        training.name,
        backend,
        training.median_seconds,
        float.fromhex(training.losses[-1]),
        [_fault(training, number) for number in range(len(training.faults))],
    )


def _fault(training: JobReport, number: int) -> FaultFigures:
    fault = training.faults[number]
    begin, end = int(fault.begin), int(fault.end)
    length = end - begin
    times = [training.seconds(step) for step in range(training.steps)]
    return FaultFigures(
        fault.title,
        begin,
        end,
        median(times[max(begin - length, 0) + 1 : begin + 1]),
        median(times[begin + 1 : end + 1]),
        max(times[begin + 1 : end + 2]),
        median(times[end + 1 : end + 1 + length]),
    )
