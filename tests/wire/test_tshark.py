"""Wireshark as judge: tshark reads the values that we have written."""

import json
import shutil
import subprocess
from ipaddress import ip_address

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from openmrc import wire
from tests.helpers.packets import linktype, packets, rocev2_bodies, ways
from tests.helpers.repository import words

TSHARK = shutil.which("tshark")
pytestmark = pytest.mark.skipif(TSHARK is None, reason="tshark is not installed (Debian: apt install tshark)")

FIELDS = [
    "ip.src",
    "ip.dst",
    "ip.dsfield.dscp",
    "ip.dsfield.ecn",
    "ip.ttl",
    "ip.checksum.status",
    "ipv6.src",
    "ipv6.dst",
    "ipv6.flow",
    "ipv6.tclass.dscp",
    "ipv6.tclass.ecn",
    "ipv6.hlim",
    "udp.srcport",
    "udp.dstport",
    "udp.length",
    "udp.checksum.status",
    "infiniband.bth.opcode",
    "infiniband.bth.se",
    "infiniband.bth.m",
    "infiniband.bth.padcnt",
    "infiniband.bth.tver",
    "infiniband.bth.p_key",
    "infiniband.bth.destqp",
    "infiniband.bth.a",
    "infiniband.bth.psn",
    "infiniband.reth.va",
    "infiniband.reth.r_key",
    "infiniband.reth.dmalen",
    "infiniband.immdt",
    "infiniband.aeth.syndrome",
    "infiniband.aeth.msn",
    "infiniband.invariant.crc",
    "_ws.malformed",
]
CHECKSUM_GOOD = 1

# Protocols that Wireshark may recognise in a random payload.
GUESSES = [
    "smc",
    "smb_direct",
    "rpcordma",
    "nvme-rdma",
    "lnet",
    "iser",
    "infiniband_sdp",
    "fcoib",
    "infiniband.eoib",
]

# Source ports of the dynamic range: a lower port may belong to another protocol, which Wireshark tries first.
EVS = st.builds(lambda high, low: high << 16 | low, st.integers(0, 0xFFFF), st.integers(0xC000, 0xFFFF))


