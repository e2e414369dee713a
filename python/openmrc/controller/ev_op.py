"""Operations on lists of entropy values of an EV profile (spec: C interface, section 6.5)."""

import dataclasses
import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from openmrc.controller.state import ProfileState, member
from openmrc.errors import ArgumentError, Error
from openmrc.verbs import EvState

if TYPE_CHECKING:
    from openmrc.controller.ev import Ev, EvProfile


class EvOp(enum.StrEnum):
    """An operation on entropy values of a profile (``enum mrc_ctl_ev_op``)."""

    REPLACE_EV = "replace_ev"
    """Replace ``ev`` by ``ev_new``."""
    MODIFY_EV_STATE = "modify_ev_state"
    """Set the state of ``ev`` to ``state``: GOOD or DENIED."""
    QUERY_EV_STATE = "query_ev_state"
    """Say the state of ``ev``."""
    QUERY_EV_ARRAY = "query_ev_array"
    """Say every entropy value with its state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvOpEntry:
    """One entry of :meth:`EvProfile.operate` (``struct mrc_ctl_ev_op_entry``)."""

    ev: "Ev | None" = None
    """The entropy value; ``None``: an unpopulated entry."""
    ev_new: "Ev | None" = None
    """REPLACE_EV: what takes its place."""
    state: EvState | None = None
    """MODIFY_EV_STATE: the state to set. In results: the state, ``None`` of an unpopulated entry."""
    all_copies: bool = False
    """REPLACE_EV: every entry that holds ``ev``, not one of them."""


def operate(profile: "EvProfile", op: EvOp, entries: Sequence[EvOpEntry]) -> list[EvOpEntry]:
    """:meth:`EvProfile.operate`."""
    op = member(EvOp, op, "op")
    if op is EvOp.QUERY_EV_ARRAY:
        if entries:
            raise ArgumentError("QUERY_EV_ARRAY takes no entries: it returns those of the profile")
        return [_with_state(profile, EvOpEntry(ev=ev)) for ev in profile.query_evs()]
    results: list[EvOpEntry] = []
    for entry in entries:
        try:
            results.append(_operate(profile, op, entry))
        except Error as error:
            error.done = len(results)
            raise
    return results


def _operate(profile: "EvProfile", op: EvOp, entry: EvOpEntry) -> EvOpEntry:
    if op is EvOp.REPLACE_EV:
        if entry.ev_new is None:
            raise ArgumentError("REPLACE_EV needs ev_new")
        profile.replace_ev(entry.ev, entry.ev_new, all_copies=entry.all_copies)
        return entry
    if entry.ev is None:
        raise ArgumentError(f"{op.name} needs ev")
    if op is EvOp.MODIFY_EV_STATE:
        if entry.state is None:
            raise ArgumentError("MODIFY_EV_STATE needs state")
        profile.modify_ev_state(entry.ev, entry.state)
        return entry
    return _with_state(profile, entry, required=True)


def _with_state(profile: "EvProfile", entry: EvOpEntry, *, required: bool = False) -> EvOpEntry:
    if entry.ev is None or (profile.state is not ProfileState.ONLINE and not required):
        return entry
    return dataclasses.replace(entry, state=profile.query_ev_state(entry.ev))
