"""``openmrc plan``, ``path``, ``config`` and ``verify`` as a user sees them."""

import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest

from openmrc import pictures
from openmrc.cli import main
from tests.helpers.repository import ROOT

EXAMPLES = ROOT / "examples" / "fabrics"
LAB = str(EXAMPLES / "lab.yaml")
REFERENCE = str(EXAMPLES / "reference.yaml")


@pytest.fixture
def run(capsys):
    def call(*arguments):
        code = main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return call


def test_plan_prints_the_figures_and_their_parts(run):
    code, out, err = run("plan", REFERENCE)
    assert (code, err) == (0, "")
    for text in (
        "6,144",
        "switch-51t2",
        "osfp-800g-sr8 + mmf",
        "(60%)",
        "(67%)",
        "0.391 %",
        "12.5 %",
        "3 switches",
    ):
        assert text in out


def test_plan_prints_json_or_csv(run):
    code, out, _ = run("plan", REFERENCE, "--json")
    assert code == 0
    assert json.loads(out)["fabric"]["switches"] == 6144
    code, out, _ = run("plan", REFERENCE, "--csv")
    assert code == 0
    assert out.startswith("design,item,")
    assert run("plan", REFERENCE, "--csv", "--json")[0] == 2


def test_plan_takes_another_number_of_hosts(run):
    code, out, _ = run("plan", REFERENCE, "--hosts", 1024, "--json")
    assert code == 0
    assert json.loads(out)["fabric"]["switches"] == 8 * 6
    code, out, err = run("plan", REFERENCE, "--hosts", 131_073)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert "hosts: 131073 do not fit: 2 tiers of 512-port switches hold at most 131072" in err


class Text(HTMLParser):
    """The text of a page, a line for each cell, paragraph and figure."""

    def __init__(self, page):
        super().__init__()
        self.lines = []
        self.feed(page)

    def handle_data(self, data):
        if text := " ".join(data.split()):
            self.lines.append(text)


@pytest.mark.parametrize("name", ["reference", "lab", "pods", "oversubscribed"])
def test_a_report_has_every_cell_that_is_printed_and_the_counts_of_the_json(run, tmp_path, name):
    pytest.importorskip("matplotlib")
    file, page = EXAMPLES / f"{name}.yaml", tmp_path / "plan.html"
    code, out, err = run("plan", file, "--report", page)
    assert (code, err) == (0, f"wrote {page}\n")
    shown = Text(page.read_text()).lines
    tables = out[out.index("Parts (figures") :].splitlines()
    cells = {cell for line in tables for cell in re.split(r" {2,}", line.strip()) if cell.strip("─")}
    titles = {
        cell for cell in cells if cell.startswith(("Parts", "What one", "Compared", "note: ", "1 plane"))
    }
    assert cells - titles - set(shown) == set()
    assert len(cells - titles) > 40
    fabric = json.loads(run("plan", file, "--json")[1])["fabric"]
    headline = shown[: shown.index("Drawing")]
    figures = dict(zip(headline[1:], headline, strict=False))
    assert figures["switches"] == f"{fabric['switches']:,}"
    assert figures["cables"] == f"{fabric['links']:,}"
    assert figures["paths between far hosts"] == f"{fabric['paths_across']:,}"
    assert all(any(note in line for line in shown) for note in fabric["notes"])
    path = json.loads(run("path", "h0", f"h{fabric['hosts'] - 1}", "--fabric", file, "--json")[1])["paths"][0]
    assert {path["address"], *path["links"]} <= set(shown)
    assert file.read_text().splitlines()[1] in page.read_text()


def test_a_report_begins_with_what_the_fabric_is(run, tmp_path):
    pytest.importorskip("matplotlib")
    page = tmp_path / "plan.html"
    assert run("plan", REFERENCE, "--hosts", 1024, "--report", page)[0] == 0
    shown = Text(page.read_text().split("<body>")[1]).lines
    assert shown[:2] == [
        "Fabric reference",
        "1,024 hosts with NICs of 800 Gb/s, 8 x 100 Gb/s each, in 8 planes, 2 tiers: 48 switches and "
        "16,384 cables; 96.4 kW and 5.1 million USD.",
    ]
    assert "reference.yaml, planned for 1,024 hosts." in shown


def test_a_report_that_cannot_be_made_is_missed_in_one_line(run, tmp_path, monkeypatch):
    code, out, err = run("plan", LAB, "--report", tmp_path / "nowhere" / "plan.html")
    assert (code, out) == (1, "")
    assert err == f"error: {tmp_path}/nowhere: No such file or directory\n"
    monkeypatch.setattr(pictures, "matplotlib", None)
    code, out, err = run("plan", LAB, "--report", tmp_path / "plan.html")
    assert (code, out) == (1, "")
    assert "matplotlib is not installed (pip install" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["reference", "lab", "pods", "oversubscribed"])
