"""Goes through the schedule: breaks, watches, repairs, one fault after the other."""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from openmrc.demos.lab.recording import FaultRecord, Recording
from openmrc.demos.lab.scene import Fault
from openmrc.lab import Lab

READY_BEFORE_S = 0.4
"""Time before a fault by which everything that takes time has been prepared."""
_WATCH_BEFORE_S = 0.05
_TICK_S = 0.05

Log = Callable[[str], None]
"""Called with a line about what happens."""


class Observer(Protocol):
    """What a run of the demo does around a fault."""

    recording: Recording

    def before(self, fault: Fault) -> None:
        """The fault is about to happen."""

    def after(self, record: FaultRecord) -> None:
        """It is about to be repaired."""

    def settle(self) -> None:
        """It is repaired; returns when the next one may come."""

    def check(self) -> None:
        """Raises what has gone wrong in the background."""


def direct(lab: Lab, faults: Sequence[Fault], observer: Observer, log: Log, tick: Callable[[], None]) -> None:
    """Runs the schedule.

    Args:
        lab: Where.
        faults: What, in order.
        observer: Told of each; a record of each is added to its recording.
        log: Called with what happens.
        tick: Called several times a second, for a display.
    """
    began = observer.recording.began_ns
    late = 0.0
    for number, fault in enumerate(faults):

        def wait(until: float) -> None:
            while (left := until - (time.monotonic_ns() - began) / 1e9) > 0:
                observer.check()
                tick()
                time.sleep(min(left, _TICK_S))

        wait(fault.begin + late - READY_BEFORE_S)
        with lab.ready_to_fail(fault.what, loss=fault.loss) as fail:
            wait(fault.begin + late - _WATCH_BEFORE_S)
            observer.before(fault)
            wait(fault.begin + late)
            began_ns = fail()
        log(f"{fault.title}: {fault.what}")
        record = FaultRecord(fault, began_ns, 0, 0)
        observer.recording.faults.append(record)
        wait(fault.end + late)
        observer.after(record)
        record.repaired_ns = time.monotonic_ns()
        lab.repair(fault.what)
        log(f"{fault.what} repaired")
        following = faults[number + 1].begin if number + 1 < len(faults) else 2 * fault.end - fault.begin
        wait(following + late - 2 * READY_BEFORE_S)
        observer.settle()
        # If recovery took longer than planned, everything that follows comes later.
        late = max(late, (time.monotonic_ns() - began) / 1e9 - (following - READY_BEFORE_S))
        record.over_ns = time.monotonic_ns()
