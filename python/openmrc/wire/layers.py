"""The headers around a packet, which determine its path and its class."""

import enum
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import Annotated, Any

from openmrc import _core
from openmrc.errors import ArgumentError
from openmrc.wire.value import (
    U2,
    U4,
    U6,
    U8,
    U16,
    U24,
    Hex8,
    Hex16,
    Hex20,
    Hex24,
    Number,
    Value,
    header,
)

ROCE_PORT: int = _core.ROCE_PORT
"""UDP destination port of RoCEv2 (IANA), and of MRC by default."""

MRC_PORT: int = _core.MRC_PORT
"""UDP destination port that MRC 1.0 prints as its default."""

UDP_PORTS = (ROCE_PORT, MRC_PORT)
"""The ports that captures of MRC traffic have."""


@header
class Ethernet(Value):
    """Ethernet header, with an 802.1Q tag if ``vlan`` is given."""

    dst: str = "02:00:00:00:00:02"
    src: str = "02:00:00:00:00:01"
    vlan: Hex16 | None = None
    """Tag control information: PCP, DEI, VLAN id."""
    ethertype: Hex16 = 0
    """Filled in when a packet is built."""


@header
class IPv4(Value):
    """IPv4 header."""

    src: IPv4Address
    dst: IPv4Address
    dscp: U6 = 0
    ecn: U2 = 2
    """0 not-ECT, 1 ECT(1), 2 ECT(0), 3 CE."""
    ttl: U8 = 64
    identification: U16 = 0
    dont_fragment: bool = True
    protocol: U8 = 17
    total_len: U16 = 0


@header
class IPv6(Value):
    """IPv6 header."""

    src: IPv6Address
    dst: IPv6Address
    dscp: U6 = 0
    ecn: U2 = 2
    """0 not-ECT, 1 ECT(1), 2 ECT(0), 3 CE."""
    flow_label: Hex20 = 0
    hop_limit: U8 = 64
    next_header: U8 = 17
    payload_len: U16 = 0


@header
class Srh(Value):
    """Segment routing header (RFC 8754, RFC 9800). MRC writes one compressed segment."""

    segment: IPv6Address
    """The last segment of the path."""
    segments_left: U8 = 1
    segments: Annotated[int, Number(1, 127)] = 1
    """How many segments the list has; a packet can be built with one."""
    flags: Hex8 = 0
    tag: Hex16 = 0
    next_header: U8 = 41


@header
class Outer(Value):
    """Outer header of SRv6 mode: its destination is the path."""

    ip: IPv6
    srh: Srh | None = None


@header
class Udp(Value):
    """UDP header."""

    sport: U16
    dport: U16 = ROCE_PORT
    length: U16 = 0
    checksum: Hex16 = 0


@header
class Bth(Value):
    """Base transport header as it arrived, whatever follows."""

    opcode: Hex8
    solicited: bool
    migrated: bool
    pad: U2
    tver: U4
    pkey: Hex16
    variant: Hex8
    dest_qp: Hex24
    ack_req: bool
    rtx: bool
    ts: bool
    psn: U24


@header
class DscpMap(Value):
    """The code point of each class. An operator chooses them; the defaults come from the core."""

    no_trim: U6
    trimmable: U6
    trimmable_retx: U6
    trimmed: U6
    trimmed_last_hop: U6
    control: U6


DSCP = DscpMap._from_core(_core.dscp_defaults())
"""The default code points."""


class EntropyOrder(enum.StrEnum):
    """Which half of a packet's 32-bit entropy is where; public readings of MRC 1.0 differ."""

    FLOW_LABEL_HIGH = "flow_label_high"
    """The high half is the low 16 bits of the IPv6 flow label, the low half the UDP source port."""
    SOURCE_PORT_HIGH = "source_port_high"
    """The other way round."""

    def entropy(self, sport: int, flow_label: int) -> int:
        """The entropy of a UDP source port and a flow label (0 for IPv4), which a responder reflects."""
        return _core.read_entropy(self.value, sport, flow_label)


class EvFormat(enum.StrEnum):
    """How switches learn the path of a packet: where it carries the entropy value."""

    UDP = "udp"
    """16 bits: UDP source port; 32 bits where the fabric also hashes the flow label."""
    STRUCTURED = "structured"
    """32 bits: the low 16 bits of the flow label, then the UDP source port."""
    SRV6 = "srv6"
    """The path is the outer destination; a 32-bit EV is carried as in STRUCTURED."""
    SRV6_SRH = "srv6_srh"
    """As SRV6, with one more segment."""

    def place(self, ev: int, order: EntropyOrder = EntropyOrder.FLOW_LABEL_HIGH) -> tuple[int, int]:
        """UDP source port and flow label of an EV. In UDP mode the low half is the source port in any order.

        Raises:
            ArgumentError: if the EV has more than 32 bits.
        """
        try:
            return _core.place_ev(self.value, order.value, ev)
        except (ValueError, OverflowError) as error:
            raise ArgumentError(f"ev {ev}: {error}") from None


def ip_from_core(fields: dict[str, Any] | None) -> IPv4 | IPv6 | None:
    """The IP header for the core's fields."""
    if fields is None:
        return None
    return IPv4._from_core(fields) if "ttl" in fields else IPv6._from_core(fields)


def usid_address(block: int, usids: Sequence[int]) -> IPv6Address:
    """The address of a path: a 32-bit block, then up to six 16-bit uSIDs in the order they are visited.

    Raises:
        ArgumentError: if there is no uSID, one is 0, or there are more than six.
    """
    try:
        return _core.usid_address(block, list(usids))
    except (ValueError, OverflowError) as error:
        raise ArgumentError(str(error)) from None


def parse_usids(address: IPv6Address | str) -> tuple[int, tuple[int, ...]]:
    """Block and uSIDs of a path address.

    Raises:
        ArgumentError: if it has no uSID, or one after a zero.
    """
    try:
        block, usids = _core.parse_usids(IPv6Address(address))
    except ValueError as error:
        raise ArgumentError(f"{address} is not a path address: {error}") from None
    return block, tuple(usids)
