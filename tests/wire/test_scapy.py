"""Scapy as judge: it builds the same packet from the same values, iCRC and checksums included."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openmrc import wire
from tests.helpers.packets import mrc_bodies, packets, rocev2_bodies, uint
from tests.helpers.repository import words

pytest.importorskip("scapy", reason="scapy is not installed")
from scapy.contrib.roce import AETH, BTH, cnp
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Raw

ROCEV2, MRC, FOREIGN, SRV6 = 300, 300, 200, 100
"""Packets of each test; one more is the CNP."""


def reth(body):
    return struct.pack(">QII", body.va, body.rkey, body.dma_len)


def scapy_bth(packet, reserved=0):
    # Scapy has the IBTA's order of SE and M. MRC has the other, and M is 0.
    mrc = packet.opcode >> 5 == 0b110
    return BTH(
        opcode=packet.opcode,
        solicited=False if mrc else packet.solicited,
        migreq=packet.solicited if mrc else packet.migrated,
        padcount=-len(packet.payload) % 4,
        pkey=packet.pkey,
        fecn=packet.variant >> 7,
        becn=packet.variant >> 6 & 1,
        resv6=packet.variant & 0x3F,
        dqpn=packet.dest_qp,
        ackreq=packet.ack_req,
        resv7=reserved,
        psn=packet.psn,
    )


def behind_bth(packet):
    """RoCEv2 extension headers, payload and padding, written here from the IBTA tables."""
    body = packet.body
    if isinstance(body, wire.RcAck):
        return AETH(syndrome=body.syndrome, msn=body.msn)
    if isinstance(body, wire.Cnp):
        return Raw(bytes(16))
    data = reth(body) if body.position in ("first", "only") else b""
    data += struct.pack(">I", body.imm) if body.imm is not None else b""
    return Raw(data + packet.payload + bytes(-len(packet.payload) % 4))


@st.composite
def addresses(draw):
    version = draw(st.sampled_from([4, 6]))
    each = st.ip_addresses(v=version).map(str)
    return version, draw(each), draw(each)


def scapy_ip(version, src, dst, *, ev, dscp, ecn, hops):
    traffic_class = dscp << 2 | ecn
    udp = UDP(sport=ev & 0xFFFF, dport=wire.ROCE_PORT)
    if version == 4:
        return IP(src=src, dst=dst, tos=traffic_class, ttl=hops, id=0, flags="DF") / udp
    return IPv6(src=src, dst=dst, tc=traffic_class, fl=ev >> 16, hlim=hops) / udp


@settings(max_examples=ROCEV2)
@given(packets(of=rocev2_bodies), addresses(), uint(32), uint(6), uint(2), st.integers(1, 255))
def test_scapy_builds_the_same_rocev2_packets(packet, ends, ev, dscp, ecn, hops):
    version, src, dst = ends
    ours = packet.to_bytes(src=src, dst=dst, ev=ev, dscp=dscp, ecn=ecn, hop_limit=hops)
    ip = scapy_ip(version, src, dst, ev=ev, dscp=dscp, ecn=ecn, hops=hops)
    assert ours.hex() == bytes(ip / scapy_bth(packet) / behind_bth(packet)).hex()


@settings(max_examples=MRC)
@given(packets(of=mrc_bodies), addresses(), uint(32))
def test_scapy_computes_the_same_icrc_of_mrc_packets(packet, ends, ev):
    version, src, dst = ends
    ours = packet.to_bytes(src=src, dst=dst, ev=ev, dscp=0, ecn=0)
    ip = scapy_ip(version, src, dst, ev=ev, dscp=0, ecn=0, hops=64)
    timestamp = isinstance(packet.body, wire.Write) and packet.body.timestamp is not None
    bth = scapy_bth(packet, reserved=packet.rtx << 5 | timestamp << 4)
    behind = ours[len(ip) + 12 : -4]
    assert ours.hex() == bytes(ip / bth / Raw(behind)).hex()


def test_scapy_builds_the_same_cnp():
    ours = wire.Packet(dest_qp=0x1234, psn=0, body=wire.Cnp(), variant=0x40)
    ip = scapy_ip(6, "2001:db8::1", "2001:db8::2", ev=0, dscp=46, ecn=2, hops=64)
    assert ours.to_bytes(src="2001:db8::1", dst="2001:db8::2") == bytes(ip / cnp(0x1234))


@settings(max_examples=FOREIGN)
@given(packets(of=rocev2_bodies), addresses(), uint(16))
def test_a_packet_that_scapy_builds_is_decoded(packet, ends, sport):
    version, src, dst = ends
    ip = scapy_ip(version, src, dst, ev=sport, dscp=4, ecn=3, hops=7)
    frame = wire.decode(bytes(ip / scapy_bth(packet) / behind_bth(packet)), wire.LinkType.RAW)
    assert (frame.packet, frame.icrc, frame.error) == (packet, wire.IcrcVerdict.GOOD, None)
    assert (str(frame.src), str(frame.dst), frame.ip.ecn) == (src, dst, 3)
    assert frame.ev() == sport


@settings(max_examples=SRV6)
@given(packets(), uint(32))
def test_scapy_reads_the_layers_of_an_srv6_packet(packet, ev):
    path = wire.usid_address(0x5F000000, [0x11, 0x102, 0x12, 0xE00C])
    data = packet.to_bytes(
        src="2001:db8::1", dst="2001:db8::2", ev=ev, path=path, segment="5f00:0:13::", outer_src="fd00::9"
    )
    outer = IPv6(data)
    assert (outer.src, outer.dst, outer.nh) == ("fd00::9", "5f00:0:11:102:12:e00c::", 43)
    header = outer["IPv6ExtHdrSegmentRouting"]
    assert (header.type, header.segleft, header.lastentry, header.nh) == (4, 1, 0, 41)
    assert header.addresses == ["5f00:0:13::"]
    inner = header[IPv6]
    assert (inner.src, inner.dst, inner.fl) == ("2001:db8::1", "2001:db8::2", ev >> 16)
    assert (inner[UDP].sport, inner[BTH].opcode, inner[BTH].psn) == (ev & 0xFFFF, packet.opcode, packet.psn)


def test_docs_interop_says_how_much_was_compared():
    assert f"{ROCEV2 + MRC + FOREIGN + SRV6 + 1} packets by scapy" in words("docs/interop.md")
