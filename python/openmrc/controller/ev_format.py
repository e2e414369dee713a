"""EV format profiles: the layout of entropy values in packets, and what switches read for a value."""

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address

from openmrc import _core
from openmrc.controller.state import Profile, ProfileState, member
from openmrc.errors import ArgumentError
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


EV_BITS = {EvFormat.UDP: 16}
"""Bits of an entropy value in a packet; 32 where not listed (docs/spec/wire.md, "Where the entropy value
goes")."""


WIDE_BITS = 256
"""Bits of an entropy value in a controller's hands."""


def rows(fields: Sequence[EvField]) -> list[tuple[int, int, int, int, int]]:
    """The fields as the core takes them."""
    return [(f.width, f.init_val, f.min_val, f.max_val, f.mask) for f in fields]


def _ev_string(ev_format: EvFormat, fields: Sequence[EvField], ev: int) -> bytes:
    """The string of 256 bits that begins with the bits of an entropy value."""
    bits = EV_BITS.get(ev_format, 32)
    if sum(field.mask.bit_count() for field in fields) > bits:
        bits = WIDE_BITS
    if not 0 <= ev < 1 << bits:
        raise ArgumentError(f"entropy value {ev:#x}: 0 to {(1 << bits) - 1:#x} is allowed")
    return (ev << (WIDE_BITS - bits)).to_bytes(WIDE_BITS // 8)


def expand_ev(
    ev_format: EvFormat, widths: Sequence[int], fields: Sequence[EvField], ev: int | bytes
) -> int | IPv6Address | tuple[IPv6Address, IPv6Address]:
    """What switches read for an entropy value (docs/spec/wire.md, "EV profile expansion"). A pure function.

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


@dataclass(frozen=True, kw_only=True)
class EvFormatAttr:
    """Attributes of an EV format profile."""

    ev_format: EvFormat | None = None
    """Where packets carry the values: the device's own format. SRV6 and SRV6_SRH are one; the widths tell."""
    widths: Sequence[int] | None = None
    """Bits of each field, from the most significant on."""


class EvFormatProfile(Profile):
    """Layout of entropy values in packets; made by :meth:`Controller.ev_format_profile`.

    Attributes: :class:`EvFormatAttr`. OFFLINE needs the format, ONLINE the widths.
    """

    _what = "an EV format profile"
    _attributes = EvFormatAttr

    @property
    def state(self) -> ProfileState:
        """Its state."""
        return ProfileState(self._core.ev_format(self._key)[0])

    @property
    def ev_format(self) -> EvFormat | None:
        """Where packets carry the values; ``None`` in INIT."""
        ev_format = self._core.ev_format(self._key)[1]
        return None if ev_format is None else EvFormat(ev_format)

    @property
    def widths(self) -> tuple[int, ...]:
        """Bits of each field; empty while they were not given."""
        return tuple(self._core.ev_format(self._key)[2])

    def _change(self, state: ProfileState | None, given: EvFormatAttr) -> None:
        ev_format = None if given.ev_format is None else member(EvFormat, given.ev_format, "ev_format")
        widths = None if given.widths is None else list(given.widths)
        self._core.modify_ev_format(self._key, state, ev_format, widths)
