"""EV profiles: the entropy values that queue pairs spray over.

A profile can go ONLINE on a device of its format (``Device.ev_format``). Other formats can be described and
expanded. In SRv6 mode all paths of a profile end at one node, its ``peer``; each entropy value has a route,
which is given or expanded from the profile's fields.
"""

import dataclasses
import itertools
import math
import random
from collections.abc import Callable, Iterable, Sequence
from ipaddress import IPv6Address
from typing import Any

from openmrc import _core
from openmrc.controller.ev_format import (
    EV_BITS,
    SRV6,
    WIDE_BITS,
    EvFormatProfile,
    expand_ev,
    masked_bits,
    rows,
)
from openmrc.controller.ev_op import EvOp, EvOpEntry
from openmrc.controller.ev_values import Ev, EvMode, EvProfileAttr
from openmrc.controller.state import Profile, ProfileState, member
from openmrc.errors import ArgumentError, Error, StateError, UnsupportedError
from openmrc.verbs import EvState
from openmrc.wire import EntropyOrder, EvFormat

MAX_EVS = _core.MAX_ACTIVE_EVS
"""Most entropy values of a profile, in rotation and in reserve together."""


_ENUMERABLE = 1 << 14
"""Up to this many combinations of masked bits are listed; of more a sample is drawn."""


