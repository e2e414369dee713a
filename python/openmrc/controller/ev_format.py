"""EV format profiles: the layout of entropy values in packets, and what switches read for a value."""

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Any

from openmrc import _core
from openmrc.controller.state import Profile, ProfileState, member
from openmrc.errors import ArgumentError, StateError
from openmrc.wire import EvFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class EvField:
    """One field of an EV profile. In a fixed field, mask, min_val and max_val are 0.

    Raises:
        ArgumentError: if a number has more than 32 bits.
    """

    width: int
    """Bits, 1 to 32."""
    init_val: int = 0
    """Bits where ``mask`` is clear."""
    min_val: int = 0
    """Smallest number to generate in the bits of ``mask`` taken together."""
    max_val: int = 0
    """Largest number to generate. With ``min_val`` and ``max_val`` 0, all that the mask can hold."""
    mask: int = 0
    """Bits that the entropy value fills."""

    def __post_init__(self) -> None:
        for name in ("width", "init_val", "min_val", "max_val", "mask"):
            value = getattr(self, name)
            if not 0 <= value < 1 << 32:
                raise ArgumentError(f"{name} of an EV field is {value}: 0 to 2^32 - 1 is allowed")

    @property
    def mask_bits(self) -> int:
        """Bits that the field takes from an entropy value."""
        return self.mask.bit_count()

    @property
    def bounds(self) -> tuple[int, int]:
        """Smallest and largest number to generate; (0, 0) for a fixed field."""
        if not self.min_val and not self.max_val:
            return 0, (1 << self.mask_bits) - 1
        return (self.min_val, self.max_val) if self.mask else (0, 0)


EV_BITS = {EvFormat.UDP: 16}
"""Bits of an entropy value in a packet; 32 where not listed (spec: wire, Where the entropy value goes)."""


def path_bits(ev_format: EvFormat) -> int:
    """Bits of the packet that the fields of a format fill."""
    return {EvFormat.UDP: 16, EvFormat.STRUCTURED: 32, EvFormat.SRV6: 128, EvFormat.SRV6_SRH: 256}[ev_format]


WIDE_BITS = 256
"""Bits of an entropy value in a controller's hands."""

SRV6 = (EvFormat.SRV6, EvFormat.SRV6_SRH)


def rows(fields: Sequence[EvField]) -> list[tuple[int, int, int, int, int]]:
    """The fields as the core takes them."""
    return [(f.width, f.init_val, f.min_val, f.max_val, f.mask) for f in fields]


def masked_bits(fields: Sequence[EvField]) -> int:
    """Bits that entropy values fill."""
    return sum(field.mask_bits for field in fields)


def _ev_string(ev_format: EvFormat, fields: Sequence[EvField], ev: int) -> bytes:
    """The string of 256 bits that begins with the bits of an entropy value."""
    bits = EV_BITS.get(ev_format, 32)
    if masked_bits(fields) > bits:
        bits = WIDE_BITS
    if not 0 <= ev < 1 << bits:
        raise ArgumentError(f"entropy value {ev:#x}: 0 to {(1 << bits) - 1:#x} is allowed")
    return (ev << (WIDE_BITS - bits)).to_bytes(WIDE_BITS // 8)


def expand_ev(
    ev_format: EvFormat, widths: Sequence[int], fields: Sequence[EvField], ev: int | bytes
) -> int | IPv6Address | tuple[IPv6Address, IPv6Address]:
    """What switches read for an entropy value (spec: wire, EV profile expansion). A pure function.

    Each field starts as ``init_val``. Each bit set in ``mask``, from the most significant down, is replaced
    by the next most significant bit of the entropy value. The fields follow one another; each is
    right-aligned in its place of ``widths``, the field widths of the format, and loses the bits for which
    there is no room.

    Args:
        ev_format: Where packets carry it.
        widths: Bits of each field of the format.
        fields: The profile; format fields without one are 0.
        ev: As bytes, up to 32, most significant first. As a number of 32 bits (UDP: 16), or of 256 bits if
            the masks take more.

    Returns:
        The UDP source port; the 32-bit structured value; the outer destination address (SRV6); it and the
        segment (SRV6_SRH).

    Raises:
        ArgumentError: if format, widths and fields do not match each other or the packet, or the entropy
            value has bits that no mask takes.
    """
    if isinstance(ev, int):
        ev = _ev_string(ev_format, fields, ev)
    if len(ev) > WIDE_BITS // 8:
        raise ArgumentError(f"an entropy value has at most {WIDE_BITS // 8} bytes, not {len(ev)}")
    ev = ev.ljust(WIDE_BITS // 8, b"\0")
    udp, structured, destination, segment = _core.expand_ev(ev_format.value, list(widths), rows(fields), ev)
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
        self._users: set[Profile] = set()

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
                _core.check_ev_profile(ev_format.value, list(widths), [])
                self.ev_format, self.widths = ev_format, widths
