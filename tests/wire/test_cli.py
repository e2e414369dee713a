"""openmrc decode, as a user sees it."""

import io
import json
import sys
from pathlib import Path

import pytest

from openmrc import wire
from openmrc.cli import main

ENDS = {"src": "2001:db8::1", "dst": "2001:db8::2"}
WRITE = wire.Packet(dest_qp=0x2A, psn=7, body=wire.Write(va=0x1000, rkey=1, dma_len=3), payload=b"abc")
DATA = WRITE.to_bytes(**ENDS, ev=0xC0010002)
BAD = DATA[:-1] + bytes([DATA[-1] ^ 1])
OTHER = WRITE.to_bytes(**ENDS, dport=53)


@pytest.fixture
def capture(tmp_path):
    path = tmp_path / "a.pcap"
    wire.write_pcap(path, [(10**9, DATA), (10**9 + 1500, BAD), (2 * 10**9, OTHER)], wire.LinkType.RAW)
    return str(path)


def test_each_packet_is_one_line_with_its_time_since_the_first(capture, capsys):
    assert main(["decode", capture]) == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == (
        "    1      0.000000  2001:db8::1 > 2001:db8::2 ev 0xc0010002"
        " WRITE_ONLY qp 0x00002a psn 7 msn 0 va 0x1000 dma_len 3 len 3"
    )
    assert second.startswith("    2      0.000002  ")
    assert "[rx_bad_icrc: iCRC is " in second
    assert third.startswith("    3      1.000000  ")
    assert "[rx_other_port: " in third


