"""GOAL, written: collectives become the messages of their algorithm.

All-reduce, all-gather and reduce-scatter are rings, all-to-all is direct, a broadcast goes round the ring.
Within a scale-up domain an operation is a computation of the time that it takes there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from openmrc.files import replacing
from openmrc.workload.program import Node, Workload, scale_up_ns


def write_goal(workload: Workload, path: Path) -> None:
    """Writes a workload as GOAL, completely or not at all.

    Args:
        workload: A workload without problems.
        path: The file.

    Raises:
        OSError: if it cannot be written.
    """
    sent = [node.tag for nodes in workload.programs.values() for node in nodes if node.kind == "send"]
    tags = {name: max(sent, default=-1) + 1 + at for at, name in enumerate(workload.groups)}
    with replacing(path) as file:
        file.write(f"num_ranks {len(workload.ranks)}\n")
        for rank in range(len(workload.ranks)):
            file.write(f"rank {rank} {{\n")
            for line in _Writer(workload, rank, tags).lines():
                file.write(f"{line}\n")
            file.write("}\n")


@dataclass
class _Writer:
    """The block of a rank under construction."""

    workload: Workload
    rank: int
    tags: dict[str, int]
    """Of each group: the tag of its messages, which no other message has."""
    count: int = 0
    out: list[str] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)
    ends: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """Of each node: the operations after which it has ended."""
    lanes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Of each group: those after which its last operation has ended."""
    cpus: list[str] = field(default_factory=list)
    """Of each cpu: its last computation."""
    behind: dict[str, frozenset[str]] = field(default_factory=dict)
    """Of each operation: computations that have surely ended when it ends."""

    def lines(self) -> Iterator[str]:
        nodes = self.workload.programs[self.workload.ranks[self.rank].program]
        for node in self.sorted(nodes):
            after = tuple(label for other in node.after for label in self.ends[other])
            self.ends[node.id] = self.node(node, after)
        yield from self.out
        yield from self.waits

    def node(self, node: Node, after: tuple[str, ...]) -> tuple[str, ...]:
        if node.kind == "compute":
            return (self.calc(node.ns, after),)
        if node.kind != "collective":
            peer = self.workload.peer_of(self.rank, node)
            verb = f"send {node.bytes}b to" if node.kind == "send" else f"recv {node.bytes}b from"
            return (self.add(f"{verb} {peer} tag {node.tag}", after),)
        group = self.workload.group_of(self.rank, node)
        after = (*after, *self.lanes.get(group, ()))
        members = self.workload.groups[group]
        if self.workload.within_domain(group) or len(members) == 1:
            ended: tuple[str, ...] = (self.calc(scale_up_ns(self.workload, node, len(members)), after),)
        else:
            ended = self.collective(node, members, self.tags[group], after)
        self.lanes[group] = ended
        return ended

    def collective(
        self, node: Node, members: Sequence[int], tag: int, after: tuple[str, ...]
    ) -> tuple[str, ...]:
        size, place = len(members), list(members).index(self.rank)
        following, before = members[(place + 1) % size], members[place - 1]
        part = -(-node.bytes // size)
        if node.operation == "all_to_all":
            others = [members[(place + step) % size] for step in range(1, size)]
            sends = [self.add(f"send {part}b to {other} tag {tag}", after) for other in others]
            return (*sends, *(self.add(f"recv {part}b from {other} tag {tag}", after) for other in others))
        if node.operation == "broadcast":
            ended = after
            if place > 0:
                ended = (self.add(f"recv {node.bytes}b from {before} tag {tag}", after),)
            if place < size - 1:
                ended = (self.add(f"send {node.bytes}b to {following} tag {tag}", ended),)
            return ended
        steps = (2 if node.operation == "all_reduce" else 1) * (size - 1)
        received = after
        for _ in range(steps):
            # Each step passes on what the step before has brought.
            sent = self.add(f"send {part}b to {following} tag {tag}", received)
            received = (self.add(f"recv {part}b from {before} tag {tag}", received),)
        return (sent, *received)

    def calc(self, ns: int, after: tuple[str, ...]) -> str:
        """A computation, on the cpu of one that it comes after anyway: nothing else may wait for it."""
        known = self.known(after)
        cpu = next((at for at, last in enumerate(self.cpus) if last in known), len(self.cpus))
        label = self.add(f"calc {ns}" + (f" cpu {cpu}" if cpu else ""), after)
        self.cpus[cpu : cpu + 1] = [label]
        self.behind[label] = frozenset({label})
        return label

    def known(self, after: tuple[str, ...]) -> frozenset[str]:
        return frozenset(each for label in after for each in self.behind[label])

    def add(self, what: str, after: tuple[str, ...]) -> str:
        self.count += 1
        label = f"l{self.count}"
        self.out.append(f"{label}: {what}")
        self.waits += [f"{label} requires {other}" for other in dict.fromkeys(after)]
        self.behind[label] = self.known(after)
        return label

    def sorted(self, nodes: Sequence[Node]) -> Iterator[Node]:
        """Nodes after those that they wait for, and after the operation of their group before them."""
        waits = {node.id: list(node.after) for node in nodes}
        by_id = {node.id: node for node in nodes}
        lanes: dict[str, int] = {}
        for node in nodes:
            if node.kind == "collective":
                group = self.workload.group_of(self.rank, node)
                waits[node.id] += [lanes[group]] if group in lanes else []
                lanes[group] = node.id
        done: set[int] = set()
        for first in waits:
            ahead = [first]
            while ahead:
                missing = [other for other in waits[ahead[-1]] if other not in done]
                if missing:
                    ahead += missing
                    continue
                number = ahead.pop()
                if number not in done:
                    done.add(number)
                    yield by_id[number]
