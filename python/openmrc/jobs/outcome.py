"""What a job has of its days: training that counts, and where the rest went."""

import heapq
import math
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from openmrc.jobs.draw import DAY, Floats, draw
from openmrc.jobs.effect import Cause, Effect, Factors, Interruption, effect, interruptions_per_s
from openmrc.jobs.job import Job
from openmrc.jobs.log import Log
from openmrc.jobs.network import Network, Shape

_LEAST_INTERVAL_S = 10.0
"""Between checkpoints: a pause of nothing would make it nothing."""


class Loss(IntEnum):
    """In which way time is lost."""

    REDONE = 0
    """Training since the last checkpoint, that has to be done again."""
    RESTART = 1
    """From an interruption until training goes on, with what the job waits for a host."""
    STILL = 2
    """All ranks wait: for a link to come back, or for traffic to go another way."""
    SLOWER = 3
    """What is lacking because steps take longer."""

    @property
    def title(self) -> str:
        """For people."""
        return ("redone", "restarting", "standing still", "slower steps")[self]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run of a job on one network. All times in seconds; they add up to the job's days."""

    days: float
    effective: float
    """Training that counts, as an undisturbed job would do it."""
    checkpoints: float
    lost: Floats
    """By :class:`Cause` and :class:`Loss`."""
    interruptions: Floats
    """Their number, by cause."""
    interval: float
    """Training between two checkpoints."""

    @property
    def total(self) -> float:
        """The job's days."""
        return self.days * DAY

    @property
    def effective_share(self) -> float:
        """Share of the time that is training."""
        return self.effective / self.total

    def share(self, cause: Cause) -> float:
        """Share of the time that a cause costs."""
        return float(self.lost[cause].sum()) / self.total

    @property
    def network_share(self) -> float:
        """Share of the time that the network costs, its NICs included."""
        return sum(self.share(cause) for cause in Cause if cause is not Cause.HOSTS)


def interval_s(job: Job, network: Network, shape: Shape) -> float:
    """Seconds between two checkpoints: the job's, or sqrt(2 x pause x time between interruptions)."""
    if job.checkpoint.every_min is not None:
        return job.checkpoint.every_min * 60
    mean = 1 / interruptions_per_s(job, network, shape)
    return max(_LEAST_INTERVAL_S, math.sqrt(2 * job.checkpoint.pause_s * mean))


def run(
    job: Job, network: Network, seed: int, log: Log | None = None, factors: Factors | None = None
) -> Outcome:
    """One run of a job on a network.

    Args:
        job: The job.
        network: One of its networks.
        seed: Of the failures; with a log, of how long traffic takes to leave a failed link between switches.
        log: Failures in place of drawn ones.
        factors: How much longer messages take with lost ports, in place of the ratio of bandwidth.
    """
    shape, failures = draw(job, network, seed) if log is None else log.failures(job, network)
    return account(job, effect(job, network, shape, failures, seed, factors), interval_s(job, network, shape))


def account(job: Job, what: Effect, interval: float) -> Outcome:
    """Where the time of a job goes.

    Args:
        job: The job.
        what: What failures do to it.
        interval: Seconds of training between two checkpoints.
    """
    until, pause = job.days * DAY, job.checkpoint.pause_s
    training = _Training(what, until)
    spares = _Spares(job.spares)
    lost = np.zeros((len(Cause), len(Loss)))
    times = np.zeros(len(Cause))
    effective = checkpoints = 0.0
    begin = 0.0
    for each in [*what.interruptions, None]:
        end = until if each is None else each.time
        if end > begin:
            cycles = int((end - begin) // (interval + pause))
            first: Floats = begin + np.arange(cycles, dtype=np.float64) * (interval + pause)
            last: Floats = first + interval
            kept = begin + cycles * (interval + pause)
            checkpoints += cycles * pause
            if each is None:
                # Nothing is lost at the end.
                first, last = np.append(first, kept), np.append(last, min(end, kept + interval))
                checkpoints += max(0.0, end - kept - interval)
            else:
                lost[each.cause, Loss.REDONE] += end - kept
            done, waited = training.between(first, last)
            effective += done
            lost += waited
        if each is None:
            break
        times[each.cause] += 1
        resumes = min(until, max(begin, spares.ready(each) + job.checkpoint.restart_min * 60))
        lost[each.cause, Loss.RESTART] += resumes - max(begin, end)
        begin = resumes
    return Outcome(job.days, effective, checkpoints, lost, times, interval)


class _Training:
    """How much training is done between two times, and why no more."""

    def __init__(self, what: Effect, until: float) -> None:
        self._times = np.append(what.times, until)
        lengths = np.diff(self._times)
        self._done = self._sum(lengths * what.speed)
        self._waited = [
            (
                cause,
                loss,
                self._sum(
                    np.where(
                        (what.cause == cause) & (still == (what.speed == 0)), lengths * (1 - what.speed), 0
                    )
                ),
            )
            for cause in (Cause.NIC_LINKS, Cause.FABRIC_LINKS, Cause.SWITCHES)
            for loss, still in ((Loss.STILL, True), (Loss.SLOWER, False))
        ]

    @staticmethod
    def _sum(values: Floats) -> Floats:
        return np.concatenate([[0.0], np.cumsum(values)])

    def between(self, first: Floats, last: Floats) -> tuple[float, Floats]:
        """Seconds of training in some spans, and seconds lost by cause and loss."""

        def inside(integral: Floats) -> float:
            return float(
                (np.interp(last, self._times, integral) - np.interp(first, self._times, integral)).sum()
            )

        lost = np.zeros((len(Cause), len(Loss)))
        for cause, loss, integral in self._waited:
            lost[cause, loss] = inside(integral)
        return inside(self._done), lost


class _Spares:
    """Hosts that stand by, and those that are being repaired."""

    def __init__(self, free: int) -> None:
        self._free = free
        self._repaired: list[tuple[float, int]] = []

    def ready(self, interruption: Interruption) -> float:
        """When there are hosts for those that an interruption takes."""
        time = interruption.time
        if interruption.hosts:
            heapq.heappush(self._repaired, (interruption.back, interruption.hosts))
        while self._repaired and self._repaired[0][0] <= time:
            self._free += heapq.heappop(self._repaired)[1]
        self._free -= interruption.hosts
        while self._free < 0:
            time, back = heapq.heappop(self._repaired)
            self._free += back
        return time
