"""EV format profiles and EV profiles: the layout of entropy values, and those that queue pairs spray over.

A profile can go ONLINE on a device of its format (``Device.ev_format``). Other formats can be described and
expanded. In SRv6 mode all paths of a profile end at one node, its ``peer``; each entropy value has a route,
which is given or expanded from the profile's fields.
"""

import dataclasses
import enum
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Any, NamedTuple

from openmrc import _core
from openmrc.controller.state import Profile, ProfileState, member
from openmrc.errors import ArgumentError, StateError, UnsupportedError
from openmrc.verbs import EvState, SocketAddress
from openmrc.wire import EvFormat

MAX_EVS = _core.MAX_ACTIVE_EVS
"""Most entropy values of a profile, in rotation and in reserve together."""


class EvMode(enum.StrEnum):
    """How the entropy values of a profile are chosen."""

    AUTO = "auto"
    """The NIC takes those that it opened its sockets with."""
    EXPLICIT = "explicit"
    """The controller gives each one."""
    GENERATED = "generated"
    """The NIC generates them within the bounds of the profile's fields."""


class EvEventMask(enum.IntFlag):
    """The changes of a profile's entropy values that are events."""

    NONE = 0
    GOOD = 1
    """Usable again."""
    ASSUMED_BAD = 2
    """Believed broken."""
    ALL = 3


