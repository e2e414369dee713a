"""The runner of every demo: breaks and repairs the network on schedule while traffic goes over it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from openmrc.testing import Impairment

if TYPE_CHECKING:
    from openmrc.lab.faults import Direction


@dataclass(frozen=True)
class Fault:
    """A fault and its repair, timed in what the demo counts: seconds from the first byte, or steps."""

    kind: str
    """For JSON."""
    title: str
    """For people."""
    begin: float
    """A step: the fault happens when this one has ended ..."""
    end: float
    """... and is repaired when this one has."""
    rules: Sequence[Impairment] = ()
    """On loopback: what happens to packets."""
    ranks: Sequence[int] | None = None
    """On loopback: ranks whose packets the rules apply to; ``None``: all."""
    what: str = ""
    """In the lab: the link, one of its ports, or the switch."""
    loss: float | None = None
    """In the lab: the link loses this share of packets, and its ports do not notice; ``None``: it is cut."""
    direction: "Direction" = "both"
    """In the lab: where it loses them; up is away from the hosts."""


def changes(faults: Iterable[Fault]) -> Iterator[tuple[float, Fault, bool]]:
    """Yields each time at which a fault begins or ends, the fault, and whether it begins."""
    moments = [(each.begin, True, each) for each in faults] + [(each.end, False, each) for each in faults]
    for moment, begins, fault in sorted(moments, key=lambda change: change[:2]):
        yield moment, fault, begins


class Director(ABC):
    """Goes through a schedule. A demo says how time passes, and how a fault is made and repaired."""

    lead = 0.0
    """How long before a fault :meth:`begin` is called, which waits for the rest of the time itself."""

    def __init__(self) -> None:
        self.broken: list[Fault] = []
        """The faults of now."""
        self.late = 0.0
        """How much later than scheduled everything happens from now on."""

    @property
    @abstractmethod
    def now(self) -> float:
        """Where the demo is, in the schedule's unit."""

    @property
    def running(self) -> bool:
        """Whether there is traffic."""
        return True

    @abstractmethod
    def look(self, left: float) -> None:
        """Lets a moment pass, at most ``left``; shows progress, and raises what has gone wrong meanwhile."""

    @abstractmethod
    def begin(self, fault: Fault) -> None:
        """Makes a fault."""

    @abstractmethod
    def end(self, fault: Fault) -> None:
        """Repairs it. It is in :attr:`broken` no longer."""

    def direct(self, faults: Iterable[Fault]) -> None:
        """Makes and repairs all faults, each at its time. They may overlap."""
        for moment, fault, begins in changes(faults):
            self.wait(moment - self.lead if begins else moment)
            if begins and self.running:
                self.broken.append(fault)
                self.begin(fault)
            elif fault in self.broken:
                self.broken.remove(fault)
                self.end(fault)

    def wait(self, until: float = inf) -> None:
        """Looks until it is time, at most until the traffic has ended."""
        while self.running and (left := until + self.late - self.now) > 0:
            self.look(left)

    def wait_for(self, condition: Callable[[], bool], at_most: float) -> bool:
        """Looks until a condition holds; returns whether it does after ``at_most``."""
        until = self.now + at_most
        while not (found := condition()) and (left := until - self.now) > 0:
            self.look(left)
        return found