def test_other_traffic_can_be_left_out_and_keeps_its_number(capture, capsys):
    assert main(["decode", "--mrc", capture]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["1", "2"]
    assert main(["decode", "--udp-port", "53", "--udp-port", "4971", "--mrc", capture]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["3"]


def test_count_stops_early(capture, capsys):
    assert main(["decode", "-c", "2", capture]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_verbose_shows_every_field_of_every_layer(tmp_path, capsys):
    path = wire.usid_address(0x5F000000, [0x11, 0x102])
    data = WRITE.to_bytes(**ENDS, path=path, segment="5f00:0:12::", ethernet=wire.Ethernet(vlan=5))
    file = tmp_path / "srv6.pcap"
    wire.write_pcap(file, [data])
    assert main(["decode", "-v", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    names = ["Ethernet", "outer", "SRH", "IPv6", "UDP", "BTH", "Write", "payload", "iCRC"]
    assert [line.split()[0] for line in lines] == names
    text = "\n".join(lines)
    for part in (
        "vlan 0x0005",
        "dst 5f00:0:11:102::",
        "segment 5f00:0:12::",
        "rkey 0x00000001",
        "position only",
    ):
        assert part in text


def test_json_is_one_object_per_line(capture, capsys):
    assert main(["decode", "--json", capture]) == 0
    good, bad, other = map(json.loads, capsys.readouterr().out.splitlines())
    assert (good["number"], good["ok"], good["time_ns"], good["icrc"]) == (1, True, 10**9, "good")
    assert good["packet"]["body"]["kind"] == "Write"
    assert good["packet"]["psn"] == 7
    assert "payload" not in good["packet"]
    assert (bad["ok"], bad["error"]["counter"]) == (False, "rx_bad_icrc")
    assert (other["packet"], other["udp"]["dport"]) == (None, 53)
    assert main(["decode", "--json", "-v", "-c", "1", capture]) == 0
    assert json.loads(capsys.readouterr().out)["packet"]["payload"] == "616263"


def test_a_packet_can_be_given_as_hexadecimal(capsys):
    assert main(["decode", "--hex", DATA.hex(" ", 2)]) == 0
    assert "WRITE_ONLY qp 0x00002a" in capsys.readouterr().out
    framed = WRITE.to_bytes(**ENDS, ethernet=wire.Ethernet())
    assert main(["decode", "--ethernet", "--hex", "0x" + framed.hex()]) == 0
    assert "WRITE_ONLY qp 0x00002a" in capsys.readouterr().out


def test_standard_input_is_read(capture, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path(capture).read_bytes())))
    assert main(["decode", "-"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def one_error(capsys):
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    return error


def test_failures_are_one_line(tmp_path, capture, capsys):
    assert main(["decode", str(tmp_path / "missing.pcap")]) == 1
    assert "missing.pcap: No such file or directory" in one_error(capsys)
    assert main(["decode", str(tmp_path)]) == 1
    assert "Is a directory" in one_error(capsys)
    garbage = tmp_path / "garbage.pcap"
    garbage.write_bytes(b"not a capture, not at all")
    assert main(["decode", str(garbage)]) == 1
    assert "garbage.pcap: neither pcap nor pcapng" in one_error(capsys)
    assert main(["decode"]) != 0
    assert "give a capture file" in one_error(capsys)
    assert main(["decode", capture, "--hex", "00"]) != 0
    assert "not both" in one_error(capsys)
    assert main(["decode", "--hex", "0g"]) != 0
    assert "hexadecimal" in one_error(capsys)


def test_a_file_cut_short_shows_its_packets_and_fails(tmp_path, capture, capsys):
    cut = tmp_path / "cut.pcap"
    cut.write_bytes(Path(capture).read_bytes()[:-1])
    assert main(["decode", str(cut)]) == 1
    result = capsys.readouterr()
    assert len(result.out.splitlines()) == 2
    assert "the file ends within a packet, after packet 2" in result.err


def test_readings_counts_what_the_senders_do_otherwise(tmp_path, capsys):
    def back(body):
        return wire.Packet(dest_qp=5, psn=7, body=body).to_bytes(src=ENDS["dst"], dst=ENDS["src"])

    file = tmp_path / "foreign.pcap"
    as_sent, swapped = wire.Sack(entropy=0xC0010002), wire.Sack(entropy=0x0002C001, cc_type=1)
    unknown = wire.Nack(reason="trimmed", entropy=7, vendor_info=0xFF)
    wire.write_pcap(file, [DATA, back(as_sent), back(swapped), back(unknown)], wire.LinkType.RAW)
    assert main(["decode", "--readings", str(file)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "        1  as_sent_entropy",
        "        1  peer_sack_cc_type",
        "        1  peer_swapped_entropy",
        "        1  peer_unknown_entropy",
        "        1  peer_vendor_info",
    ]
    assert main(["decode", "--readings", "--json", str(file)]) == 0
    assert json.loads(capsys.readouterr().out)["peer_vendor_info"] == 1


def test_readings_finds_the_connection_of_feedback_that_came_over_another_plane(tmp_path, capsys):
    def back(entropy, **ids):
        body = wire.Sack(entropy=entropy, **ids)
        return wire.Packet(dest_qp=0x5, psn=7, body=body).to_bytes(src="fd01::2", dst="fd01::1")

    data = wire.Packet(dest_qp=0x12345, psn=7, body=wire.Write(position="only", va=0, rkey=1, dma_len=0))
    sent = data.to_bytes(src="fd00::1", dst="fd00::2", ev=0xC0010002)
    named = [back(0xC0010002, spdcid=0x2345, dpdcid=5), back(0x0002C001, spdcid=5, dpdcid=0x2345)]
    strange = [back(0xC0010002, spdcid=0x2346, dpdcid=5), back(0xC0010003, spdcid=0x2345, dpdcid=5)]
    file = tmp_path / "planes.pcap"
    wire.write_pcap(file, [sent, *named, *strange], wire.LinkType.RAW)
    assert main(["decode", "--readings", "--json", str(file)]) == 0
    counts = json.loads(capsys.readouterr().out)
    assert (counts["as_sent_entropy"], counts["peer_swapped_entropy"]) == (1, 1)
    assert counts["peer_unknown_entropy"] == 2
