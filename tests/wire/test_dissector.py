"""The dissector for Wireshark: tshark reads every field of every MRC packet that we have written."""

import json
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from openmrc import wire
from openmrc.cli import main
from tests.helpers.packets import packets

TSHARK = shutil.which("tshark")
pytestmark = pytest.mark.skipif(TSHARK is None, reason="tshark is not installed (Debian: apt install tshark)")

SCRIPT = Path(wire.__file__).parent / "wireshark" / "mrc.lua"
MARKS = {"none": 0, "skip_once": 1, "always_skip": 2}
REASONS = {
    "trimmed": 0x01,
    "trimmed_last_hop": 0x02,
    "no_bitmap": 0x06,
    "no_pkt_buffer": 0x07,
    "no_resource": 0x0A,
    "psn_oor_window": 0x0B,
    "unexpected_event": 0x19,
}
OPERATIONS = {"port_status_update": 0, "ev_probe": 1}


def flat(tree: Any, found: dict[str, str]) -> dict[str, str]:
    """Every field of a packet, however deep."""
    if isinstance(tree, dict):
        for name, inner in tree.items():
            if isinstance(inner, str):
                found[name] = inner
            else:
                flat(inner, found)
    for inner in tree if isinstance(tree, list) else ():
        flat(inner, found)
    return found


