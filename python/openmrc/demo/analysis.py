"""From samples to the figures of a run. Pure arithmetic over what :mod:`openmrc.demo.run` gives."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from openmrc.demo.run import Outcome
from openmrc.demo.samples import Series

WINDOW = 0.02
"""Seconds over which goodput is averaged: ten blocks at 8 Gb/s."""

NEIGHBOURHOOD = 1.0
"""Seconds before and after a fault whose goodput is compared with that during it."""

ENOUGH = 0.8
"""Share of the goodput that a fault leaves below which it counts as a dip."""


@dataclass(frozen=True)
class FaultFigures:
    """One fault."""

    name: str
    title: str
    begin_s: float
    """From the first byte."""
    end_s: float
    before_gbps: float | None
    """Goodput in the second before."""
    during_gbps: float | None
    after_gbps: float | None
    """Goodput in the second after."""
    dip_ms: float | None
    """Longest time, while it lasted, that goodput stayed below 80 % of what it leaves of that before (all, or
    what the other planes give); steps of 20 ms. What began before it does not count."""
    packets_hit: int
    """Packets of the sender that its rules harmed."""
    dead_path_packets: int | None = None
    """Data packets sent into the dead plane."""
    dead_path_last_ms: float | None = None
    """From its death to the last of them."""
    dead_path_most_ms: float | None = None
    """From its death until 99 % of them were sent."""


@dataclass(frozen=True)
class Figures:
    """A whole run."""

    verified: bool
    files: int
    """Times the file arrived with the right checksum."""
    file_bytes: int
    seconds: float
    """First write posted to last byte verified."""
    goodput_gbps: float | None
    faults: list[FaultFigures]
    data_packets: int
    """Sent, repetitions included."""
    dropped: int
    """Data packets that the bad network dropped on the way to the receiver."""
    retransmits: int
    trimmed: int
    """Packets that arrived without payload and were asked for again."""
    ecn_marked: int
    """Packets that the bad network marked."""
    spurious: int
    """Packets taken for lost that had arrived."""
    timeouts: int
    condemned: int
    """Paths taken out of rotation, as often as it happened."""
    error: str | None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def figures(outcome: Outcome) -> Figures:
    """All figures of a run."""
    series = outcome.receiver.series
    seconds = (outcome.finished_ns - outcome.began_ns) / 1e9
    good = sum(digest == outcome.source_digest for digest in outcome.receiver.digests)
    hits = {record.fault.name: record.hits for record in outcome.records}
    return Figures(
        verified=outcome.verified,
        files=good,
        file_bytes=outcome.source_size,
        seconds=seconds,
        goodput_gbps=good * outcome.source_size * 8 / seconds / 1e9 if seconds > 0 else None,
        faults=[_fault(outcome, series, record) for record in outcome.records],
        data_packets=outcome.transport["data_packets"],
        dropped=hits.get("plane_dead", [0])[0] + sum(hits.get("paths_lossy", [])),
        retransmits=outcome.transport["retransmits"],
        trimmed=outcome.transport["trimmed"],
        ecn_marked=(hits.get("paths_congested") or [0])[-1],
        spurious=outcome.transport["spurious"],
        timeouts=outcome.transport["timeouts"],
        condemned=outcome.transport["condemned"],
        error=outcome.error or outcome.receiver.error,
    )


def _fault(outcome: Outcome, series: Series, record: Any) -> FaultFigures:
    began = outcome.began_ns
    begin = record.began_ns
    end = record.ended_ns if record.ended_ns is not None else outcome.finished_ns
    second = int(NEIGHBOURHOOD * 1e9)
    before = goodput(series, max(began, begin - second), begin)
    dead = record.fault.name == "plane_dead"
    planes = len(series.planes[0]) if series.planes else 1
    left = (planes - 1) / planes if dead else 1.0
    return FaultFigures(
        name=record.fault.name,
        title=record.fault.title,
        begin_s=(begin - began) / 1e9,
        end_s=(end - began) / 1e9,
        before_gbps=before,
        during_gbps=goodput(series, begin, end),
        after_gbps=goodput(series, end, min(outcome.finished_ns, end + second)),
        dip_ms=None if before is None else dip_ms(series, begin, end, ENOUGH * left * before),
        packets_hit=sum(record.hits),
        dead_path_packets=record.hits[0] if dead else None,
        dead_path_last_ms=(record.last_hit_ns - begin) / 1e6 if dead and record.last_hit_ns else None,
        dead_path_most_ms=_most_ms(record) if dead else None,
    )


def _most_ms(record: Any) -> float | None:
    for when, count in record.hits_over_time:
        if count >= 0.99 * record.hits[0]:
            # Counts are read now and then: not before they changed, and maybe some milliseconds later.
            return float((min(when, record.last_hit_ns) - record.began_ns) / 1e6)
    return None


def goodput(series: Series, begin_ns: int, end_ns: int) -> float | None:
    """Goodput in Gb/s (bits verified per nanosecond) between two moments; ``None`` without samples there."""
    first = bisect_left(series.time_ns, begin_ns)
    last = bisect_left(series.time_ns, end_ns)
    last = min(last, len(series.time_ns) - 1)
    if first >= last:
        return None
    elapsed = series.time_ns[last] - series.time_ns[first]
    return (series.verified[last] - series.verified[first]) * 8 / elapsed


def windows(series: Series, seconds: float = WINDOW) -> tuple[list[int], list[float], list[list[float]]]:
    """Rates over windows of at least ``seconds``.

    Returns:
        Middle of each window (ns); goodput in Gb/s; per plane, what was received in Gb/s.
    """
    middles: list[int] = []
    total: list[float] = []
    planes: list[list[float]] = []
    at = 0
    for i, now in enumerate(series.time_ns):
        elapsed = now - series.time_ns[at]
        if elapsed < seconds * 1e9:
            continue
        middles.append(series.time_ns[at] + elapsed // 2)
        total.append((series.verified[i] - series.verified[at]) * 8 / elapsed)
        planes.append(
            [(b - a) * 8 / elapsed for a, b in zip(series.planes[at], series.planes[i], strict=True)]
        )
        at = i
    return middles, total, planes


def dip_ms(series: Series, begin_ns: int, end_ns: int, enough_gbps: float) -> float:
    """Longest time between two moments that goodput stayed below a limit, milliseconds.

    A time that had begun before the first of them does not count.
    """
    middles, total, _ = windows(series)
    longest = 0.0
    since: int | None = None
    edges = [*middles[1:], middles[-1] if middles else 0]
    # The window around the first moment has part of what comes after it.
    earlier = bisect_left(middles, begin_ns - WINDOW * 1e9) - 1
    ongoing = earlier >= 0 and total[earlier] < enough_gbps
    for middle, following, rate in zip(middles, edges, total, strict=True):
        if not begin_ns <= middle < end_ns:
            continue
        if rate >= enough_gbps:
            since, ongoing = None, False
        elif not ongoing:
            since = middle if since is None else since
            longest = max(longest, (max(following, middle) - since) / 1e6)
    return longest


def mean(values: Sequence[float]) -> float | None:
    """The average; ``None`` of nothing."""
    return sum(values) / len(values) if values else None
