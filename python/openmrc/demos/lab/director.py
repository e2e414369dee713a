"""The runner in the lab: faults at exact times under a sender, and a record of each."""

import time
from collections.abc import Callable, Iterable

from openmrc.demos.director import Director, Fault
from openmrc.demos.lab.recording import FaultRecord, Recording
from openmrc.demos.lab.sender import Sender
from openmrc.lab import Lab

WARM_UP_S = 1.0
"""Time before the schedule begins."""
_READY_BEFORE_S = 0.4
"""Time before a fault by which everything that takes time has been prepared."""
_WATCH_BEFORE_S = 0.05

Log = Callable[[str], None]
"""Called with a line about what happens."""


class LabDirector(Director):
    """Breaks the lab under a sender, one fault after the other.

    Args:
        lab: Where.
        sender: What is offered; a record of each fault is added to its recording.
        log: Called with what happens.
        tick: Called several times a second, for a display.
    """

    lead = _READY_BEFORE_S
    tick_s = 0.05

    def __init__(
        self, lab: Lab, sender: Sender, log: Log, tick: Callable[[Recording], None] = lambda recording: None
    ) -> None:
        super().__init__()
        self.lab = lab
        self.recording = sender.recording
        self._sender = sender
        self._log = log
        self._tick = tick

    def run(self, faults: Iterable[Fault]) -> Recording:
        """Sends through the whole schedule.

        Raises:
            Error: if a connection broke.
        """
        self._sender.start()
        time.sleep(WARM_UP_S)
        self.direct(faults)
        return self._sender.stop()

    def before(self, fault: Fault) -> None:
        """The fault is about to happen."""

    def after(self, record: FaultRecord) -> None:
        """It is about to be repaired."""

    def settle(self) -> None:
        """It is repaired; returns when the next one may come."""

    @property
    def now(self) -> float:
        """Seconds since the sender has started."""
        return (time.monotonic_ns() - self.recording.began_ns) / 1e9

    def look(self, left: float) -> None:
        """Checks the sender."""
        self._sender.check()
        self._tick(self.recording)
        time.sleep(min(left, self.tick_s))

    def begin(self, fault: Fault) -> None:
        """Prepares the fault, and makes it at its time."""
        with self.lab.ready_to_fail(fault.what, loss=fault.loss) as fail:
            self.wait(fault.begin - _WATCH_BEFORE_S)
            self.before(fault)
            self.wait(fault.begin)
            began_ns = fail()
        self._log(f"{fault.title}: {fault.what}")
        self.recording.faults.append(FaultRecord(fault, began_ns, 0, 0))

    def end(self, fault: Fault) -> None:
        """Repairs it, and waits until traffic has recovered."""
        record = self.recording.faults[-1]
        self.after(record)
        record.repaired_ns = time.monotonic_ns()
        self.lab.repair(fault.what)
        self._log(f"{fault.what} repaired")
        # A fault lasts half of its slot.
        following = 2 * fault.end - fault.begin
        self.wait(following - 2 * _READY_BEFORE_S)
        self.settle()
        # If recovery took longer than planned, everything that follows comes later.
        self.late = max(self.late, self.now - (following - _READY_BEFORE_S))
        record.over_ns = time.monotonic_ns()
