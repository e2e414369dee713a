"""From samples to the figures of a run. Pure arithmetic over the outcome of a run."""

from dataclasses import asdict, dataclass
from typing import Any

from openmrc.demos.loopback.network import FaultRecord
from openmrc.demos.loopback.receiver import VERIFIED
from openmrc.demos.loopback.run import Outcome

NEIGHBOURHOOD_NS = 1_000_000_000
"""Time before and after a fault whose goodput is compared with that during it."""

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
    """Longest time during the fault in which goodput stayed below 80 % of what the fault leaves: all of that
    before, or the share of the other planes. Averaged over 20 ms. Dips that began earlier do not count."""
    packets_hit: int
    """Packets of the sender that its rules acted on."""
    dead_path_packets: int | None = None
    """Data packets sent into the dead plane."""
    dead_path_last_ms: float | None = None
    """From the fault to the last of them."""
    dead_path_most_ms: float | None = None
    """From the fault until 99 % of them had been sent."""


@dataclass(frozen=True)
class Figures:
    """A whole run."""

    verified: bool
    files: int
    """How often the file arrived with the right checksum."""
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
    """Packets that arrived without payload and were requested again."""
    ecn_marked: int
    """Packets that the bad network marked."""
    spurious: int
    """Packets declared lost that had arrived."""
    timeouts: int
    condemned: int
    """How often a path was taken out of rotation."""
    error: str | None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def figures(outcome: Outcome) -> Figures:
    """All figures of a run."""
    seconds = (outcome.finished_ns - outcome.began_ns) / 1e9
    good = sum(digest == outcome.source_digest for digest in outcome.receiver.digests)
    hits = {record.fault.kind: record.hits for record in outcome.records}
    return Figures(
        verified=outcome.verified,
        files=good,
        file_bytes=outcome.source_size,
        seconds=seconds,
        goodput_gbps=good * outcome.source_size * 8 / seconds / 1e9 if seconds > 0 else None,
        faults=[_fault(outcome, record) for record in outcome.records],
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


def _fault(outcome: Outcome, record: FaultRecord) -> FaultFigures:
    series, began = outcome.receiver.series, outcome.began_ns
    begin = record.began_ns
    end = record.ended_ns if record.ended_ns is not None else outcome.finished_ns
    dead = record.fault.kind == "plane_dead"

    def gbps(since: int, until: int) -> float | None:
        bps = series.bps([VERIFIED], since, until)
        return None if bps is None else bps / 1e9

    before = gbps(max(began, begin - NEIGHBOURHOOD_NS), begin)
    dip_ms = None
    if before is not None:
        planes = len(outcome.addresses)
        left = (planes - 1) / planes if dead else 1.0
        dip_ms = series.longest_dip_ns([VERIFIED], begin, end, ENOUGH * left * before * 1e9) / 1e6
    return FaultFigures(
        name=record.fault.kind,
        title=record.fault.title,
        begin_s=(begin - began) / 1e9,
        end_s=(end - began) / 1e9,
        before_gbps=before,
        during_gbps=gbps(begin, end),
        after_gbps=gbps(end, min(outcome.finished_ns, end + NEIGHBOURHOOD_NS)),
        dip_ms=dip_ms,
        packets_hit=sum(record.hits),
        dead_path_packets=record.hits[0] if dead else None,
        dead_path_last_ms=(record.last_hit_ns - begin) / 1e6 if dead and record.last_hit_ns else None,
        dead_path_most_ms=_most_ms(record) if dead else None,
    )


def _most_ms(record: FaultRecord) -> float | None:
    for when, count in record.hits_over_time:
        if count >= 0.99 * record.hits[0]:
            # Counts are polled: one is never read before it changed, and up to some milliseconds after.
            return (min(when, record.last_hit_ns or when) - record.began_ns) / 1e6
    return None
