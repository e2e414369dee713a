"""A captured packet with all its layers."""

import enum
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import Any

from openmrc import _core
from openmrc.errors import ArgumentError
from openmrc.wire.bodies import NackReason, body_from_core
from openmrc.wire.layers import (
    DSCP,
    ROCE_PORT,
    UDP_PORTS,
    Bth,
    DscpMap,
    EntropyOrder,
    Ethernet,
    IPv4,
    IPv6,
    Outer,
    Udp,
    ip_from_core,
)
from openmrc.wire.packet import Packet
from openmrc.wire.value import Value, header

_ECN_NAMES = ("", "", "", "CE")


class LinkType(enum.IntEnum):
    """The first header of captured bytes (LINKTYPE numbers of tcpdump.org)."""

    NULL = 0
    ETHERNET = 1
    RAW = 101
    """An IP header."""
    LOOP = 108
    LINUX_SLL = 113
    IPV4 = 228
    IPV6 = 229
    LINUX_SLL2 = 276


class IcrcVerdict(enum.StrEnum):
    """Result of checking the last four bytes of a packet."""

    GOOD = "good"
    BAD = "bad"
    TRIMMED = "trimmed"
    """A switch has trimmed the iCRC together with the payload."""
    UNKNOWN = "unknown"
    """The capture ends before it, or the packet could not be decoded that far."""


@header
class Drop(Value):
    """The reason why a receiver drops a packet, or why it could not be decoded further."""

    counter: str
    """Name of the counter of this cause; it is stable."""
    message: str


@header
class Frame(Value):
    """A captured packet: every layer that could be decoded, and the reason if one could not."""

    ethernet: Ethernet | None = None
    outer: Outer | None = None
    ip: IPv4 | IPv6 | None = None
    """The header that encloses UDP."""
    udp: Udp | None = None
    bth: Bth | None = None
    packet: Packet | None = None
    payload_len: int = 0
    """Payload bytes on the wire; more than in ``packet.payload`` if the capture was cut."""
    trimmed: NackReason | None = None
    """TRIMMED or TRIMMED_LAST_HOP if a switch has trimmed the packet."""
    cut: bool = False
    """Whether the capture ends before the packet does."""
    icrc: IcrcVerdict = IcrcVerdict.UNKNOWN
    differences: tuple[str, ...] = ()
    """Values that differ from those that openmrc sends, though a reading of MRC 1.0 allows them: the names
    of a device's ``peer_*`` counters."""
    error: Drop | None = None
    linktype: int = LinkType.RAW
    wire_len: int = 0
    """Bytes on the wire, from the link header on."""
    time_ns: int | None = None
    """Time of capture, nanoseconds since 1970."""

    @property
    def ok(self) -> bool:
        """Whether a receiver would accept the packet, complete or trimmed."""
        return self.packet is not None and self.error is None

    @property
    def src(self) -> IPv4Address | IPv6Address | None:
        """Source address, the inner one in SRv6 mode."""
        return None if self.ip is None else self.ip.src

    @property
    def dst(self) -> IPv4Address | IPv6Address | None:
        """Destination address, the inner one in SRv6 mode."""
        return None if self.ip is None else self.ip.dst

    @property
    def dscp(self) -> int | None:
        """The code point of the outermost IP header, which switches rewrite."""
        if self.outer is not None:
            return self.outer.ip.dscp
        return None if self.ip is None else self.ip.dscp

    @property
    def path(self) -> IPv6Address | None:
        """SRv6 mode: the rest of the path."""
        return None if self.outer is None else self.outer.ip.dst

    def ev(self, order: EntropyOrder = EntropyOrder.FLOW_LABEL_HIGH) -> int | None:
        """The 32-bit entropy of the packet, which its receiver reflects. With IPv4 one half is 0."""
        if self.udp is None:
            return None
        flow_label = self.ip.flow_label if isinstance(self.ip, IPv6) else 0
        return order.entropy(self.udp.sport, flow_label)

    def __str__(self) -> str:
        """One line, in the style of tcpdump."""
        return " ".join(part for part in self._words() if part)

    def _ev_word(self) -> str:
        # The packet does not say the format: over IPv6 all 32 bits are shown.
        if self.packet is None or self.udp is None:
            return ""
        if isinstance(self.ip, IPv6):
            return f"ev 0x{self.ev():08x}"
        return f"ev 0x{self.udp.sport:04x}"

    def _words(self) -> list[str]:
        words = []
        if self.ip is not None:
            words.append(f"{self.ip.src} > {self.ip.dst}")
        if self.path is not None:
            words.append(f"via {self.path}")
        words.append(self._ev_word())
        if self.packet is not None:
            body = self.packet.body
            words += [body.name, f"qp 0x{self.packet.dest_qp:06x}", f"psn {self.packet.psn}", body.summary()]
            if self.payload_len:
                words.append(f"len {self.payload_len}")
            flags = {"A": self.packet.ack_req, "RTX": self.packet.rtx, "SE": self.packet.solicited}
            words += [name for name, value in flags.items() if value]
        elif self.udp is not None:
            words.append(f"UDP {self.udp.sport} > {self.udp.dport}")
        if self.ip is not None:
            words.append(_ECN_NAMES[(self.outer.ip if self.outer else self.ip).ecn])
        if self.trimmed is not None:
            words.append(self.trimmed.name)
        if self.cut and self.error is None:
            words.append("[cut]")
        if self.error is not None:
            words.append(f"[{self.error.counter}: {self.error.message}]")
        return words


