"""openmrc.wire: built packets are decoded, damage is named, files of both formats are read."""

import dataclasses
import gzip
import io
import random
import struct
from ipaddress import IPv6Address

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openmrc import wire
from openmrc.errors import ArgumentError, FormatError
from openmrc.wire.value import Value
from tests.helpers.packets import bodies, linktype, packets, uint, ways

ENDS = {"src": "2001:db8::1", "dst": "2001:db8::2"}
WRITE = wire.Packet(
    dest_qp=0x2A, psn=7, body=wire.Write(va=0x1000, rkey=1, dma_len=64), payload=bytes(range(64))
)
SACK = wire.Packet(dest_qp=0x2A, psn=7, body=wire.Sack(cack_psn=7))


def counter(data, link=wire.LinkType.RAW, **options):
    return wire.decode(data, link, **options).error.counter


# --- values -------------------------------------------------------------------------------------------------


@settings(max_examples=300)
@given(packets(), ways())
def test_what_is_built_is_decoded(packet, way):
    frame = wire.decode(packet.to_bytes(**way), linktype(way))
    assert (frame.error, frame.icrc, frame.packet) == (None, wire.IcrcVerdict.GOOD, packet)
    assert frame.ok
    assert (frame.src, frame.dst, frame.dscp, frame.path) == (
        way["src"],
        way["dst"],
        way["dscp"],
        way.get("path"),
    )
    expected = way["ev"] if way["src"].version == 6 else way["ev"] & 0xFFFF
    assert frame.ev() == expected, "IPv4 has no flow label for the high half"
    assert frame.payload_len == len(packet.payload)


@given(packets())
def test_a_repr_makes_the_object_again(packet):
    packet = dataclasses.replace(packet, payload=packet.payload[:16])
    assert eval(repr(packet), vars(wire).copy()) == packet


@given(packets(), ways())
def test_a_summary_is_one_line_that_names_the_packet(packet, way):
    line = str(wire.decode(packet.to_bytes(**way), linktype(way)))
    assert "\n" not in line
    for part in (packet.body.name, f"qp 0x{packet.dest_qp:06x}", f"psn {packet.psn}", str(way["src"])):
        assert part in line


@given(bodies)
def test_every_body_knows_its_opcode(body):
    opcodes = {
        "Write": range(0xC6, 0xCC),
        "Ack": [0xD1],
        "EndpointRequest": [0xD8],
        "EndpointResponse": [0xD9],
        "Sack": [0xDC],
        "Nack": [0xDD],
        "Probe": [0xDE],
        "RcWrite": range(0x06, 0x0C),
        "RcAck": [0x11],
        "Cnp": [0x81],
    }
    assert wire.Packet(dest_qp=2, psn=0, body=body).opcode in opcodes[type(body).__name__]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: wire.Write(msn=65536), "Write.msn is 65536, must be 0 to 65535"),
        (lambda: wire.Write(va=-1), "Write.va is -1, must be 0 to"),
        (lambda: wire.Write(rkey=1.5), "Write.rkey is 1.5, must be an integer"),
        (lambda: wire.Write(position="second"), "must be one of first, middle, last, only"),
        (lambda: wire.Write(timestamp=5), "Write.timestamp is 5, must be a Timestamp"),
        (lambda: wire.Sack(ack_psn_offset=1 << 15), "must be -32768 to 32767"),
        (lambda: dataclasses.replace(WRITE, psn=1 << 24), "Packet.psn is 16777216"),
        (lambda: dataclasses.replace(SACK, payload=b"x").to_bytes(**ENDS), "opcode 0xdc carries no payload"),
        (lambda: dataclasses.replace(WRITE, payload=bytes(1 << 16)).to_bytes(**ENDS), "65536 bytes"),
        (
            lambda: dataclasses.replace(WRITE, payload=bytes(65500)).to_bytes(**ENDS),
            "do not fit an IP packet",
        ),
        (lambda: WRITE.to_bytes(src="10.0.0.1", dst="::1"), "not of one family"),
        (lambda: WRITE.to_bytes(src="10.0.0.999", dst="::1"), "10.0.0.999"),
        (lambda: WRITE.to_bytes(**ENDS, ev=1 << 32), "ev 4294967296"),
        (lambda: WRITE.to_bytes(**ENDS, ev=1 << 32, ev_format=wire.EvFormat.UDP), "ev 4294967296"),
        (lambda: WRITE.to_bytes(**ENDS, segment="5f00::"), "give path too"),
        (lambda: WRITE.to_bytes(src="10.0.0.1", dst="10.0.0.2", path="5f00:0:1::"), "needs outer_src"),
        (lambda: WRITE.to_bytes(**ENDS, ethernet=wire.Ethernet(dst="02:00")), "not an Ethernet address"),
        (lambda: wire.usid_address(0x5F000000, [1, 0, 2]), "uSID 2 is 0"),
        (lambda: wire.usid_address(0x5F000000, []), "at least one"),
        (lambda: wire.usid_address(0x5F000000, [1] * 7), "at most 6"),
        (lambda: wire.parse_usids("2001:db8::1"), "is not a path address"),
    ],
)
def test_what_no_packet_can_hold_is_refused_with_its_name(make, message):
    with pytest.raises(ArgumentError) as error:
        make()
    assert message in str(error.value)


