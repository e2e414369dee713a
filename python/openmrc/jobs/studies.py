"""A job on each of its networks, over several seeds: means, intervals, and what one would change."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from openmrc.errors import ArgumentError
from openmrc.jobs.effect import Cause
from openmrc.jobs.flows import Flows
from openmrc.jobs.job import Job
from openmrc.jobs.log import Log, read_log, write_log
from openmrc.jobs.network import Network, Shape
from openmrc.jobs.outcome import Loss, Outcome, run

__all__ = [
    "Cause",
    "Log",
    "Loss",
    "Outcome",
    "Study",
    "Summary",
    "compare",
    "read_log",
    "run",
    "sensitivity",
    "study",
    "table",
    "what_if",
    "write_log",
]

Progress = Callable[[int, int], object]
"""Called with the number of runs that have ended, and of all."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over seeds, and the range in which nine of ten runs lie."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Interval":
        """Of one value for each seed."""
        low, high = np.percentile(values, [5, 95])
        return cls(float(np.mean(values)), float(low), float(high))


@dataclass(frozen=True, slots=True)
class Summary:
    """A job on one network."""

    job: Job
    network: Network
    shape: Shape
    outcomes: Sequence[Outcome]
    """One for each seed."""

    def over_seeds(self, figure: Callable[[Outcome], float]) -> Interval:
        """A figure of all runs."""
        return Interval.of([figure(each) for each in self.outcomes])

    @property
    def effective(self) -> Interval:
        """Share of the time that is training."""
        return self.over_seeds(lambda each: each.effective_share)

    @property
    def network_gpu_hours(self) -> Interval:
        """GPU-hours that the network costs."""
        return self.over_seeds(lambda each: each.network_share * self.job.gpu_hours)

    @property
    def network_usd(self) -> Interval:
        """The same in dollars."""
        return self.over_seeds(
            lambda each: each.network_share * self.job.gpu_hours * self.job.usd_per_gpu_hour
        )

    @property
    def interval_s(self) -> float:
        """Training between two checkpoints, seconds."""
        return self.outcomes[0].interval

    def interruptions(self, *causes: Cause) -> Interval:
        """How often the job restarts, for these causes or for all."""
        chosen = causes or tuple(Cause)
        return self.over_seeds(lambda each: float(sum(each.interruptions[cause] for cause in chosen)))

    def shares(self) -> Iterator[tuple[str, str, float]]:
        """Cause, kind of loss and mean share of the time, of everything that costs anything."""
        lost = np.mean([each.lost / each.total for each in self.outcomes], axis=0)
        for cause in Cause:
            for loss in Loss:
                if lost[cause, loss] > 0:
                    yield cause.title, loss.title, float(lost[cause, loss])

    @property
    def checkpoints(self) -> float:
        """Mean share of the time that checkpoints take."""
        return float(np.mean([each.checkpoints / each.total for each in self.outcomes]))

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON has them; shares of the job's days."""

        def told(interval: Interval) -> dict[str, float]:
            return {"mean": interval.mean, "p5": interval.low, "p95": interval.high}

        return {
            "network": self.network.model_dump(mode="json"),
            "shape": {name: getattr(self.shape, name) for name in Shape.__slots__},
            "effective": told(self.effective),
            "checkpoint_interval_s": self.interval_s,
            "checkpoints": self.checkpoints,
            "interruptions": {cause.name.lower(): told(self.interruptions(cause)) for cause in Cause},
            "lost": [{"cause": cause, "as": loss, "share": share} for cause, loss, share in self.shares()],
            "network_gpu_hours": told(self.network_gpu_hours),
            "network_usd": told(self.network_usd),
        }


@dataclass(frozen=True, slots=True)
class Study:
    """A job on all of its networks."""

    job: Job
    seeds: Sequence[int]
    summaries: Sequence[Summary]
    """In the order of the job's networks."""

    def sentence(self) -> str:
        """What came out, for those who decide."""
        size = f"{self.job.gpus:,} GPUs for {self.job.days:g} days"
        best, *others = sorted(self.summaries, key=lambda each: -each.effective.mean)
        if not others:
            return (
                f"{size} on {best.network.name}: {percent(best.effective.mean)} of the time is training;"
                f" the network costs {_short(best.network_gpu_hours.mean)} GPU-hours"
                f" ({_usd(best.network_usd.mean)})."
            )
        rest = ", ".join(f"{percent(each.effective.mean)} on {each.network.name}" for each in others)
        gained = best.effective.mean - others[0].effective.mean
        saved = gained * self.job.gpu_hours * self.job.usd_per_gpu_hour
        return (
            f"{size}: {percent(best.effective.mean)} of the time is training on {best.network.name}, {rest};"
            f" {best.network.name} saves {_usd(saved)} of GPU time against {others[0].network.name}."
        )

    columns = (
        "network",
        "training",
        "5 to 95 %",
        "restarts",
        "of them network",
        "lost to the network",
        "GPU-hours",
        "cost",
    )

    def rows(self) -> list[list[str]]:
        """A row for each network."""
        made = []
        for each in self.summaries:
            made.append(
                [
                    each.network.name,
                    percent(each.effective.mean),
                    f"{percent(each.effective.low)} to {percent(each.effective.high)}",
                    f"{each.interruptions().mean:,.0f}",
                    f"{each.interruptions(*_NETWORK).mean:,.0f}",
                    percent(each.network_gpu_hours.mean / self.job.gpu_hours),
                    _short(each.network_gpu_hours.mean),
                    _usd(each.network_usd.mean),
                ]
            )
        return made

    def notes(self) -> list[str]:
        """What a reader may stumble over."""
        made = []
        for each in self.summaries:
            hosts = sum(share for title, _, share in each.shares() if title == Cause.HOSTS.title)
            lost = 1 - each.effective.mean
            if lost > 0 and hosts > lost / 2:
                made.append(
                    f"note: on {each.network.name} {percent(hosts / lost)} of what is lost is due to hosts,"
                    " not to the network: faster restarts and checkpoints save more than any network"
                )
                break
        return made

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        return {
            "job": self.job.model_dump(mode="json"),
            "seeds": list(self.seeds),
            "sentence": self.sentence(),
            "networks": [each.to_dict() for each in self.summaries],
        }


