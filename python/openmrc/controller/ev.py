"""EV profiles: the entropy values that queue pairs spray over.

A profile has the device's format (``Device.ev_format``). In SRv6 mode all paths of a profile end at one
node, its ``peer``; each entropy value has a route, which is given or expanded from the profile's fields.
"""

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from openmrc import _core
from openmrc.controller.ev_format import EvField, EvFormatProfile, rows
from openmrc.controller.ev_op import EvOp, EvOpEntry
from openmrc.controller.ev_values import Ev, EvEventMask, EvMode, EvProfileAttr, Routes
from openmrc.controller.state import Profile, ProfileState, member
from openmrc.errors import ArgumentError, Error
from openmrc.verbs import EvState


class EvProfile(Profile):
    """The entropy values that queue pairs spray over; made by :meth:`Controller.ev_profile`.

    Attributes: :class:`EvProfileAttr`. Operations by state:

    | | OFFLINE | ONLINE |
    |---|---|---|
    | :meth:`replace_ev` | EXPLICIT | |
    | :meth:`query_evs` | EXPLICIT; else it is empty | yes |
    | :meth:`modify_ev_state`, :meth:`query_ev_state` | of values that are there | yes |
    | ``modify(event_mask=...)`` | yes | yes |
    """

    _what = "an EV profile"
    _attributes = EvProfileAttr

    def __init__(self, core: _core.Profiles) -> None:
        super().__init__(core)
        self._format_profile: EvFormatProfile | None = None
        self._routes: Routes | None = None

    @property
    def state(self) -> ProfileState:
        """Its state."""
        return ProfileState(self._core.ev_state(self._key))

    @property
    def profile_id(self) -> int:
        """Its number, for ``QpAttr.ev_profile_id`` and in EV events.

        Raises:
            StateError: if it is not ONLINE, or an SRv6 profile without a peer.
        """
        return self._online(self._core.ev_number(self._key))

    def query(self) -> EvProfileAttr:
        """Its attributes as they were set.

        ``count`` is as it was rounded; where they were not set, ``min_active`` and ``event_mask`` are the
        defaults.

        Raises:
            StateError: in INIT.
        """
        attr = self._core.ev(self._key)
        attr["mode"] = EvMode(attr["mode"])
        attr["event_mask"] = EvEventMask(attr["event_mask"])
        if attr["fields"] is not None:
            names = [field.name for field in dataclasses.fields(EvField)]
            attr["fields"] = tuple(EvField(**dict(zip(names, row, strict=True))) for row in attr["fields"])
        for name in ("ports", "peer"):
            attr[name] = None if attr[name] is None else tuple(attr[name])
        return EvProfileAttr(format_profile=self._format_profile, routes=self._routes, **attr)

    def query_evs(self) -> list[Ev | None]:
        """Every entropy value; ``None`` where an EXPLICIT profile has no value yet.

        Raises:
            StateError: in INIT.
        """
        return [None if ev is None else Ev(*ev) for ev in self._core.evs(self._key)]

    def replace_ev(
        self, current: Ev | None, new: Ev, *, state: EvState = EvState.GOOD, all_copies: bool = False
    ) -> int:
        """Replaces ``current`` (``None``: an unpopulated entry) by ``new`` in ``state``; returns how often.

        Raises:
            StateError: unless the profile is EXPLICIT and OFFLINE.
            ArgumentError: if ``current`` is not in the profile, ``new`` is no entropy value of this
                device, or ``state`` is neither GOOD nor DENIED.
        """
        return self._core.replace_ev(self._key, current, new, member(EvState, state, "state"), all_copies)

    def modify_ev_state(self, ev: Ev, state: EvState) -> int:
        """Disables a path (DENIED) or enables it (GOOD) for the profile, until INIT.

        Returns:
            How many queue pairs use it.

        Raises:
            StateError: in INIT.
            ArgumentError: if the profile does not have the path, or for another state, which only the
                transport sets.
        """
        return self._core.set_ev_state(self._key, ev, member(EvState, state, "state"))

    def query_ev_state(self, ev: Ev) -> EvState:
        """DENIED if the controller disabled it, otherwise its worst state at any queue pair of the profile.

        Congested (SKIP) counts as GOOD.

        Raises:
            StateError: in INIT.
            ArgumentError: if the profile does not have the path.
        """
        return EvState(self._core.query_ev_state(self._key, ev))

    def operate(self, op: EvOp, entries: Sequence[EvOpEntry] = ()) -> list[EvOpEntry]:
        """Carries out one operation on a list of entries, in order, up to the first that fails.

        Those before it stay done; the exception's ``done`` says how many.

        Args:
            op: The operation.
            entries: What it works on; QUERY_EV_ARRAY needs none.

        Returns:
            The entries with the states that the queries ask for.

        Raises:
            StateError, ArgumentError: as :meth:`replace_ev`, :meth:`modify_ev_state`, :meth:`query_ev_state`
                and :meth:`query_evs`; also if an entry lacks what the operation needs.
        """
        op = member(EvOp, op, "op")
        if op is EvOp.QUERY_EV_ARRAY:
            if entries:
                raise ArgumentError("QUERY_EV_ARRAY takes no entries: it returns those of the profile")
            return [self._with_state(EvOpEntry(ev=ev)) for ev in self.query_evs()]
        results: list[EvOpEntry] = []
        for entry in entries:
            try:
                results.append(self._operate(op, entry))
            except Error as error:
                error.done = len(results)
                raise
        return results

    def _operate(self, op: EvOp, entry: EvOpEntry) -> EvOpEntry:
        if op is EvOp.REPLACE_EV:
            if entry.ev_new is None:
                raise ArgumentError("REPLACE_EV needs ev_new")
            state = entry.state or EvState.GOOD
            self.replace_ev(entry.ev, entry.ev_new, state=state, all_copies=entry.all_copies)
            return entry
        if entry.ev is None:
            raise ArgumentError(f"{op.name} needs ev")
        if op is EvOp.MODIFY_EV_STATE:
            if entry.state is None:
                raise ArgumentError("MODIFY_EV_STATE needs state")
            self.modify_ev_state(entry.ev, entry.state)
            return entry
        return self._with_state(entry)

    def _with_state(self, entry: EvOpEntry) -> EvOpEntry:
        return entry if entry.ev is None else dataclasses.replace(entry, state=self.query_ev_state(entry.ev))

    def _change(self, state: ProfileState | None, given: EvProfileAttr) -> None:
        plain: dict[str, Any] = dict(vars(given))
        if given.mode is not None:
            plain["mode"] = member(EvMode, given.mode, "mode")
        if given.format_profile is not None:
            plain["format_profile"] = given.format_profile._key
        if given.fields is not None:
            plain["fields"] = rows(given.fields)
        if given.routes is not None:
            plain["routes"] = [
                (ev, *(route if isinstance(route, tuple) else (route, None)))
                for ev, route in given.routes.items()
            ]
        self._core.modify_ev(self._key, state, SimpleNamespace(**plain))
        if self.state is ProfileState.INIT:
            self._format_profile = self._routes = None
        else:
            self._format_profile = given.format_profile or self._format_profile
            self._routes = given.routes or self._routes
