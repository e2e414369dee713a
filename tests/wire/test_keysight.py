"""Keysight's packet templates as judge of our header tables: field order, enumerations and defaults.

The templates are ten files of the PyPI package ixnetwork_restpy (MIT licence). They are read as text, from
the wheel that ``make`` downloads or from an installed package. They do not give widths.
"""

import dataclasses
import importlib.util
import re
import zipfile
from functools import cache
from pathlib import Path

import pytest

from openmrc import wire
from tests.helpers.repository import ROOT, words

STACK = "ixnetwork_restpy/testplatform/sessions/ixnetwork/traffic/trafficitem/configelement/stack"
WHEELS = ROOT / ".make" / "judges"
ENDS = {"src": "2001:db8::1", "dst": "2001:db8::2"}
BTH = 40 + 8
"""Offset of the BTH in an IPv6 packet."""
BTH_LENGTH = 12


@cache
def templates():
    """Text of each template, by file name."""
    wheels = sorted(WHEELS.glob("ixnetwork_restpy-*.whl"))
    if wheels:
        with zipfile.ZipFile(wheels[-1]) as wheel:
            names = [name for name in wheel.namelist() if re.fullmatch(rf"{STACK}/mrc\w+_template\.py", name)]
            return {Path(name).stem: wheel.read(name).decode() for name in names}
    spec = importlib.util.find_spec("ixnetwork_restpy")
    if spec is None or spec.origin is None:
        pytest.skip("ixnetwork_restpy is neither downloaded (`make judges`) nor installed")
    folder = Path(spec.origin).parent.parent / STACK
    return {path.stem: path.read_text() for path in folder.glob("mrc*_template.py")}


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of a template."""

    name: str
    display: str
    default: int
    values: dict[str, int]


def fields_of(template):
    """The fields of a template in wire order."""
    text = templates()[template]
    order = re.search(r"_SDM_ATT_MAP = \{(.*?)\}", text, re.DOTALL).group(1)
    places = re.findall(r'"(\w+)": "[\w.]+\.(\w+)-(\d+)"', order)
    assert [int(place) for *_, place in places] == list(range(1, len(places) + 1))
    found = []
    for attribute, name, _ in places:
        described = re.search(rf'def {attribute}\(self\):.*?"""(.*?)"""', text, re.DOTALL).group(1)
        described = " ".join(described.split())
        default = re.search(r"Default Value: (\S+)", described).group(1)
        listed = re.search(r"Available enum values: (.*)$", described)
        words = listed.group(1).split(", ") if listed else []
        values = {word: int(value) for word, value in zip(words[::2], words[1::2], strict=True)}
        display = re.search(r"Display Name: (.*?) Default Value", described).group(1)
        found.append(Field(name, display, int(default, 0), values))
    return found


def packet(body, **options):
    return wire.Packet(dest_qp=0xFFFFFF, psn=0, body=body, **options)


WRITE = wire.Write(timestamp=wire.Timestamp())
NACK = wire.Nack(reason=wire.NackReason.TRIMMED)
RESPONSE = wire.EndpointResponse(op=wire.EndpointOp.PORT_STATUS_UPDATE)
REQUEST = wire.EndpointRequest(op=wire.EndpointOp.PORT_STATUS_UPDATE)

# A template, a packet of ours with that header, its offset behind the BTH (None: the BTH) and length, and our
# names of its fields where they differ from Keysight's.
HEADERS = {
    "mrcBaseTransportHeader_template": (
        packet(wire.Write()),
        None,
        12,
        {
            "opCodeOptions": "bth.opcode",
            "migReq": "bth.migrated",
            "se": "bth.solicited",
            "padCount": "bth.pad",
            "transportHeaderVersion": "bth.tver",
            "partitionKey": "bth.pkey",
            "destQp": "bth.dest_qp",
            "ackReq": "bth.ack_req",
            "rtx": "bth.rtx",
            "tsethPresent": "bth.ts",
            "psn": "bth.psn",
        },
    ),
    "mrcMessageExtendedTransportHeader_template": (packet(WRITE), 0, 4, {}),
    "mrcRequestorTimestampExtendedTransportHeader_template": (
        packet(WRITE),
        4,
        4,
        {"txTimestamp": "timestamp.ticks", "tsr": "timestamp.tsr", "ftype": "peer_ftype"},
    ),
    "mrcRdmaExtendedTransportHeader_template": (
        packet(WRITE),
        8,
        16,
        {"virtualAddr": "va", "remoteKey": "rkey", "dmaLength": "dma_len"},
    ),
    "mrcAckExtendedTransportHeader_template": (packet(wire.Ack()), 0, 4, {}),
    "mrcReliabilitySackHeader_template": (
        packet(wire.Sack()),
        0,
        36,
        {
            "sethType": "type",
            "nxt": "type",
            "mBit": "mark",
            "pr": "probe_reply",
            "ackPsnOffset": "ack_psn_offset",
            "cackPsn": "cack_psn",
            "ccType": "cc_type",
            "ccFl": "cc_flags",
            "sackOffset": "sack_offset",
            "sackBitmap": "bitmap",
            "ccTxTimestamp": "cc.timestamp",
            "oooCount": "cc.ooo_count",
            "restoreCwnd": "cc.restore_cwnd",
            "rcvCwndPen": "cc.rcv_cwnd_pen",
            "rcvdBytes": "cc.rcvd_bytes",
        },
    ),
    "mrcReliabilityNackHeader_template": (
        packet(NACK),
        0,
        20,
        {
            "nethType": "type",
            "nxt": "type",
            "nackReason": "reason",
            "vendorInfo": "vendor_info",
            "nackPsn": "nack_psn",
            "ccType": "peer_nack_cc_type",
            "ccFl": "cc_flags",
            "ccTxTimestamp": "timestamp",
        },
    ),
    "mrcReliabilityProbeRequestHeader_template": (
        packet(wire.Probe()),
        0,
        16,
        {
            "pethType": "type",
            "nxt": "type",
            "vendorInfo": "vendor_info",
            "probeId": "probe_id",
            "txTimestamp": "timestamp.ticks",
            "tsr": "timestamp.tsr",
            "ftype": "peer_ftype",
        },
    ),
    "mrcEndpointRequestHeader_template": (
        packet(REQUEST),
        0,
        16,
        {
            "erthType": "type",
            "nxt": "type",
            "vendorInfo": "vendor_info",
            "portStatusMask": "port_status_mask",
            "txTimestamp": "timestamp.ticks",
            "tsr": "timestamp.tsr",
            "ftype": "peer_ftype",
        },
    ),
    "mrcEndpointResponseHeader_template": (
        packet(RESPONSE),
        0,
        36,
        {"eethType": "type", "nxt": "type", "txTimestamp": "timestamp"},
    ),
}

# Where our default is not the template's, and why.
OTHER_DEFAULTS = {
    ("mrcRdmaExtendedTransportHeader_template", "virtualAddr"): "a tester's address",
    ("mrcRdmaExtendedTransportHeader_template", "remoteKey"): "a tester's key",
    (
        "mrcAckExtendedTransportHeader_template",
        "syndrome",
    ): "0x1F, an ACK without credits; 0x00 is an ACK too",
    ("mrcReliabilitySackHeader_template", "sackBitmap"): "a tester's bitmap",
    ("mrcReliabilityNackHeader_template", "vendorInfo"): "0, ignored on receive",
    ("mrcReliabilityNackHeader_template", "ccType"): "2, ignored on receive",
}


def reserved(field):
    return re.fullmatch(r"(cc)?[rR]es(erved)?\d*", field.name) is not None


def values(data):
    """What the decoder finds: the fields of the BTH and of the body, and what it says of the rest."""
    frame = wire.decode(data, wire.LinkType.RAW)
    found = {f"bth.{name}": value for name, value in frame.bth.to_dict().items()}
    if frame.packet is not None:
        found.update(frame.packet.body.flat_fields())
    if frame.error is not None and ".type/nh" in frame.error.message:
        found["type"] = 1
    if frame.error is not None and ".op holds" in frame.error.message:
        found["unknown_op"] = 1
    return found | dict.fromkeys(frame.differences, 1)


def field_bits(case):
    """For each bit of a header the fields that change with it. iCRC and length errors do not matter here."""
    body, offset, length, _ = case
    whole = body.to_bytes(**ENDS)
    start = BTH if offset is None else BTH + BTH_LENGTH + offset
    base = values(whole)
    changes = []
    for bit in range(8 * length):
        data = bytearray(whole)
        data[start + bit // 8] ^= 0x80 >> bit % 8
        seen = values(bytes(data))
        changes.append({name for name in base.keys() | seen.keys() if base.get(name) != seen.get(name)})
    return changes


def runs(case):
    """Name of each field in wire order with its bits; None for bits that are ignored."""
    template_names = {*case[3].values()}
    found = []
    for bit, changed in enumerate(field_bits(case)):
        if "type" in changed:
            own = {"type"}  # nothing behind it is decoded
        elif "unknown_op" in changed:
            own = {"op"}
        elif case[1] is None:
            own = {name for name in changed if name.startswith("bth.")} - {"bth.variant"}  # RoCEv2's
        else:
            # Most differences are also fields.
            own = {name for name in changed if not name.startswith("peer_")} or changed & template_names
        assert len(own) <= 1, (bit, own)
        name = next(iter(own), None)
        if found and found[-1][0] == name:
            found[-1][1].append(bit)
        else:
            found.append((name, [bit]))
    return found


def expected(template, case):
    """The same from the template, with our names; reserved fields and a field split in two are joined."""
    order = []
    for field in fields_of(template):
        name = None if reserved(field) else case[3].get(field.name, field.name)
        if not order or order[-1] != name:
            order.append(name)
    return order


@pytest.mark.parametrize("template", HEADERS)
def test_every_field_is_where_the_template_has_it(template):
    case = HEADERS[template]
    assert [name for name, _ in runs(case)] == expected(template, case)


@pytest.mark.parametrize("template", HEADERS)
def test_what_we_send_by_default_is_what_the_template_has(template):
    case = HEADERS[template]
    data = case[0].to_bytes(**ENDS)
    start = BTH if case[1] is None else BTH + BTH_LENGTH + case[1]
    header = int.from_bytes(data[start : start + case[2]])
    ours = {}
    for name, bits in runs(case):
        ours[name] = header >> (8 * case[2] - bits[-1] - 1) & ((1 << len(bits)) - 1)
    for field in fields_of(template):
        mine = 0 if reserved(field) else ours[case[3].get(field.name, field.name)]
        if field.name == "opCodeOptions":
            assert field.default in {*range(0xC6, 0xCC)}
        elif (template, field.name) in OTHER_DEFAULTS:
            assert mine != field.default, f"{field.name} needs no exception"
        else:
            assert mine == field.default, field


def test_the_enumerations_have_the_same_names_and_values():
    by_name = {
        field.name: field.values for template in HEADERS for field in fields_of(template) if field.values
    }
    kinds = [wire.Write(position=position, imm=imm) for position in wire.Position for imm in (None, 0)]
    kinds += [wire.Ack(), REQUEST, RESPONSE, wire.Sack(), NACK, wire.Probe()]
    opcodes = {
        packet(body).opcode
        for body in kinds
        if getattr(body, "imm", None) is None or body.position in ("last", "only")
    }
    assert opcodes == {*by_name["opCodeOptions"].values()}
    assert by_name["opCodeOptions"]["Reliability SACK"] == packet(wire.Sack()).opcode

    def emitted(body, offset):
        return packet(body).to_bytes(**ENDS)[BTH + BTH_LENGTH + offset]

    reasons = {
        reason.name.replace("LAST_HOP", "LASTHOP").replace("UNEXPECTED", "UNEXP"): emitted(
            wire.Nack(reason=reason), 2
        )
        for reason in wire.NackReason
    }
    assert reasons == by_name["nackReason"]
    marks = {mark.name: emitted(wire.Sack(mark=mark), 1) >> 5 for mark in wire.Mark}
    named = {name.upper().replace(" ", "_"): value for name, value in by_name["mBit"].items()}
    assert named == marks | {"RESERVED": 3}
    ops = {op.name: emitted(wire.EndpointRequest(op=op), 1) & 3 for op in wire.EndpointOp}
    assert ops == {name.upper().replace(" ", "_"): value for name, value in by_name["op"].items()}
    assert by_name["tsr"] == {"128ns": 0, "Implementation defined": 1}
    assert emitted(wire.Probe(timestamp=wire.Timestamp(tsr=True)), 14) >> 7 == 1


def test_docs_interop_says_how_much_was_compared():
    fields = [field for template in HEADERS for field in fields_of(template)]
    assert {*templates()} == {*HEADERS}
    assert f"{len(fields)} fields of {len(HEADERS)} headers" in words("docs/interop.md")
    assert f"{sum(len(field.values) for field in fields)} named values" in words("docs/interop.md")
    assert f"{len(OTHER_DEFAULTS)} defaults differ" in words("docs/interop.md")