_NETWORK = tuple(cause for cause in Cause if cause is not Cause.HOSTS)


def study(
    job: Job,
    seeds: int = 8,
    progress: Progress | None = None,
    log: Log | None = None,
    *,
    flows: Flows | None = None,
) -> Study:
    """Draws the failures of a job and adds up what they cost, on each of its networks.

    Args:
        job: The job.
        seeds: How many times, with the job's seed and the following ones. Every network has the same ones.
        progress: Told after every run.
        log: Failures in place of drawn ones: of networks with the parts that it names.
        flows: Simulates at flow level, at the job's full size, how much longer messages take, for each number
            of lost ports that occurs; without it that is the ratio of bandwidth.
    """
    numbers = range(job.seed, job.seed + seeds)
    total = seeds * len(job.networks)
    summaries = []
    for place, network in enumerate(job.networks):
        outcomes = []
        shape = network.shape(job.gpus, job.nic_gbps, job.switch_tbps)
        factors = flows.of(network, shape, job.gpus) if flows is not None else None
        for seed in numbers:
            outcomes.append(run(job, network, seed, log, factors))
            if progress:
                progress(place * seeds + len(outcomes), total)
        summaries.append(Summary(job, network, shape, outcomes))
    return Study(job, numbers, summaries)


Change = tuple[str, Job]
"""What is changed, and the job with the change."""


def sensitivity(job: Job) -> list[Change]:
    """The job with rates at the ends of what is published (docs/jobs.md)."""
    rates = job.rates

    def changed(text: str, **fields: float) -> Change:
        return text, job.model_copy(update={"rates": rates.model_copy(update=fields)})

    return [
        changed("hosts: one failure per 435 node-days", host_days=435.0),
        changed("hosts: one failure per 154 node-days", host_days=154.0),
        changed("links: one failure per 2.6 M hours", link_hours=2.6e6),
        changed("links: one failure per 0.5 M hours", link_hours=0.5e6),
        changed("links: one failure per 5 years", link_hours=43_800.0),
        changed("flaps: one per link and 1,000 days", flap_days=1000.0),
        changed("flaps: one per link and 20 days", flap_days=20.0),
    ]


def what_if(job: Job) -> list[Change]:
    """The job with what one could buy: planes, spares, faster repairs, restarts and checkpoints."""
    rates, keeps = job.rates, job.checkpoint
    made: list[Change] = []
    planes = sorted({max(1, job.networks[0].planes // 2), min(64, job.networks[0].planes * 2)})
    for number in planes:
        # A fabric that is there has its planes.
        if number != job.networks[0].planes and job.networks[0].parts is None:
            networks = [each.model_copy(update={"planes": number}) for each in job.networks[:1]]
            made.append((f"{number} planes", job.model_copy(update={"networks": networks})))
    one = job.model_copy(update={"networks": job.networks[:1]})

    def also(text: str, **fields: object) -> None:
        made.append((text, one.model_copy(update=fields)))

    also(
        "repairs in half the time",
        rates=rates.scaled(link_repair_h=0.5, switch_repair_h=0.5, host_repair_h=0.5),
    )
    also("twice the spare hosts", spare_hosts=2 * job.spares)
    also(
        "restarts in half the time",
        checkpoint=keeps.model_copy(update={"restart_min": keeps.restart_min / 2}),
    )
    also("checkpoints in half the time", checkpoint=keeps.model_copy(update={"pause_s": keeps.pause_s / 2}))
    return made


def compare(
    changes: Sequence[Change], seeds: int, progress: Progress | None = None, flows: Flows | None = None
) -> Mapping[str, Study]:
    """The studies of changed jobs, by what is changed. What cannot be built is left out."""
    found = {}
    for done, (text, job) in enumerate(changes):
        try:
            found[text] = study(job, seeds, flows=flows)
        except ArgumentError:
            continue
        finally:
            if progress:
                progress(done + 1, len(changes))
    return found


def table(first: str, study: Study, changed: Mapping[str, Study]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of changed jobs: training, and what the network costs, on each network.

    Args:
        first: Title of the first column.
        study: The job without a change, whose row is the first.
        changed: Studies by what is changed.
    """
    every = {"as it is": study, **changed}
    names = [each.network.name for each in next(reversed(every.values())).summaries]
    columns = [first]
    for name in names:
        columns += [f"{name}: training", "network's cost"]
    rows = []
    for text, each in every.items():
        row = [text]
        for summary in each.summaries[: len(names)]:
            row += [percent(summary.effective.mean), _usd(summary.network_usd.mean)]
        rows.append(row)
    return columns, rows


def percent(share: float) -> str:
    """A share for people, with as many digits as it takes to see it."""
    digits = 0 if share == 0 else 1 if share >= 0.1 else 2 if share >= 0.001 else 4
    return f"{share * 100:.{digits}f} %"


def _short(value: float) -> str:
    """Three digits, in thousands or millions."""
    for unit, size in ((" M", 1e6), (" k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def _usd(dollars: float) -> str:
    return f"${_short(dollars)}"
