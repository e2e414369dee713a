"""What is said of a directory as a whole, of its places, and of packets walked through it."""

import json
import re

import pytest

from openmrc import Error
from openmrc.fabric import Fabric, Specification
from openmrc.switchconf import render, verify, written
from openmrc.switchconf.verify import WALK_LIMIT, count_paths
from tests.helpers.repository import ROOT

BASE = {"hosts": 6, "nic": {"rate": "200G"}, "planes": 1, "switch": {"radix": 8}, "tiers": 2}
SWITCH = "p0/t0-0"


def fabric_of(**changes):
    return Fabric(Specification.model_validate({**BASE, "parallel_links": 1, **changes}))


@pytest.fixture
def out(tmp_path):
    render(fabric_of(), "linux", tmp_path)
    return tmp_path


def changed(out, pattern, new, name="ip.batch", switch=SWITCH):
    """Changes the first match in a file; its line."""
    path = out / switch / name
    text = path.read_text()
    match = re.search(pattern, text, re.M)
    assert match
    path.write_text(text[: match.start()] + new + text[match.end() :])
    return text.count("\n", 0, match.start()) + 1


def shown(out, **options):
    return [str(problem) for problem in verify(out, **options).problems]


@pytest.mark.parametrize(
    ("name", "hint"),
    [("fabric.yaml", True), ("fabric.yml", True), ("fabric.txt", False), ("nowhere.yaml", False)],
)
def test_who_names_a_specification_is_told_how_to_write_configurations(name, hint, tmp_path):
    path = tmp_path / name
    if not name.startswith("nowhere"):
        path.write_text("hosts: 6\n")
    with pytest.raises(Error) as refused:
        verify(path)
    command = f"; `openmrc config {path} --platform NAME -o DIR` writes one"
    assert str(refused.value) == f"{path} is not a directory{command if hint else ''}"


@pytest.mark.parametrize(
    ("spaces", "message"), [(59, "PLATFORM: junos is not one of"), (60, "is larger than 64")]
)
def test_the_name_of_the_system_is_short(spaces, message, out):
    (out / "PLATFORM").write_text("junos" + " " * spaces)
    with pytest.raises(Error, match=message):
        verify(out)


def test_a_written_directory_has_its_fabric_and_its_system(out):
    fabric, platform = written(out)
    assert (platform, fabric.hosts, fabric.spec.parallel_links) == ("linux", 6, 1)


def test_switches_too_many_and_missing_ones_are_named_by_their_directories(out):
    (out / "p0" / "t1-99").mkdir()
    (out / "p7" / "t0-0").mkdir(parents=True)
    (out / "p0" / "t1-2").rename(out / "spare")
    problems = shown(out, walk=False)
    assert problems == [
        "p0/t1-99: p0/t1-99: the fabric has no such switch",
        "p7/t0-0: p7/t0-0: the fabric has no such switch",
        "p0/t1-2: p0/t1-2: the switch's files are missing",
    ]


def test_progress_is_told_after_each_switch(out):
    told = []
    verify(out, progress=lambda *numbers: told.append(numbers))
    assert told == [(n, 5) for n in range(1, 6)]


def test_the_docs_say_up_to_how_many_paths_all_are_walked():
    assert f"In fabrics of up to {WALK_LIMIT:,} paths" in (ROOT / "docs" / "fabric.md").read_text()


def test_a_large_fabric_is_not_walked():
    fabric = fabric_of(hosts=1024, planes=8, nic={"rate": "800G"}, switch={"radix": 512}, parallel_links=None)
    assert count_paths(fabric) > WALK_LIMIT


# --- entries ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["5f00:0000:e000::/48", "5f00:0:E000::/48", "5f00:0:e000:0::/48"])
def test_a_prefix_may_be_spelled_in_any_way(prefix, out):
    changed(out, "5f00:0:e000::/48", prefix)
    assert shown(out) == []


@pytest.mark.parametrize(
    "prefix", ["5f00:0:e000::/49", "5f00:0:0e000::/48", "5f00:0:e000::", "5f00:0:x::/48"]
)
def test_what_is_no_usid_is_never_used(prefix, out):
    line = changed(out, "5f00:0:e000::/48", prefix)
    assert shown(out, walk=False) == [
        f"{SWITCH}: {SWITCH}/ip.batch:{line}: {prefix} is never used here",
        f"{SWITCH}: {SWITCH}/ip.batch: the route for 5f00:0:e000::/48 (down0) is missing",
    ]


def test_what_is_missing_is_named_in_the_block_of_the_plan(tmp_path):
    render(fabric_of(addressing={"block": "5f00:12::/32"}), "linux", tmp_path)
    changed(tmp_path, "^route add 5f00:12:.*\n", "")
    assert shown(tmp_path, walk=False) == [
        f"{SWITCH}: {SWITCH}/ip.batch: its own uSID 5f00:12:1::/48 is missing"
    ]


@pytest.mark.parametrize("keep", ["route add .* via", "route add .* encap", "address add"])
def test_what_is_missing_is_missing_from_the_file_that_has_the_others(keep, out):
    path = out / SWITCH / "ip.batch"
    path.write_text("".join(line for line in path.read_text().splitlines(True) if re.match(keep, line)))
    missing = [problem for problem in shown(out, walk=False) if problem.endswith(("missing", "no address"))]
    assert missing
    assert all(problem.startswith(f"{SWITCH}: {SWITCH}/ip.batch: ") for problem in missing)


def test_an_empty_file_has_no_place_for_what_is_missing(out):
    (out / SWITCH / "ip.batch").write_text("")
    problems = shown(out, walk=False)
    assert f"{SWITCH}: {SWITCH}: its own uSID 5f00:0:1::/48 is missing" in problems


