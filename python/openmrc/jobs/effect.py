"""What failures do to a job on a network: when it is interrupted, stands still or is slower."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from openmrc.jobs.draw import DAY, HOUR, Failures, Floats, Ints, Outages
from openmrc.jobs.job import Job
from openmrc.jobs.network import Network, Shape
from openmrc.jobs.steps import Spans, Steps, apart, common, levels, union, worst


class Cause(IntEnum):
    """What a loss is due to."""

    HOSTS = 0
    """Hosts, for reasons other than the network."""
    NICS = 1
    NIC_LINKS = 2
    FABRIC_LINKS = 3
    SWITCHES = 4

    @property
    def title(self) -> str:
        """For people."""
        return ("hosts", "NICs", "links of NICs", "links between switches", "switches")[self]


@dataclass(frozen=True, slots=True)
class Interruption:
    """The job has to restart from its last checkpoint."""

    time: float
    cause: Cause
    hosts: int
    """Hosts that are missing until ``back``."""
    back: float


@dataclass(frozen=True, slots=True)
class Effect:
    """What the failures of one run do, in seconds from the job's begin."""

    interruptions: list[Interruption]
    """In order of time."""
    times: Floats
    """When the speed of training changes, the first at 0."""
    speed: Floats
    """From each of these times: 1 undisturbed, 0 if the job stands still."""
    cause: Ints
    """The :class:`Cause` for which it is below 1."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """What the failures of NICs' links, or of what is between T0s, do."""

    interruptions: list[Interruption]
    still: Spans
    """All ranks wait."""
    share: Steps
    """Of its bandwidth, that the slowest rank has."""


Factors = Callable[[Floats], Floats]
"""By which factor messages take longer, from the ports that the worst NIC has lost at each time."""


def effect(
    job: Job, network: Network, shape: Shape, failures: Failures, seed: int, factors: Factors | None = None
) -> Effect:
    """What these failures do.

    Args:
        job: The job.
        network: Its network.
        shape: The network's parts.
        failures: Of those parts.
        seed: Of reaction times.
        factors: How much longer messages take with lost ports; the ratio of bandwidth if left out.
    """
    until = job.days * DAY
    nics = _at_nics(job, network, shape, failures)
    fabric = _in_fabric(network, shape, failures, np.random.default_rng([seed, 100]))
    switches = _joined(failures.t0s, failures.uppers)
    broken = union(switches.begin, switches.end).steps()
    functions = (nics.still.steps(), fabric.still.steps(), nics.share, fabric.share, broken)
    times = common(functions, until)
    waits_nic, waits_fabric, of_nic, of_fabric, is_broken = (each.at(times) for each in functions)
    still = waits_nic + waits_fabric > 0
    if factors is not None:
        of_nic = 1 / factors((1 - of_nic) * shape.planes)
    speed = np.where(still, 0.0, 1 / slowdown(np.minimum(of_nic, of_fabric), job.step.exposed))
    at_nics = np.where(still, waits_nic > 0, of_nic <= of_fabric)
    cause = np.where(is_broken > 0, Cause.SWITCHES, np.where(at_nics, Cause.NIC_LINKS, Cause.FABRIC_LINKS))
    found = [
        *_ends(failures.hosts.begin, failures.hosts.end, Cause.HOSTS, 1),
        *_ends(failures.nics.begin, failures.nics.end, Cause.NICS, 1),
        *nics.interruptions,
        *fabric.interruptions,
    ]
    in_time = sorted((each for each in found if each.time < until), key=lambda each: each.time)
    return Effect(in_time, times, speed, cause)


