"""docs/interop.md: the numbers of OCP's cases, every counter of a peer, every option for an open point."""

import re

from openmrc.verbs import Device
from tests.helpers.ends import connected
from tests.helpers.repository import ROOT, words

TEXT = words("docs/interop.md")


def test_ocp():
    printed = (ROOT / "crates" / "wire" / "tests" / "data" / "ocp_ev_expansion.txt").read_text()
    cases, evs = (len(re.findall(rf"^{word} ", printed, re.MULTILINE)) for word in ("case", "ev"))
    assert f"{cases} cases, {evs} entropy values, {2 * evs} printed lines" in TEXT


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
