"""The settings of a measurement, with perftest's defaults and limits."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from openmrc.control import Token
from openmrc.errors import ArgumentError
from openmrc.handshake import AddressRule
from openmrc.perftest.endpoint import Interval
from openmrc.perftest.protocol import (
    MAX_ITERATIONS,
    MAX_QPS,
    MAX_SIZE,
    MAX_TIME,
    MIN_INTERVAL,
    Measurement,
    Test,
)
from openmrc.planes import Planes
from openmrc.testing import Impairment

SWEEP = tuple(1 << power for power in range(1, 24))
"""Sizes of ``-a``: 2 bytes to 8 MiB."""

MIN_LIVE_INTERVAL = 0.1
"""Seconds of the shortest interval that is reported while it runs, as in iperf3."""

_MOST = 0.001
"""Seconds of the longest interval in which bytes are counted."""

_LONG = 65536
"""From this many bytes on, a completion for each message has no measurable cost."""


_QP_MEMORY = 32 << 10
_REQUEST_MEMORY = 192
"""Bytes of a queue pair, and of each work request that may be outstanding, measured and rounded up."""


def memory(qps: int, depth: int, buffer: int) -> int:
    """Bytes that one end of a measurement takes.

    Args:
        qps: Queue pairs.
        depth: Messages outstanding per queue pair.
        buffer: Bytes to write from, and as many to write to.
    """
    return 2 * buffer + qps * (_QP_MEMORY + depth * _REQUEST_MEMORY)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One run of write-bw or write-lat. At the server the client's say what is measured."""

    test: Test
    sizes: Sequence[int] = ()
    """Bytes per message, one run for each."""
    iterations: int | None = None
    """Messages per run, with write-lat round trips. Default as in perftest: 5000 and 1000."""
    duration: float | None = None
    """Seconds per run, instead of iterations."""
    bidirectional: bool = False
    qps: int = 1
    mtu: int | None = None
    """Payload bytes per packet; default what the routes carry, at most the NIC's default."""
    tx_depth: int | None = None
    """Messages outstanding per queue pair; default 128, for short messages enough for 1 MiB."""
    post_list: int | None = None
    """Messages per call of post; default 16, for short messages 64, for long ones 1."""
    cq_mod: int | None = None
    """Messages per completion; default 16, for long messages 1."""
    inline: int | None = None
    """Longest message that is copied while posting; default 220 for latency, none for bandwidth."""
    interval: float | None = None
    """Report goodput for intervals of this many seconds; ``None``: do not."""
    live: Callable[[Interval], None] | None = None
    """Called with each interval while a run goes on."""
    planes: Planes = field(default_factory=Planes)
    token: Token | None = None
    """What the other end must have."""
    addresses: AddressRule = field(default_factory=AddressRule)
    """Which addresses the other end may offer."""
    max_time: float = MAX_TIME
    """Seconds after which a server gives up its client, and a client a run with a number of iterations."""
    impairments: Sequence[Impairment] = ()
    """Impairments of this end's packets; their time starts with each run."""

    def __post_init__(self) -> None:
        for size in self.sizes:
            if not 1 <= size <= MAX_SIZE:
                raise ArgumentError(f"a message has 1 to {MAX_SIZE} bytes, not {size}")
        if not 1 <= self.qps <= MAX_QPS:
            raise ArgumentError(f"queue pairs must be 1 to {MAX_QPS}, not {self.qps}")
        if self.iterations is not None and self.duration is not None:
            raise ArgumentError("a run has a number of iterations (-n) or a duration (-D), not both")
        if self.duration is not None and self.duration <= 0:
            raise ArgumentError(f"a duration is more than 0 seconds, not {self.duration:g}")
        if self.test == "write-lat" and self.duration is not None:
            raise ArgumentError("write-lat counts iterations (-n); it has no duration")
        if self.test == "write-lat" and (self.qps != 1 or self.bidirectional):
            raise ArgumentError("write-lat has one message in flight: -q and -b are for write-bw")
        if self.iterations is not None and self.iterations > MAX_ITERATIONS:
            raise ArgumentError(f"a run has at most {MAX_ITERATIONS} iterations, not {self.iterations}")
        if self.interval is not None and self.interval < MIN_INTERVAL:
            raise ArgumentError(f"an interval has at least 0.01 ms, not {self.interval * 1e3:g}")
        if self.live is not None and self.interval is not None and self.interval < MIN_LIVE_INTERVAL:
            raise ArgumentError(
                f"a line for each interval needs at least {MIN_LIVE_INTERVAL:g} s, not {self.interval:g};"
                " --json has shorter ones"
            )

    @property
    def depth(self) -> int:
        """Messages outstanding per queue pair, for all sizes."""
        if self.tx_depth is not None:
            return self.tx_depth
        if self.test == "write-lat":
            return 128
        return max(128, min(4096, (1 << 20) // min(self.sizes, default=65536)))

    @property
    def inline_limit(self) -> int:
        """Longest message that is copied while posting."""
        if self.inline is not None:
            return self.inline
        return 220 if self.test == "write-lat" else 0

    @property
    def buffer(self) -> int:
        """Bytes of memory to write from and to."""
        # At least a page: short messages use different places in turn, as in perftest.
        return max((4096, *self.sizes))

    @property
    def memory(self) -> int:
        """Bytes that one end takes for this."""
        return memory(self.qps, self.depth, self.buffer)

    def runs(self) -> Iterator[Measurement]:
        """Yields a run for each size."""
        latency = self.test == "write-lat"
        iterations = self.iterations
        if iterations is None and self.duration is None:
            iterations = 1000 if latency else 5000
        for size in self.sizes:
            yield Measurement(
                size=size,
                iterations=iterations,
                duration=self.duration,
                warmup=100 if latency else 0,
                bidirectional=self.bidirectional,
                post_list=self.post_list or (64 if size <= 1024 else 16 if size < _LONG else 1),
                cq_mod=self.cq_mod or (16 if size < _LONG else 1),
                inline=size <= self.inline_limit,
                interval=self._bucket,
            )

    @property
    def _bucket(self) -> float:
        """At most 1 ms, for the peak, and a whole number of times in the interval that is reported."""
        if self.interval is None:
            return _MOST
        return self.interval / math.ceil(self.interval / _MOST)
