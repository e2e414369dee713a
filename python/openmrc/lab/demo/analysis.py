"""From what was measured to the figures of the table. Pure arithmetic; the same for every transport."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from openmrc.lab.demo.trace import Broken, Half, Transport

ENOUGH = 0.5
"""Share of what is left below which a flow's goodput counts as an outage.

Nothing in the lab limits a flow to less than it offers as long as one path is whole: what is left is what it
had before. Half, because the pieces of one flow do not come evenly enough for more within a window.
"""

WINDOW_NS = 20_000_000
"""Over which a flow's goodput is averaged: six pieces of 2 KiB of a TCP or UDP flow at 5 Mb/s."""

_LOOKS = 5
"""Samples that there have to be in two windows for them to count."""

_BEFORE_NS = 500_000_000
_MARGIN_NS = 5_000_000
"""Data posted so short before a fault may still meet it."""


@dataclass(frozen=True)
class Figures:
    """What a fault did to the flows of one transport; milliseconds since it began."""

    transport: Transport
    flows: int
    flows_hit: int
    """Flows whose goodput fell below half of what it was."""
    outage_ms: float
    """The longest that one of them stayed there, until repair."""
    wait_ms: float | None
    """The longest that a piece of data took from being posted to having arrived; lost datagrams never do."""
    wait_before_ms: float | None
    """The same in the half second before the fault."""
    hole_ms: float | None
    """Until nothing was sent any more into what is dead: the last data packet on a dead path (MRC), the last
    datagram that was lost (UDP)."""
    hole_packets: int | None
    """How many packets or datagrams that was."""
    feedback_ms: float | None
    """Until no SACK was sent on a dead path any more (MRC)."""
    feedback_packets: int | None
    """How many that were."""
    lost_at_repair: int | None
    """Datagrams lost after repair began, while routes went back."""


def figures(half: Half, broken: Broken, transport: Transport) -> Figures:
    """The figures of a fault for one transport of a half."""
    flows = half.flows_of(transport)
    outages = [outage_ns(half, flow, broken) for flow in flows]
    until = broken.repaired_ns
    waits = _longest_wait(half, flows, broken.began_ns - _MARGIN_NS, until)
    before = _longest_wait(half, flows, broken.began_ns - _BEFORE_NS, broken.began_ns - _MARGIN_NS)
    hole = feedback = None
    packets = feedback_packets = after = None
    if transport == "mrc":
        if broken.dead_data_ns is not None:
            hole = _last_ms([*broken.dead_data_ns, broken.own_port_last_ns or 0], broken.began_ns)
            packets = len(broken.dead_data_ns)
        if broken.dead_feedback_ns is not None:
            feedback = _last_ms(broken.dead_feedback_ns, broken.began_ns)
            feedback_packets = len(broken.dead_feedback_ns)
    elif transport == "udp":
        lost = [moment for flow in flows for moment in half.lost.get(flow, ())]
        gone = [moment for moment in lost if broken.began_ns <= moment < until]
        hole = _last_ms(gone, broken.began_ns)
        packets = len(gone)
        after = sum(until <= moment < broken.over_ns for moment in lost)
    return Figures(
        transport=transport,
        flows=len(flows),
        flows_hit=sum(outage > 0 for outage in outages),
        outage_ms=max(outages, default=0) / 1e6,
        wait_ms=waits,
        wait_before_ms=before,
        hole_ms=hole,
        hole_packets=packets,
        feedback_ms=feedback,
        feedback_packets=feedback_packets,
        lost_at_repair=after,
    )


def _last_ms(moments: Sequence[int], began_ns: int) -> float:
    return (max([*moments, began_ns]) - began_ns) / 1e6


