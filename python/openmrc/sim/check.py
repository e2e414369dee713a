"""What can be found out about a scenario before anything runs: hosts that do not exist, too little memory."""

import re
from collections.abc import Iterator
from pathlib import Path

from openmrc import _core
from openmrc.errors import ArgumentError
from openmrc.sim.scenario import (
    AllToAll,
    Collective,
    Flows,
    Incast,
    Permutation,
    RandomTraffic,
    Rocev2,
    Scenario,
    Training,
)

Location = tuple[int | str, ...]


def check(scenario: Scenario) -> None:
    """Checks hosts and memory; fabric and faults are checked by the core as it lays out the network.

    Raises:
        ArgumentError: for the first thing that is wrong, naming the place.
    """
    hosts = scenario.topology.hosts
    for location, host in _hosts(scenario):
        if host >= hosts:
            place = scenario.place(*location)
            raise ArgumentError(f"{place}: host h{host} does not exist, the fabric has h0 to h{hosts - 1}")
    for index, pattern in enumerate(scenario.traffic):
        if isinstance(pattern, Training):
            there = hosts if pattern.ranks is None else len(pattern.ranks)
            if pattern.size > there:
                raise ArgumentError(
                    f"{scenario.place('traffic', index)}: data x tensor x pipeline = {pattern.size} ranks,"
                    f" but there are {there}"
                )
    need, there = memory(scenario), available_memory()
    if need > there:
        raise ArgumentError(
            f"{scenario.place('topology')}: this run needs about {_size(need)} of memory,"
            f" and {_size(there)} are there; fewer hosts, messages or queue pairs need less"
        )


def lay_out(scenario: Scenario) -> None:
    """Lays out the network with its faults, and throws it away: what a run would refuse, without its traffic.

    Raises:
        ArgumentError: if there is no such fabric, link or switch, naming the place.
    """
    if scenario.topology.hosts < 2:
        return
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
    elif field not in type(scenario).model_fields:
        return ArgumentError(f"{scenario._source.path}: {text}")
    return ArgumentError(f"{scenario.place(*parts)}: {text[found.end() :]}")


def _hosts(scenario: Scenario) -> Iterator[tuple[Location, int]]:
    for index, pattern in enumerate(scenario.traffic):
        here = ("traffic", index)
        if isinstance(pattern, Incast):
            yield (*here, "receiver"), pattern.receiver
            for place, host in enumerate(pattern.senders):
                yield (*here, "senders", place), host
        elif isinstance(pattern, Flows):
            for place, (src, dst, _, _) in enumerate(scenario.flows_of(pattern)):
                yield (*here, "flows", place), src
                yield (*here, "flows", place), dst
        elif isinstance(pattern, AllToAll | Collective | Training):
            for place, host in enumerate(pattern.ranks or []):
                yield (*here, "ranks", place), host


# Bytes, measured on the full reference fabric and on all-to-alls, rounded up.
_PER_PORT = 150
_PER_MESSAGE = 120
_PER_CONNECTION = 80
_PER_QUEUE_PAIR = 6_000
"""Both ends, with their part of the packets in flight."""


def messages(scenario: Scenario) -> tuple[int, int]:
    """About how many messages and connections a scenario has."""
    hosts = scenario.topology.hosts
    total = connections = 0
    for pattern in scenario.traffic:
        if isinstance(pattern, Permutation):
            count = pairs = hosts
        elif isinstance(pattern, Incast):
            count = pairs = len(pattern.senders)
        elif isinstance(pattern, Flows):
            count = pairs = len(scenario.flows_of(pattern))
        elif isinstance(pattern, AllToAll):
            members = hosts if pattern.ranks is None else len(pattern.ranks)
            count = pairs = members * (members - 1)
        elif isinstance(pattern, RandomTraffic):
            count = pairs = int(_random_messages(scenario, pattern))
        elif isinstance(pattern, Collective):
            count, pairs = _collective(pattern, hosts if pattern.ranks is None else len(pattern.ranks))
        else:
            count, pairs = _training(pattern)
        total, connections = total + count, connections + pairs
    qps = scenario.transport.qps if isinstance(scenario.transport, Rocev2) else 1
    return total * qps, connections * qps


def _random_messages(scenario: Scenario, pattern: RandomTraffic) -> float:
    mean, before = 0.0, (0, 0.0)
    for size, share in pattern.sizes:
        mean += (share - before[1]) * (size + before[0]) / 2
        before = (size, share)
    rate = scenario.network.port_rate * scenario.topology.planes * scenario.topology.hosts
    return pattern.load * rate / 8 * pattern.duration_us * 1e-6 / max(mean, 1.0)


def _collective(pattern: Collective, ranks: int) -> tuple[int, int]:
    match pattern.operation:
        case "ring-all-reduce":
            return 2 * (ranks - 1) * ranks, ranks
        case "all-gather" | "reduce-scatter":
            return (ranks - 1) * ranks, ranks
        case "recursive-doubling-all-reduce":
            return (steps := ranks.bit_length() - 1) * ranks, steps * ranks
        case "all-to-all":
            return (ranks - 1) * ranks, (ranks - 1) * ranks
        case "pipeline":
            return (ranks - 1) * pattern.microbatches, ranks - 1


def _training(pattern: Training) -> tuple[int, int]:
    size, phases = pattern.size, 2 * pattern.microbatches
    per_rank = 2 * (pattern.data - 1) + phases * 3
    per_rank += phases * 2 * (pattern.tensor - 1) if pattern.tensor_bytes else 0
    per_rank += phases * 2 * (pattern.expert - 1) if pattern.expert_bytes else 0
    pairs = size * (4 + (pattern.expert if pattern.expert_bytes else 0))
    return size * per_rank * pattern.steps, pairs


def memory(scenario: Scenario) -> int:
    """About how many bytes a run takes."""
    topology = scenario.topology
    # A host's port, the T0 port it leads to, and both ends of each link above it.
    ports = topology.hosts * topology.planes * 2 * topology.tiers
    count, connections = messages(scenario)
    # Messages that wait for others open their queue pairs one after the other, most patterns all at once.
    return ports * _PER_PORT + count * _PER_MESSAGE + connections * (_PER_CONNECTION + _PER_QUEUE_PAIR)


def available_memory() -> int:
    """Bytes that this machine, or the control group that the process is in, can still give."""
    there = 1 << 62
    for line in _lines(Path("/proc/meminfo")):
        if line.startswith("MemAvailable:"):
            there = int(line.split()[1]) * 1024
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        most, now = _lines(Path(limit)), _lines(Path(used))
        if most and now and most[0].isdigit() and now[0].isdigit():
            there = min(there, max(0, int(most[0]) - int(now[0])))
    return there


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.0f} MB"
