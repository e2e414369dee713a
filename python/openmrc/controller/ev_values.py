"""Entropy values, and the attributes of a profile of them (spec: C interface, section 6.5)."""

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
    """UDP, STRUCTURED: as in the packet, with UDP the source port, else 32 bits. SRv6: 32 bits, or, where
    the masks of the profile's fields take more, all 256 bits; the packet then carries a label instead."""
    port: int
    """Port (plane), from 0."""


@dataclass(frozen=True, kw_only=True)
class EvProfileAttr:
    """Attributes of an EV profile."""

    mode: EvMode | None = None
    format_profile: EvFormatProfile | None = None
    """ONLINE."""
    count: int | None = None
    """Number of entropy values, a multiple of the number of ports; default all of the device. GENERATED: any;
    beyond what the fields allow on each port entries repeat."""
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
    """GENERATED: what the values are expanded by, and their bounds. SRv6: an entropy value without a route is
    expanded by them."""
    peer: tuple[SocketAddress, ...] = ()
    """SRv6, where it is required: the node at which the paths end, its address per port."""
    routes: Mapping[Ev, IPv6Address | tuple[IPv6Address, IPv6Address]] | None = None
    """SRv6: outer destination of each entropy value, with SRH also the segment. Values that are not in it are
    expanded."""
    seed: int = 0
    """GENERATED: decides which values are taken."""
