"""An incident in the simulator: its fabric, its fault at its times, and a permutation as load.

A packet simulator does milliseconds, an incident lasts seconds or days: its times are compressed by one
factor, and a fabric that is too large gives way to a small one of the same planes. Each such change is told.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from openmrc import sim
from openmrc.errors import FormatError
from openmrc.fabric import Fabric, Specification
from openmrc.files import write_text
from openmrc.localise import Component, Kind
from openmrc.operate.incident import Incident, down_times, fabric_of
from openmrc.operate.linkmap import Topology
from openmrc.sim.scenario.network import planned_topology
from openmrc.switchconf.render import resolved

MOST_HOSTS = 256
"""A larger fabric is scaled down."""
SCALED_HOSTS, SCALED_BELOW = 64, 8
"""Hosts of a scaled fabric, all and under a T0; a T0 has as many uplinks."""
PACKETS = 2_500_000
"""Data packets of a run, about: some seconds of processor time."""
SHORTEST_US, LONGEST_US = 200.0, 4000.0
"""Of a run."""
BEFORE, AFTER = 0.25, 0.75
"""The fault's begin and end, as shares of a run."""
MOST_TIMES = 32
"""Of a link that goes down again and again, the first are replayed."""
_BROKEN_FROM = 0.999
"""Share lost from which a component carries nothing."""


@dataclass(frozen=True, slots=True)
class Replay:
    """A scenario made from an incident."""

    scenario: sim.Scenario
    component: Component
    """What fails in it."""
    begin_us: float
    end_us: float | None
    """``None``: the fault was still open, and lasts."""
    length_us: float
    remarks: list[str]
    """What is not as it was."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a job would have seen."""

    before_bps: float
    during_bps: float
    after_bps: float | None
    """``None``: the fault lasts."""
    resent: int
    condemned: int
    failed: int
    """Queue pairs that gave up."""


def prepare(incident: Incident, *, seed: int | None = None) -> Replay:
    """Makes the scenario.

    Raises:
        FormatError: if the incident names what its fabric does not have.
    """
    fabric, fault = fabric_of(incident.fabric), incident.fault
    remarks: list[str] = []
    component = _component(incident, remarks)
    topology = Topology(fabric)
    if component.kind is Kind.GROUP and fabric.hosts > MOST_HOSTS:
        raise FormatError(f"fault.kind: no part of a smaller fabric stands for the optic {component.name}")
    if not topology.parts(component):
        field = "fault.name" if fault.kind != "unknown" else "fault.suspects.0.name"
        raise FormatError(f"{field}: fabric {fabric.spec.name} has no {component}")
    original = component
    if fabric.hosts > MOST_HOSTS:
        fabric, component = _scaled(fabric, topology, component, remarks)
        topology = Topology(fabric)
    length = PACKETS * fabric.spec.mtu * 8 / (fabric.hosts * fabric.spec.nic.rate) * 1e6
    length = min(LONGEST_US, max(SHORTEST_US, length))
    times = _times(incident, original, length, remarks)
    several = component.kind in (Kind.HOST, Kind.GROUP)
    targets = topology.parts(component) if several else [component.name]
    faults: list[Any] = []
    for at, until in times:
        moment: dict[str, Any] = {
            "targets": targets,
            "at_us": at,
            **({} if until is None else {"until_us": until}),
        }
        if component.kind in (Kind.UPWARD, Kind.DOWNWARD):
            # The other direction and the carrier are whole.
            moment["direction"] = str(component.kind)
            faults.append(sim.Loss(probability=fault.loss, **moment))
        elif fault.loss >= _BROKEN_FROM:
            faults.append(sim.Down(**moment))
        else:
            faults.append(sim.Loss(probability=fault.loss, **moment))
    scenario = sim.Scenario(
        topology=_topology(fabric),
        network=sim.Network(mtu=fabric.spec.mtu),
        # More than a run can send: every host sends to its end.
        traffic=[sim.Permutation(bytes=int(min(1 << 31, 2 * fabric.spec.nic.rate / 8 * length * 1e-6)))],
        faults=faults,
        limit_us=length,
        record=sim.Record(series=True, interval_us=length / 400, events=True),
    )
    if seed is not None:
        scenario = scenario.model_copy(update={"seed": seed})
    return Replay(scenario, component, times[0][0], times[-1][1], length, remarks)


def _component(incident: Incident, remarks: list[str]) -> Component:
    fault = incident.fault
    if fault.kind != "unknown":
        return Component(Kind(fault.kind), fault.name)
    first = max(fault.suspects, key=lambda each: each.probability)
    if len(fault.suspects) > 1:
        remarks.append(
            f"the controller suspected {len(fault.suspects)} components; {first.kind} {first.name} fails here"
        )
    return Component(first.kind, first.name)


def _topology(fabric: Fabric) -> sim.Topology:
    with TemporaryDirectory(prefix="openmrc-") as scratch:
        place = Path(scratch, "fabric.yaml")
        write_text(place, resolved(fabric), sync=False)
        return sim.Topology(**planned_topology(place))


