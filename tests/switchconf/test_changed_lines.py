"""Everything that is said of one changed line: by the check of our own files, and by that of others'."""

import tomllib
from pathlib import Path

import pytest

from openmrc.fabric import Fabric, Specification
from openmrc.switchconf import render, verify, verify_foreign

FABRIC = Fabric(
    Specification.model_validate(
        {
            "hosts": 6,
            "nic": {"rate": "200G"},
            "planes": 1,
            "switch": {"radix": 8},
            "tiers": 2,
            "parallel_links": 1,
        }
    )
)
SWITCH = "p0/t0-0"
CASES = tomllib.loads(Path(__file__).with_name("changed_lines.toml").read_text())["case"]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Platform -> directory."""
    made = {platform: tmp_path_factory.mktemp(platform) for platform in ("linux", "frr", "eos", "cumulus")}
    for platform, directory in made.items():
        render(FABRIC, platform, directory)
    return made


def shown(problems):
    return [str(problem).removeprefix(f"{SWITCH}: {SWITCH}/") for problem in problems]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['platform']}: {case['new'].strip()[:60]}")
def test_a_changed_line_is_named_with_its_place_and_nothing_else_is(written, case):
    directory, walk = written[case["platform"]], case.get("walk", False)
    path = directory / SWITCH / case["file"]
    text = path.read_text()
    assert case["old"] in text
    path.write_text(text.replace(case["old"], case["new"], 1))
    try:
        ours = verify(directory, walk=walk)
        theirs = verify_foreign(directory, FABRIC, case["platform"])
    finally:
        path.write_text(text)
    assert shown(ours.problems) == case.get("ours", [])
    assert shown(theirs.problems) == case.get("theirs", [])
    assert shown(theirs.notes) == case.get("notes", [])
    assert [ours.entries, theirs.entries, theirs.ignored] == case.get("counts", [23, 23, 0])
    assert (ours.switches, theirs.switches, ours.paths) == (5, 5, 24 if walk else None)
    assert (ours.ok, theirs.ok) == ("ours" not in case, "theirs" not in case)
    assert theirs.unchecked == set()
