"""The states of every profile: INIT, OFFLINE, ONLINE and back.

INIT -> OFFLINE     sets its attributes
OFFLINE -> ONLINE   queue pairs can use it from now on
ONLINE -> OFFLINE   refused while queue pairs use it
OFFLINE -> INIT     clears its attributes
"""

import enum
from typing import Any, ClassVar, TypeVar

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


_STEPS = {
    ProfileState.INIT: (ProfileState.OFFLINE,),
    ProfileState.OFFLINE: (ProfileState.ONLINE, ProfileState.INIT),
    ProfileState.ONLINE: (ProfileState.OFFLINE,),
}


class Profile:
    """What all profiles share: the state, and the attributes that :meth:`modify` accepts in it."""

    _what: ClassVar[str]
    _needed: ClassVar[frozenset[str]]
    """Attributes that INIT -> OFFLINE needs."""
    _optional: ClassVar[frozenset[str]]
    """Attributes that INIT -> OFFLINE also accepts. All of both kinds can be changed in OFFLINE."""
    _online: ClassVar[frozenset[str]] = frozenset()
    """Attributes that can be changed in ONLINE."""

    def __init__(self) -> None:
        self._state = ProfileState.INIT

    @property
    def state(self) -> ProfileState:
        """Its state."""
        return self._state

    def modify(self, state: ProfileState | None = None, **attributes: Any) -> None:
        """Takes the profile to a state, or changes attributes in its present state.

        Raises:
            StateError: if the step does not exist or lacks an attribute, an attribute cannot be set now, or
                the profile is in use; then nothing has changed.
            ArgumentError: if an attribute does not exist or a value is wrong; then nothing has changed.
            UnsupportedError: if this NIC cannot do it.
        """
        target = state or self._state
        known = self._needed | self._optional
        if unknown := attributes.keys() - known:
            raise ArgumentError(
                f"a {self._what} has no attribute {', '.join(sorted(unknown))};"
                f" it has {', '.join(sorted(known))}"
            )
        step = f"{self._state.name} to {target.name}"
        if target is not self._state and target not in _STEPS[self._state]:
            allowed = " or ".join(each.name for each in _STEPS[self._state])
            raise StateError(
                f"a {self._what} cannot go from {step}; from {self._state.name} it can go to {allowed}"
            )
        if excess := attributes.keys() - self._settable(target):
            where = step if target is not self._state else self._state.name
            raise StateError(f"{where} of a {self._what} does not take {', '.join(sorted(excess))}")
        if self._state is ProfileState.INIT and target is ProfileState.OFFLINE:
            given = {name for name, value in attributes.items() if value is not None}
            if missing := self._needed - given:
                raise StateError(f"{step} of a {self._what} needs {', '.join(sorted(missing))} as well")
        self._apply(target, attributes)
        self._state = target

    def _settable(self, target: ProfileState) -> frozenset[str]:
        match (self._state, target):
            case (ProfileState.INIT | ProfileState.OFFLINE, ProfileState.OFFLINE):
                return self._needed | self._optional
            case (ProfileState.ONLINE, ProfileState.ONLINE):
                return self._online
            case _:
                return frozenset()

    def _apply(self, target: ProfileState, attributes: dict[str, Any]) -> None:
        """Carries out a step that is allowed. If it fails it raises and has changed nothing."""
        raise NotImplementedError

    def _require(self, operation: str, *states: ProfileState) -> None:
        if self._state not in states:
            allowed = " or ".join(each.name for each in states)
            raise StateError(
                f"{operation} needs a {self._what} in {allowed}, this one is in {self._state.name}"
            )

    def __repr__(self) -> str:
        return f"<{self._what} in {self._state.name}>"
