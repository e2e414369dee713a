"""What a workload computes and sends: counts, bytes, and the least time that they need."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from openmrc.errors import ArgumentError
from openmrc.workload.order import classes, run
from openmrc.workload.program import Node, Workload, bytes_sent, scale_up_ns


@dataclass(frozen=True, slots=True)
class Row:
    """Nodes of one rank that are alike: of one kind, and of communication one operation and group."""

    kind: str
    operation: str
    group: str
    size: int
    """Ranks in the group; 2 for messages, 1 for computations."""
    nodes: int
    bytes_sent: int
    inside: bool
    """Within a scale-up domain, so not on the fabric."""
    ns: int
    """Of computations: their sum. Within a domain: how long they take one after another."""


@dataclass(frozen=True, slots=True)
class Class:
    """Ranks that do the same."""

    ranks: int
    first: int
    """The first of them."""
    program: str
    rows: tuple[Row, ...]

    @property
    def computed_ns(self) -> int:
        """What a rank computes."""
        return sum(row.ns for row in self.rows if row.kind == "compute")

    @property
    def fabric_bytes(self) -> int:
        """What a rank sends over the fabric."""
        return sum(row.bytes_sent for row in self.rows if not row.inside)

    @property
    def inside_bytes(self) -> int:
        """What a rank sends within its scale-up domain."""
        return sum(row.bytes_sent for row in self.rows if row.inside)


@dataclass(frozen=True, slots=True)
class Volume:
    """A workload in figures."""

    ranks: int
    nodes: int
    """Of all ranks."""
    groups: Mapping[str, int]
    """Groups by role."""
    classes: tuple[Class, ...]
    fabric_bytes: int
    """Sent over the fabric by all ranks."""
    inside_bytes: int
    """Sent within scale-up domains by all ranks."""
    rate_gbps: float
    compute_ns: int
    """Computations of the busiest rank."""
    ideal_ns: int
    """The step on a fabric without delay: dependencies, computations and scale-up operations."""
    link_ns: int
    """The link bound: the rank that sends most, at its full rate."""

    def to_dict(self) -> dict[str, Any]:
        """All figures as JSON has them."""
        return asdict(self)


def volume(workload: Workload, rate_gbps: float = 800.0) -> Volume:
    """Counts a workload that can run.

    Args:
        workload: A workload without problems.
        rate_gbps: What the NIC of a rank sends, Gb/s, over all its ports.

    Raises:
        ArgumentError: if the rate is not above 0.
    """
    if not rate_gbps > 0:
        raise ArgumentError(f"rate: {rate_gbps} Gb/s is not above 0")
    of = classes(workload)
    counts: dict[int, int] = {}
    for first in of:
        counts[first] = counts.get(first, 0) + 1
    found = tuple(
        Class(count, first, workload.ranks[first].program, _rows(workload, first))
        for first, count in counts.items()
    )
    roles: dict[str, set[str]] = {}
    for rank in workload.ranks:
        for role, name in rank.groups.items():
            roles.setdefault(role, set()).add(name)
    bound = {role for names in roles.values() for role in names}
    groups = {role: len(names) for role, names in roles.items()}
    groups |= {name: 1 for name in workload.groups if name not in bound}
    most = max((each.fabric_bytes for each in found), default=0)
    return Volume(
        ranks=len(workload.ranks),
        nodes=workload.nodes(),
        groups=groups,
        classes=found,
        fabric_bytes=sum(each.ranks * each.fabric_bytes for each in found),
        inside_bytes=sum(each.ranks * each.inside_bytes for each in found),
        rate_gbps=rate_gbps,
        compute_ns=max((each.computed_ns for each in found), default=0),
        ideal_ns=run(workload, lambda node, group: inside_ns(workload, node, group)).ns,
        link_ns=round(most * 8 / rate_gbps),
    )


def inside_ns(workload: Workload, node: Node, group: str) -> int:
    """How long an operation of a group takes within its scale-up domain; 0 for all that uses the fabric."""
    return scale_up_ns(workload, node, len(workload.groups[group])) if workload.within_domain(group) else 0


def _rows(workload: Workload, rank: int) -> tuple[Row, ...]:
    found: dict[tuple[str, str, str], list[int]] = {}
    for node in workload.programs[workload.ranks[rank].program]:
        key = (node.kind, node.operation or "", node.group if node.kind == "collective" else "")
        size, inside = 1, False
        if node.kind == "collective":
            name = workload.group_of(rank, node)
            size, inside = len(workload.groups[name]), workload.within_domain(name)
        elif node.kind != "compute":
            size = 2
        row = found.setdefault(key, [size, 0, 0, int(inside), 0])
        row[1] += 1
        row[2] += bytes_sent(node, size)
        row[4] += scale_up_ns(workload, node, size) if inside else node.ns
    return tuple(
        Row(kind, operation, group, size, nodes, sent, bool(inside), ns)
        for (kind, operation, group), (size, nodes, sent, inside, ns) in found.items()
    )
