"""Checkpoints of a run: when they are written, and which runs can have them."""

import time
from pathlib import Path

from openmrc import _core
from openmrc.errors import ArgumentError
from openmrc.sim.scenario import Scenario

EVERY_S = 600.0
"""Seconds of wall time between two checkpoints."""


def require(scenario: Scenario, *, is_own: bool) -> None:
    """Checks that a run can have checkpoints.

    Args:
        scenario: What is to run.
        is_own: It uses classes of your own.

    Raises:
        ArgumentError: if it cannot, with what is in the way.
    """
    if scenario.engine != "packets":
        raise ArgumentError(
            f"checkpoint: only for the packet engine; the scenario has engine: {scenario.engine}"
        )
    if is_own:
        raise ArgumentError(
            "checkpoint: the state of classes of your own is not known: run without checkpoints"
        )
    if scenario.record.capture is not None:
        raise ArgumentError("checkpoint: not for a run that captures packets: leave out one of the two")


class Keeper:
    """Writes the checkpoints of a run, each in place of the one before."""

    def __init__(self, simulation: _core.Simulation, path: Path, every_s: float) -> None:
        self._simulation = simulation
        self._path = path
        self._every_s = every_s
        self._due = time.monotonic() + every_s

    def look(self) -> None:
        """Writes one if it is time."""
        if time.monotonic() >= self._due:
            self.write()

    def write(self) -> None:
        """Writes one now."""
        self._simulation.checkpoint(self._path)
        self._due = time.monotonic() + self._every_s
