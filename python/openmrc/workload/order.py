"""A workload in the order that its dependencies and groups allow, with times but without a network.

Ranks that cannot be told apart, by their programs, groups and peers, do the same at the same time: one of
each
class is executed.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from openmrc.workload.program import Node, Workload


class Deadlock(Exception):  # noqa: N818 - it is a state, and the check makes an error of it
    """No node can begin and not all have ended."""

    def __init__(self, rank: int, node: int, field: str, missing: str) -> None:
        super().__init__(missing)
        self.rank = rank
        self.node = node
        self.field = field
        self.missing = missing


@dataclass(frozen=True, slots=True)
class Times:
    """What an execution took."""

    ns: int
    """The step: from the begin to the end of the last node."""
    computed_ns: Mapping[int, int]
    """Of one rank of each class: the sum of its computations."""
    ends: Mapping[int, Mapping[int, int]]
    """Of one rank of each class: when each of its nodes ended, ns."""


def classes(workload: Workload) -> list[int]:
    """For each rank the first rank that does the same: by program, and by what groups and peers do."""
    colours: list[object] = [rank.program for rank in workload.ranks]
    count = 0
    while True:
        numbers: dict[object, int] = {}
        now = [numbers.setdefault(colour, len(numbers)) for colour in colours]
        if len(numbers) == count:
            first: dict[int, int] = {}
            return [first.setdefault(colour, rank) for rank, colour in enumerate(now)]
        count = len(numbers)
        of_group = {
            name: (*sorted({now[rank] for rank in ranks}), -len(ranks), workload.within_domain(name))
            for name, ranks in workload.groups.items()
        }
        literal = {
            name: {node.group for node in nodes if node.kind == "collective"}
            for name, nodes in workload.programs.items()
        }
        direct = {
            name: {node.peer for node in nodes if isinstance(node.peer, int)}
            for name, nodes in workload.programs.items()
        }
        colours = [
            (
                now[number],
                tuple(
                    (role, of_group.get(rank.groups.get(role, role)))
                    for role in sorted(literal[rank.program])
                ),
                tuple(sorted((role, now[peer]) for role, peer in rank.peers.items())),
                tuple(sorted((peer, now[peer]) for peer in direct[rank.program])),
            )
            for number, rank in enumerate(workload.ranks)
        ]


@dataclass
class _State:
    """A rank on its way through its program."""

    nodes: Sequence[Node]
    waits: dict[int, int]
    next: dict[int, list[int]]
    by_id: dict[int, Node]
    ends: dict[int, int] = field(default_factory=dict)
    ready: dict[int, int] = field(default_factory=dict)
    """When the nodes before each node have ended, so far."""
    lanes: dict[str, deque[int]] = field(default_factory=dict)
    """By group: its collectives that have not begun, in the order of the program."""
    reached: dict[int, int] = field(default_factory=dict)
    """Collectives whose nodes before have all ended, and when."""


def run(workload: Workload, takes: Callable[[Node, str], int] | None = None) -> Times:
    """Executes a workload.

    Args:
        workload: A workload whose groups, peers and sizes are right.
        takes: How long a collective or message takes, ns, of the node and the name of its group (empty for a
            message); default no time.

    Raises:
        Deadlock: names a rank, its node and what it waits for.
    """
    return _Execution(workload, takes or (lambda node, group: 0)).run()


class _Execution:
    def __init__(self, workload: Workload, takes: Callable[[Node, str], int]) -> None:
        self.workload = workload
        self.takes = takes
        self.of = classes(workload)
        self.members = {
            name: tuple(dict.fromkeys(self.of[rank] for rank in ranks))
            for name, ranks in workload.groups.items()
        }
        self.states: dict[int, _State] = {}
        self.events: list[tuple[int, int, int]] = []
        self.sent: dict[tuple[int, int, int], deque[int]] = defaultdict(deque)
        self.awaited: dict[tuple[int, int, int], deque[tuple[int, int]]] = defaultdict(deque)
        self.heads: dict[tuple[int, str], tuple[tuple[int, str], ...]] = {}
        self.free: dict[tuple[tuple[int, str], ...], int] = {}
        """By group, as its classes name it: when its last collective ended."""
        for rank in sorted(set(self.of)):
            self.states[rank] = self.begin(rank)

    def begin(self, rank: int) -> _State:
        nodes = self.workload.programs[self.workload.ranks[rank].program]
        state = _State(nodes, {}, defaultdict(list), {node.id: node for node in nodes})
        for node in nodes:
            before = set(node.after)
            state.waits[node.id] = len(before)
            for other in before:
                state.next[other].append(node.id)
            if node.kind == "collective":
                state.lanes.setdefault(self.workload.group_of(rank, node), deque()).append(node.id)
            if not before:
                self.events.append((0, rank, node.id))
        return state

    def run(self) -> Times:
        heapq.heapify(self.events)
        while self.events:
            now, rank, number = heapq.heappop(self.events)
            self.reach(now, rank, number)
        for rank, state in self.states.items():
            if len(state.ends) < len(state.nodes):
                raise self.stuck(rank, state)
        computed = {
            rank: sum(node.ns for node in state.nodes if node.kind == "compute")
            for rank, state in self.states.items()
        }
        last = max((max(state.ends.values(), default=0) for state in self.states.values()), default=0)
        return Times(last, computed, {rank: state.ends for rank, state in self.states.items()})

    def reach(self, now: int, rank: int, number: int) -> None:
        """The nodes before this one have ended."""
        node = self.states[rank].by_id[number]
        if node.kind == "compute":
            self.end(now + node.ns, rank, number)
        elif node.kind == "collective":
            self.states[rank].reached[number] = now
            self.collective(rank, self.workload.group_of(rank, node))
        else:
            self.message(now, rank, node)

    def collective(self, rank: int, group: str) -> None:
        """Runs the collectives of a group for which all its classes are ready."""
        heads = self.heads_of(rank, group)
        while True:
            firsts: list[tuple[int, int]] = []
            for member, name in heads:
                state = self.states[member]
                lane = state.lanes.get(name)
                if not lane or lane[0] not in state.reached:
                    return
                firsts.append((member, lane[0]))
            begin = max(self.states[member].reached[number] for member, number in firsts)
            node = self.states[firsts[0][0]].by_id[firsts[0][1]]
            over = max(begin, self.free.get(heads, 0)) + self.takes(node, group)
            self.free[heads] = over
            for (member, number), (_, name) in zip(firsts, heads, strict=True):
                self.states[member].lanes[name].popleft()
                self.end(over, member, number)

    def heads_of(self, rank: int, group: str) -> tuple[tuple[int, str], ...]:
        """The classes in a group, each with what its first rank calls that group."""
        if (rank, group) not in self.heads:
            found: dict[int, str] = {}
            for number in self.workload.groups[group]:
                first = self.of[number]
                if first not in found:
                    roles = self.workload.ranks[number].groups
                    role = next((role for role, name in roles.items() if name == group), group)
                    found[first] = self.workload.ranks[first].groups.get(role, role)
            self.heads[rank, group] = tuple(sorted(found.items()))
        return self.heads[rank, group]

    def message(self, now: int, rank: int, node: Node) -> None:
        peer = self.workload.peer_of(rank, node)
        assert peer is not None
        other = self.of[peer]
        if node.kind == "send":
            arrives = now + self.takes(node, "")
            self.end(now, rank, node.id)
            channel = (rank, other, node.tag)
            if self.awaited[channel]:
                waiting, number = self.awaited[channel].popleft()
                self.end(max(arrives, waiting), other, number)
            else:
                self.sent[channel].append(arrives)
            return
        channel = (other, rank, node.tag)
        if self.sent[channel]:
            self.end(max(now, self.sent[channel].popleft()), rank, node.id)
        else:
            self.awaited[channel].append((now, node.id))

    def end(self, when: int, rank: int, number: int) -> None:
        state = self.states[rank]
        state.ends[number] = when
        for other in state.next[number]:
            state.waits[other] -= 1
            state.ready[other] = max(state.ready.get(other, 0), when)
            if state.waits[other] == 0:
                ready = state.ready.pop(other)
                heapq.heappush(self.events, (ready, rank, other))

    def stuck(self, rank: int, state: _State) -> Deadlock:
        """What a rank waits for: the first of its nodes that could begin but for others."""
        for node in state.nodes:
            if node.id in state.ends or state.waits[node.id]:
                continue
            if node.kind == "receive":
                peer = self.workload.peer_of(rank, node)
                return Deadlock(rank, node.id, "tag", f"deadlock: rank {peer} has not sent {node.tag}")
            group = self.workload.group_of(rank, node)
            if state.lanes[group][0] != node.id:
                continue
            for other, name in self.heads_of(rank, group):
                theirs = self.states[other]
                lane = theirs.lanes.get(name)
                if lane and lane[0] not in theirs.reached:
                    what = f"deadlock: rank {other} has not reached its node {lane[0]} of group {name}"
                    return Deadlock(rank, node.id, "group", what)
        node = next(each for each in state.nodes if each.id not in state.ends)
        return Deadlock(rank, node.id, "after", "deadlock: the nodes before it never end")