def _at_nics(job: Job, network: Network, shape: Shape, failures: Failures) -> _Layer:
    """Links of NICs, and T0s, each of which has a link of many NICs."""
    ports = _joined(failures.ports, failures.port_flaps)
    if network.port_lost == "restart":
        hosts_of_t0 = max(1, -(-shape.nics_per_t0 // job.gpus_per_host))
        found = _outlasted(ports, network.patience_s, Cause.NIC_LINKS, 1)
        found += _outlasted(failures.t0s, network.patience_s, Cause.SWITCHES, hosts_of_t0)
        both = _joined(ports, failures.t0s)
        # The job stands still until the link is back, or until it restarts without the host.
        still = union(both.begin, np.minimum(both.end, both.begin + network.patience_s))
        return _Layer(found, still, Steps(np.zeros(1), np.ones(1)))
    down = _ports_down(shape, job.gpus, ports, failures.t0s)
    cut_off = levels(down.part, down.begin, down.end)[shape.planes - 1 : shape.planes]
    begin = cut_off[0].begin if cut_off else np.zeros(0)
    end = cut_off[0].end if cut_off else np.zeros(0)
    without = Outages(np.zeros(len(begin), np.int64), begin, end - begin)
    found = _outlasted(without, network.patience_s, Cause.NIC_LINKS, 1)
    still = union(begin, np.minimum(end, begin + network.patience_s))
    most = worst(down.part, down.begin, down.end)
    return _Layer(
        found, still, Steps(most.times, 1 - np.minimum(most.values, shape.planes - 1) / shape.planes)
    )


def _in_fabric(network: Network, shape: Shape, failures: Failures, dice: np.random.Generator) -> _Layer:
    """Links between switches, and the switches above T0s."""
    links, uppers = _joined(failures.links, failures.link_flaps), failures.uppers
    both = _joined(links, uppers)
    least, most = network.reaction_s
    reaction = np.exp(dice.uniform(math.log(least), math.log(most), len(both)))
    wait = np.minimum(reaction, both.seconds)
    found = [
        Interruption(
            float(both.begin[each]) + network.patience_s,
            Cause.FABRIC_LINKS if each < len(links) else Cause.SWITCHES,
            hosts=0,
            back=0.0,
        )
        for each in np.flatnonzero(wait > network.patience_s)
    ]
    still = union(both.begin, both.begin + np.minimum(wait, network.patience_s))
    # A T0's NICs share its uplinks in all planes. A switch above takes one of them from every T0.
    at_t0 = worst(links.part // max(1, shape.uplinks_per_t0), links.begin, links.end)
    above = worst(np.zeros(len(uppers), np.int64), uppers.begin, uppers.end)
    times = np.unique(np.concatenate([at_t0.times, above.times]))
    paths = max(1, shape.uplinks_per_t0) * shape.planes
    share = np.maximum(1 - (at_t0.at(times) + above.at(times)) / paths, 1 / paths)
    return _Layer(found, still, Steps(times, share))


def slowdown(share: Floats, exposed: float) -> Floats:
    """By which factor a step takes longer if the slowest rank has this share of its bandwidth."""
    return 1 - exposed + exposed / share


def interruptions_per_s(job: Job, network: Network, shape: Shape) -> float:
    """How often the job is interrupted, in the mean, by what ends it every time."""
    rates = job.rates
    each_s = job.hosts / (rates.host_days * DAY) + job.gpus / (rates.nic_hours * HOUR)
    if network.port_lost == "restart":
        for parts, between_s, lasts_s in (
            (shape.host_links, rates.link_hours * HOUR, rates.link_repair_h * HOUR),
            (shape.host_links, rates.flap_days * DAY, rates.host_flap_s),
            (shape.t0s, rates.switch_hours * HOUR, rates.switch_repair_h * HOUR),
        ):
            each_s += parts / between_s * math.exp(-network.patience_s / lasts_s)
    return each_s


def _ends(times: Floats, back: Floats, cause: Cause, hosts: int) -> list[Interruption]:
    return [
        Interruption(float(time), cause, hosts, float(end)) for time, end in zip(times, back, strict=True)
    ]


def _outlasted(outages: Outages, patience_s: float, cause: Cause, hosts: int) -> list[Interruption]:
    """Outages for which connections do not wait."""
    fatal = outages.seconds > patience_s
    return _ends(outages.begin[fatal] + patience_s, outages.end[fatal], cause, hosts)


def _joined(one: Outages, two: Outages) -> Outages:
    return Outages(
        np.concatenate([one.part, two.part]),
        np.concatenate([one.begin, two.begin]),
        np.concatenate([one.seconds, two.seconds]),
    )


def _ports_down(shape: Shape, gpus: int, ports: Outages, t0s: Outages) -> Outages:
    """By NIC, every outage of one of its ports; a T0 that crashes takes a port of each of its NICs."""
    first = t0s.part // shape.planes * shape.nics_per_t0
    count = np.minimum(shape.nics_per_t0, gpus - first)
    under = np.repeat(first, count) + np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    port = under * shape.planes + np.repeat(t0s.part % shape.planes, count)
    every = _joined(ports, Outages(port, np.repeat(t0s.begin, count), np.repeat(t0s.seconds, count)))
    # A link that flaps while its T0 is gone is one port less, not two.
    part, begin, end = apart(every.part, every.begin, every.end)
    return Outages(part // shape.planes, begin, end - begin)
