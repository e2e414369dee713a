"""Entropy values, and the attributes of a profile of them (docs/spec/c-interface.md, section 6.5)."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import NamedTuple

from openmrc.controller.ev_format import EvField, EvFormatProfile
from openmrc.verbs import SocketAddress


class EvMode(enum.StrEnum):
    """How the entropy values of a profile are chosen."""

    AUTO = "auto"
    """The NIC takes those that it opened its sockets with."""
    EXPLICIT = "explicit"
    """The controller gives each one."""
    GENERATED = "generated"
    """The NIC draws them within the bounds of the profile's fields."""


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
    """The bits that the fields' masks take, from the most significant on: UDP 16 bits, else 32, or, where
    the masks take more, all 256; an SRv6 packet then carries a label instead. Without fields it is what
    packets carry."""
    port: int
    """Port (plane), from 0."""


Routes = Mapping[Ev, IPv6Address | tuple[IPv6Address, IPv6Address]]


@dataclass(frozen=True, kw_only=True)
class EvProfileAttr:
    """Attributes of an EV profile; ``None`` is one that is not given."""

    mode: EvMode | None = None
    format_profile: EvFormatProfile | None = None
    """Configured; ONLINE when this profile goes ONLINE. AUTO needs none."""
    count: int | None = None
    """Number of entropy values, at most 512, rounded down to a multiple of the number of ports; AUTO:
    default all of the device. GENERATED: beyond what the fields allow on each port entries repeat."""
    active: int | None = None
    """How many of them are in rotation, at most 256; default half of them, at most 128. Of the others as many
    are in reserve."""
    min_active: int | None = None
    """With fewer usable ones in rotation than this, condemned ones are tried again; default a quarter of
    ``count``."""
    event_mask: EvEventMask | None = None
    """Changes that are events; default none. It can be changed ONLINE."""
    ports: tuple[int, ...] | None = None
    """Ports to use; default all."""
    fields: tuple[EvField, ...] | None = None
    """What the values are expanded by, and the bounds of those that are drawn; default one per field of the
    format, with a full mask."""
    peer: tuple[SocketAddress, ...] | None = None
    """SRv6: the node at which the paths end, its address per port."""
    routes: Routes | None = None
    """SRv6: outer destination of each entropy value, with SRH also the segment. Values that are not in it are
    expanded by the fields."""
    seed: int | None = None
    """GENERATED: decides which values are drawn; default another one for each profile."""
