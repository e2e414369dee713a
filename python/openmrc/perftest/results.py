"""From counts to figures."""

import itertools
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from openmrc.control.errors import MalformedError
from openmrc.control.messages import problem
from openmrc.errors import ConnectError
from openmrc.perftest.protocol import Test

_COUNTERS = ("data_packets", "retransmits", "lost", "trimmed", "spurious", "timeouts", "probes", "condemned")
_PEAK_NS = 10_000_000


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """One run of write-bw. With ``-b`` bytes and rates are of both directions together, as in perftest."""

    size: int
    iterations: int
    """Messages that completed."""
    bytes: int
    seconds: float
    """From the first post to the last completion."""
    goodput_gbps: float
    """Payload bits per second, 10^9."""
    peak_gbps: float
    """Best 10 ms or more: bytes that were posted and completed in that time; the average, if it is more."""
    messages_per_second: float
    data_packets: int
    """Data packets sent by the client, with retransmissions. The following are the client's too."""
    retransmits: int
    lost: int
    """Packets declared lost."""
    trimmed: int
    """Packets that the receiver reported as trimmed."""
    spurious: int
    """Packets declared lost that had arrived."""
    timeouts: int
    probes: int
    condemned: int
    """How often a path was taken out of rotation."""
    interrupted: bool = False
    """Whether Ctrl-C ended the run: the figures are of the time up to then."""
    intervals: dict[str, Any] | None = None
    """``length_ms``, ``start_ns`` (monotonic clock) and ``bytes`` completed in each interval."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return _present(asdict(self))


@dataclass(frozen=True, slots=True)
class Latency:
    """One run of write-lat: half of each round trip, microseconds."""

    size: int
    iterations: int
    min_us: float
    max_us: float
    typical_us: float
    """The median."""
    avg_us: float
    stdev_us: float
    p50_us: float
    p99_us: float
    p999_us: float
    interrupted: bool = False
    """Whether Ctrl-C ended the run: the figures are of the round trips up to then."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


_FIGURES: dict[Test, TypeAdapter[Any]] = {
    "write-bw": TypeAdapter(Bandwidth),
    "write-lat": TypeAdapter(Latency),
}


def _present(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def checked(test: Test, figures: dict[str, Any], peer: str) -> dict[str, Any]:
    """Figures that came over the network, with the fields and the types that they must have.

    Raises:
        MalformedError: names the field that is wrong.
    """
    try:
        json.dumps(figures, allow_nan=False)
        found: Bandwidth | Latency = _FIGURES[test].validate_python(figures)
    except ValidationError as error:
        raise MalformedError(f"{peer} sent malformed figures: {problem(error)}") from None
    except ValueError:
        raise MalformedError(f"{peer} sent figures that are no finite numbers") from None
    return found.as_dict()


def bandwidth(
    size: int,
    sent: Sequence[dict[str, Any]],
    counters: dict[str, int],
    *,
    interval: float | None = None,
    interrupted: bool = False,
) -> Bandwidth:
    """The figures of a run.

    Args:
        size: Bytes per message.
        sent: What the loops counted, one for each direction, the client's first.
        counters: Growth of the client's transport counters during the run.
        interval: Report the client's bytes by intervals of this many seconds; ``None``: do not.
        interrupted: Whether Ctrl-C ended the run.

    Raises:
        ConnectError: if nothing completed.
    """
    if not all(each["messages"] and each["elapsed_ns"] for each in sent):
        raise ConnectError("no message was completed")
    goodput = sum(each["bytes"] * 8 / each["elapsed_ns"] for each in sent)
    first = sent[0]
    return Bandwidth(
        size=size,
        iterations=sum(each["messages"] for each in sent),
        bytes=sum(each["bytes"] for each in sent),
        seconds=max(each["elapsed_ns"] for each in sent) / 1e9,
        goodput_gbps=goodput,
        peak_gbps=max(goodput, sum(peak_gbps(each) for each in sent)),
        messages_per_second=sum(each["messages"] * 1e9 / each["elapsed_ns"] for each in sent),
        interrupted=interrupted,
        intervals=None if interval is None else _intervals(first, interval),
        **{name: counters.get(name, 0) for name in _COUNTERS},
    )


def peak_gbps(sent: dict[str, Any]) -> float:
    """Highest goodput over 10 ms, or 20, 40, 80 ...; 0 if the run was shorter.

    As in perftest, a message counts in a time in which it was both posted and completed. Completions alone
    say less: after a pause of the measuring thread, or behind a lost packet, many come at once, for messages
    that were on their way for longer than that.
    """
    width, count = sent["bucket_ns"], len(sent["buckets"]) - 1  # The last interval was not finished.
    completed = list(itertools.accumulate(sent["buckets"], initial=0))
    posted = list(itertools.accumulate(sent["posted"], initial=0))
    posted += [posted[-1]] * max(0, count + 1 - len(posted))
    length, best = max(1, math.ceil(_PEAK_NS / width)), 0.0
    while length <= count:
        most = max(completed[start + length] - posted[start] for start in range(count - length + 1))
        best = max(best, most * 8 / (length * width))
        length *= 2
    return best


def _intervals(sent: dict[str, Any], length: float) -> dict[str, Any]:
    together = max(1, round(length * 1e9 / sent["bucket_ns"]))
    buckets = sent["buckets"]
    return {
        "length_ms": together * sent["bucket_ns"] / 1e6,
        "start_ns": sent["start_ns"],
        "bytes": [sum(buckets[start : start + together]) for start in range(0, len(buckets), together)],
    }


def latency(size: int, half_trips_ns: Sequence[int], *, interrupted: bool = False) -> Latency:
    """The figures of a run.

    Args:
        size: Bytes per message.
        half_trips_ns: What the loop measured.
        interrupted: Whether Ctrl-C ended the run.

    Raises:
        ConnectError: if no round trip was completed.
    """
    if not half_trips_ns:
        raise ConnectError("no round trip was completed")
    ordered = sorted(half_trips_ns)
    return Latency(
        size=size,
        iterations=len(ordered),
        min_us=ordered[0] / 1e3,
        max_us=ordered[-1] / 1e3,
        typical_us=percentile(ordered, 0.5) / 1e3,
        avg_us=statistics.fmean(ordered) / 1e3,
        stdev_us=statistics.pstdev(ordered) / 1e3,
        p50_us=percentile(ordered, 0.5) / 1e3,
        p99_us=percentile(ordered, 0.99) / 1e3,
        p999_us=percentile(ordered, 0.999) / 1e3,
        interrupted=interrupted,
    )


def percentile(ordered: Sequence[int], share: float) -> int:
    """The smallest value that a share of all values does not exceed (nearest rank)."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