class Ev(NamedTuple):
    """An entropy value on a port: one path."""

    value: int
    """As in the packet: with UDP the source port, otherwise 32 bits."""
    port: int
    """Port (plane), from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvField:
    """One field of an EV profile. In a fixed field, mask, min_val and max_val are 0."""

    width: int
    """Bits, 1 to 128."""
    init_val: int = 0
    """Bits where ``mask`` is clear."""
    min_val: int = 0
    """Smallest value to generate."""
    max_val: int = 0
    """Largest value to generate."""
    mask: int = 0
    """Bits that the entropy value fills."""


_EV_BITS = {EvFormat.UDP: 16}
"""Bits of an entropy value; 32 where not listed (spec: wire, Where the entropy value goes)."""


_SRV6 = (EvFormat.SRV6, EvFormat.SRV6_SRH)


def _rows(fields: Sequence[EvField]) -> list[tuple[int, int, int, int, int]]:
    return [(f.width, f.init_val, f.min_val, f.max_val, f.mask) for f in fields]


def expand_ev(
    ev_format: EvFormat, widths: Sequence[int], fields: Sequence[EvField], ev: int
) -> int | IPv6Address | tuple[IPv6Address, IPv6Address]:
    """What switches read for an entropy value (spec: wire, EV profile expansion). A pure function.

    Each field starts as ``init_val``. Each bit set in ``mask``, from the most significant down, is replaced
    by the next most significant bit of the entropy value. The fields follow one another; each is
    right-aligned in its place of ``widths``, the field widths of the format.

    Returns:
        The UDP source port; the 32-bit structured value; the outer destination address (SRV6); it and the
        segment (SRV6_SRH).

    Raises:
        ArgumentError: if format, widths and fields do not match each other or the packet.
    """
    udp, structured, destination, segment = _core.expand_ev(ev_format.value, list(widths), _rows(fields), ev)
    match ev_format:
        case EvFormat.UDP:
            return udp
        case EvFormat.STRUCTURED:
            return structured
        case EvFormat.SRV6:
            return destination
        case EvFormat.SRV6_SRH:
            return destination, segment


class EvFormatProfile(Profile):
    """Layout of entropy values in packets; made by :meth:`Controller.ev_format_profile`.

    Attributes: ``ev_format`` (:class:`openmrc.wire.EvFormat`) and ``widths``, bits of each field from the
    most significant on.
    """

    _what = "EV format profile"
    _needed = frozenset({"ev_format", "widths"})
    _optional = frozenset[str]()

    def __init__(self) -> None:
        super().__init__()
        self.ev_format: EvFormat | None = None
        self.widths: tuple[int, ...] = ()
        self._users: set[EvProfile] = set()

    def _apply(self, target: ProfileState, attributes: dict[str, Any]) -> None:
        match target:
            case ProfileState.INIT:
                self.ev_format, self.widths = None, ()
            case ProfileState.OFFLINE if self._state is ProfileState.ONLINE:
                if self._users:
                    raise StateError(
                        f"{len(self._users)} EV profiles use this EV format profile: end those first"
                    )
            case ProfileState.OFFLINE:
                ev_format = member(EvFormat, attributes.get("ev_format", self.ev_format), "ev_format")
                widths = tuple(attributes.get("widths", self.widths))
                # Each field is as wide as its place: only the widths are checked.
                fixed = [EvField(width=width) for width in widths]
                _core.check_ev_profile(ev_format.value, list(widths), _rows(fixed))
                self.ev_format, self.widths = ev_format, widths


@dataclass(frozen=True, kw_only=True)
class EvProfileAttr:
    """Attributes of an EV profile."""

    mode: EvMode | None = None
    format_profile: EvFormatProfile | None = None
    """ONLINE."""
    count: int | None = None
    """Number of entropy values, a multiple of the number of ports; default all of the device."""
    active: int | None = None
    """How many of them are in rotation, at most 256; default half of them, at most 128. Of the others as many
    are in reserve."""
    min_active: int | None = None
    """With fewer usable ones in rotation than this, condemned ones are tried again; default a quarter of
    ``active``."""
    event_mask: EvEventMask = EvEventMask.ALL
    ports: tuple[int, ...] | None = None
    """Ports to use; default all."""
    fields: tuple[EvField, ...] = ()
    """GENERATED: bounds of the values. SRv6: an entropy value without a route is expanded by them."""
    peer: tuple[SocketAddress, ...] = ()
    """SRv6, where it is required: the node at which the paths end, its address per port."""
    routes: Mapping[Ev, IPv6Address | tuple[IPv6Address, IPv6Address]] | None = None
    """SRv6: outer destination of each entropy value, with SRH also the segment. Values that are not in it are
    expanded."""
    seed: int = 0
    """GENERATED: decides which values are taken."""


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
    ) -> None:
        super().__init__()
        self._core = core
        self._num_ports = num_ports
        self._ev_formats = ev_formats
        self._states = states
        self._attr = EvProfileAttr()
        self._evs: list[Ev | None] = []
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
        users = self._core.set_ev_denied(self.profile_id, ev.value, state is EvState.DENIED)
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
        return self._states(self.profile_id).get(ev, EvState.GOOD)

    def _find(self, ev: Ev) -> None:
        if ev not in self._evs:
            raise ArgumentError(f"{ev} is none of the {len(self._evs)} entropy values of the profile")

    def _check(self, ev: Ev) -> None:
        if not 0 <= ev.port < self._num_ports:
            raise ArgumentError(f"port {ev.port} of {ev}: the device has ports 0 to {self._num_ports - 1}")
        ev_format = self._format().ev_format
        bits = _EV_BITS.get(ev_format, 32) if ev_format else 32
        least = 0 if ev_format in _SRV6 else 1
        if not least <= ev.value < 1 << bits:
            raise ArgumentError(
                f"value {ev.value:#x} of {ev}: {least} to {(1 << bits) - 1:#x} is allowed with {ev_format}"
            )

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
            _core.check_ev_profile(ev_format.ev_format.value, list(ev_format.widths), _rows(attr.fields))
        if ev_format.ev_format in _SRV6:
            self._check_srv6(attr, ev_format)
        if attr.mode is EvMode.EXPLICIT and (self._attr.mode, self._attr.count) != (attr.mode, attr.count):
            self._evs = [None] * (attr.count or 0)
        self._attr = attr

    def _check_srv6(self, attr: EvProfileAttr, ev_format: EvFormatProfile) -> None:
        if attr.mode is not EvMode.EXPLICIT:
            raise ArgumentError(f"mode is {attr.mode}: with {ev_format.ev_format} EXPLICIT is allowed")
        if not attr.peer:
            raise StateError(f"an EV profile of format {ev_format.ev_format} needs a peer as well")
        if attr.fields:
            assert ev_format.ev_format is not None
            _core.check_ev_profile(ev_format.ev_format.value, list(ev_format.widths), _rows(attr.fields))

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
        srv6 = ev_format in _SRV6
        self._id = self._core.create_ev_profile(
            [(ev.port, ev.value) for ev in evs],
            active=attr.active,
            min_active=attr.min_active,
            routes=[self._route(ev) for ev in evs] if srv6 else [],
            peer=attr.peer if srv6 else (),
        )
        self._evs = list(evs)
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
        """Values within the fields' bounds, each on one port, chosen by the seed."""
        ev_format = self._format()
        assert ev_format.ev_format is not None
        bits = _EV_BITS.get(ev_format.ev_format, 32)
        widths, fields = ev_format.widths, self._attr.fields
        masked = sum(field.mask.bit_count() for field in fields)
        random_numbers = random.Random(self._attr.seed)
        # All patterns of the masked bits, which are the most significant bits of an entropy value; a random
        # sample if there are too many.
        patterns: Sequence[int] = range(1 << masked)
        if len(patterns) > 1 << 16:
            patterns = random_numbers.sample(patterns, 1 << 16)
        paths = (
            expand_ev(ev_format.ev_format, widths, fields, pattern << (bits - masked)) for pattern in patterns
        )
        # The UDP source port, the high half of a structured value, cannot be 0.
        values = sorted(
            {
                path
                for path in paths
                if isinstance(path, int) and path >> (bits - 16) and _in_bounds(bits, widths, fields, path)
            }
        )
        num_ports = len(self._attr.ports) if self._attr.ports is not None else self._num_ports
        ports, share = self._per_port(min(len(values), MAX_EVS) // num_ports)
        if not share:
            raise ArgumentError(
                f"the fields allow {len(values)} entropy values: fewer than one for each port"
            )
        chosen = random_numbers.sample(values, share * len(ports))
        return [Ev(value, ports[i % len(ports)]) for i, value in enumerate(chosen)]


def _in_bounds(bits: int, widths: Sequence[int], fields: Sequence[EvField], path: int) -> bool:
    """Whether every masked field of a path of ``bits`` bits lies within its bounds."""
    end = 0
    for width, field in zip(widths, fields, strict=True):
        end += width
        value = path >> (bits - end) & ((1 << field.width) - 1)
        if field.mask and not field.min_val <= value <= field.max_val:
            return False
    return True
