"""What a run records."""

from typing import Literal, Self

from pydantic import StrictInt

from openmrc.sim.scenario.part import OPEN, Part


class Capture(Part):
    """Packets of chosen links, as bytes."""

    links: list[str]
    """A link is listened to in both directions, where the cable ends."""
    packets: StrictInt = OPEN
    """The capture ends after this many packets."""
    snaplen: StrictInt = OPEN
    """Bytes kept of each packet; 65536 keeps whole packets."""


class Record(Part):
    """What is written down on the way; it costs time only where it is asked for."""

    series: bool = OPEN
    """Time series: goodput, queues, load of links, counters."""
    interval_us: float | None = OPEN
    """Between two samples; about a thousand samples if left open, however long the run."""
    links: Literal["all"] | list[str] = OPEN
    """Links whose load and queues are kept one by one in the time series."""
    events: bool = OPEN
    """A log: faults, what routing made of them, paths condemned and back, queue pairs that failed."""
    ports: bool = OPEN
    """Marks, trims and losses by link."""
    evs: bool = OPEN
    """Packets by connection and entropy value."""
    nodes: bool = OPEN
    """When each node of recorded jobs began and ended."""
    capture: Capture | None = OPEN

    @property
    def is_on(self) -> bool:
        """Whether anything is written down."""
        return self.series or self.events or self.ports or self.evs or self.capture is not None

    @classmethod
    def everything(cls, interval_us: float | None = None) -> Self:
        """All but packets: what a report shows."""
        return cls(series=True, interval_us=interval_us, links="all", events=True, ports=True, evs=True)