class EvProfile(Profile):
    """The entropy values that queue pairs spray over; made by :meth:`Controller.ev_profile`.

    Attributes: :class:`EvProfileAttr`. Operations by state:

    | | OFFLINE | ONLINE |
    |---|---|---|
    | :meth:`replace_ev` | EXPLICIT | |
    | :meth:`query_evs` | EXPLICIT, or once ONLINE before | yes |
    | :meth:`modify_ev_state`, :meth:`query_ev_state` | | yes |
    | ``modify(event_mask=...)`` | yes | yes |
    """

    _what = "EV profile"
    _needed = frozenset({"mode", "format_profile"})
    _optional = frozenset(field.name for field in dataclasses.fields(EvProfileAttr)) - _needed
    _online = frozenset({"event_mask"})

    def __init__(
        self,
        core: _core.Controller,
        num_ports: int,
        ev_formats: tuple[EvFormat, ...],
        states: Callable[[int], dict[Ev, EvState]],
        order: EntropyOrder,
    ) -> None:
        super().__init__()
        self._core = core
        self._order = order
        self._num_ports = num_ports
        self._ev_formats = ev_formats
        self._states = states
        self._attr = EvProfileAttr()
        self._evs: list[Ev | None] = []
        self._of_label: dict[Ev, Ev] = {}
        self._denied: set[Ev] = set()
        self._id: int | None = None

    @property
    def profile_id(self) -> int:
        """Its number, for ``QpAttr.ev_profile_id`` and in EV events.

        Raises:
            StateError: if it is not ONLINE.
        """
        self._require("profile_id", ProfileState.ONLINE)
        assert self._id is not None
        return self._id

    def query(self) -> EvProfileAttr:
        """Its attributes as they were set."""
        return self._attr

    def query_evs(self) -> list[Ev | None]:
        """Every entropy value; ``None`` where an EXPLICIT profile has no value yet.

        Raises:
            StateError: in INIT.
        """
        self._require("query_evs", ProfileState.OFFLINE, ProfileState.ONLINE)
        return list(self._evs)

    def replace_ev(self, current: Ev | None, new: Ev, *, all_copies: bool = False) -> int:
        """Replaces ``current`` (``None``: an unpopulated entry) by ``new``; returns how often.

        Raises:
            StateError: unless the profile is EXPLICIT and OFFLINE.
            ArgumentError: if ``current`` is not in the profile, or ``new`` is no entropy value of this
                device.
        """
        self._require("replace_ev", ProfileState.OFFLINE)
        if self._attr.mode is not EvMode.EXPLICIT:
            raise StateError(f"replace_ev needs an EXPLICIT profile, this one is {self._attr.mode}")
        places = [i for i, ev in enumerate(self._evs) if ev == current]
        if not places:
            held = sum(ev is not None for ev in self._evs)
            raise ArgumentError(
                f"{current or 'an unpopulated entry'} is not in the profile:"
                f" {held} of {len(self._evs)} entries are set"
            )
        self._check(new)
        chosen = places if all_copies else places[:1]
        for place in chosen:
            self._evs[place] = new
        return len(chosen)

    def modify_ev_state(self, ev: Ev, state: EvState) -> int:
        """Disables a path (DENIED) or enables it (GOOD) for the profile; returns how many queue pairs use it.

        Raises:
            StateError: if the profile is not ONLINE.
            ArgumentError: if the profile does not have the path, or for another state, which only the
                transport sets.
        """
        self._require("modify_ev_state", ProfileState.ONLINE)
        self._find(ev)
        if state not in (EvState.DENIED, EvState.GOOD):
            raise ArgumentError(
                f"a controller sets DENIED or GOOD, not {state.name}: only the transport sets that"
            )
        label = self.label(ev)
        path = (label.port, label.value)
        users = self._core.set_ev_denied(self.profile_id, path, state is EvState.DENIED)
        (self._denied.add if state is EvState.DENIED else self._denied.discard)(ev)
        return users

    def query_ev_state(self, ev: Ev) -> EvState:
        """DENIED if the controller disabled it, otherwise its worst state at any queue pair of the profile.

        Raises:
            StateError: if the profile is not ONLINE.
            ArgumentError: if the profile does not have the path.
        """
        self._require("query_ev_state", ProfileState.ONLINE)
        self._find(ev)
        if ev in self._denied:
            return EvState.DENIED
        states = self._states(self.profile_id)
        return {self.named(label): state for label, state in states.items()}.get(ev, EvState.GOOD)

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
            self.replace_ev(entry.ev, entry.ev_new, all_copies=entry.all_copies)
            return entry
        if entry.ev is None:
            raise ArgumentError(f"{op.name} needs ev")
        if op is EvOp.MODIFY_EV_STATE:
            if entry.state is None:
                raise ArgumentError("MODIFY_EV_STATE needs state")
            self.modify_ev_state(entry.ev, entry.state)
            return entry
        return self._with_state(entry, required=True)

    def _with_state(self, entry: EvOpEntry, *, required: bool = False) -> EvOpEntry:
        if entry.ev is None or (self.state is not ProfileState.ONLINE and not required):
            return entry
        return dataclasses.replace(entry, state=self.query_ev_state(entry.ev))

    @property
    def has_labels(self) -> bool:
        """Whether packets carry labels, as the entropy values are longer than what packets carry."""
        return bool(self._of_label)

    def label(self, ev: Ev) -> Ev:
        """What packets carry of an entropy value: itself, or its index if it is longer than 32 bits."""
        return next((label for label, each in self._of_label.items() if each == ev), ev)

    def named(self, label: Ev) -> Ev:
        """The entropy value of a path that queue pairs and events name by what its packets carry."""
        return self._of_label.get(label, label)

    def _find(self, ev: Ev) -> None:
        if ev not in self._evs:
            raise ArgumentError(f"{ev} is none of the {len(self._evs)} entropy values of the profile")

    def _check(self, ev: Ev) -> None:
        if not 0 <= ev.port < self._num_ports:
            raise ArgumentError(f"port {ev.port} of {ev}: the device has ports 0 to {self._num_ports - 1}")
        layout = self._format()
        assert layout.ev_format is not None
        bits = WIDE_BITS if self._wide() else EV_BITS.get(layout.ev_format, 32)
        least = 0 if layout.ev_format in SRV6 else 1
        if not least <= ev.value < 1 << bits:
            raise ArgumentError(
                f"value {ev.value:#x} of {ev}: {least} to {(1 << bits) - 1:#x} is allowed with"
                f" {layout.ev_format}"
            )
        if layout.ev_format in SRV6 and self._attr.fields and ev not in (self._attr.routes or {}):
            expand_ev(layout.ev_format, layout.widths, self._attr.fields, ev.value)

    def _wide(self) -> bool:
        """Whether the entropy values do not fit the 32 bits that a packet carries."""
        return self._format().ev_format in SRV6 and masked_bits(self._attr.fields) > 32

    def _format(self) -> EvFormatProfile:
        assert self._attr.format_profile is not None
        return self._attr.format_profile

    def _apply(self, target: ProfileState, attributes: dict[str, Any]) -> None:
        match target:
            case ProfileState.ONLINE if self._state is ProfileState.ONLINE:
                self._attr = dataclasses.replace(self._attr, **attributes)
            case ProfileState.ONLINE:
                self._go_online()
            case ProfileState.OFFLINE if self._state is ProfileState.ONLINE:
                self._core.destroy_ev_profile(self.profile_id)
                self._id = None
                self._denied.clear()
                self._of_label.clear()
                self._format()._users.discard(self)
            case ProfileState.OFFLINE:
                self._configure(dataclasses.replace(self._attr, **attributes))
            case ProfileState.INIT:
                self._attr, self._evs = EvProfileAttr(), []

    def _configure(self, attr: EvProfileAttr) -> None:
        attr = dataclasses.replace(attr, mode=member(EvMode, attr.mode, "mode"), fields=tuple(attr.fields))
        ev_format = attr.format_profile
        if ev_format is None or ev_format.state is not ProfileState.ONLINE:
            raise StateError("format_profile must be an EV format profile in ONLINE")
        if attr.ports is not None and not set(attr.ports) <= set(range(self._num_ports)):
            raise ArgumentError(f"ports {attr.ports}: the device has ports 0 to {self._num_ports - 1}")
        ports = self._num_ports if attr.ports is None else len(attr.ports)
        if attr.count is not None and (attr.count < 1 or attr.count % ports):
            raise ArgumentError(f"count is {attr.count}: a multiple of the {ports} ports is allowed")
        if attr.mode is EvMode.EXPLICIT and attr.count is None:
            raise StateError("an EXPLICIT EV profile needs a count as well")
        if attr.mode is EvMode.GENERATED:
            if not attr.fields:
                raise StateError("a GENERATED EV profile needs fields as well")
            assert ev_format.ev_format is not None
            _core.check_ev_profile(ev_format.ev_format.value, list(ev_format.widths), rows(attr.fields))
        if ev_format.ev_format in SRV6:
            self._check_srv6(attr, ev_format)
        if attr.mode is EvMode.EXPLICIT and (self._attr.mode, self._attr.count) != (attr.mode, attr.count):
            self._evs = [None] * (attr.count or 0)
        self._attr = attr

    def _check_srv6(self, attr: EvProfileAttr, ev_format: EvFormatProfile) -> None:
        if attr.mode is EvMode.AUTO:
            raise ArgumentError(f"mode is auto: with {ev_format.ev_format} explicit, generated is allowed")
        if not attr.peer:
            raise StateError(f"an EV profile of format {ev_format.ev_format} needs a peer as well")
        if attr.fields:
            assert ev_format.ev_format is not None
            _core.check_ev_profile(ev_format.ev_format.value, list(ev_format.widths), rows(attr.fields))

    def _route(self, ev: Ev) -> tuple[IPv6Address, IPv6Address | None]:
        """Outer destination and segment of an entropy value in SRv6 mode."""
        given = (self._attr.routes or {}).get(ev)
        if given is None:
            if not self._attr.fields:
                raise StateError(f"{ev} has no route, and the profile has no fields to expand it")
            ev_format = self._format()
            assert ev_format.ev_format is not None
            expanded = expand_ev(ev_format.ev_format, ev_format.widths, self._attr.fields, ev.value)
            assert not isinstance(expanded, int)
            given = expanded
        return given if isinstance(given, tuple) else (given, None)

    def _go_online(self) -> None:
        attr, ev_format = self._attr, self._format().ev_format
        if ev_format not in self._ev_formats:
            raise UnsupportedError(
                f"an EV profile of format {ev_format} cannot go ONLINE on this device: its ev_format is"
                f" {self._ev_formats[0]}"
            )
        if self._format().state is not ProfileState.ONLINE:
            raise StateError("the EV format profile of this EV profile is not ONLINE any more")
        match attr.mode:
            case EvMode.EXPLICIT:
                evs = [ev for ev in self._evs if ev is not None]
                if len(evs) < len(self._evs):
                    raise StateError(
                        f"{len(self._evs) - len(evs)} of {len(self._evs)} entropy values are unpopulated:"
                        " use replace_ev"
                    )
            case EvMode.GENERATED:
                evs = self._generate()
            case _:
                evs = self._own()
        srv6 = ev_format in SRV6
        # Packets carry 32 bits, which the peer reflects: of a longer value its index.
        labels = [Ev(i, ev.port) for i, ev in enumerate(evs)] if self._wide() else evs
        self._id = self._core.create_ev_profile(
            [(label.port, label.value) for label in labels],
            active=attr.active,
            min_active=attr.min_active,
            routes=[self._route(ev) for ev in evs] if srv6 else [],
            peer=attr.peer if srv6 else (),
        )
        self._evs = list(evs)
        self._of_label = dict(zip(labels, evs, strict=True)) if labels is not evs else {}
        self._format()._users.add(self)

    def _per_port(self, available: int) -> tuple[list[int], int]:
        """The ports to use, and the number of entropy values for each."""
        ports = list(self._attr.ports if self._attr.ports is not None else range(self._num_ports))
        if self._attr.count is None:
            return ports, available
        share = self._attr.count // len(ports)
        if share > available:
            raise ArgumentError(
                f"count {self._attr.count} asks for {share} entropy values per port, there are {available}"
            )
        return ports, share

    def _own(self) -> list[Ev]:
        device: dict[int, list[Ev]] = {}
        for port, value in self._core.ev_profile(0):
            device.setdefault(port, []).append(Ev(value, port))
        ports, share = self._per_port(min(len(evs) for evs in device.values()))
        return [ev for port in ports for ev in device[port][:share]]

    def _generate(self) -> list[Ev]:
        """Values within the fields' bounds, equally many per port, chosen by the seed.

        No two entries are equal while the fields allow it; ports share no value while there are enough.
        """
        random_numbers = random.Random(self._attr.seed)
        num_ports = len(self._attr.ports) if self._attr.ports is not None else self._num_ports
        if self._attr.count is None:
            ports, share = self._per_port(max(1, MAX_EVS // num_ports))
            values = self._draw(random_numbers, share * num_ports)
            share = min(share, len(values))
        else:
            ports, share = self._per_port(self._attr.count // num_ports)
            values = self._draw(random_numbers, self._attr.count)
        return [
            Ev(values[(p * share + i) % len(values)], port)
            for i in range(share)
            for p, port in enumerate(ports)
        ]

    def _draw(self, random_numbers: random.Random, wanted: int) -> list[int]:
        """Up to ``wanted`` different entropy values that the fields allow; fewer if there are no more."""
        bounds = [field.bounds for field in self._attr.fields]
        combinations = math.prod(high - low + 1 for low, high in bounds)
        if combinations <= _ENUMERABLE:
            values = list(
                dict.fromkeys(filter(self._usable, map(self._value, itertools.product(*map(_span, bounds)))))
            )
            values = random_numbers.sample(values, min(wanted, len(values)))
        else:
            drawn: dict[int, None] = {}
            for _ in range(4 * wanted + 64):
                value = self._value(random_numbers.randint(low, high) for low, high in bounds)
                if self._usable(value):
                    drawn[value] = None
                if len(drawn) == wanted:
                    break
            values = list(drawn)
        if not values:
            raise ArgumentError("the fields allow no entropy value that has a UDP source port")
        return values

    def _value(self, numbers: Iterable[int]) -> int:
        """The entropy value of the numbers that the masked bits of each field form."""
        layout, fields = self._format(), self._attr.fields
        assert layout.ev_format is not None
        string, taken = 0, 0
        for field, number in zip(fields, numbers, strict=True):
            string, taken = string << field.mask_bits | number, taken + field.mask_bits
        if layout.ev_format in SRV6:
            return string << ((WIDE_BITS if taken > 32 else 32) - taken)
        ev = (string << (WIDE_BITS - taken)).to_bytes(WIDE_BITS // 8)
        path = expand_ev(layout.ev_format, layout.widths, fields, ev)
        assert isinstance(path, int)
        return path

    def _usable(self, value: int) -> bool:
        """Whether packets can carry it: a UDP source port cannot be 0."""
        ev_format = self._format().ev_format
        assert ev_format is not None
        return ev_format in SRV6 or ev_format.place(value, self._order)[0] != 0


def _span(bounds: tuple[int, int]) -> range:
    return range(bounds[0], bounds[1] + 1)