def tshark(path: Path, *options: str) -> list[dict[str, str]]:
    command = [str(TSHARK), "-n", "-r", str(path), "-T", "json", "--no-duplicate-keys", *options]
    command += ["-X", f"lua_script:{SCRIPT}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "Lua" not in done.stderr, done.stderr
    return [flat(packet["_source"]["layers"], {}) for packet in json.loads(done.stdout)]


def expected(packet: wire.Packet) -> dict[str, int]:
    """The fields as numbers, by the names that the dissector has for them."""
    body = packet.body
    told: dict[str, int] = {
        "mrc.opcode": packet.opcode,
        "mrc.pkey": packet.pkey,
        "mrc.dest_qp": packet.dest_qp,
        "mrc.psn": packet.psn,
        "mrc.ack_req": packet.ack_req,
        "mrc.rtx": packet.rtx,
    }
    match body:
        case wire.Write():
            told |= {"mrc.meth.rqmsn": body.rqmsn, "mrc.meth.msn": body.msn, "mrc.reth.va": body.va}
            told |= {"mrc.reth.rkey": body.rkey, "mrc.reth.dma_len": body.dma_len}
            told |= {"mrc.ts": body.timestamp is not None}
            if body.timestamp is not None:
                told |= {"mrc.timestamp": body.timestamp.ticks, "mrc.tsr": body.timestamp.tsr}
            if body.imm is not None:
                told["mrc.imm"] = body.imm
        case wire.Ack():
            told |= {"mrc.aeth.syndrome": body.syndrome, "mrc.aeth.msn": body.msn}
        case wire.Sack():
            told |= {
                "mrc.seth.m": MARKS[body.mark],
                "mrc.seth.pr": body.probe_reply,
                "mrc.entropy": body.entropy,
            }
            told |= {"mrc.seth.ack_psn_offset": body.ack_psn_offset, "mrc.spdcid": body.spdcid}
            told |= {
                "mrc.dpdcid": body.dpdcid,
                "mrc.seth.cack_psn": body.cack_psn,
                "mrc.cc_type": body.cc_type,
            }
            told |= {"mrc.cc_flags": body.cc_flags, "mrc.seth.mpr": body.mpr, "mrc.seth.bitmap": body.bitmap}
            told |= {"mrc.seth.sack_offset": body.sack_offset, "mrc.timestamp": body.cc.timestamp}
            told |= {"mrc.cc.ooo_count": body.cc.ooo_count, "mrc.cc.restore_cwnd": body.cc.restore_cwnd}
            told |= {"mrc.cc.rcv_cwnd_pen": body.cc.rcv_cwnd_pen, "mrc.cc.rcvd_bytes": body.cc.rcvd_bytes}
        case wire.Nack():
            told |= {"mrc.neth.reason": REASONS[body.reason], "mrc.vendor_info": body.vendor_info}
            told |= {"mrc.entropy": body.entropy, "mrc.spdcid": body.spdcid, "mrc.dpdcid": body.dpdcid}
            told |= {"mrc.neth.nack_psn": body.nack_psn, "mrc.cc_flags": body.cc_flags}
            told |= {"mrc.timestamp": body.timestamp}
        case wire.Probe():
            told |= {"mrc.vendor_info": body.vendor_info, "mrc.peth.probe_id": body.probe_id}
            told |= {"mrc.spdcid": body.spdcid, "mrc.dpdcid": body.dpdcid}
            told |= {"mrc.timestamp": body.timestamp.ticks, "mrc.tsr": body.timestamp.tsr}
        case wire.EndpointRequest():
            told |= {"mrc.erth.op": OPERATIONS[body.op], "mrc.vendor_info": body.vendor_info}
            told |= {"mrc.erth.port_status_mask": body.port_status_mask}
            told |= {"mrc.timestamp": body.timestamp.ticks, "mrc.tsr": body.timestamp.tsr}
        case wire.EndpointResponse():
            told |= {"mrc.eeth.op": OPERATIONS[body.op], "mrc.timestamp": body.timestamp}
    return told


def number(text: str) -> int:
    return {"True": 1, "False": 0}.get(text) if text in ("True", "False") else int(text, 0)  # type: ignore[return-value]


@settings(max_examples=6, phases=[Phase.generate])
@given(batch=st.lists(packets(), min_size=40, max_size=40))
def test_tshark_reads_every_field_with_the_dissector(batch: list[wire.Packet], tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("pcap") / "mrc.pcap"
    sent = [packet.to_bytes(src="fd00::1", dst="fd00::2", ev=0xC001) for packet in batch]
    wire.write_pcap(path, sent, linktype=wire.LinkType.RAW)
    for packet, seen in zip(batch, tshark(path), strict=True):
        if packet.opcode >> 5 != 0b110:
            # RoCEv2 stays with Wireshark's own dissector.
            assert "mrc.opcode" not in seen
            assert int(seen["infiniband.bth.opcode"], 0) == packet.opcode
            continue
        assert "_ws.malformed" not in seen
        assert {name: number(seen[name]) for name in expected(packet)} == {
            name: int(value) for name, value in expected(packet).items()
        }
        payload = bytes.fromhex(seen.get("mrc.payload", "").replace(":", ""))
        assert payload == packet.payload, "padding is no payload"
        padding = bytes.fromhex(seen.get("mrc.padding", "").replace(":", ""))
        assert padding == bytes(int(seen["mrc.pad"]))


def test_the_dissector_takes_both_ports_and_those_of_the_preferences(tmp_path: Path) -> None:
    path = tmp_path / "ports.pcap"
    packet = wire.Packet(dest_qp=5, psn=9, body=wire.Sack())
    ports = (wire.ROCE_PORT, wire.MRC_PORT, 5000)
    sent = [packet.to_bytes(src="fd00::1", dst="fd00::2", dport=port) for port in ports]
    wire.write_pcap(path, sent, linktype=wire.LinkType.RAW)
    assert ["mrc.psn" in seen for seen in tshark(path)] == [True, True, False]
    preferred = tshark(path, "-o", "mrc.udp_ports:4971,5000")
    assert ["mrc.psn" in seen for seen in preferred] == [False, True, True]
    assert int(preferred[0]["infiniband.bth.psn"]) == 9, "the port went back to its dissector"


def test_a_packet_that_was_cut_off_is_told_as_such_and_stops_nothing(tmp_path: Path) -> None:
    whole = wire.Packet(dest_qp=5, psn=9, body=wire.Sack()).to_bytes(src="fd00::1", dst="fd00::2")
    path = tmp_path / "cut.pcap"
    wire.write_pcap(path, [whole[: len(whole) - cut] for cut in range(0, 40, 4)], linktype=wire.LinkType.RAW)
    assert len(tshark(path)) == 10


def test_a_capture_with_short_packets_has_no_icrc_and_the_length_of_the_payload(tmp_path: Path) -> None:
    packet = wire.Packet(dest_qp=5, psn=9, body=wire.Write(dma_len=4096), payload=bytes(4096))
    whole = packet.to_bytes(src="fd00::1", dst="fd00::2")
    path = tmp_path / "short.pcap"
    header = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 200, wire.LinkType.RAW)
    path.write_bytes(header + struct.pack("<IIII", 0, 0, 200, len(whole)) + whole[:200])
    (seen,) = tshark(path)
    assert "mrc.icrc" not in seen
    assert number(seen["mrc.reth.dma_len"]) == 4096
    command = [str(TSHARK), "-n", "-r", str(path), "-V", "-X", f"lua_script:{SCRIPT}"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "(4096 bytes, cut by the capture)" in text


def test_it_is_installed_where_wireshark_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["dissector"]) == 0
    assert Path(capsys.readouterr().out.strip()) == SCRIPT
    assert main(["dissector", "--install"]) == 0
    (installed,) = tmp_path.rglob("mrc.lua")
    assert installed.read_text() == SCRIPT.read_text()
    packet = wire.Packet(dest_qp=5, psn=9, body=wire.Probe(probe_id=77))
    wire.write_pcap(
        tmp_path / "one.pcap", [packet.to_bytes(src="fd00::1", dst="fd00::2")], linktype=wire.LinkType.RAW
    )
    command = [str(TSHARK), "-n", "-r", str(tmp_path / "one.pcap"), "-T", "fields", "-e", "mrc.peth.probe_id"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "77"
