"""Counters sampled over time, and what follows from them: rates, windows, dips. The same for every demo."""

import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from openmrc.closing import Closable

WINDOW_NS = 20_000_000
"""Goodput is averaged over this time: about ten blocks of 2 MiB at 8 Gb/s, or six packets of 2 KiB at 5
Mb/s."""


class Window(NamedTuple):
    """The rates between two samples."""

    begin_ns: int
    end_ns: int
    bps: tuple[float, ...]
    """Bits per second, one rate for each column."""

    @property
    def middle_ns(self) -> int:
        """Half-way between both samples."""
        return (self.begin_ns + self.end_ns) // 2


@dataclass
class Series:
    """Byte counters since the beginning: a row for each sample, a column for each counter."""

    time_ns: list[int] = field(default_factory=list)
    """Monotonic clock, which all processes of a host share."""
    rows: list[tuple[int, ...]] = field(default_factory=list)

    def take(self, counters: Iterable[int]) -> None:
        """Adds a sample of now."""
        self.time_ns.append(time.monotonic_ns())
        self.rows.append(tuple(counters))

    def bps(self, columns: Sequence[int], begin_ns: int, end_ns: int) -> float | None:
        """Bits per second of some columns together between two moments; ``None`` without samples there."""
        first, last = bisect_left(self.time_ns, begin_ns), bisect_right(self.time_ns, end_ns) - 1
        if last <= first:
            return None
        grown = self._total(last, columns) - self._total(first, columns)
        return grown * 8e9 / (self.time_ns[last] - self.time_ns[first])

    def windows(self, window_ns: int = WINDOW_NS) -> list[Window]:
        """The rates over consecutive windows, each of at least ``window_ns``."""
        found = []
        at = 0
        for i, now in enumerate(self.time_ns):
            elapsed = now - self.time_ns[at]
            if elapsed >= window_ns:
                pairs = zip(self.rows[at], self.rows[i], strict=True)
                rates = tuple((after - before) * 8e9 / elapsed for before, after in pairs)
                found.append(Window(self.time_ns[at], now, rates))
                at = i
        return found

    def rates(
        self, columns: Sequence[int], begin_ns: int, end_ns: int, window_ns: int = WINDOW_NS
    ) -> Iterator[tuple[int, float]]:
        """Yields the time of each sample between two moments, and the rate over the window before it."""
        times = self.time_ns
        first, last = bisect_left(times, begin_ns), bisect_right(times, end_ns)
        back = bisect_left(times, begin_ns - window_ns)
        for at in range(first, last):
            while back + 1 < at and times[back + 1] <= times[at] - window_ns:
                back += 1
            if times[at] > times[back]:
                grown = self._total(at, columns) - self._total(back, columns)
                yield times[at], grown * 8e9 / (times[at] - times[back])

    def longest_dip_ns(
        self,
        columns: Sequence[int],
        begin_ns: int,
        end_ns: int,
        floor_bps: float,
        *,
        trusted: Callable[[int], bool] = lambda time_ns: True,
    ) -> int:
        """The longest time between two moments in which the rate of some columns stayed below a floor.

        A window that began before ``begin_ns`` counts from there on. A dip that had lasted for a window
        already when the time began does not count: it has another cause.

        Args:
            columns: Which counters, together.
            begin_ns: From when on, such as the beginning of a fault.
            end_ns: Until when.
            floor_bps: Bits per second.
            trusted: Whether the sample at a time says anything about the network.
        """
        earlier = [rate for _, rate in self.rates(columns, begin_ns - WINDOW_NS, begin_ns)]
        older = bool(earlier) and max(earlier) < floor_bps
        longest = 0
        since: int | None = None
        for now, rate in self.rates(columns, begin_ns, end_ns):
            if not trusted(now):
                continue
            if rate >= floor_bps:
                since, older = None, False
            elif not older:
                since = max(begin_ns, now - WINDOW_NS) if since is None else since
                longest = max(longest, now - since)
        return longest

    def _total(self, at: int, columns: Sequence[int]) -> int:
        row = self.rows[at]
        return sum(row[column] for column in columns)


class Sampler(Closable):
    """A thread that samples counters into a :class:`Series`.

    Args:
        read: Returns the counters.
        period_s: Seconds between samples.
    """

    def __init__(self, read: Callable[[], Iterable[int]], period_s: float) -> None:
        self.series = Series()
        self._read = read
        self._period_s = period_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="openmrc-demo-sampler", daemon=True)
        self._thread.start()

    def finish(self) -> Series:
        """Takes a last sample and ends."""
        self.close()
        self.series.take(self._read())
        return self.series

    def close(self) -> None:
        """Ends the thread. Closing twice is harmless."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._period_s):
            self.series.take(self._read())