def outage_ns(half: Half, flow: int, broken: Broken) -> int:
    """The longest time from a fault to its repair that a flow's goodput stayed below half of that before.

    Goodput is averaged over windows that end at each sample. A window that has begun before the fault counts
    from the fault on.
    """
    before = goodput_bps(half, flow, broken.began_ns - _BEFORE_NS, broken.began_ns)
    if not before:
        return 0
    longest = 0
    since: int | None = None
    last = broken.began_ns
    for now, rate in rates(half, [flow], broken.began_ns, broken.repaired_ns):
        at = bisect_left(half.time_ns, now)
        if at >= _LOOKS and now - half.time_ns[at - _LOOKS] > 2 * WINDOW_NS:
            continue  # Whoever sends and samples was away: that says nothing about the network.
        if rate >= ENOUGH * before:
            since = None
            continue
        since = max(broken.began_ns, now - WINDOW_NS) if since is None else since
        last = now
        longest = max(longest, last - since)
    return longest


def goodput_bps(half: Half, flow: int, begin_ns: int, end_ns: int) -> float | None:
    """Payload bits per second of a flow between two moments; ``None`` without samples there."""
    first, last = bisect_left(half.time_ns, begin_ns), bisect_right(half.time_ns, end_ns) - 1
    if last <= first:
        return None
    bytes_there = half.received[last][flow] - half.received[first][flow]
    return bytes_there * 8e9 / (half.time_ns[last] - half.time_ns[first])


def rates(
    half: Half, flows: Sequence[int], begin_ns: int, end_ns: int, window_ns: int = WINDOW_NS
) -> Iterator[tuple[int, float]]:
    """Goodput of some flows together, bits per second, over the window that ends at each sample."""
    times, rows = half.time_ns, half.received
    first, last = bisect_left(times, begin_ns), bisect_right(times, end_ns)
    sums = {}
    back = bisect_left(times, begin_ns - window_ns)

    def total(at: int) -> int:
        if at not in sums:
            sums[at] = sum(rows[at][flow] for flow in flows)
        return sums[at]

    for at in range(first, last):
        while back + 1 < at and times[back + 1] <= times[at] - window_ns:
            sums.pop(back, None)
            back += 1
        if times[at] > times[back]:
            yield times[at], (total(at) - total(back)) * 8e9 / (times[at] - times[back])


def _longest_wait(half: Half, flows: Sequence[int], begin_ns: int, end_ns: int) -> float | None:
    wanted, waits = set(flows), half.waits
    found = [
        wait
        for flow, posted, wait in zip(waits.flow, waits.posted_ns, waits.wait_ns, strict=True)
        if begin_ns <= posted < end_ns and flow in wanted
    ]
    return max(found) / 1e6 if found else None


def as_dict(half: Half, transports: Sequence[Transport]) -> dict[str, Any]:
    """A half for JSON: figures of every fault, and goodput over time."""
    began = half.began_ns
    faults = []
    for broken in half.faults:
        row: dict[str, Any] = {
            "fault": broken.fault.kind,
            "what": broken.fault.what,
            "begin_s": (broken.began_ns - began) / 1e9,
            "repair_s": (broken.repaired_ns - began) / 1e9,
            "figures": [asdict(figures(half, broken, transport)) for transport in transports],
        }
        if "mrc" in transports:
            named = None if broken.named_ns is None else (broken.named_ns - broken.began_ns) / 1e6
            row |= {
                "named": broken.named,
                "named_by": broken.named_by,
                "named_ms": named,
                "named_right": broken.right,
            }
        faults.append(row)
    step = WINDOW_NS
    goodput = {}
    for transport in transports:
        flows = half.flows_of(transport)
        series, due = [], 0
        for now, rate in rates(half, flows, began, half.ended_ns):
            if now >= due:
                series.append([round((now - began) / 1e9, 4), round(rate / 1e9, 5)])
                due = now + step
        goodput[transport] = series
    return {
        "seconds": (half.ended_ns - began) / 1e9,
        "flows": [asdict(flow) for flow in half.flows],
        "pieces_arrived": half.pieces,
        "pieces_wrong": half.wrong,
        "faults": faults,
        "goodput_gbps": goodput,
    }
