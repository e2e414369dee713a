"""Everything that is said of one changed line: by the check of our own files, and by that of others'."""

import tomllib
from functools import cache
from pathlib import Path

import pytest

from openmrc.switchconf import render, verify, verify_foreign
from openmrc.switchconf.verify import count_paths
from tests.helpers.fabrics import six_hosts

FABRIC = six_hosts()
SWITCH = "p0/t0-0"
CASES = tomllib.loads(Path(__file__).with_name("changed_lines.toml").read_text())["case"]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The directory of a platform's files, written once."""

    @cache
    def directory(platform):
        made = tmp_path_factory.mktemp(platform)
        render(FABRIC, platform, made)
        return made

    return directory


def shown(problems):
    return [str(problem).removeprefix(f"{SWITCH}: {SWITCH}/") for problem in problems]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['platform']}: {case['new'].strip()[:60]}")
def test_a_changed_line_is_named_with_its_place_and_nothing_else_is(written, case):
    directory, walk = written(case["platform"]), case.get("walk", False)
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


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"hosts": 5, "planes": 2, "nic": {"rate": "400G"}},
        {"hosts": 18, "tiers": 3, "parallel_links": None},
    ],
)
def test_paths_are_counted_as_they_are_walked(changes, tmp_path):
    fabric = six_hosts(**changes)
    per_t0 = fabric.core.hosts_per_t0
    pairs = [(src, dst) for src in range(fabric.hosts) for dst in range(fabric.hosts) if src != dst]
    every = {(src // per_t0, path.address) for src, dst in pairs for path in fabric.paths(src, dst)}
    assert count_paths(fabric) == len(every)


def test_every_path_is_walked_up_to_a_number_of_paths(written, monkeypatch):
    for most, paths in ((12, None), (23, None), (24, 24)):
        monkeypatch.setitem(verify.__globals__, "WALK_LIMIT", most)
        assert verify(written("linux")).paths == paths
