"""The option ``--interval`` of commands that move data: a line while it moves, as iperf3 prints it."""

import threading
import time
from collections.abc import Callable
from typing import Annotated, Any

import typer

from openmrc.cli import _values
from openmrc.closing import Closable
from openmrc.perftest.settings import MIN_LIVE_INTERVAL
from openmrc.units import rate, size

IntervalOption = Annotated[
    float | None,
    typer.Option(
        "--interval",
        "-i",
        help="Print a line per interval of this length, at least 100ms.",
        **_values.time(MIN_LIVE_INTERVAL),
    ),
]


class Meter:
    """Bytes of each interval of a transfer.

    Args:
        every: Seconds of an interval.
        show: Called with begin and end in seconds, and the bytes in between.
    """

    def __init__(self, every: float, show: Callable[[float, float, int], None]) -> None:
        self._every = every
        self._show = show
        self._begun = self._since = time.monotonic()
        self._seen = 0
        self._due = self._begun + every

    def update(self, total: int, *, last: bool = False) -> None:
        """Tells how many bytes there are by now; ``last``: the transfer has ended."""
        now = time.monotonic()
        if now < self._due and not (last and total > self._seen):
            return
        self._show(self._since - self._begun, now - self._begun, total - self._seen)
        self._since, self._seen = now, total
        while self._due <= now:
            self._due += self._every


def line(start: float, end: float, count: int, more: str) -> str:
    """A line for an interval."""
    return f" {start:7.2f}-{end:<7.2f} s  {size(count):>8}  {rate(count, end - start):>11}  {more}"


def as_dict(start: float, end: float, count: int, **more: Any) -> dict[str, Any]:
    """An interval for JSON."""
    return {"start_s": round(start, 6), "end_s": round(end, 6), "bytes": count, **more}


class Repeat(Closable):
    """Calls a function regularly from a thread of its own, until closed."""

    def __init__(self, every: float, call: Callable[[], None]) -> None:
        self._every = every
        self._call = call
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="openmrc-interval", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(self._every):
            self._call()

    def close(self) -> None:
        """Ends it."""
        self._ended.set()
        self._thread.join()
