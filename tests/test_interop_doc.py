"""docs/interop.md says how much was compared: the numbers are those of the tests."""

import re
from pathlib import Path

import pytest

import test_wire_keysight as keysight
from openmrc.verbs import Device
from verbs_helpers import connected

ROOT = Path(__file__).parent.parent
TEXT = " ".join((ROOT / "docs" / "interop.md").read_text().split())


def test_keysight():
    fields = [field for template in keysight.HEADERS for field in keysight.fields_of(template)]
    assert {*keysight.templates()} == {*keysight.HEADERS}
    assert f"{len(fields)} fields of {len(keysight.HEADERS)} headers" in TEXT
    assert f"{sum(len(field.values) for field in fields)} named values" in TEXT
    assert f"{len(keysight.OTHER_DEFAULTS)} defaults differ" in TEXT


def test_ocp():
    printed = (ROOT / "crates" / "wire" / "tests" / "data" / "ocp_ev_expansion.txt").read_text()
    cases, evs = (len(re.findall(rf"^{word} ", printed, re.MULTILINE)) for word in ("case", "ev"))
    assert f"{cases} cases, {evs} entropy values, {2 * evs} printed lines" in TEXT


def test_scapy():
    scapy = pytest.importorskip("test_wire_scapy")
    assert f"{scapy.ROCEV2 + scapy.MRC + scapy.FOREIGN + scapy.SRV6 + 1} packets by scapy" in TEXT


def test_tshark():
    tshark = pytest.importorskip("test_wire_tshark")
    assert f"{2 * tshark.PACKETS + 1} packets by tshark, {len(tshark.FIELDS)} fields" in TEXT


def test_every_counter_of_a_peer_s_reading_is_explained():
    with connected() as (end, _):
        names = {*end.context.stats()["peers"]} | {
            name for name in end.qp.stats() if name.startswith("peer_")
        }
    assert {*re.findall(r"`(peer_\w+)`", TEXT)} == names


def test_every_option_for_an_open_point_is_named():
    for option in ("entropy_order", "auto_bits", "udp_ports"):
        assert option in Device.__dataclass_fields__
        assert f"`{option}`" in TEXT
