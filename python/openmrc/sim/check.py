"""What can be found out about a scenario before anything runs: hosts that do not exist, too little memory."""

import re
from collections.abc import Iterator

from openmrc import _core
from openmrc.errors import ArgumentError
from openmrc.sim import memory
from openmrc.sim.scenario import (
    AllToAll,
    Collective,
    Fault,
    Flows,
    Incast,
    RandomFailures,
    Scenario,
    Slow,
    Traffic,
    Training,
)

Location = tuple[int | str, ...]

_LONGEST = 1 << 31
"""Bytes of a message."""
_LEAST_RATE = 8e12 / 65_535
"""Least rate of a port, b/s: a byte takes at most so many picoseconds, which are counted in 16 bits."""


def check(scenario: Scenario) -> None:
    """Checks hosts, lengths, rates and memory; fabric and faults are checked by the core as it lays them out.

    Raises:
        ArgumentError: for the first thing that is wrong, naming the place.
        FormatError: for a file of flows.
    """
    hosts = scenario.topology.hosts
    if not 0 <= scenario.seed < 1 << 64:
        raise ArgumentError(f"{scenario.place('seed')}: {scenario.seed} is not between 0 and 2^64 - 1")
    for location, host in _hosts(scenario):
        if host >= hosts:
            place = scenario.place(*location)
            raise ArgumentError(f"{place}: host h{host} does not exist, the fabric has h0 to h{hosts - 1}")
    for index, pattern in enumerate(scenario.traffic):
        wrong = _pattern(scenario, pattern)
        if wrong is not None:
            raise ArgumentError(f"{scenario.place('traffic', index)}: {wrong}")
    for index, fault in enumerate(scenario.faults):
        share = _share(fault)
        least = _LEAST_RATE / scenario.network.port_rate
        if share is not None and share < least:
            raise ArgumentError(
                f"{scenario.place('faults', index)}: {share:g} of the rate is too slow to simulate,"
                f" at least {least:.3g}"
            )
    parts, there = memory.parts(scenario), memory.available()
    need, largest = sum(parts.values()), max(parts, key=parts.__getitem__)
    if need > there:
        less = {
            "topology": "hosts",
            "traffic": "messages or queue pairs",
            "faults": "faults",
            "record": "links or samples",
        }
        raise ArgumentError(
            f"{scenario.place(largest)}: this run needs about {memory.size(need)} of memory, and"
            f" {memory.size(there)} are there; fewer {less[largest]} need less"
        )


def lay_out(scenario: Scenario) -> None:
    """Lays out the network with its faults, and throws it away: what a run would refuse, without its traffic.

    Raises:
        ArgumentError: if there is no such fabric, link or switch, naming the place.
    """
    bare = scenario.model_copy(update={"traffic": [Flows(flows=[(0, 1, 1, 0.0)])]})
    try:
        _core.Simulation(*bare.core_arguments())
    except ArgumentError as error:
        raise locate(scenario, error) from None


def locate(scenario: Scenario, error: ArgumentError) -> ArgumentError:
    """An error of the core, whose message begins with the field, with file and line where that stands."""
    text = str(error)
    found = re.match(r"([a-z_0-9]+(?:\.[a-z_0-9]+)*): ", text)
    if found is None or scenario._source is None:
        return error
    parts: Location = tuple(int(part) if part.isdigit() else part for part in found[1].split("."))
    field = str(parts[0])
    if field in type(scenario.topology).model_fields:
        parts = ("topology", *parts)
    elif field in type(scenario.network).model_fields:
        parts = ("network", *parts)
    elif field in type(scenario.network.switch).model_fields:
        parts = ("network", "switch", *parts)
    elif field in type(scenario.transport).model_fields:
        parts = ("transport", *parts)
    elif field not in type(scenario).model_fields:
        return ArgumentError(f"{scenario._source.path}: {text}")
    return ArgumentError(f"{scenario.place(*parts)}: {text[found.end() :]}")


def _pattern(scenario: Scenario, pattern: Traffic) -> str | None:
    """What a pattern asks for that no fabric can do."""
    hosts = scenario.topology.hosts
    match pattern:
        case Training():
            there = hosts if pattern.ranks is None else len(pattern.ranks)
            if pattern.size > there:
                return f"data x tensor x pipeline = {pattern.size} ranks, but there are {there}"
            for name, group in (("gradient_bytes", pattern.data), ("tensor_bytes", pattern.tensor)):
                if too_long := _chunk(getattr(pattern, name), group):
                    return f"{name}: {too_long}"
        case Collective():
            ranks = hosts if pattern.ranks is None else len(pattern.ranks)
            if pattern.operation == "recursive-doubling-all-reduce" and ranks & (ranks - 1):
                return f"recursive doubling takes a power of two of ranks, not {ranks}"
            divided = pattern.operation in ("ring-all-reduce", "all-gather", "reduce-scatter")
            if too_long := _chunk(pattern.bytes, ranks if divided else 1):
                return f"bytes: {too_long}"
        case _:
            pass
    return None


def _chunk(count: int, parts: int) -> str | None:
    chunk = -(-count // parts)
    if chunk <= _LONGEST:
        return None
    each = f" in {parts} parts are {chunk:,} each" if parts > 1 else ""
    return f"{count:,}{each}: a message has at most 2^31 bytes"


def _share(fault: Fault) -> float | None:
    """The share of its rate that a fault leaves of a link."""
    match fault:
        case Slow():
            return fault.share
        case RandomFailures(effect="slow"):
            return fault.amount
        case _:
            return None


def _hosts(scenario: Scenario) -> Iterator[tuple[Location, int]]:
    for index, pattern in enumerate(scenario.traffic):
        here = ("traffic", index)
        match pattern:
            case Incast():
                yield (*here, "receiver"), pattern.receiver
                for place, host in enumerate(pattern.senders):
                    yield (*here, "senders", place), host
            case Flows():
                for place, (src, dst, _, _) in enumerate(pattern.flows):
                    yield (*here, "flows", place), src
                    yield (*here, "flows", place), dst
                scenario.flows_of(pattern)  # Its file knows lines of its own.
            case AllToAll() | Collective() | Training():
                for place, host in enumerate(pattern.ranks or []):
                    yield (*here, "ranks", place), host
            case _:
                pass
