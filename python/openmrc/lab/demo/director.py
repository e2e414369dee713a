"""Goes through the schedule: breaks, watches, repairs, one fault after the other."""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from openmrc.lab import Lab
from openmrc.lab.demo.scene import Fault
from openmrc.lab.demo.trace import Broken, Half

READY_BEFORE = 0.4
"""Seconds before a fault by which all that takes time has been prepared."""
_WATCH_BEFORE = 0.05
_TICK = 0.05

Say = Callable[[str], None]


class Observer(Protocol):
    """What a half of the demo does around a fault."""

    half: Half

    def before(self, fault: Fault) -> None:
        """The fault is about to happen."""

    def after(self, broken: Broken) -> None:
        """It is about to be repaired."""

    def settle(self) -> None:
        """It is repaired; returns when the next one may come."""

    def check(self) -> None:
        """Raises what has gone wrong in the background."""


def direct(lab: Lab, faults: Sequence[Fault], observer: Observer, say: Say, tick: Callable[[], None]) -> None:
    """Runs the schedule.

    Args:
        lab: Where.
        faults: What, in order.
        observer: Told of each; what happened is added to its half's list.
        say: Called with what happens.
        tick: Called every now and then, for whoever shows how it goes.
    """
    began = observer.half.began_ns
    late = 0.0
    for number, fault in enumerate(faults):

        def wait(until: float) -> None:
            while (left := until - (time.monotonic_ns() - began) / 1e9) > 0:
                observer.check()
                tick()
                time.sleep(min(left, _TICK))

        wait(fault.begin + late - READY_BEFORE)
        with lab.ready_to_fail(fault.what, loss=fault.loss) as fail:
            wait(fault.begin + late - _WATCH_BEFORE)
            observer.before(fault)
            wait(fault.begin + late)
            began_ns = fail()
        say(f"{fault.title}: {fault.what}")
        broken = Broken(fault, began_ns, 0, 0)
        observer.half.faults.append(broken)
        wait(fault.end + late)
        observer.after(broken)
        broken.repaired_ns = time.monotonic_ns()
        lab.repair(fault.what)
        say(f"{fault.what} repaired")
        following = faults[number + 1].begin if number + 1 < len(faults) else 2 * fault.end - fault.begin
        wait(following + late - 2 * READY_BEFORE)
        observer.settle()
        # Where healing took longer than planned, all that follows comes later.
        late = max(late, (time.monotonic_ns() - began) / 1e9 - (following - READY_BEFORE))
        broken.over_ns = time.monotonic_ns()
