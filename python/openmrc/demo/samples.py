"""Counters read every few milliseconds, with the moment they were read."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from openmrc.verbs import Context

PERIOD = 0.01
"""Seconds between samples."""


@dataclass
class Series:
    """What the receiver saw; all lists have an entry per sample, counters are since the beginning."""

    time_ns: list[int] = field(default_factory=list)
    """Monotonic clock, which both processes share."""
    verified: list[int] = field(default_factory=list)
    """Bytes that went into the checksum."""
    planes: list[list[int]] = field(default_factory=list)
    """UDP payload received, per plane."""


class Sampler:
    """A thread that fills a :class:`Series`.

    Args:
        context: Whose ports.
        verified: Gives the bytes verified so far.
    """

    def __init__(self, context: Context, verified: Callable[[], int]) -> None:
        self.series = Series()
        self._context = context
        self._verified = verified
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="openmrc-demo-sampler", daemon=True)
        self._thread.start()

    def finish(self) -> Series:
        """Takes a last sample and ends."""
        self.close()
        self._take()
        return self.series

    def close(self) -> None:
        """Ends. Doing it twice is harmless."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(PERIOD):
            self._take()

    def _take(self) -> None:
        ports = self._context.stats()["ports"]
        self.series.time_ns.append(time.monotonic_ns())
        self.series.verified.append(self._verified())
        self.series.planes.append([port["rx_bytes"] for port in ports])
