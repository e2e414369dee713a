"""What a run writes down on the way."""

from typing import Annotated, Literal, Self

from pydantic import Field, StrictInt

from openmrc.sim.scenario.fields import Amount, Duration, Part


class Capture(Part):
    """Packets of chosen links, as bytes."""

    links: Annotated[list[str], Field(min_length=1)]
    """Listened to in both directions, where the cable ends."""
    packets: Amount = 1_000_000
    """The capture ends after so many."""
    snaplen: Annotated[StrictInt, Field(ge=64, le=1 << 16)] = 256
    """Bytes kept of each packet; 65536 keeps whole packets."""


class Record(Part):
    """What is written down on the way; it costs time only where it is asked for."""

    series: bool = False
    """Time series: goodput, queues, load of links, counters."""
    interval_us: Duration | None = None
    """Between two samples; without it about a thousand samples, whatever the length of the run."""
    links: list[str] | Literal["all"] = Field(default_factory=list)
    """Links whose load and queues are kept one by one in the time series."""
    events: bool = False
    """A log: faults, what routing made of them, paths condemned and back, queue pairs that failed."""
    ports: bool = False
    """Marks, trims and losses by link."""
    evs: bool = False
    """Packets by connection and entropy value."""
    capture: Capture | None = None

    @property
    def is_on(self) -> bool:
        """Whether anything is written down."""
        return self.series or self.events or self.ports or self.evs or self.capture is not None

    @classmethod
    def everything(cls, interval_us: float | None = None) -> Self:
        """All but packets: what a report shows."""
        return cls(series=True, interval_us=interval_us, links="all", events=True, ports=True, evs=True)
