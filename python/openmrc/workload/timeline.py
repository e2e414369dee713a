"""A step as a timeline, in the Trace Event Format, which ui.perfetto.dev and chrome://tracing open.

A rank is a process. Its tracks are its computations, its operations by group, and its messages; what overlaps
has tracks beside each other. Within an operation a bar shows how long the rank waited for another, and arrows
lead from messages to what received them.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openmrc.files import replacing
from openmrc.workload.node_times import NEVER, NodeTimes, Place
from openmrc.workload.waits import label

if TYPE_CHECKING:
    from openmrc.sim.scenario import Fault

_Event = dict[str, Any]


def write_timeline(
    path: Path, jobs: Sequence[tuple[NodeTimes, Sequence[int]]], faults: "Sequence[Fault]" = ()
) -> None:
    """Writes the timeline of a run, completely or not at all. Nodes that have not ended are left out.

    Args:
        path: The file, JSON.
        jobs: Of each job the times, and the hosts of its ranks.
        faults: What broke, for marks over all ranks.

    Raises:
        OSError: if it cannot be written.
    """
    with replacing(path) as file:
        file.write('{"displayTimeUnit":"ns","traceEvents":[')
        for number, event in enumerate(_events(jobs, faults)):
            file.write(("" if number == 0 else ",") + "\n" + json.dumps(event, separators=(",", ":")))
        file.write("\n]}\n")


def _events(jobs: Sequence[tuple[NodeTimes, Sequence[int]]], faults: "Sequence[Fault]") -> Iterator[_Event]:
    first = 0
    """The process of a job's first rank."""
    arrows = 0
    for number, (times, hosts) in enumerate(jobs):
        shown: dict[Place, _Event] = {}
        """Bars of messages."""
        for rank, host in enumerate(hosts):
            job = f"job {number}, " if len(jobs) > 1 else ""
            yield from _process(first + rank, f"{job}rank {rank} on h{host}")
            yield from _bars(times, rank, first, shown)
        for receive, send in times.sender_of.items():
            if send in shown and receive in shown:
                yield from _arrow(arrows, shown[send], shown[receive])
                arrows += 1
        first += len(hosts)
    for fault in faults:
        what = f"{fault.kind}: {', '.join(fault.targets)}"
        yield _mark(what, fault.at_us or 0.0)
        until = getattr(fault, "until_us", None)
        if until is not None:
            yield _mark(f"end of {what}", until)


def _process(number: int, name: str) -> Iterator[_Event]:
    yield {"ph": "M", "pid": number, "name": "process_name", "args": {"name": name}}
    yield {"ph": "M", "pid": number, "name": "process_sort_index", "args": {"sort_index": number}}


def _bars(times: NodeTimes, rank: int, first: int, shown: dict[Place, _Event]) -> Iterator[_Event]:
    """The bars of a rank's nodes as they began; those of messages are kept in ``shown``."""
    tracks = _Tracks(first + rank)
    ended = [(rank, at) for at, end in enumerate(times.ended[rank]) if end != NEVER]
    for place in sorted(ended, key=lambda each: _span(times, each)):
        subject, (begin, end) = _subject(times, place), _span(times, place)
        yield from tracks.new(subject, begin)
        bar = _bar(times, place, (first + rank, tracks.take(subject, begin, end)))
        yield bar
        yield from _waiting(times, place, bar)
        if times.node(place).kind in ("send", "receive"):
            shown[place] = bar


class _Tracks:
    """The tracks of a rank: of each subject as many as nodes of it overlap.

    Nodes come in the order in which they began.
    """

    def __init__(self, process: int) -> None:
        self.process = process
        self.count = 0
        self.ends: dict[str, dict[int, int]] = {}
        """By subject and number of the track: when its last node ended."""

    def new(self, subject: str, begin: int) -> Iterator[_Event]:
        """Opens a track if none of the subject is free; the event names it."""
        tracks = self.ends.setdefault(subject, {})
        if all(end > begin for end in tracks.values()):
            self.count += 1
            tracks[self.count] = begin
            name = subject if len(tracks) == 1 else f"{subject} ({len(tracks)})"
            track: _Event = {"ph": "M", "pid": self.process, "tid": self.count}
            yield track | {"name": "thread_name", "args": {"name": name}}
            yield track | {"name": "thread_sort_index", "args": {"sort_index": self.count}}

    def take(self, subject: str, begin: int, end: int) -> int:
        """The first free track of the subject, until a node has ended."""
        tracks = self.ends[subject]
        number = next(number for number, ended in tracks.items() if ended <= begin)
        tracks[number] = end
        return number


def _subject(times: NodeTimes, place: Place) -> str:
    node = times.node(place)
    return {"compute": "computing", "send": "sends", "receive": "receives"}.get(node.kind, node.group)


def _span(times: NodeTimes, place: Place) -> tuple[int, int]:
    """From when to when a node is shown: a receive from when its rank was ready for it."""
    begin, end = times.span(place)
    if times.node(place).kind == "receive":
        begin = min(times.ready_ps(place), end)
    return begin, end


def _bar(times: NodeTimes, place: Place, track: tuple[int, int]) -> _Event:
    node, (begin, end) = times.node(place), _span(times, place)
    what = label(times, place)
    args: dict[str, Any] = {"node": node.id}
    if node.kind != "compute":
        args["bytes"] = node.bytes
    if node.kind in ("send", "receive"):
        args["peer"] = times.workload.peer_of(place[0], node)
    return {
        "ph": "X",
        "pid": track[0],
        "tid": track[1],
        "name": node.name or what,
        "cat": what,
        "ts": begin / 1e6,
        "dur": (end - begin) / 1e6,
        "args": args,
    }


def _waiting(times: NodeTimes, place: Place, bar: _Event) -> Iterator[_Event]:
    """Within an operation: how long the rank waited for the last one."""
    operation = times.operation_of.get(place)
    if operation is None:
        return
    waited = operation.entered_ps - times.span(place)[0]
    if waited > 0:
        name = f"waiting for rank {operation.last[0]}"
        yield {**bar, "name": name, "cat": "waiting", "dur": waited / 1e6, "args": {}}


def _arrow(number: int, send: _Event, receive: _Event) -> Iterator[_Event]:
    both: _Event = {"name": "message", "cat": "message", "id": number}
    yield both | {"ph": "s", "pid": send["pid"], "tid": send["tid"], "ts": send["ts"]}
    end = receive["ts"] + receive["dur"]
    yield both | {"ph": "f", "bp": "e", "pid": receive["pid"], "tid": receive["tid"], "ts": end}


def _mark(name: str, at_us: float) -> _Event:
    return {"ph": "i", "s": "g", "pid": 0, "tid": 0, "ts": at_us, "name": name, "cat": "fault"}
