"""Running a scenario."""

from collections.abc import Callable
from typing import NamedTuple

from openmrc import _core
from openmrc.sim.results import Results
from openmrc.sim.scenario import Scenario

_EVENTS_A_STEP = 2_000_000
"""Events between two looks at the outside world: about a quarter of a second."""


class Progress(NamedTuple):
    """How far a run has come."""

    now_ps: int
    """Virtual time, picoseconds."""
    finished: int
    """Messages completed or failed."""
    messages: int
    """Messages there are."""
    events: int
    """Events processed."""


def run(scenario: Scenario, progress: Callable[[Progress], object] | None = None) -> Results:
    """Runs a scenario to its end: all messages finished, or the time limit.

    The GIL is released all the while; an interrupt (Ctrl-C) is heard within a fraction of a second.

    Args:
        scenario: What to run.
        progress: Called now and then with how far the run has come.

    Raises:
        ArgumentError: if the scenario cannot be: no such fabric, no such host, no such link.
    """
    simulation = _core.Simulation(*scenario.core_arguments())
    more = True
    while more:
        more = simulation.advance(_EVENTS_A_STEP)
        if progress is not None:
            progress(Progress(*simulation.progress()))
    return Results.of(scenario, simulation)
