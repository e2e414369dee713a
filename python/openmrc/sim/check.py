"""The checks of a scenario before anything runs: its parts fit each other, and memory suffices."""

from openmrc import _core
from openmrc.errors import ArgumentError, FormatError
from openmrc.sim import custom, memory
from openmrc.sim.scenario import Scenario
from openmrc.sim.scenario.part import place_of
from openmrc.units import size

_FEWER = {
    "topology": "hosts",
    "traffic": "messages or queue pairs",
    "faults": "faults",
    "record": "links or samples",
}
"""What a scenario needs fewer of, to need less memory, by the part that needs most."""


def check(scenario: Scenario) -> _core.CheckedScenario:
    """Has the core read a scenario and its files, check it, and estimate the memory of its run.

    Raises:
        ArgumentError: for the first thing that is wrong, naming the place; or if memory does not suffice.
        FormatError: for a file of flows, naming the line.
    """
    try:
        checked = _core.CheckedScenario(scenario.to_json())
        parts = checked.memory()
    except (ArgumentError, FormatError) as error:
        raise located(scenario, error) from None
    custom.named_by(scenario)
    needed, available = sum(parts.values()), memory.available()
    if needed > available:
        largest = max(parts, key=parts.__getitem__)
        raise ArgumentError(
            f"{scenario.place(largest)}: this run needs about {size(needed)} of memory, and"
            f" {size(available)} are there; fewer {_FEWER[largest]} need less"
        )
    return checked


def try_network(scenario: Scenario, checked: _core.CheckedScenario) -> None:
    """Builds the network with its faults, without traffic, and throws it away.

    Raises:
        ArgumentError: what a run would raise as it begins, naming the place.
    """
    try:
        checked.try_network()
    except ArgumentError as error:
        raise located(scenario, error) from None


def filled(scenario: Scenario) -> Scenario:
    """The scenario with the flows of its files in it and everything filled in that it leaves open.

    What stays open differs from switch to switch or from port to port. The results are the same.

    Raises:
        ArgumentError, FormatError: as :func:`check`.
    """
    return Scenario.model_validate_json(check(scenario).filled())


def with_files(scenario: Scenario) -> Scenario:
    """The scenario with the flows of its files in it, for a machine that has no such files.

    Raises:
        ArgumentError, FormatError: as :func:`check`.
    """
    return Scenario.model_validate_json(check(scenario).with_files())


def located(scenario: Scenario, error: ArgumentError | FormatError) -> ArgumentError | FormatError:
    """The same error with file and line of its place in front, if the scenario was read from a file."""
    place, message = place_of(error)
    return type(error)(f"{scenario.place(*place)}: {message}") if place else error
