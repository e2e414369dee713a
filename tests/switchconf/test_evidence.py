"""Every line of every rendered file says what it rests on, in the output and in the docs."""

import re

import pytest

from openmrc.fabric import Fabric, Specification
from openmrc.switchconf import FILES, evidence, render, render_switch
from openmrc.switchconf.facts import Facts
from openmrc.switchconf.render import render_common
from tests.helpers.repository import ROOT

BASE = {"hosts": 16, "nic": {"rate": "400G"}, "planes": 2, "switch": {"radix": 8}, "tiers": 2}
FABRICS = [
    {},
    {"hosts": 50, "tiers": 3},
    {"hosts": 5, "tiers": 1},
    {"parallel_links": 1},
    {"switch": {"radix": 8, "cages": 2}},
    {"hosts": 1024, "nic": {"rate": "800G"}, "planes": 8, "switch": {"capacity": "51.2T"}},
]
DEVICES = {"sonic": "SN5640", "eos": "7060X6-64PE-B", "cumulus": "SN5640"}


def fabric_of(changes, platform):
    values = {**BASE, **changes}
    if "capacity" in values["switch"] and platform in DEVICES:
        values = {**values, "switch": {**values["switch"], "device": DEVICES[platform]}}
    return Fabric(Specification.model_validate(values))


def lines_of(platform):
    for changes in FABRICS:
        fabric = fabric_of(changes, platform)
        facts = Facts(fabric, platform)
        for _, text in render_common(fabric, platform):
            yield from evidence.statements(text, platform)
        for tier in range(fabric.tiers):
            for _, text in render_switch(facts.of(fabric.switch(f"p0/t{tier}-0")), platform):
                yield from evidence.statements(text, platform)


@pytest.mark.parametrize("platform", FILES)
def test_every_line_has_evidence_and_no_entry_is_unused(platform):
    lines = set(lines_of(platform))
    used = {line: evidence.form_of(platform, line) for line in lines}
    assert [line for line, form in used.items() if form is None] == []
    # An empty list of ports is in a fabric of one tier only, and so on: each form is in some fabric.
    unused = [f.text for f in evidence.forms(platform) if not any(f.matches(line) for line in lines)]
    assert unused == []


def test_no_line_for_a_switch_that_is_not_here_is_called_loaded():
    for platform in ("sonic", "eos", "cumulus"):
        proofs = {form.proof for form in evidence.forms(platform)}
        assert not proofs & {"loaded", "read"}
    assert [f.proof for f in evidence.forms("eos") if "trimming" in f.text] == ["gap"]


def test_the_evidence_is_beside_the_configurations(tmp_path):
    for platform in FILES:
        render(fabric_of({}, platform), platform, tmp_path / platform)
        text = (tmp_path / platform / "EVIDENCE.txt").read_text()
        for form in evidence.forms(platform):
            assert f"{form.proof:12}{form.text}\n" in text
    assert "NOTE: gap: packet trimming" in (tmp_path / "eos" / "EVIDENCE.txt").read_text()
    assert "NOTE: assumed: SONiC's port names" in (tmp_path / "sonic" / "EVIDENCE.txt").read_text()


def test_parallel_links_ask_for_a_newer_frr():
    (note,) = evidence.notes(fabric_of({"parallel_links": 2}, "frr"), "frr")
    assert note == "a switch has up to 2 uN SIDs: FRR 10.5 or later, older ones install only one"
    assert evidence.notes(fabric_of({"parallel_links": 1}, "frr"), "frr") == []


def test_several_usids_are_noted_where_nobody_has_shown_them():
    for platform, words in {"sonic": "MY_SIDS", "eos": "not documented: several locators"}.items():
        several = evidence.notes(fabric_of({"parallel_links": 2}, platform), platform)
        assert any(words in note and " 2" in note for note in several)
        one = evidence.notes(fabric_of({"parallel_links": 1}, platform), platform)
        assert not any(words in note for note in one)


def test_the_files_say_how_to_load_them_and_how_to_go_back(tmp_path):
    words = {
        "linux": ["setup.sh", "after a reboot"],
        "frr": ["setup.sh", "To go back"],
        "sonic": ["load.sh", "To go back"],
        "eos": ["configure session", "goes back"],
        "cumulus": ["nv config patch nvue.cmds", "goes back"],
    }
    for platform in FILES:
        render(fabric_of({}, platform), platform, tmp_path / platform)
        text = (tmp_path / platform / "EVIDENCE.txt").read_text()
        loading = text.partition("To load:\n")[2].partition("\n\n")[0]
        assert all(each in loading for each in words[platform])


def test_a_named_switch_leaves_nothing_assumed():
    for platform in DEVICES:
        notes = evidence.notes(fabric_of(FABRICS[-1], platform), platform)
        assert not [note for note in notes if note.startswith("assumed")]


def test_the_docs_have_the_same_table():
    page = (ROOT / "docs" / "switches.md").read_text()
    table = re.search(r"<!-- evidence -->\n(.*?)<!-- end -->", page, re.S)
    assert table is not None
    assert table[1].strip() == evidence.table().strip()