@given(uint(32), st.lists(st.integers(1, 0xFFFF), min_size=1, max_size=6))
def test_usids_survive_their_address(block, usids):
    address = wire.usid_address(block, usids)
    assert wire.parse_usids(address) == (block, tuple(usids))
    expected = sum(usid << (80 - 16 * i) for i, usid in enumerate(usids))
    assert address == IPv6Address(block << 96 | expected)


@given(uint(32), st.sampled_from(wire.EntropyOrder))
def test_every_format_reads_back_what_it_placed(ev, order):
    for ev_format in wire.EvFormat:
        reads = wire.EntropyOrder.FLOW_LABEL_HIGH if ev_format is wire.EvFormat.UDP else order
        assert reads.entropy(*ev_format.place(ev, order)) == ev


def test_the_high_half_of_the_entropy_is_the_flow_label_unless_the_order_is_the_other():
    data = WRITE.to_bytes(**ENDS, ev=0xC0010002, udp_checksum=False)
    assert (data[:4].hex(), data[40:42].hex()) == ("6120c001", "0002")
    data = WRITE.to_bytes(**ENDS, ev=0xC0010002, entropy_order=wire.EntropyOrder.SOURCE_PORT_HIGH)
    assert (data[:4].hex(), data[40:42].hex()) == ("61200002", "c001")
    data = WRITE.to_bytes(**ENDS, ev=0xC001, ev_format=wire.EvFormat.UDP)
    assert (data[:4].hex(), data[40:42].hex()) == ("61200000", "c001")


def test_either_of_two_bits_asks_for_a_solicited_event():
    whole = dataclasses.replace(WRITE, solicited=True).to_bytes(**ENDS)
    assert whole[49] == 0x40, "SE is bit 6, M is bit 7 and 0"
    other = bytearray(whole)
    other[49] = 0x80
    frame = wire.decode(bytes(other), wire.LinkType.RAW)
    assert frame.packet.solicited
    assert (frame.bth.solicited, frame.bth.migrated) == (False, True)
    assert frame.differences == ("peer_bth_m",)


def test_another_reading_of_the_specification_is_decoded_and_named():
    nack = wire.Packet(dest_qp=5, psn=9, body=wire.Nack(reason="trimmed", vendor_info=0xFF))
    frame = wire.decode(nack.to_bytes(**ENDS), wire.LinkType.RAW)
    assert (frame.ok, frame.differences) == (True, ("peer_vendor_info",))
    assert wire.decode(WRITE.to_bytes(**ENDS), wire.LinkType.RAW).differences == ()


