"""Running a scenario."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from openmrc import _core
from openmrc.errors import ArgumentError
from openmrc.sim.check import check, locate
from openmrc.sim.pcapng import CaptureFile
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
    data_packets: int
    """Data packets sent."""


def run(
    scenario: Scenario,
    progress: Callable[[Progress], object] | None = None,
    *,
    capture: Path | str | None = None,
) -> Results:
    """Runs a scenario to its end: all messages finished, or the time limit.

    The GIL is released all the while. An interrupt (Ctrl-C) is heard within a fraction of a second and ends
    the
    run: the results are what is known so far, and :attr:`Results.interrupted` says so.

    Args:
        scenario: What to run.
        progress: Called now and then with how far the run has come.
        capture: Where the packets go that ``scenario.record.capture`` asks for, in pcapng format.

    Raises:
        ArgumentError: if the scenario cannot be: no such fabric, host or link, or more than memory holds.
            It names
            the field, and file and line if the scenario was read from one.
        OSError: if the capture cannot be written.
    """
    if capture is not None and scenario.record.capture is None:
        raise ArgumentError("capture: the scenario's record does not say which links to listen to")
    check(scenario)
    try:
        simulation = _core.Simulation(*scenario.core_arguments())
    except ArgumentError as error:
        raise locate(scenario, error) from None
    file = CaptureFile(Path(capture), scenario, simulation) if capture is not None else None
    interrupted = False
    try:
        more = True
        while more:
            more = simulation.advance(_EVENTS_A_STEP)
            if file is not None:
                file.write()
            if progress is not None:
                progress(Progress(*simulation.progress()))
    except KeyboardInterrupt:
        interrupted = True
    finally:
        if file is not None:
            file.close()
    return Results.of(scenario, simulation, interrupted=interrupted)