def _scaled(
    fabric: Fabric, topology: Topology, component: Component, remarks: list[str]
) -> tuple[Fabric, Component]:
    """A small fabric with the same planes and rates, and the component in its place there."""
    spec: dict[str, Any] = {
        "name": fabric.spec.name,
        "hosts": SCALED_HOSTS,
        "nic": {"rate": fabric.spec.nic.rate},
        "planes": fabric.planes,
        "switch": {"radix": 2 * SCALED_BELOW},
        "tiers": min(fabric.tiers, 2),
        "mtu": fabric.spec.mtu,
        "cables": fabric.spec.cables.model_dump(),
    }
    if fabric.tiers == 1:
        spec["switch"] = {"radix": SCALED_HOSTS}
    else:
        spec |= {"hosts_per_t0": SCALED_BELOW, "uplinks_per_t0": SCALED_BELOW, "parallel_links": 1}
    small = Fabric(Specification.model_validate(yaml.safe_load(yaml.safe_dump(spec))))
    within, place = Topology(small), _place(topology, component)
    match component.kind:
        case Kind.HOST:
            name = "h0"
        case Kind.SWITCH:
            plane, tier = place
            name = f"p{plane}/t{min(tier, small.tiers - 1)}-0"
        case _:
            plane, tier = place
            node = "h0" if tier < 0 or small.tiers == 1 else f"p{plane}/t0-0"
            name = next(link for link in within.groups[node] if within.links[link].plane == plane)
    remarks.append(
        f"the fabric has {fabric.hosts:,} hosts; simulated are {small.hosts} of them with the same planes and"
        f" rates, and {name} stands for {component.name}: its share of the fabric is larger here"
    )
    return small, Component(component.kind, name)


def _place(topology: Topology, component: Component) -> tuple[int, int]:
    """Plane and tier; the tier of a link is that of its lower end, -1 of a host's cable."""
    if component.kind is Kind.HOST:
        return 0, -1
    name = component.name
    if component.kind is not Kind.SWITCH:
        link = topology.links[name]
        name = link.lower.partition(":")[0]
        if "/" not in name:
            return link.plane, -1
    plane, _, switch = name.partition("/")
    return int(plane[1:]), int(switch[1 : switch.index("-")])


def _times(
    incident: Incident, component: Component, length: float, remarks: list[str]
) -> list[tuple[float, float | None]]:
    """When it fails and comes back in the run, microseconds: proportional to when it did."""
    fault = incident.fault
    found = [(fault.since, fault.until)]
    if component.kind in (Kind.LINK, Kind.UPWARD, Kind.DOWNWARD):
        end = fault.until or incident.exported
        flaps = [
            (max(at, fault.since), until if until is None else min(until, end))
            for at, until in down_times(incident.changes, component.name)
            if at <= end and (until is None or until > fault.since)
        ]
        found = flaps or found
    if len(found) > MOST_TIMES:
        remarks.append(f"it failed {len(found)} times; the first {MOST_TIMES} are replayed")
        found = found[:MOST_TIMES]
    begin, last = found[0][0], found[-1][1]
    end = last if last is not None else max(incident.exported, found[-1][0])
    # What lasts fills the run to its end.
    span = length * ((AFTER if last is not None else 1.0) - BEFORE)
    seconds = end - begin
    factor = span / seconds if seconds > 0 else 0.0
    if seconds > 0:
        remarks.append(f"{_seconds(seconds)} of the incident are {span:,.0f} us here")
    times: list[tuple[float, float | None]] = []
    for at, until in found:
        first = length * BEFORE + (at - begin) * factor
        over = None if until is None else max(first + 1.0, length * BEFORE + (until - begin) * factor)
        if factor == 0.0 and until is not None:
            over = first + span
        # Two that meet after rounding are one.
        if times and times[-1][1] is not None and first < times[-1][1]:
            times[-1] = (times[-1][0], over)
        else:
            times.append((first, over))
    return times


def _seconds(value: float) -> str:
    return f"{value:,.1f} s" if value < 600 else f"{value / 3600:,.1f} h"


def without_fault(replay: Replay) -> sim.Scenario:
    """The same run with nothing broken, for comparison."""
    return replay.scenario.model_copy(update={"faults": []})


def seen(replay: Replay, results: sim.Results) -> Seen:
    """What a job saw before, during and after the fault, from the results of a run."""
    series = results.series
    assert series is not None
    times = [0.0, *series.times_us]
    width = series.patterns
    flat = series.placed.cast("B").cast("Q")
    placed = [0, *(sum(flat[row * width : (row + 1) * width]) for row in range(len(times) - 1))]

    def rate(begin: float, end: float) -> float:
        span = (end - begin) * 1e-6
        return (_at(times, placed, end) - _at(times, placed, begin)) * 8 / span if span > 0 else 0.0

    end = replay.end_us if replay.end_us is not None else replay.length_us
    # The start, in which windows grow, is not what was before.
    return Seen(
        before_bps=rate(replay.begin_us / 2, replay.begin_us),
        during_bps=rate(replay.begin_us, min(end, times[-1])),
        after_bps=None if replay.end_us is None else rate(end, times[-1]),
        resent=results.totals["retransmits"],
        condemned=results.totals["condemned"],
        failed=results.totals["fatal"],
    )


def _at(times: Sequence[float], values: Sequence[float], time: float) -> float:
    for place in range(1, len(times)):
        if times[place] >= time:
            share = (time - times[place - 1]) / max(times[place] - times[place - 1], 1e-9)
            return values[place - 1] + share * (values[place] - values[place - 1])
    return values[-1]
