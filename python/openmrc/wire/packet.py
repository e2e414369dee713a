"""A packet from the BTH on, and its conversion to bytes."""

from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple

from openmrc import _core
from openmrc.errors import ArgumentError
from openmrc.wire.bodies import Body
from openmrc.wire.layers import DSCP, ROCE_PORT, EntropyOrder, Ethernet, EvFormat, IPv4, IPv6, Outer, Srh, Udp
from openmrc.wire.value import U24, Hex8, Hex16, Hex24, Value, header


class Layers(NamedTuple):
    """The headers around a packet, outermost first, for building it."""

    ethernet: Ethernet | None
    outer: Outer | None
    ip: IPv4 | IPv6
    udp: Udp
    udp_checksum: bool


@header
class Packet(Value):
    """One packet: BTH, the extension headers of its body, payload."""

    dest_qp: Hex24
    psn: U24
    body: Body
    payload: bytes = b""
    """Without padding. In a capture that was cut, only the captured part."""
    pkey: Hex16 = 0xFFFF
    ack_req: bool = False
    rtx: bool = False
    solicited: bool = False
    """In a received MRC packet either of the bits SE and M sets it."""
    migrated: bool = False
    """RoCEv2 only; MRC sends 0."""
    variant: Hex8 = 0
    """BTH byte 4: FECN and BECN in RoCEv2."""

    @property
    def opcode(self) -> int:
        """BTH opcode."""
        return _core.packet_opcode(self)

    def to_bytes(
        self,
        *,
        src: IPv4Address | IPv6Address | str,
        dst: IPv4Address | IPv6Address | str,
        ev: int = 0,
        ev_format: EvFormat = EvFormat.STRUCTURED,
        entropy_order: EntropyOrder = EntropyOrder.FLOW_LABEL_HIGH,
        path: IPv6Address | str | None = None,
        segment: IPv6Address | str | None = None,
        outer_src: IPv6Address | str | None = None,
        dport: int = ROCE_PORT,
        dscp: int | None = None,
        ecn: int = 2,
        hop_limit: int = 64,
        udp_checksum: bool = True,
        ethernet: Ethernet | None = None,
    ) -> bytes:
        """The complete packet, from the Ethernet or IP header to the iCRC.

        Args:
            src: IPv4 or IPv6 address of the sender.
            dst: Address of the receiver, of the same family.
            ev: Entropy value.
            ev_format: Where the packet carries the entropy value.
            entropy_order: Which half of it is the UDP source port.
            path: SRv6 mode: destination of an outer IPv6 header, see :func:`openmrc.wire.usid_address`.
            segment: SRv6 mode: one more segment, in an SRH.
            outer_src: SRv6 mode: source of the outer header; ``src`` if not given.
            dport: UDP destination port.
            dscp: Code point of all IP headers; default that of the packet's class in a network that trims.
            ecn: 0 not-ECT, 1 ECT(1), 2 ECT(0), 3 CE.
            hop_limit: Hop limit or TTL.
            udp_checksum: Whether to compute it; otherwise it is 0.
            ethernet: Ethernet header; its type is filled in.

        Raises:
            ArgumentError: for values that do not fit their field, addresses of two families, or payload after
                headers that carry none.
        """
        try:
            source, destination = ip_address(src), ip_address(dst)
        except ValueError as error:
            raise ArgumentError(str(error)) from None
        code_point = _core.packet_dscp(self, DSCP, True) if dscp is None else dscp
        sport, flow_label = ev_format.place(ev, entropy_order)
        ip: IPv4 | IPv6
        if isinstance(source, IPv4Address) and isinstance(destination, IPv4Address):
            ip = IPv4(src=source, dst=destination, dscp=code_point, ecn=ecn, ttl=hop_limit)
        elif isinstance(source, IPv6Address) and isinstance(destination, IPv6Address):
            ip = IPv6(
                src=source,
                dst=destination,
                dscp=code_point,
                ecn=ecn,
                hop_limit=hop_limit,
                flow_label=flow_label,
            )
        else:
            raise ArgumentError(f"{source} and {destination} are not of one family")
        layers = Layers(
            ethernet, _outer(ip, path, segment, outer_src), ip, Udp(sport=sport, dport=dport), udp_checksum
        )
        try:
            return _core.encode_frame(layers, self, self.payload)
        except ValueError as error:
            raise ArgumentError(str(error)) from None


def _outer(
    inner: IPv4 | IPv6,
    path: IPv6Address | str | None,
    segment: IPv6Address | str | None,
    outer_src: IPv6Address | str | None,
) -> Outer | None:
    if path is None:
        if segment is not None or outer_src is not None:
            raise ArgumentError("segment and outer_src belong to a path: give path too")
        return None
    if outer_src is None and isinstance(inner, IPv4):
        raise ArgumentError("an IPv4 packet on an SRv6 path needs outer_src")
    try:
        ip = IPv6(
            src=inner.src if outer_src is None else IPv6Address(outer_src),  # type: ignore[arg-type]  # IPv6 by now
            dst=IPv6Address(path),
            dscp=inner.dscp,
            ecn=inner.ecn,
            flow_label=inner.flow_label if isinstance(inner, IPv6) else 0,
        )
        return Outer(ip=ip, srh=None if segment is None else Srh(segment=IPv6Address(segment)))
    except ValueError as error:
        raise ArgumentError(str(error)) from None
