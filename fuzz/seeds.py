"""Writes the seeds of the target ``decode``: one packet of each kind, and one for each stack of headers.

Run it after a change of the packet format: ``python fuzz/seeds.py``.
"""

from pathlib import Path
from typing import Any

from openmrc import wire

SEEDS = Path(__file__).parent / "corpus" / "decode"
IP, ETHERNET = 0, 1
"""Indexes in the target's list of link types."""
FRAME, DATAGRAM = 0, 1
"""The target's flags."""

BODIES: dict[str, wire.Body] = {
    "write_first": wire.Write(position=wire.Position.FIRST, va=0x1000, rkey=7, dma_len=300),
    "write_only_imm": wire.Write(imm=5, va=0x1000, rkey=7, dma_len=3, timestamp=wire.Timestamp(ticks=9)),
    "ack": wire.Ack(msn=3),
    "endpoint_request": wire.EndpointRequest(),
    "endpoint_response": wire.EndpointResponse(timestamp=3),
    "sack": wire.Sack(mark=wire.Mark.SKIP_ONCE, cack_psn=8, sack_offset=2, bitmap=5),
    "nack": wire.Nack(reason=wire.NackReason.TRIMMED, nack_psn=8),
    "probe": wire.Probe(probe_id=4),
    "rc_write_only_imm": wire.RcWrite(imm=5, va=0x1000, rkey=7, dma_len=3),
    "rc_write_middle": wire.RcWrite(position=wire.Position.MIDDLE),
    "rc_ack": wire.RcAck(msn=3),
    "cnp": wire.Cnp(),
}


def seeds() -> dict[str, bytes]:
    """The seeds, by name."""
    result = {}
    six: dict[str, Any] = {"src": "2001:db8::1", "dst": "2001:db8::2"}
    four: dict[str, Any] = {"src": "10.0.0.1", "dst": "10.0.0.2"}
    for name, body in BODIES.items():
        payload = b"abc" if isinstance(body, wire.Write | wire.RcWrite) else b""
        packet = wire.Packet(dest_qp=0x2A, psn=9, body=body, payload=payload)
        frame = packet.to_bytes(**six)
        result[f"{name}_frame"] = bytes([IP, 0, FRAME]) + frame
        result[f"{name}_datagram"] = bytes([IP, 0, DATAGRAM]) + frame[48:]
    write = wire.Packet(dest_qp=0x2A, psn=9, body=BODIES["write_only_imm"], payload=b"abc")
    path = wire.usid_address(0x5F000000, [0x11, 0x102, 0x12, 0xE00C])
    ethernet = wire.Ethernet(vlan=5)
    result["ipv4_frame"] = bytes([IP, 0, FRAME]) + write.to_bytes(**four)
    result["vlan_frame"] = bytes([ETHERNET, 0, FRAME]) + write.to_bytes(**four, ethernet=ethernet)
    result["srv6_frame"] = bytes([IP, 0, FRAME]) + write.to_bytes(**six, path=path)
    srh = write.to_bytes(**four, path=path, outer_src="fd00::1", segment="5f00:0:13::", ethernet=ethernet)
    result["srh_frame"] = bytes([ETHERNET, 0, FRAME]) + srh
    result["trimmed_frame"] = bytes([IP, 0, FRAME]) + wire.trim(write.to_bytes(**six), wire.LinkType.RAW)
    result["cut_frame"] = bytes([IP, 4, FRAME]) + write.to_bytes(**six)[:-4]
    return result


if __name__ == "__main__":
    SEEDS.mkdir(parents=True, exist_ok=True)
    for name, data in seeds().items():
        (SEEDS / name).write_bytes(data)
    print(f"{len(seeds())} seeds in {SEEDS}")
