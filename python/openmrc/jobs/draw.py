"""Failures of a job's parts over its days, drawn from their rates."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from openmrc.errors import ArgumentError
from openmrc.jobs.job import Job
from openmrc.jobs.network import Network, Shape

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

HOUR = 3600.0
DAY = 24 * HOUR

MOST_OUTAGES = 20_000_000
"""Outages of links that a run may have, at some 200 bytes each."""
MOST_INTERRUPTIONS = 1_000_000
"""Failures of hosts, NICs or switches, which are looked at one by one."""


@dataclass(frozen=True, slots=True)
class Outages:
    """Outages of one kind of part; times in seconds from the job's begin."""

    part: Ints
    """Which of the parts."""
    begin: Floats
    seconds: Floats

    def __len__(self) -> int:
        return len(self.begin)

    @property
    def end(self) -> Floats:
        """When the parts are back."""
        return self.begin + self.seconds


def outages(
    dice: np.random.Generator, parts: int, mean_between_s: float, lasts: float, until: float
) -> Outages:
    """Outages of parts that fail independently, in order of time.

    Args:
        dice: Where they are drawn from.
        parts: How many there are.
        mean_between_s: Seconds between two failures of one.
        lasts: Mean length, seconds.
        until: Length of the job, seconds.
    """
    number = int(dice.poisson(parts * until / mean_between_s)) if parts else 0
    begin = np.sort(dice.uniform(0, until, number))
    return Outages(dice.integers(0, max(parts, 1), number), begin, dice.exponential(lasts, number))


def _require_few(what: str, expected: float, most: int) -> None:
    if expected > most:
        raise ArgumentError(
            f"rates: {what} fail about {expected:,.3g} times in this job: {most:,} is the most that is drawn;"
            " fewer days, or more time between failures"
        )


@dataclass(frozen=True, slots=True)
class Failures:
    """All failures of a job on one network."""

    hosts: Outages
    nics: Outages
    ports: Outages
    """Links of NICs that have to be repaired; the part is NIC x planes + plane."""
    port_flaps: Outages
    links: Outages
    """Links between switches that have to be repaired."""
    link_flaps: Outages
    t0s: Outages
    uppers: Outages


def parts(job: Job, shape: Shape) -> dict[str, int]:
    """How many parts can fail, by field of :class:`Failures`."""
    return {
        "hosts": job.hosts,
        "nics": job.gpus,
        "ports": shape.host_links,
        "port_flaps": shape.host_links,
        "links": shape.fabric_links,
        "link_flaps": shape.fabric_links,
        "t0s": shape.t0s,
        "uppers": shape.uppers,
    }


def draw(job: Job, network: Network, seed: int) -> tuple[Shape, Failures]:
    """The failures of one run. Hosts fail at the same times on every network with the same seed.

    Raises:
        ArgumentError: if there are more than fit the memory of a usual machine.
    """
    shape = network.shape(job.gpus, job.nic_gbps, job.switch_tbps)
    rates, until = job.rates, job.days * DAY
    link, flap, switch = rates.link_hours * HOUR, rates.flap_days * DAY, rates.switch_hours * HOUR
    links = shape.host_links + shape.fabric_links
    _require_few("hosts", job.hosts * until / (rates.host_days * DAY), MOST_INTERRUPTIONS)
    _require_few("NICs", job.gpus * until / (rates.nic_hours * HOUR), MOST_INTERRUPTIONS)
    _require_few("links", links * until / link + links * until / flap, MOST_OUTAGES)
    _require_few("switches", (shape.t0s + shape.uppers) * until / switch, MOST_INTERRUPTIONS)
    repair_s, switch_repair_s = rates.link_repair_h * HOUR, rates.switch_repair_h * HOUR
    # A kind's place is part of its seed.
    times_s = {
        "hosts": (rates.host_days * DAY, rates.host_repair_h * HOUR),
        "nics": (rates.nic_hours * HOUR, rates.host_repair_h * HOUR),
        "ports": (link, repair_s),
        "port_flaps": (flap, rates.host_flap_s),
        "links": (link, repair_s),
        "link_flaps": (flap, rates.fabric_flap_s),
        "t0s": (switch, switch_repair_s),
        "uppers": (switch, switch_repair_s),
    }
    counts = parts(job, shape)
    drawn = {
        kind: outages(np.random.default_rng([seed, number]), counts[kind], between_s, lasts_s, until)
        for number, (kind, (between_s, lasts_s)) in enumerate(times_s.items())
    }
    return shape, Failures(**drawn)
