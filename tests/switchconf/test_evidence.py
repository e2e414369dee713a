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


@pytest.mark.parametrize(
    ("platform", "line", "form"),
    [
        (
            "linux",
            "route add 5f00:0:1::/48 encap seg6local action End flavors next-csid lblen 32 nflen 16 dev sr0",
            "route add <uSID>/48 encap seg6local action End flavors next-csid lblen 32 nflen 16 dev sr0",
        ),
        (
            "linux",
            "route add 5f00:0:1::/48 via fd5f::1 dev up0",
            "route add <uSID>/48 via <address> dev <port>",
        ),
        ("linux", "route add /48 via fd5f::1 dev up0", None),
        ("linux", "route add 5f00:0:1::/48 via fd5f::1 dev ", None),
        ("linux", "old route add 5f00:0:1::/48 via fd5f::1 dev up0", None),
        ("linux", "link set dev sr0 up", "link set dev sr0 up"),
        ("linux", "link set dev sr0 up now", None),
        ("linux", "net.ipv6.conf.all.forwarding = 1", "net.ipv6.conf.<interface>.<setting> = <value>"),
        ("linux", "net-ipv6-conf.all.forwarding = 1", None),
        ("frr", "ipv6 forwarding", "ipv6 forwarding"),
        ("eos", "ipv6 forwarding", None),
    ],
)
def test_a_line_has_a_form_if_only_the_words_in_brackets_differ(platform, line, form):
    found = evidence.form_of(platform, line)
    assert (found and found.text) == form


@pytest.mark.parametrize(
    ("platform", "text", "lines"),
    [
        ("linux", "# why\n\n  cd /etc  \n!\n", ["cd /etc"]),
        ("eos", "! why\n   mtu 9216\n! GAP: packet trimming\n", ["mtu 9216", "! GAP: packet trimming"]),
        ("cumulus", "{\n", ["{"]),
        ("sonic", "#!/bin/sh\nset -eu\n", ["set -eu"]),
        (
            "sonic",
            '{"INTERFACE": {"a": {}}, "DSCP_TO_TC_MAP": {"b": {"0": "1"}}, "TC_TO_X": {"c": {"2": "3"}},'
            ' "PORT": {"d": {"mtu": "1", "fec": "rs"}, "e": {"mtu": "2", "lanes": "3"}}}',
            ["INTERFACE", "DSCP_TO_TC_MAP", "TC_TO_X", "PORT.mtu", "PORT.fec", "PORT.lanes"],
        ),
    ],
)
def test_what_a_file_says_is_its_lines_without_comments_or_its_tables_and_fields(platform, text, lines):
    assert list(evidence.statements(text, platform)) == lines


NO_SR0 = "SONiC 202511 or later: 202505 has no sr0"
NAMES = "assumed: SONiC's port names"
SHARES = "not exact: thresholds of queues are shares"
CAGES = "assumed: cages of eight lanes"
GAP = "gap: packet trimming"
ONE_SWITCH = {"hosts": 5, "tiers": 1, "planes": 1, "parallel_links": None}


@pytest.mark.parametrize(
    ("platform", "changes", "switch", "notes"),
    [
        ("linux", {"parallel_links": 2}, {}, []),
        ("frr", ONE_SWITCH, {}, []),
        ("sonic", ONE_SWITCH, {}, [NO_SR0, NAMES, "assumed: size and queue of trimmed packets"]),
        ("sonic", {}, {"asic": "tomahawk5"}, [NO_SR0, NAMES, "assumed: trimmed packets leave by queue 9"]),
        ("sonic", {}, {"asic": "tomahawk6"}, [NO_SR0, NAMES]),
        ("sonic", {}, {"asic": "spectrum4"}, [NO_SR0, NAMES, SHARES]),
        ("eos", {}, {}, [CAGES, GAP]),
        ("eos", {}, {"device": "7060X6-64PE"}, [GAP]),
        ("cumulus", {"parallel_links": 2}, {}, [CAGES]),
        ("cumulus", {}, {"device": "SN5600"}, []),
        (
            "cumulus",
            {},
            {"device": "SN5640"},
            ["the user guide of Cumulus Linux 5.14 has SRv6 on Spectrum-4"],
        ),
    ],
)
def test_what_is_not_known_of_a_switch_is_noted_and_nothing_else(platform, changes, switch, notes):
    fabric = fabric_of({"parallel_links": 1, **changes, "switch": {"radix": 8, **switch}}, platform)
    found = evidence.notes(fabric, platform)
    assert [note[: len(begins)] for note, begins in zip(found, notes, strict=True)] == notes


@pytest.mark.parametrize("platform", FILES)
def test_the_report_has_each_source_once_and_the_meaning_of_no_other_proof(platform):
    fabric = fabric_of({}, platform)
    text, given = evidence.report(fabric, platform), evidence.forms(platform)
    assert text.startswith(f"fabric, {platform}: what each line of these configurations rests on.\n\n")
    assert [line for line in text.splitlines() if line.startswith("NOTE: ")] == [
        f"NOTE: {note}" for note in evidence.notes(fabric, platform)
    ]
    for proof, meaning in evidence.MEANING.items():
        assert (f"{proof:12}{meaning}\n" in text) == (proof in {form.proof for form in given})
    for source in {form.source for form in given}:
        section = text.partition(f"\n\n{source}:\n")[2].partition("\n\n")[0].splitlines()
        assert section == [f"{form.proof:12}{form.text}" for form in given if form.source == source]
    assert text.endswith(f"{given[-1].text}\n")


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
