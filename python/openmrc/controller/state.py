"""The states of every profile: INIT, OFFLINE, ONLINE and back.

INIT -> OFFLINE     sets its attributes
OFFLINE -> ONLINE   queue pairs can use it from now on
ONLINE -> OFFLINE   refused while queue pairs use it
OFFLINE -> INIT     clears its attributes

The core knows what each step needs and takes (docs/spec/c-interface.md, section 6.4); attributes of a call
are set before the step, and an error changes nothing.
"""

import dataclasses
import enum
from typing import Any, ClassVar, TypeVar

from openmrc import _core
from openmrc.errors import ArgumentError, StateError


class ProfileState(enum.StrEnum):
    """State of a profile."""

    INIT = "init"
    """Nothing is set."""
    OFFLINE = "offline"
    """Attributes are set and can be changed."""
    ONLINE = "online"
    """Queue pairs can use it."""


E = TypeVar("E", bound=enum.StrEnum)


def member(kind: type[E], value: Any, what: str) -> E:
    """``value`` as a member of ``kind``; an ArgumentError if it is none."""
    try:
        return kind(value)
    except ValueError:
        raise ArgumentError(f"{what} is {value!r}: {', '.join(kind)} is allowed") from None


class Profile:
    """What all profiles share: an id of the device, the state, and :meth:`modify`."""

    _what: ClassVar[str]
    _attributes: ClassVar[type[Any]]
    """The dataclass of its attributes, of which ``None`` is one that is not given."""

    def __init__(self, core: _core.Profiles) -> None:
        self._core = core
        self._key = core.new_id()

    @property
    def state(self) -> ProfileState:
        """Its state."""
        raise NotImplementedError

    def modify(self, state: ProfileState | None = None, **attributes: Any) -> None:
        """Takes the profile to a state, or changes attributes in its present state.

        Raises:
            StateError: if the step does not exist or lacks an attribute, an attribute cannot be set now, or
                the profile is in use; then nothing has changed.
            ArgumentError: if an attribute does not exist or a value is wrong; then nothing has changed.
            UnsupportedError: if this NIC cannot do it.
        """
        known = {field.name for field in dataclasses.fields(self._attributes)}
        if unknown := attributes.keys() - known:
            raise ArgumentError(
                f"{self._what} has no attribute {', '.join(sorted(unknown))};"
                f" it has {', '.join(sorted(known))}"
            )
        if state is not None:
            state = member(ProfileState, state, "state")
        self._change(state, self._attributes(**attributes))

    def _change(self, state: ProfileState | None, given: Any) -> None:
        """Gives a step and attributes to the core."""
        raise NotImplementedError

    def _online(self, number: int | None) -> int:
        """The number of a profile that is ONLINE."""
        if number is None:
            raise StateError(f"profile_id needs {self._what} in ONLINE, this one is in {self.state.name}")
        return number

    def __repr__(self) -> str:
        return f"<{self._what.split(' ', 1)[1]} in {self.state.name}>"