def test_plan_draws_every_example(run, tmp_path, name):
    for suffix in ("svg", "png"):
        assert run("plan", EXAMPLES / f"{name}.yaml", "--picture", tmp_path / f"x.{suffix}")[0] == 0
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    texts = {element.text for element in ET.parse(tmp_path / "x.svg").iter() if element.tag.endswith("text")}
    assert any(text and text.startswith(f"{name}: ") for text in texts)
    if name == "lab":
        # Small enough for a complete drawing.
        assert {f"h{i}" for i in range(16)} <= texts
        assert {f"plane {p}" for p in range(4)} <= texts
    if name == "reference":
        assert {"t0-511", "t1-255", "h130816 ... h131071", "T0: 512 per plane, 4,096 in all"} <= texts


def test_the_same_fabric_gives_the_same_svg(run, tmp_path):
    run("plan", LAB, "--picture", tmp_path / "a.svg")
    run("plan", LAB, "--picture", tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_a_drawing_of_another_kind_is_refused(run, tmp_path):
    code, _, err = run("plan", LAB, "--picture", tmp_path / "x.pdf")
    assert code == 2
    assert "must end in .svg or .png" in err


def test_path_lists_paths_and_explains_one(run):
    code, out, _ = run("path", "h0", "h15", "--fabric", LAB)
    assert code == 0
    assert "16 paths from h0 to h15" in out
    code, out, _ = run("path", "h0", "h15", "--fabric", LAB, "--ev", "0x50000000")
    assert code == 0
    for text in ("p1/t0-0:up1--p1/t1-1", "h15:p1--p1/t0-3:down3", "0xe003", "5f00:0:9:e:c:e003::"):
        assert text in out
    code, out, _ = run("path", "h0", "h15", "--fabric", LAB, "--ev", 0x5000_0000, "--json")
    assert json.loads(out)["addresses"][1] == "5f00:0:e:c:e003::"


def test_path_explains_an_address_from_a_capture(run):
    code, out, _ = run("path", "--fabric", LAB, "--address", "5f00:0:9:e:c:e003::")
    assert code == 0
    assert "whole path, from one of h0 to h3 to h15, EV 0x50000000" in out
    code, out, _ = run("path", "--fabric", LAB, "--address", "5f00:0:e:c:e003::")
    assert "rest of a path to h15" in out
    code, out, _ = run("path", "--fabric", LAB, "--address", "5f00:0:9:e:c:e003::", "--json")
    assert json.loads(out)["ev"] == 0x5000_0000


def test_addresses_are_printed_without_emoji(run):
    # :a: is one in rich's markup, and uSID 0xa is a switch.
    code, out, _ = run("path", "h0", "h4", "--fabric", LAB, "--json")
    (address,) = (p["address"] for p in json.loads(out)["paths"] if p["plane"] == 1 and p["uplinks"] == [0])
    assert ":a:" in address
    code, out, _ = run("path", "h0", "h4", "--fabric", LAB)
    assert code == 0
    assert address in out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["path", "--fabric", LAB], 2, "SRC and DST are needed, or --address"),
        (["path", "h0", "h99", "--fabric", LAB], 2, "h99 does not exist"),
        (["path", "h0", "h15", "--fabric", LAB, "--ev", "x"], 2, "--ev x: not a number"),
        (["path", "h0", "h15", "--fabric", LAB, "--ev", "1"], 2, "the low 28 bits are spare"),
        (["path", "--fabric", LAB, "--address", "::1"], 2, "::1 is not in the fabric's block 5f00::/32"),
        (["path", "h0", "h1", "--fabric", "nowhere.yaml"], 1, "nowhere.yaml: No such file"),
        (["plan", "nowhere.yaml"], 1, "nowhere.yaml: No such file"),
        (
            ["config", LAB, "--platform", "junos", "--out", "x"],
            2,
            "junos: not one of linux, frr, sonic, eos, cumulus",
        ),
        (["verify", "nowhere"], 1, "nowhere is not a directory"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(run, arguments, code, message):
    got, out, err = run(*arguments)
    assert (got, out) == (code, "")
    assert message in err
    assert err.count("\n") == 1


def test_config_writes_what_verify_proves(run, tmp_path):
    code, out, _ = run("config", LAB, "--platform", "sonic", "--out", tmp_path / "c", "--json")
    assert code == 0
    assert json.loads(out)["switches"] == 32
    code, out, _ = run("verify", tmp_path / "c")
    assert code == 0
    assert out.startswith("OK: 32 switches correct (sonic, 224 entries); ")
    code, out, _ = run("verify", tmp_path / "c", "--no-walk", "--json")
    assert json.loads(out)["paths_walked"] is None


def test_verify_fails_and_names_switch_and_line(run, tmp_path):
    run("config", LAB, "--platform", "linux", "--out", tmp_path / "c")
    file = tmp_path / "c" / "p2" / "t1-3" / "ip.batch"
    lines = file.read_text().splitlines()
    lines[-1] = lines[-1].replace("down3", "down2")
    file.write_text("\n".join(lines) + "\n")
    code, out, _ = run("verify", tmp_path / "c")
    assert code == 1
    assert f"p2/t1-3: p2/t1-3/ip.batch:{len(lines)}: " in out
    code, out, _ = run("verify", tmp_path / "c", "--json")
    assert code == 1
    first = json.loads(out)["problems"][0]
    assert (first["switch"], first["file"], first["line"]) == ("p2/t1-3", "p2/t1-3/ip.batch", len(lines))