def tshark(path):
    """The fields of every packet, as read by tshark: a list of strings by name."""
    command = [
        TSHARK,
        "-n",
        "-r",
        path,
        "-T",
        "json",
        "-o",
        "ip.check_checksum:TRUE",
        "-o",
        "udp.check_checksum:TRUE",
    ]
    for field in FIELDS:
        command += ["-e", field]
    for protocol in GUESSES:
        command += ["--disable-protocol", protocol]
    command += ["--disable-heuristic", "eth_over_ib"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return [packet["_source"]["layers"] for packet in json.loads(result.stdout)]


def number(seen, name, which=0):
    return int(seen[name][which], 0)


def addresses(seen, name):
    return [ip_address(text) for text in seen.get(name, [])]


def check_network(seen, way):
    """IP and UDP, the outer header first if there is one."""
    last = -1
    sources = addresses(seen, "ipv6.src") + addresses(seen, "ip.src")
    destinations = addresses(seen, "ipv6.dst") + addresses(seen, "ip.dst")
    assert (sources[last], destinations[last]) == (way["src"], way["dst"])
    if way["src"].version == 6:
        assert number(seen, "ipv6.flow", last) == way["ev"] >> 16
        names = ("ipv6.tclass.dscp", "ipv6.tclass.ecn", "ipv6.hlim")
    else:
        assert number(seen, "ip.checksum.status") == CHECKSUM_GOOD
        names = ("ip.dsfield.dscp", "ip.dsfield.ecn", "ip.ttl")
    assert [number(seen, name, last) for name in names] == [way["dscp"], way["ecn"], way["hop_limit"]]
    if "path" in way:
        assert sources[0] == way["outer_src"]
        assert way["path"] in destinations
    assert number(seen, "udp.srcport") == way["ev"] & 0xFFFF
    assert number(seen, "udp.dstport") == 4791
    if way["udp_checksum"]:
        assert number(seen, "udp.checksum.status") == CHECKSUM_GOOD


def check_bth(seen, packet):
    # Wireshark has the IBTA's order of SE and M. MRC has the other, and M is 0.
    mrc = packet.opcode >> 5 == 0b110
    expected = {
        "opcode": packet.opcode,
        "se": False if mrc else packet.solicited,
        "m": packet.solicited if mrc else packet.migrated,
        "padcnt": -len(packet.payload) % 4,
        "tver": 0,
        "p_key": packet.pkey,
        "destqp": packet.dest_qp,
        "a": packet.ack_req,
        "psn": packet.psn,
    }
    assert {name: number(seen, f"infiniband.bth.{name}") for name in expected} == expected


def check_body(seen, body):
    if isinstance(body, wire.RcWrite) and body.position in ("first", "only"):
        assert number(seen, "infiniband.reth.va") == body.va
        assert number(seen, "infiniband.reth.r_key") == body.rkey
        assert number(seen, "infiniband.reth.dmalen") == body.dma_len
    if isinstance(body, wire.RcWrite) and body.imm is not None:
        assert set(seen["infiniband.immdt"]) == {f"{body.imm:08x}"}  # tshark adds the header and its field
    if isinstance(body, wire.RcAck):
        assert number(seen, "infiniband.aeth.syndrome") == body.syndrome
        assert number(seen, "infiniband.aeth.msn") == body.msn


def judge(tmp_path, cases):
    """Writes one capture per link type and lets tshark read it."""
    for link in (wire.LinkType.RAW, wire.LinkType.ETHERNET):
        some = [(packet, way) for packet, way in cases if linktype(way) == link]
        if not some:
            continue
        path = tmp_path / f"{link.name}.pcap"
        built = [packet.to_bytes(**way) for packet, way in some]
        assert wire.write_pcap(path, built, link) == len(some)
        read = tshark(path)
        assert len(read) == len(some)
        for seen, data, (packet, way) in zip(read, built, some, strict=True):
            assert "_ws.malformed" not in seen, packet
            check_network(seen, way)
            check_bth(seen, packet)
            check_body(seen, packet.body)
            if not isinstance(packet.body, wire.Cnp) and packet.opcode < 0x80:
                assert "infiniband.invariant.crc" in seen, packet
                assert number(seen, "infiniband.invariant.crc") == int.from_bytes(data[-4:], "big")


PACKETS = 300
"""Packets of each of the two large tests."""


def collect(strategy, count=PACKETS):
    """Many arbitrary values at once: tshark reads them in one run; nothing is to be shrunk."""
    cases = []

    @settings(max_examples=count, phases=[Phase.generate], database=None)
    @given(strategy)
    def add(case):
        cases.append(case)

    add()
    return cases


def test_tshark_reads_every_field_of_rocev2_packets(tmp_path):
    judge(tmp_path, collect(st.tuples(packets(of=rocev2_bodies), ways(EVS))))


def test_tshark_reads_network_and_base_header_of_mrc_packets(tmp_path):
    judge(tmp_path, collect(st.tuples(packets(), ways(EVS))))


def test_tshark_sees_a_trimmed_packet_as_a_valid_datagram(tmp_path):
    write = wire.Write(va=0x1000, rkey=7, dma_len=1000, timestamp=wire.Timestamp(ticks=5))
    packet = wire.Packet(dest_qp=3, psn=9, body=write, payload=bytes(1000))
    whole = packet.to_bytes(src="10.0.0.1", dst="10.0.0.2", ev=0xC001, ethernet=wire.Ethernet())
    trimmed = wire.trim(whole, last_hop=True)
    path = tmp_path / "trimmed.pcap"
    wire.write_pcap(path, [trimmed])
    (seen,) = tshark(path)
    assert number(seen, "ip.dsfield.dscp") == wire.DSCP.trimmed_last_hop
    assert number(seen, "udp.length") == 8 + 12 + 4 + 4 + 16
    assert number(seen, "ip.checksum.status") == CHECKSUM_GOOD
    assert number(seen, "udp.checksum.status") == CHECKSUM_GOOD
    assert number(seen, "infiniband.bth.psn") == 9


def test_docs_interop_says_how_much_was_compared():
    assert f"{2 * PACKETS + 1} packets by tshark, {len(FIELDS)} fields" in words("docs/interop.md")
