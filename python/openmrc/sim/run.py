"""Running a scenario."""

from collections.abc import Callable, Sequence
from pathlib import Path

from openmrc import _core
from openmrc.errors import ArgumentError
from openmrc.sim import checkpoints
from openmrc.sim.check import check, located
from openmrc.sim.custom import Congestion, PathSelector, named_by
from openmrc.sim.pcapng import CaptureFile
from openmrc.sim.results import Results
from openmrc.sim.scenario import Scenario

_EVENTS_PER_STEP = 2_000_000
"""Events between two looks at the outside world: about a quarter of a second."""

_EVENTS_PER_STEP_IN_PYTHON = 50_000
"""The same where events call into Python. An exception there ends the run at most this many events later."""

_EVENTS_PER_STEP_OF_FLOWS = 100
"""The same at flow level, where an event may share out hundreds of flows anew."""


_EVENTS_PER_STEP_WATCHED = 200_000
"""The same if somebody watches: many times a second."""


Progress = _core.SimulationProgress
"""How far a run has come."""

PlaneNow = _core.SimulationPlane
"""What a plane carries at a moment of a run."""


def run(
    scenario: Scenario,
    progress: Callable[[Progress], object] | None = None,
    *,
    watch: Callable[[Progress, Callable[[], list[PlaneNow]]], object] | None = None,
    capture: Path | str | None = None,
    checkpoint: Path | str | None = None,
    every_s: float = checkpoints.EVERY_S,
    resume: Path | str | None = None,
    path_selector: Callable[[Sequence[int], int], PathSelector] | None = None,
    congestion: Callable[[int, int, int], Congestion] | None = None,
) -> Results:
    """Runs a scenario to its end: all messages finished, or the time limit.

    The GIL is released meanwhile. An interrupt (Ctrl-C) ends the run within a fraction of a second. The
    results are then what is known so far, and :attr:`Results.interrupted` says so.

    Args:
        scenario: What to run.
        progress: Called now and then with how far the run has come. With ``resume`` first with how far it had
            come by then.
        watch: Called more often, with how far the run has come and a function that reads what the planes
            carry now, which looks at every port; none at flow level.
        capture: The file for the packets that ``scenario.record.capture`` asks for, in pcapng format.
        checkpoint: The file for the state of the run, from which it can go on: written every ``every_s``, at
            an interrupt and at the end. It is whole at any time. For the packet engine, without captures and
            classes of your own.
        every_s: Seconds of wall time between two checkpoints.
        resume: The checkpoint to go on from, of the same scenario, written by the same build. The results are
            those of a run without interruption.
        path_selector: A class of your own in place of MRC's EV states or UET's load balancing
            (:mod:`openmrc.sim.custom`); slower, and in one thread only. Default: the one that the
            scenario's transport names, if any.
        congestion: A class of your own in place of NSCC; the same.

    Raises:
        Exception: what a class of your own raises, as it is.
        ArgumentError: if the scenario cannot run: no such fabric, host or link, or more than memory holds. It
            names the field, and file and line if the scenario was read from a file.
        FormatError: for a file of flows, naming the line; for a checkpoint that is damaged or another run's.
        OSError: if the capture or a checkpoint cannot be written, or one cannot be read.
    """
    if capture is not None and scenario.record.capture is None:
        raise ArgumentError("capture: the scenario's record does not say which links to listen to")
    checked = check(scenario)
    own = named_by(scenario)
    path_selector, congestion = path_selector or own.path_selector, congestion or own.congestion
    in_python = path_selector is not None or congestion is not None
    if checkpoint is not None or resume is not None:
        checkpoints.require(scenario, is_own=in_python)
    try:
        simulation = _core.Simulation(checked, path_selector=path_selector, congestion=congestion)
    except ArgumentError as error:
        raise located(scenario, error) from None
    if resume is not None:
        simulation.resume(Path(resume))
        if progress is not None:
            progress(simulation.progress())
    keeper = checkpoints.Keeper(simulation, Path(checkpoint), every_s) if checkpoint is not None else None
    step = _EVENTS_PER_STEP_IN_PYTHON if in_python else _EVENTS_PER_STEP
    if scenario.engine == "flow":
        step = _EVENTS_PER_STEP_OF_FLOWS
    if watch is not None:
        step = min(step, _EVENTS_PER_STEP_WATCHED)
    file = CaptureFile(Path(capture), scenario, simulation) if capture is not None else None
    interrupted = False
    try:
        more = True
        while more:
            more = simulation.advance(step)
            if file is not None:
                file.write()
            if progress is not None:
                progress(simulation.progress())
            if watch is not None:
                watch(simulation.progress(), simulation.planes)
            if keeper is not None and more:
                keeper.look()
    except KeyboardInterrupt:
        interrupted = True
    except BaseException:
        if file is not None:
            file.discard()
        raise
    if file is not None:
        file.close()
    if keeper is not None:
        keeper.write()
    return Results.of(scenario, simulation, interrupted=interrupted)
