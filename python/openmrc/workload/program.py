"""Programs of ranks: what each rank computes, sends, receives and does with others, and in which order.

Ranks that do the same share a program. Its nodes name groups and peers by role ("tp", "next"); a rank says
which group and which rank its roles are. A node begins when all nodes before it (``after``) have ended, and
operations of one rank in one group run in the order of the program.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, get_args

Kind = Literal["compute", "collective", "send", "receive"]
Operation = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"]

KINDS: tuple[str, ...] = get_args(Kind)
OPERATIONS: tuple[str, ...] = get_args(Operation)


@dataclass(frozen=True, slots=True)
class Node:
    """One thing that a rank does."""

    id: int
    """Unique in its program, 0 or more."""
    kind: Kind
    after: tuple[int, ...] = ()
    """Nodes of the same program that have to end before."""
    name: str = ""
    ns: int = 0
    """Of a computation: how long it takes, nanoseconds."""
    bytes: int = 0
    """Of a message: its length. Of a collective: the whole buffer of one rank, which is the input of
    all_reduce, reduce_scatter and all_to_all, the result of all_gather, and the message of broadcast."""
    operation: Operation | None = None
    """Of a collective: which one."""
    group: str = ""
    """Of a collective: the role or name of the group."""
    peer: str | int = ""
    """Of a message: the role or number of the other rank."""
    tag: int = 0
    """Of a message: a send and a receive with the same ranks and tag are paired in order."""


@dataclass(frozen=True, slots=True)
class Rank:
    """Which program a rank runs, and what the roles in it are for this rank."""

    program: str
    groups: Mapping[str, str] = field(default_factory=dict)
    """Names of groups by role. What is no role is the name of a group."""
    peers: Mapping[str, int] = field(default_factory=dict)
    """Ranks by role."""


@dataclass(frozen=True)
class Workload:
    """What all ranks of a job do."""

    programs: Mapping[str, Sequence[Node]]
    ranks: Sequence[Rank]
    groups: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Ranks of each group, in the order of its ring."""
    name: str = ""
    domain: int = 1
    """Consecutive ranks that a scale-up network (NVLink) joins; 1: none."""
    scale_up_gbytes: float = 0.0
    """What a rank sends into the scale-up network, GB/s (10^9 bytes)."""
    scale_up_us: float = 1.0
    """Latency of a step of a collective in the scale-up network, microseconds."""

    def group_of(self, rank: int, node: Node) -> str:
        """The name of the group of a rank's collective."""
        return self.ranks[rank].groups.get(node.group, node.group)

    def peer_of(self, rank: int, node: Node) -> int | None:
        """The other rank of a message; None if the node names a role that this rank has not."""
        if isinstance(node.peer, int):
            return node.peer
        return self.ranks[rank].peers.get(node.peer)

    def within_domain(self, group: str) -> bool:
        """Whether a group's operations stay in one scale-up domain."""
        return self.domain > 1 and group in self._inside

    @cached_property
    def _inside(self) -> frozenset[str]:
        return frozenset(
            name for name, ranks in self.groups.items() if len({rank // self.domain for rank in ranks}) == 1
        )

    def nodes(self) -> int:
        """Nodes of all ranks together."""
        lengths = {name: len(nodes) for name, nodes in self.programs.items()}
        return sum(lengths[rank.program] for rank in self.ranks)


def bytes_sent(node: Node, size: int) -> int:
    """What a rank sends for a node, bytes: by ring or directly, which is the least for large messages.

    Args:
        node: A node.
        size: Ranks in its group; of a message or computation it is ignored.
    """
    if node.kind == "send":
        return node.bytes
    if node.kind != "collective" or size < 2:
        return 0
    # Parts are rounded up to whole bytes. A broadcast is passed on once.
    part = -(-node.bytes // size)
    if node.operation == "broadcast":
        return node.bytes
    return (2 if node.operation == "all_reduce" else 1) * (size - 1) * part


def scale_up_ns(workload: Workload, node: Node, size: int) -> int:
    """How long a collective takes within a scale-up domain, ns: latency of its steps, and its bytes."""
    if size < 2 or workload.scale_up_gbytes <= 0:
        return 0
    steps = {"all_reduce": 2 * (size - 1), "all_to_all": 1}.get(node.operation or "", size - 1)
    return round(steps * workload.scale_up_us * 1e3 + bytes_sent(node, size) / workload.scale_up_gbytes)