# --- damage -------------------------------------------------------------------------------------------------


@given(st.binary(max_size=200), st.sampled_from(wire.LinkType) | uint(32), st.integers(0, 300))
def test_no_bytes_raise(data, link, wire_len):
    frame = wire.decode(data, link, wire_len=wire_len)
    assert (frame.packet is None) == (not frame.ok) or frame.error is not None
    assert isinstance(str(frame), str)
    assert frame.to_dict()["wire_len"] == max(len(data), wire_len)


@settings(max_examples=300)
@given(packets(), ways(), st.lists(st.tuples(uint(11), uint(8)), min_size=1, max_size=6))
def test_no_damaged_packet_raises(packet, way, damage):
    data = bytearray(packet.to_bytes(**way))
    for at, value in damage:
        data[at % len(data)] = value
    frame = wire.decode(data, linktype(way))
    assert frame.ok or frame.error is not None
    str(frame)


def changed(packet, change):
    """A packet with replaced bytes after the UDP header: {offset: value}."""
    data = bytearray(packet.to_bytes(**ENDS))
    for at, value in change.items():
        data[48 + at] = value
    return data


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({0: 0x00}, "rx_unknown_opcode"),
        ({1: 0x01}, "rx_bad_tver"),
        ({20: 0xFF}, "rx_bad_icrc"),
        ({8: 0x10}, "rx_bad_icrc"),
        ({4: 0x55}, None),
    ],
)
def test_each_kind_of_damage_has_its_counter(change, name):
    error = wire.decode(changed(WRITE, change), wire.LinkType.RAW).error
    assert (error and error.counter) == name


def test_another_header_type_has_its_counter():
    nack = wire.Packet(dest_qp=5, psn=9, body=wire.Nack(reason="trimmed"))
    error = wire.decode(changed(nack, {12: 0x10}), wire.LinkType.RAW).error
    assert error.counter == "rx_bad_header_type"


def test_other_traffic_is_named_not_hidden():
    assert counter(WRITE.to_bytes(**ENDS, dport=53)) == "rx_other_port"
    assert wire.decode(WRITE.to_bytes(**ENDS, dport=53), wire.LinkType.RAW, ports=[53]).ok
    assert wire.decode(WRITE.to_bytes(**ENDS, dport=4971), wire.LinkType.RAW).ok, "as MRC 1.0 prints it"
    arp = bytes(12) + b"\x08\x06" + bytes(28)
    assert counter(arp, wire.LinkType.ETHERNET) == "rx_not_ip"
    assert counter(b"", wire.LinkType.RAW) == "rx_short"
    assert counter(b"", 147) == "rx_unknown_link_type"
    frame = wire.decode(WRITE.to_bytes(**ENDS, dport=53), wire.LinkType.RAW)
    assert str(frame) == (
        "2001:db8::1 > 2001:db8::2 UDP 0 > 53 [rx_other_port: UDP destination port 53 is not an MRC port]"
    )


def test_a_trimmed_packet_is_known_by_its_dscp():
    whole = WRITE.to_bytes(**ENDS)
    for last_hop, reason in ((False, "trimmed"), (True, "trimmed_last_hop")):
        frame = wire.decode(wire.trim(whole, wire.LinkType.RAW, last_hop=last_hop), wire.LinkType.RAW)
        assert (frame.ok, frame.trimmed, frame.icrc) == (True, reason, wire.IcrcVerdict.TRIMMED)
        assert frame.packet == dataclasses.replace(WRITE, payload=b"")
    mine = dataclasses.replace(wire.DSCP, trimmed=40)
    frame = wire.decode(wire.trim(whole, wire.LinkType.RAW, dscp=mine), wire.LinkType.RAW, dscp=mine)
    assert (frame.dscp, frame.trimmed) == (40, "trimmed")


