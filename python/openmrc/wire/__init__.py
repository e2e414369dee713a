"""MRC and RoCEv2 packets: decode captures, build packets.

    >>> from openmrc import wire
    >>> write = wire.Write(va=0x1000, rkey=1, dma_len=3)
    >>> packet = wire.Packet(dest_qp=0x2A, psn=7, body=write, payload=b"abc")
    >>> data = packet.to_bytes(src="2001:db8::1", dst="2001:db8::2", ev=0xC0010002)
    >>> frame = wire.decode(data, wire.LinkType.RAW)
    >>> frame.packet == packet, frame.icrc
    (True, <IcrcVerdict.GOOD: 'good'>)
    >>> print(frame)
    2001:db8::1 > 2001:db8::2 ev 0xc0010002 WRITE_ONLY qp 0x00002a psn 7 msn 0 va 0x1000 dma_len 3 len 3

Every object is immutable, is compared by value, and has the fields of its header. The Rust core converts to
and from bytes, with the same code as the endpoint.
"""

from openmrc.wire.bodies import (
    Ack,
    Body,
    CcState,
    Cnp,
    EndpointOp,
    EndpointRequest,
    EndpointResponse,
    Mark,
    Nack,
    NackReason,
    Position,
    Probe,
    RcAck,
    RcWrite,
    Sack,
    Timestamp,
    Write,
)
from openmrc.wire.capture import CaptureReader, read_pcap, write_pcap
from openmrc.wire.frame import Drop, Frame, IcrcVerdict, LinkType, decode, trim
from openmrc.wire.layers import (
    DSCP,
    MRC_PORT,
    ROCE_PORT,
    UDP_PORTS,
    Bth,
    DscpMap,
    EntropyOrder,
    Ethernet,
    EvFormat,
    IPv4,
    IPv6,
    Outer,
    Srh,
    Udp,
    parse_usids,
    usid_address,
)
from openmrc.wire.live import LiveCapture
from openmrc.wire.packet import Packet
from openmrc.wire.readings import Readings

__all__ = [
    "DSCP",
    "MRC_PORT",
    "ROCE_PORT",
    "UDP_PORTS",
    "Ack",
    "Body",
    "Bth",
    "CaptureReader",
    "CcState",
    "Cnp",
    "Drop",
    "DscpMap",
    "EndpointOp",
    "EndpointRequest",
    "EndpointResponse",
    "EntropyOrder",
    "Ethernet",
    "EvFormat",
    "Frame",
    "IPv4",
    "IPv6",
    "IcrcVerdict",
    "LinkType",
    "LiveCapture",
    "Mark",
    "Nack",
    "NackReason",
    "Outer",
    "Packet",
    "Position",
    "Probe",
    "RcAck",
    "RcWrite",
    "Readings",
    "Sack",
    "Srh",
    "Timestamp",
    "Udp",
    "Write",
    "decode",
    "parse_usids",
    "read_pcap",
    "trim",
    "usid_address",
    "write_pcap",
]
