"""When the nodes of a workload began and ended in a run, and which nodes belong together.

A node has a place: its rank, and its position in the program of that rank. Times are picoseconds since the
start of the run.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from openmrc.workload.program import Node, Workload

NEVER = 2**64 - 1
"""The time of what has not happened."""

Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Operation:
    """A collective over the fabric, that of all ranks of a group together."""

    group: str
    node: Node
    """Its node at the group's first rank."""
    places: tuple[Place, ...]
    """Its nodes, in the order of the group."""
    last: Place
    """The node of the rank that entered last."""
    entered_ps: int
    """When that rank entered: from here on no rank waits for another."""
    ended_ps: int
    """When the last rank had its result."""


class NodeTimes:
    """The times of a run.

    Args:
        workload: What ran.
        columns: ``rank``, ``node``, ``began_ps`` and ``ended_ps`` of its nodes, a number each for every node.
    """

    def __init__(self, workload: Workload, columns: Mapping[str, memoryview]) -> None:
        self.workload = workload
        self.programs: list[Sequence[Node]] = [workload.programs[rank.program] for rank in workload.ranks]
        """Of each rank: its nodes."""
        self.began = [array("Q", [NEVER]) * len(nodes) for nodes in self.programs]
        """By rank and position: when a computation or an operation began and a message was posted; of a
        receive, when its message was there. :data:`NEVER` of what has not ended."""
        self.ended = [array("Q", [NEVER]) * len(nodes) for nodes in self.programs]
        """By rank and position: when a node ended."""
        self._position = {
            name: {node.id: at for at, node in enumerate(nodes)} for name, nodes in workload.programs.items()
        }
        rows = zip(*(columns[name] for name in ("rank", "node", "began_ps", "ended_ps")), strict=True)
        for rank, number, began, ended in rows:
            at = self._position[workload.ranks[rank].program][number]
            self.began[rank][at], self.ended[rank][at] = began, ended

    @cached_property
    def end_ps(self) -> int | None:
        """When the last node ended; ``None`` if one has not."""
        end = max((max(ended, default=0) for ended in self.ended), default=0)
        return None if end == NEVER else end

    def node(self, place: Place) -> Node:
        """The node at a place."""
        return self.programs[place[0]][place[1]]

    def places(self) -> Iterator[Place]:
        """Every node of every rank."""
        return ((rank, at) for rank, nodes in enumerate(self.programs) for at in range(len(nodes)))

    def span(self, place: Place) -> tuple[int, int]:
        """When a node began and ended."""
        rank, at = place
        return self.began[rank][at], self.ended[rank][at]

    def before(self, place: Place) -> list[Place]:
        """The nodes of the same rank that a node waits for.

        An operation also waits for the one before it in its group.
        """
        rank, at = place
        node = self.node(place)
        position = self._position[self.workload.ranks[rank].program]
        found = [(rank, position[number]) for number in node.after]
        if node.kind == "collective":
            lane = self._lanes[rank][self.workload.group_of(rank, node)]
            number = bisect_left(lane, at)
            found += [(rank, lane[number - 1])] if number else []
        return found

    def ready_ps(self, place: Place) -> int:
        """When everything that a node waits for at its own rank had ended."""
        return max((self.span(other)[1] for other in self.before(place)), default=0)

    def uses_fabric(self, place: Place) -> bool:
        """Whether a node is communication that leaves its scale-up domain."""
        node = self.node(place)
        if node.kind != "collective":
            return node.kind != "compute"
        group = self.workload.group_of(place[0], node)
        return len(self.workload.groups[group]) > 1 and not self.workload.within_domain(group)

    @cached_property
    def operations(self) -> list[Operation]:
        """The collectives over the fabric that have ended, group by group in their order."""
        found = []
        for group, ranks in self.workload.groups.items():
            if len(ranks) < 2 or self.workload.within_domain(group):
                continue
            lanes = [[(rank, at) for at in self._lanes[rank].get(group, ())] for rank in ranks]
            for places in zip(*lanes, strict=False):
                ended = max(self.span(place)[1] for place in places)
                if ended == NEVER:
                    break
                last = max(places, key=lambda place: self.span(place)[0])
                entered = self.span(last)[0]
                found.append(Operation(group, self.node(places[0]), places, last, entered, ended))
        return found

    @cached_property
    def operation_of(self) -> Mapping[Place, Operation]:
        """The operation that a node is part of."""
        return {place: operation for operation in self.operations for place in operation.places}

    @cached_property
    def sender_of(self) -> Mapping[Place, Place]:
        """Of each receive, the send of the other rank."""
        channels: dict[tuple[int, int | None, int], tuple[list[Place], list[Place]]] = {}
        for place in self.places():
            node, rank = self.node(place), place[0]
            if node.kind == "send":
                channel = (rank, self.workload.peer_of(rank, node), node.tag)
                channels.setdefault(channel, ([], []))[0].append(place)
            elif node.kind == "receive":
                peer = self.workload.peer_of(rank, node)
                assert peer is not None
                channels.setdefault((peer, rank, node.tag), ([], []))[1].append(place)
        pairs: dict[Place, Place] = {}
        for sends, receives in channels.values():
            # In the order of time, which need not be that of the program.
            sends.sort(key=lambda place: self.span(place)[0])
            receives.sort(key=lambda place: self.span(place)[1])
            pairs.update(zip(receives, sends, strict=False))
        return pairs

    @cached_property
    def _lanes(self) -> list[dict[str, list[int]]]:
        """By rank and group: the positions of its operations."""
        found = []
        for rank, nodes in enumerate(self.programs):
            lanes: dict[str, list[int]] = {}
            for at, node in enumerate(nodes):
                if node.kind == "collective":
                    lanes.setdefault(self.workload.group_of(rank, node), []).append(at)
            found.append(lanes)
        return found