def test_every_wrong_entry_is_named_not_only_the_first(out):
    first = changed(out, "^route add 5f00:0:e000::/48", "route add 2001:db8::/48")
    second = changed(out, "^route add 5f00:0:e001::/48", "route add 5f00:0:e002::/48")
    third = changed(out, r"via fd5f::2:0:0:2 dev down2", "via fd5f::99 dev down2")
    problems = [problem.partition("ip.batch:")[2] for problem in shown(out, walk=False)]
    assert [problem.partition(":")[0] for problem in problems[:3]] == [str(first), str(second), str(third)]


def test_lanes_and_speeds_are_compared_where_a_table_of_ports_is_known(tmp_path):
    switch = {"capacity": "51.2T", "hwsku": "Mellanox-SN5600-O128"}
    fabric = fabric_of(hosts=2, tiers=1, planes=2, nic={"rate": "800G"}, switch=switch, parallel_links=None)
    render(fabric, "sonic", tmp_path)
    path = tmp_path / SWITCH / "config_db.json"
    tables = json.loads(path.read_text())
    right = {name: dict(fields) for name, fields in tables["PORT"].items()}

    def problems():
        path.write_text(json.dumps(tables))
        return [problem.text for problem in verify(tmp_path).problems]

    # A port that the fabric does not have may be as it likes.
    tables["PORT"]["Ethernet500"] = {"lanes": "1", "speed": "1"}
    assert problems() == []
    for field, value, words in (
        ("lanes", "9", "lanes 9 and speed 400000"),
        ("speed", "7", "0,1,2,3 and speed 7"),
    ):
        tables["PORT"]["Ethernet0"] = {**right["Ethernet0"], field: value}
        (problem,) = problems()
        assert problem.startswith("Ethernet0 has lanes ")
        assert f"{words}, the port table has lanes 0,1,2,3 and speed 400000" in problem


# --- walks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"hosts": 5},
        {"hosts": 2, "tiers": 1, "parallel_links": None},
        {"hosts": 7, "planes": 2, "nic": {"rate": "400G"}, "hosts_per_t0": 3},
    ],
)
def test_every_host_is_reached_from_every_rack(changes, tmp_path):
    fabric = fabric_of(**changes)
    render(fabric, "linux", tmp_path)
    result = verify(tmp_path, walk=True)
    per_t0, hosts = fabric.core.hosts_per_t0, range(fabric.hosts)
    pairs = [(src, dst) for src in hosts for dst in hosts if src != dst]
    every = {(src // per_t0, path.address) for src, dst in pairs for path in fabric.paths(src, dst)}
    assert ([str(problem) for problem in result.problems], result.paths) == ([], len(every))


def test_a_packet_that_arrives_at_another_host_is_named_with_its_path(tmp_path):
    # One path to each of three hosts of one switch.
    fabric = fabric_of(hosts=3, tiers=1, parallel_links=None)
    render(fabric, "linux", tmp_path)
    line = changed(tmp_path, r"via fd5f::1:0:0:2 dev down1", "via fd5f::2 dev down0")
    place = f"{SWITCH}: {SWITCH}/ip.batch:{line}"
    ev = f"{fabric.path(0, 1).ev:#010x}"
    assert shown(tmp_path) == [
        f"{place}: 5f00:0:e001::/48 (down1) leaves by down0 to h0; h1 is behind down1",
        f"{place}: a packet of h0 to h1 on EV {ev} is lost: it arrives at h0",
    ]


def test_of_several_paths_that_are_lost_at_one_place_the_first_is_named(out):
    line = changed(out, r"via fd5f:0:1::2 dev down0", "via fd5f:0:1:0:1::2 dev down1", switch="p0/t1-0")
    lost = [problem for problem in shown(out) if "is lost" in problem]
    path = next(path for path in fabric_of().paths(3, 0) if path.hops[1].switch == "p0/t1-0")
    assert lost == [
        f"p0/t1-0: p0/t1-0/ip.batch:{line}: a packet of h3 to h0 on EV {path.ev:#010x} is lost: "
        "p0/t0-1 has no route for 5f00:0:1:e000:: (and 2 paths more)"
    ]


@pytest.mark.parametrize(("hosts", "more"), [(4, ""), (5, " (and 1 paths more)"), (6, " (and 2 paths more)")])
def test_the_other_paths_that_are_lost_at_a_place_are_counted(hosts, more, tmp_path):
    # The second rack has one, two or three hosts, and one plane leads to each by this switch.
    fabric = fabric_of(hosts=hosts, hosts_per_t0=3)
    render(fabric, "linux", tmp_path)
    changed(tmp_path, r"via fd5f:0:1:0:1::2 dev down1", "via fd5f:0:1::2 dev down0", switch="p0/t1-0")
    lost = [problem.partition(" is lost: ")[2] for problem in shown(tmp_path)]
    assert [text for text in lost if text] == [f"p0/t0-0 has no route for 5f00:0:2:e000::{more}"]


def test_entries_that_no_packet_uses_are_named_at_their_places(out):
    path = out / SWITCH / "ip.batch"
    own = "route add 5f00:0:77::/48 encap seg6local action End flavors next-csid lblen 32 nflen 16 dev sr0\n"
    path.write_text(path.read_text() + own + "route add 5f00:0:78::/48 via fd5f::2 dev down0\n")
    unused = [problem for problem in shown(out) if "no path uses" in problem]
    assert unused == [
        f"{SWITCH}: {SWITCH}/ip.batch: no path uses the entry for uSID 0x0077",
        f"{SWITCH}: {SWITCH}/ip.batch:26: no path uses the entry for uSID 0x0078",
    ]