def test_what_a_switch_would_drop_cannot_be_trimmed():
    with pytest.raises(ArgumentError, match="DSCP 46 is not trimmable"):
        wire.trim(SACK.to_bytes(**ENDS), wire.LinkType.RAW)
    with pytest.raises(ArgumentError, match="carries no payload"):
        wire.trim(SACK.to_bytes(**ENDS, dscp=wire.DSCP.trimmable), wire.LinkType.RAW)


def test_packets_travel_in_the_class_of_the_spec():
    def dscp(packet):
        return wire.decode(packet.to_bytes(**ENDS), wire.LinkType.RAW).dscp

    assert dscp(WRITE) == wire.DSCP.trimmable == 4
    assert dscp(dataclasses.replace(WRITE, rtx=True)) == wire.DSCP.trimmable_retx == 8
    assert dscp(SACK) == wire.DSCP.control == 46


# --- captures -----------------------------------------------------------------------------------------------


def pcap(records, *, order="<", nanoseconds=False, link=101):
    """A hand-made pcap file: records are (seconds, fraction, length on the wire, bytes)."""
    magic = 0xA1B23C4D if nanoseconds else 0xA1B2C3D4
    data = struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, 65535, link)
    for seconds, fraction, wire_len, kept in records:
        data += struct.pack(order + "IIII", seconds, fraction, len(kept), wire_len) + kept
    return data


def block(order, kind, body):
    body += bytes(-len(body) % 4)
    length = struct.pack(order + "I", len(body) + 12)
    return struct.pack(order + "I", kind) + length + body + length


def interface(order, link, resolution):
    options = struct.pack(order + "HHB3x", 9, 1, resolution) + struct.pack(order + "HH", 0, 0)
    return block(order, 1, struct.pack(order + "HHI", link, 0, 0) + options)


def enhanced(order, number, ticks, wire_len, kept):
    head = struct.pack(order + "IIIII", number, ticks >> 32, ticks & 0xFFFFFFFF, len(kept), wire_len)
    return block(order, 6, head + kept)


def section(order):
    return block(order, 0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1))


def read(data):
    return list(wire.CaptureReader(io.BytesIO(data), "capture"))


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("nanoseconds", "time_ns"), [(False, 5_000_007_000), (True, 5_000_000_007)])
def test_pcap_of_either_byte_order_and_resolution_is_read(order, nanoseconds, time_ns):
    data = WRITE.to_bytes(**ENDS)
    (frame,) = read(pcap([(5, 7, len(data), data)], order=order, nanoseconds=nanoseconds))
    assert (frame.packet, frame.time_ns, frame.wire_len) == (WRITE, time_ns, len(data))


@pytest.mark.parametrize("order", ["<", ">"])
def test_pcapng_with_several_interfaces_and_sections_is_read(order):
    raw = WRITE.to_bytes(**ENDS)
    framed = SACK.to_bytes(**ENDS, ethernet=wire.Ethernet())
    one = section(order) + interface(order, 101, 9) + interface(order, 1, 0x80 | 10)
    one += enhanced(order, 0, 123456789012, len(raw), raw)
    one += block(order, 5, bytes(12))  # statistics: skipped
    one += enhanced(order, 1, 3 << 10, len(framed), framed)
    two = section(order) + interface(order, 1, 6) + enhanced(order, 0, 1, len(framed), framed)
    two += block(order, 3, struct.pack(order + "I", len(framed)) + framed)  # a simple packet
    frames = read(one + two)
    assert [frame.packet for frame in frames] == [WRITE, SACK, SACK, SACK]
    assert [frame.time_ns for frame in frames] == [123456789012, 3_000_000_000, 1000, 0]


