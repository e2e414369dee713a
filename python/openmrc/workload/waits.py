"""Where the time of a step went: critical path, operations over the fabric, and who waited for whom."""

from collections.abc import Iterator
from dataclasses import dataclass

from openmrc.workload.node_times import NEVER, NodeTimes, Place


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the critical path: what the end of the step waited for, and during which time."""

    rank: int
    """The rank that did it; of a message its sender, of an operation the rank that entered last."""
    what: str
    """As :func:`label` says it."""
    begin_us: float
    end_us: float

    @property
    def us(self) -> float:
        """How long."""
        return self.end_us - self.begin_us


@dataclass(frozen=True, slots=True)
class OperationRow:
    """Operations over the fabric that are alike. Times count from when the last rank has entered."""

    what: str
    """As :func:`label` says it."""
    ranks: int
    bytes: int
    """Of one operation: the buffer of a rank, or the message."""
    count: int
    median_us: float
    p99_us: float
    most_us: float
    waited_us: float
    """How long a rank waited for the last one to enter, and a receiver for its sender to send: the mean."""


@dataclass(frozen=True, slots=True)
class Waited:
    """What other ranks waited for a rank."""

    rank: int
    count: int
    """Operations that it entered last, and messages that it sent after the receiver was ready."""
    us: float
    """How long the others waited, all together."""


def label(times: NodeTimes, place: Place) -> str:
    """What a node does: ``computing``, ``all_gather dp``, ``all_gather tp (scale-up)``, ``message to x``."""
    node = times.node(place)
    if node.kind == "compute":
        return "computing"
    if node.kind == "collective":
        inside = "" if times.uses_fabric(place) else " (scale-up)"
        return f"{node.operation} {node.group}{inside}"
    if node.kind == "send":
        return f"message to {node.peer}" if isinstance(node.peer, str) else "message"
    return "receive"


def critical_path(times: NodeTimes) -> list[Stretch]:
    """What the end of a step waited for, from its begin to its end without a gap.

    Backwards from the node that ended last: a computation waited for what its rank had done before, an
    operation for the rank that entered it last, a receive for its message or for its own rank, whichever came
    later. Empty if a node has not ended.

    Args:
        times: The times of a run.
    """
    if times.end_ps is None:
        return []
    place = max(times.places(), key=lambda each: times.span(each)[1], default=None)
    found: list[Stretch] = []
    now = times.end_ps

    def add(rank: int, what: str, begin: int) -> int:
        if begin < now:
            found.append(Stretch(rank, what, begin / 1e6, now / 1e6))
        return min(begin, now)

    while place is not None:
        what, (begin, end) = label(times, place), times.span(place)
        if times.node(place).kind == "collective" and times.uses_fabric(place):
            operation = times.operation_of[place]
            place, begin = operation.last, operation.entered_ps
        elif times.node(place).kind == "receive":
            send = times.sender_of[place]
            # A message that came later is another's: so the walk goes back in time, and ends.
            if times.ready_ps(place) <= times.span(send)[1] <= end:
                place, begin, what = send, times.span(send)[0], label(times, send)
        rank = place[0]
        now = add(rank, what, begin)
        place = max(times.before(place), key=lambda each: times.span(each)[1], default=None)
        now = add(rank, "idle", 0 if place is None else times.span(place)[1])
    return found[::-1]


def operations(times: NodeTimes) -> list[OperationRow]:
    """The operations and messages over the fabric, those that are alike in a row.

    The first row is the one that took longest, all together.

    Args:
        times: The times of a run; what has not ended is left out.
    """
    alike: dict[tuple[str, int, int], list[_Communication]] = {}
    for each in _communication(times):
        alike.setdefault((each.what, each.ranks, each.bytes), []).append(each)
    rows = []
    for (what, ranks, size), found in alike.items():
        took = sorted(each.took_ps / 1e6 for each in found)
        waited = sum(each.waited_ps for each in found) / sum(each.waiters for each in found) / 1e6
        median, p99 = (_nearest_rank(took, percent) for percent in (50, 99))
        rows.append(OperationRow(what, ranks, size, len(found), median, p99, took[-1], waited))
    rows.sort(key=lambda row: -row.median_us * row.count)
    return rows


def waited_for(times: NodeTimes) -> list[Waited]:
    """What other ranks waited for each rank, the rank that most was waited for first.

    Ranks that nobody waited for are left out.

    Args:
        times: The times of a run; what has not ended is left out.
    """
    found: dict[int, tuple[int, int]] = {}
    for each in _communication(times):
        if each.waited_ps > 0:
            count, waited = found.get(each.last, (0, 0))
            found[each.last] = count + 1, waited + each.waited_ps
    rows = [Waited(rank, count, waited / 1e6) for rank, (count, waited) in found.items()]
    rows.sort(key=lambda row: (-row.us, row.rank))
    return rows


@dataclass(frozen=True, slots=True)
class _Communication:
    """An operation or a message over the fabric."""

    what: str
    ranks: int
    bytes: int
    took_ps: int
    """Once no rank was missing."""
    waited_ps: int
    """All that waited for the last rank, together."""
    waiters: int
    """Ranks that could have waited."""
    last: int
    """The rank that was last."""


def _communication(times: NodeTimes) -> Iterator[_Communication]:
    for each in times.operations:
        ranks, entered = len(each.places), each.entered_ps
        yield _Communication(
            label(times, each.places[0]),
            ranks,
            each.node.bytes,
            each.ended_ps - entered,
            sum(entered - times.span(place)[0] for place in each.places),
            ranks - 1,
            each.last[0],
        )
    for receive, send in times.sender_of.items():
        begin, end = times.span(send)
        if NEVER not in (end, times.span(receive)[1]):
            waited = max(begin - times.ready_ps(receive), 0)
            node = times.node(send)
            yield _Communication(label(times, send), 2, node.bytes, end - begin, waited, 1, send[0])


def _nearest_rank(ordered: list[float], percent: int) -> float:
    """The percentile of values in order that is one of them."""
    return ordered[max(1, -(-percent * len(ordered) // 100)) - 1]
