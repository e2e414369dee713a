"""About how much memory a run takes, and how much there is."""

from pathlib import Path

from openmrc.sim.scenario import (
    AllToAll,
    Collective,
    Fault,
    Flap,
    Flows,
    Incast,
    Permutation,
    RandomFailures,
    RandomTraffic,
    Record,
    Rocev2,
    Scenario,
    Training,
    Transceiver,
)

# Bytes, measured on the full reference fabric and on all-to-alls, rounded up.
_PER_PORT = 150
_PER_MESSAGE = 120
_PER_CONNECTION = 80
_PER_QUEUE_PAIR = 6_000
"""Both ends, with their part of the packets in flight."""
_PER_FAULT = 130
"""An entry of the schedule, and the event that it is."""
_PER_SAMPLE = 400
"""Of a time series: all counters."""
_SAMPLES = 1_024
"""As many at most where the interval between two is left open."""


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


def parts(scenario: Scenario) -> dict[str, int]:
    """About how many bytes each part of a scenario makes a run take, by the part's field."""
    topology = scenario.topology
    # A host's port, the T0 port it leads to, and both ends of each link above it.
    ports = topology.hosts * topology.planes * 2 * topology.tiers
    count, connections = messages(scenario)
    return {
        "topology": ports * _PER_PORT,
        # Messages that wait for others open their queue pairs one after the other, most patterns all at once.
        "traffic": count * _PER_MESSAGE + connections * (_PER_CONNECTION + _PER_QUEUE_PAIR),
        "faults": sum(_fault_events(scenario, fault) for fault in scenario.faults) * _PER_FAULT,
        "record": _series(scenario, scenario.record),
    }


def needed(scenario: Scenario) -> int:
    """About how many bytes a run takes."""
    return sum(parts(scenario).values())


def _fault_events(scenario: Scenario, fault: Fault) -> int:
    topology = scenario.topology
    every = {
        "links": topology.hosts * topology.planes * topology.tiers,
        "host-links": topology.hosts * topology.planes,
        "fabric-links": topology.hosts * topology.planes * (topology.tiers - 1),
        # The least switches that so many hosts can have, several times over for partial fabrics.
        "switches": topology.hosts * topology.planes * topology.tiers * 4 // topology.radix + topology.planes,
    }
    targets = sum(every.get(target, 1) for target in fault.targets)
    match fault:
        case Transceiver():
            return 2 * len(fault.ports) * fault.times_until(scenario.limit_us)
        case Flap():
            return 2 * targets * fault.times_until(scenario.limit_us)
        case RandomFailures():
            end = scenario.limit_us if fault.until_us is None else fault.until_us
            return int(2 * targets * end / (fault.mtbf_us + fault.mttr_us))
        case _:
            return 2 * targets


def _series(scenario: Scenario, record: Record) -> int:
    """The time series, if the run takes no longer than its hosts at full rate: it is at least so much."""
    if not record.series:
        return 0
    topology = scenario.topology
    links = topology.hosts * topology.planes * topology.tiers if record.links == "all" else len(record.links)
    width = _PER_SAMPLE + 8 * (len(scenario.traffic) + topology.planes * (1 + 6 * topology.tiers) + 4 * links)
    samples = _SAMPLES
    if record.interval_us is not None:
        samples = int(min(scenario.limit_us, _ideal_us(scenario)) / record.interval_us)
    return samples * width


def _ideal_us(scenario: Scenario) -> float:
    """A run takes at least so long: until its last pattern starts and a host of it has sent at full rate."""
    rate = scenario.network.port_rate * scenario.topology.planes / 8e6
    longest = 0.0
    for pattern in scenario.traffic:
        took = 0.0
        match pattern:
            case Permutation() | Incast() | AllToAll() | Collective():
                took = pattern.bytes / rate
            case RandomTraffic():
                took = pattern.duration_us
            case Flows():
                took = max(start for *_, start in scenario.flows_of(pattern))
            case Training():
                phases = pattern.microbatches * (pattern.forward_us + pattern.backward_us)
                took = pattern.steps * phases
        longest = max(longest, pattern.start_us + took)
    return longest


def available() -> int:
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


def size(count: int) -> str:
    """Bytes in a unit that is easily read."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.0f} MB"