@given(st.lists(st.tuples(uint(62), st.binary(max_size=80)), max_size=5), st.sampled_from(wire.LinkType))
def test_what_is_written_is_read(tmp_path_factory, records, link):
    path = tmp_path_factory.mktemp("capture") / "a.pcap"
    records = [(time_ns % (1 << 32) * 10**9 // 10**9, data) for time_ns, data in records]
    assert wire.write_pcap(path, records, link) == len(records)
    with wire.read_pcap(path) as capture:
        frames = list(capture)
    assert [(frame.time_ns, frame.wire_len, frame.linktype) for frame in frames] == [
        (time_ns, len(data), link) for time_ns, data in records
    ]


@given(st.data())
def test_a_capture_cut_by_its_snapshot_length_shows_what_is_there(data):
    packet = data.draw(packets())
    whole = packet.to_bytes(**ENDS)
    keep = data.draw(st.integers(0, len(whole) - 1))
    (frame,) = read(pcap([(0, 0, len(whole), whole[:keep])]))
    assert frame.cut
    assert frame.icrc is wire.IcrcVerdict.UNKNOWN
    if frame.packet is None:
        assert frame.error.counter == "rx_capture_truncated"
    else:
        assert frame.error is None
        assert dataclasses.replace(frame.packet, payload=packet.payload) == packet
        assert frame.payload_len == len(packet.payload)
        assert packet.payload.startswith(frame.packet.payload)


def test_a_file_that_ends_within_a_packet_shows_those_before_it():
    data = WRITE.to_bytes(**ENDS)
    capture = wire.CaptureReader(io.BytesIO(pcap([(0, 0, len(data), data)] * 3)[:-1]), "a.pcap")
    assert [next(capture).packet for _ in range(2)] == [WRITE, WRITE]
    with pytest.raises(FormatError, match=r"a\.pcap: the file ends within a packet, after packet 2"):
        next(capture)
    with pytest.raises(StopIteration):
        next(capture)


@pytest.mark.parametrize(
    "garbage", [b"", b"\n", b"GIF89a" * 10, bytes(4096), gzip.compress(b"x" * 100, mtime=0)]
)
def test_what_is_no_capture_is_refused(tmp_path, garbage):
    path = tmp_path / "garbage"
    path.write_bytes(garbage)
    with pytest.raises(FormatError, match=r"garbage: (the file is empty|neither pcap nor pcapng)"):
        wire.read_pcap(path)


def test_a_damaged_length_is_an_error_not_an_allocation():
    data = WRITE.to_bytes(**ENDS)
    file = bytearray(pcap([(0, 0, len(data), data)] * 2))
    file[24 + 16 + len(data) + 8 :][:4] = b"\xff\xff\xff\x7f"
    struct.pack_into("<I", file, 24 + 16 + len(data) + 8, 0x7FFFFFFF)
    capture = wire.CaptureReader(io.BytesIO(bytes(file)), "a.pcap")
    next(capture)
    with pytest.raises(FormatError, match=r"after packet 1"):
        next(capture)


def test_damage_anywhere_in_a_file_is_an_error_at_worst():
    raw = WRITE.to_bytes(**ENDS)
    plain = pcap([(0, 0, len(raw), raw)] * 4)
    blocks = section("<") + interface("<", 101, 9) + enhanced("<", 0, 1, len(raw), raw) * 4
    chance = random.Random(7)
    for whole in (plain, blocks):
        for _ in range(500):
            damaged = bytearray(whole)
            for _ in range(chance.randint(1, 4)):
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            try:
                for frame in wire.CaptureReader(io.BytesIO(bytes(damaged)), "damaged"):
                    str(frame)
            except FormatError:
                pass


def test_packets_larger_than_the_read_buffer_are_read():
    big = bytes(200_000)
    frames = read(pcap([(0, 0, len(big), big)] * 3))
    assert [frame.wire_len for frame in frames] == [200_000] * 3


def test_every_public_value_is_documented_and_immutable():
    for name in wire.__all__:
        each = getattr(wire, name)
        if isinstance(each, type) and issubclass(each, Value):
            assert each.__doc__
            assert not each.__doc__.startswith(f"{name}("), "a docstring, not the one dataclass makes"
    with pytest.raises(dataclasses.FrozenInstanceError):
        WRITE.psn = 8
