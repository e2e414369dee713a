"""Running a scenario."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from openmrc import _core
from openmrc.errors import ArgumentError
from openmrc.sim.check import check, locate
from openmrc.sim.custom import Congestion, PathSelector
from openmrc.sim.pcapng import CaptureFile
from openmrc.sim.results import Results
from openmrc.sim.scenario import Scenario

_EVENTS_A_STEP = 2_000_000
"""Events between two looks at the outside world: about a quarter of a second."""


_EVENTS_A_STEP_OF_PYTHON = 50_000
"""The same where events call into Python; an exception there ends the run so many events later at most."""


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
    path_selector: Callable[[Sequence[int], int], PathSelector] | None = None,
    congestion: Callable[[int, int, int], Congestion] | None = None,
) -> Results:
    """Runs a scenario to its end: all messages finished, or the time limit.

    The GIL is released all the while. An interrupt (Ctrl-C) is heard within a fraction of a second and ends
    the
    run: the results are what is known so far, and :attr:`Results.interrupted` says so.

    Args:
        scenario: What to run.
        progress: Called now and then with how far the run has come.
        capture: Where the packets go that ``scenario.record.capture`` asks for, in pcapng format.
        path_selector: A class of one's own in place of MRC's EV states (:mod:`openmrc.sim.custom`); slower.
        congestion: A class of one's own in place of NSCC; slower.

    Raises:
        Exception: what a class of one's own raises, as it is.
        ArgumentError: if the scenario cannot be: no such fabric, host or link, or more than memory holds.
            It names
            the field, and file and line if the scenario was read from one.
        OSError: if the capture cannot be written.
    """
    if capture is not None and scenario.record.capture is None:
        raise ArgumentError("capture: the scenario's record does not say which links to listen to")
    check(scenario)
    try:
        simulation = _core.Simulation(
            *scenario.core_arguments(), path_selector=path_selector, congestion=congestion
        )
    except ArgumentError as error:
        raise locate(scenario, error) from None
    step = _EVENTS_A_STEP if path_selector is None and congestion is None else _EVENTS_A_STEP_OF_PYTHON
    file = CaptureFile(Path(capture), scenario, simulation) if capture is not None else None
    interrupted = False
    try:
        more = True
        while more:
            more = simulation.advance(step)
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
