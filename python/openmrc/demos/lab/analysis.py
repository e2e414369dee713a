"""From a recording to the figures of the table. Pure arithmetic; the same for every transport."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from openmrc.demos.lab.recording import FaultRecord, Recording, Transport
from openmrc.demos.series import WINDOW_NS

ENOUGH = 0.5
"""Share of its goodput before the fault below which a flow has an outage.

Nothing in the lab limits a flow to less than it offers while one path is whole. Half, because the pieces of
one flow arrive too unevenly for a higher share within a window.
"""

_SAMPLES = 5
"""A sample counts only if this many were taken within two windows. Otherwise the sender, which also samples,
was not running."""

_BEFORE_NS = 500_000_000
_MARGIN_NS = 5_000_000
"""Data posted this shortly before a fault may still meet it."""
_BUSY = "The machine was too busy for these figures to mean much: {}."
_MOST_AWAY, _LEAST_REACHED = 0.05, 0.9
"""Of the time in which the sender was not run, and of what it offers while nothing is broken: beyond these
shares an outage may be the machine's."""


@dataclass
class Figures:
    """What a fault did to the flows of one transport; milliseconds since it began."""

    transport: Transport
    flows: int
    flows_hit: int
    """Flows with an outage."""
    outage_ms: float
    """The longest outage of a flow, until repair."""
    wait_ms: float | None
    """The longest time from posting a piece of data to its arrival; lost datagrams do not count."""
    wait_before_ms: float | None
    """The same in the half second before the fault."""
    hole_ms: float | None = None
    """Until the last data packet on a dead path (MRC), or the last datagram that was lost (UDP)."""
    hole_packets: int | None = None
    """How many of those."""
    feedback_ms: float | None = None
    """Until the last SACK on a dead path (MRC)."""
    feedback_packets: int | None = None
    """How many of those."""
    lost_at_repair: int | None = None
    """Datagrams lost after repair began, while routes were changed back (UDP)."""


def figures(recording: Recording, record: FaultRecord, transport: Transport) -> Figures:
    """The figures of a fault for one transport of a recording."""
    flows, began, until = recording.flows_of(transport), record.began_ns, record.repaired_ns
    outages = [outage_ns(recording, flow, record) for flow in flows]
    found = Figures(
        transport=transport,
        flows=len(flows),
        flows_hit=sum(outage > 0 for outage in outages),
        outage_ms=max(outages, default=0) / 1e6,
        wait_ms=_longest_wait(recording, flows, began - _MARGIN_NS, until),
        wait_before_ms=_longest_wait(recording, flows, began - _BEFORE_NS, began - _MARGIN_NS),
    )
    if transport == "mrc" and record.dead is not None:
        found.hole_ms = _last_ms([*record.dead.data_ns, record.own_port_last_ns or 0], began)
        found.hole_packets = len(record.dead.data_ns)
        found.feedback_ms = _last_ms(record.dead.feedback_ns, began)
        found.feedback_packets = len(record.dead.feedback_ns)
    elif transport == "udp":
        lost = [moment for flow in flows for moment in recording.lost.get(flow, ())]
        gone = [moment for moment in lost if began <= moment < until]
        found.hole_ms, found.hole_packets = _last_ms(gone, began), len(gone)
        found.lost_at_repair = sum(until <= moment < record.over_ns for moment in lost)
    return found


def _last_ms(moments: Sequence[int], began_ns: int) -> float:
    return (max([*moments, began_ns]) - began_ns) / 1e6


def outage_ns(recording: Recording, flow: int, record: FaultRecord) -> int:
    """The longest time from a fault to its repair in which a flow had less than half of its goodput."""
    series = recording.series
    before = series.bps([flow], record.began_ns - _BEFORE_NS, record.began_ns)
    if not before:
        return 0

    def trusted(time_ns: int) -> bool:
        at = bisect_left(series.time_ns, time_ns)
        return at < _SAMPLES or time_ns - series.time_ns[at - _SAMPLES] <= 2 * WINDOW_NS

    return series.longest_dip_ns(
        [flow], record.began_ns, record.repaired_ns, ENOUGH * before, trusted=trusted
    )


def _longest_wait(recording: Recording, flows: Sequence[int], begin_ns: int, end_ns: int) -> float | None:
    wanted, waits = set(flows), recording.waits
    found = [
        wait
        for flow, posted, wait in zip(waits.flow, waits.posted_ns, waits.wait_ns, strict=True)
        if begin_ns <= posted < end_ns and flow in wanted
    ]
    return max(found) / 1e6 if found else None


def too_busy(recording: Recording) -> str | None:
    """Why the figures of a recording mean little, in a sentence; ``None``: they do mean something.

    A sender that is not run for as long as a window samples nothing meanwhile.
    """
    times = recording.series.time_ns
    if len(times) < _SAMPLES:
        return _BUSY.format("nothing was measured")
    gaps = [after - before for before, after in pairwise(times) if after - before > WINDOW_NS]
    away = sum(gaps) / (times[-1] - times[0])
    if away > _MOST_AWAY:
        return _BUSY.format(
            f"the sender was not run in {away:.0%} of the time, once for {max(gaps) / 1e6:.0f} ms"
        )
    whole = min((record.began_ns for record in recording.faults), default=recording.ended_ns)
    offered = sum(flow.offered_bps for flow in recording.flows)
    reached = recording.series.bps(range(len(recording.flows)), recording.began_ns, whole)
    if reached is not None and reached < _LEAST_REACHED * offered:
        return _BUSY.format(f"before the first fault {reached / offered:.0%} of what was offered arrived")
    return None


def as_dict(recording: Recording) -> dict[str, Any]:
    """A recording for JSON: figures of every fault, and goodput over time."""
    began, transports = recording.began_ns, recording.transports
    faults = []
    for record in recording.faults:
        row: dict[str, Any] = {
            "fault": record.fault.kind,
            "what": record.fault.what,
            "begin_s": (record.began_ns - began) / 1e9,
            "repair_s": (record.repaired_ns - began) / 1e9,
            "figures": [asdict(figures(recording, record, transport)) for transport in transports],
        }
        if "mrc" in transports:
            row |= _verdict(record)
        faults.append(row)
    windows = recording.windows()
    goodput = {}
    for transport in transports:
        flows = recording.flows_of(transport)
        goodput[transport] = [
            [round((window.end_ns - began) / 1e9, 4), round(sum(window.bps[flow] for flow in flows) / 1e9, 5)]
            for window in windows
        ]
    return {
        "seconds": (recording.ended_ns - began) / 1e9,
        "flows": [asdict(flow) for flow in recording.flows],
        "pieces_arrived": recording.pieces,
        "pieces_wrong": recording.wrong,
        "too_busy": too_busy(recording),
        "faults": faults,
        "goodput_gbps": goodput,
    }


def _verdict(record: FaultRecord) -> dict[str, Any]:
    verdict = record.verdict
    if verdict is None:
        return {"named": [], "named_by": [], "named_ms": None, "named_right": None}
    since = verdict.since_ns
    return {
        "named": verdict.links,
        "named_by": verdict.hosts,
        "named_ms": None if since is None else (since - record.began_ns) / 1e6,
        "named_right": verdict.right,
    }