def decode(
    data: bytes | bytearray | memoryview,
    linktype: int = LinkType.ETHERNET,
    *,
    wire_len: int | None = None,
    time_ns: int | None = None,
    ports: Sequence[int] = UDP_PORTS,
    dscp: DscpMap = DSCP,
) -> Frame:
    """Decodes one captured packet. ``Frame.error`` has what is wrong with it; nothing is raised.

    Args:
        data: The bytes that were captured.
        linktype: Their first header.
        wire_len: Bytes on the wire, if the capture was cut.
        time_ns: Time of capture, for the frame.
        ports: UDP destination ports of MRC.
        dscp: Code points, by which trimmed packets are known.
    """
    fields: dict[str, Any] = _core.decode_frame(
        bytes(data),
        wire_len=max(len(data), wire_len or 0),
        linktype=linktype,
        ports=ports,
        dscp=dscp,
    )
    packet, payload, error = fields["packet"], fields.pop("payload"), fields["error"]
    if packet is not None:
        body = body_from_core(*packet.pop("body"))
        fields["packet"] = Packet(body=body, payload=payload, **packet)
    if error is not None:
        fields["error"] = Drop(counter=error[0], message=error[1])
    for name, kind in (("ethernet", Ethernet), ("udp", Udp), ("bth", Bth)):
        if fields[name] is not None:
            fields[name] = kind._from_core(fields[name])
    if fields["outer"] is not None:
        fields["outer"] = Outer._from_core(fields["outer"])
    fields["ip"] = ip_from_core(fields["ip"])
    fields["differences"] = tuple(fields["differences"])
    return Frame(**fields, linktype=linktype, wire_len=max(len(data), wire_len or 0), time_ns=time_ns)


def trim(
    data: bytes,
    linktype: int = LinkType.ETHERNET,
    *,
    last_hop: bool = False,
    port: int = ROCE_PORT,
    dscp: DscpMap = DSCP,
) -> bytes:
    """The packet as a trimming switch forwards it: headers only, with new DSCP and lengths.

    Args:
        data: A complete packet.
        linktype: Its first header.
        last_hop: Whether the full queue is the receiver's downlink (TRIMMED_LASTHOP).
        port: UDP destination port of MRC.
        dscp: Code points.

    Raises:
        ArgumentError: if a switch would drop the packet: not a WRITE, or not in a class that is trimmed.
    """
    try:
        return _core.trim_frame(bytes(data), linktype=linktype, port=port, dscp=dscp, last_hop=last_hop)
    except ValueError as error:
        raise ArgumentError(str(error)) from None
