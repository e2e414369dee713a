"""Makes and repairs the faults: impairments of planes on loopback, links and switches of a lab."""

import time
from typing import Protocol

from openmrc.demos.training.faults import Fault
from openmrc.demos.training.job import Job
from openmrc.lab import Lab


class Network(Protocol):
    """What can fail."""

    def fail(self, fault: Fault) -> None:
        """Makes it happen."""

    def repair(self, fault: Fault) -> None:
        """Ends it."""


class LoopbackNetwork:
    """The planes of a job's ranks on loopback."""

    def __init__(self, job: Job, ranks: int) -> None:
        self._job = job
        self._ranks = ranks
        self._seed = 0

    def fail(self, fault: Fault) -> None:
        """The fault's rules are in force at its ranks some milliseconds later."""
        self._seed += 1
        for rank in range(self._ranks) if fault.ranks is None else fault.ranks:
            self._job.impair(rank, fault.rules, self._seed)

    def repair(self, fault: Fault) -> None:
        """No rules are in force."""
        for rank in range(self._ranks) if fault.ranks is None else fault.ranks:
            self._job.impair(rank, (), 0)


class LabNetwork:
    """A lab's links and switches."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    def fail(self, fault: Fault) -> None:
        """Cuts the link, makes it lose packets, or stops the switch."""
        if fault.loss is None:
            self._lab.fail(fault.what)
        else:
            self._lab.degrade(fault.what, loss=fault.loss)

    def repair(self, fault: Fault) -> None:
        """Repairs it."""
        self._lab.repair(fault.what)


class NoNetwork:
    """Nothing fails."""

    def fail(self, fault: Fault) -> None:
        """Nothing happens."""

    def repair(self, fault: Fault) -> None:
        """Nothing happens."""


class Director:
    """Goes through the faults as the training proceeds.

    Args:
        faults: In the order of their steps; they do not overlap.
        network: What fails.
        flap_period: Seconds after which a link that flaps changes its state.
    """

    def __init__(self, faults: list[Fault], network: Network, flap_period: float) -> None:
        self._waiting = list(faults)
        self._network = network
        self._period = flap_period
        self._active: Fault | None = None
        self._down = False
        self._next = 0.0

    @property
    def active(self) -> Fault | None:
        """The fault of now."""
        return self._active

    @property
    def wait(self) -> float | None:
        """Seconds until :meth:`tick` has something to do."""
        if self._active is None or self._active.kind != "flap":
            return None
        return max(self._next - time.monotonic(), 0.0)

    def ended(self, step: int) -> str | None:
        """Tells that a step has ended. Returns what happens now, for people."""
        if self._active is not None and step >= self._active.end:
            return self.finish()
        if self._active is None and self._waiting and step >= self._waiting[0].begin:
            self._active = self._waiting.pop(0)
            self._change(down=True)
            return self._active.title
        return None

    def tick(self) -> None:
        """Changes the state of a link that flaps, if it is time."""
        if self.wait == 0.0:
            self._change(down=not self._down)

    def finish(self) -> str | None:
        """Repairs what is broken."""
        fault = self._active
        if fault is None:
            return None
        if self._down:
            self._change(down=False)
        self._active = None
        return f"{fault.title}: repaired"

    def _change(self, *, down: bool) -> None:
        assert self._active is not None
        (self._network.fail if down else self._network.repair)(self._active)
        self._down = down
        self._next = time.monotonic() + self._period
