"""Operations on lists of entropy values of an EV profile (docs/spec/c-interface.md, section 6.5)."""

import enum
from dataclasses import dataclass

from openmrc.controller.ev_values import Ev
from openmrc.verbs import EvState


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

    ev: Ev | None = None
    """The entropy value; ``None``: an unpopulated entry."""
    ev_new: Ev | None = None
    """REPLACE_EV: what takes its place."""
    state: EvState | None = None
    """MODIFY_EV_STATE: the state to set. REPLACE_EV: that of ``ev_new``, by default GOOD. In results: the
    state, ``None`` of an unpopulated entry."""
    all_copies: bool = False
    """REPLACE_EV: every entry that holds ``ev``, not one of them."""
