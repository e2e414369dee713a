"""Configurations that openmrc did not write: other link addresses, lines, files and ports."""

import json
import re

import pytest

from openmrc import Error
from openmrc.cli import main
from openmrc.fabric import Fabric, Specification, plan
from openmrc.switchconf import FILES, cabling, render, verify, verify_foreign
from openmrc.switchconf.foreign import MAIN
from openmrc.switchconf.parse.cumulus import expand

BASE = {
    "hosts": 16,
    "nic": {"rate": "400G"},
    "planes": 2,
    "switch": {"radix": 8},
    "tiers": 2,
    "parallel_links": 1,
}
FABRIC = Fabric(Specification.model_validate(BASE))
SWITCH = "p1/t0-2"

# Lines that have nothing to do with the paths, as real switches have them.
OWN_LINES = {
    "linux": "link add bond7 type bond\nroute add 2001:db8::/32 via fe80::1 dev eth0\n",
    "frr": "log syslog\nipv6 route ::/0 fe80::1 eth0\nip prefix-list X seq 5 permit any\n",
    "sonic": None,
    "eos": (
        "ntp server 192.0.2.1\nmanagement api http-commands\n   no shutdown\n"
        "ipv6 route ::/0 Management1 fe80::1\n"
    ),
    "cumulus": "nv set service ntp mgmt server 192.0.2.1\nnv set vrf mgmt router static ::/0 via fe80::1\n",
}


@pytest.fixture(params=list(FILES))
def platform(request):
    return request.param


@pytest.fixture
def out(platform, tmp_path):
    """One file per switch as an operator might have it, with other link addresses and further lines."""
    made, directory = tmp_path / "made", tmp_path / "theirs"
    render(FABRIC, platform, made)
    directory.mkdir()
    for switch in FABRIC.switches():
        text = (made / str(switch) / MAIN[platform]).read_text()
        text = text.replace("fd5f:", "fdaa:").replace("/127", "/126")
        if platform == "sonic":
            tables = json.loads(text)
            tables["NTP_SERVER"] = {"192.0.2.1": {}}
            tables["STATIC_ROUTE"]["mgmt|::/0"] = {"nexthop": "fe80::1", "ifname": "eth0"}
            tables["INTERFACE"]["Ethernet0|10.0.0.0/31"] = {}
            text = json.dumps(tables, indent=4)
        else:
            text = text.replace("end\n", "") + OWN_LINES[platform]
        (directory / f"{str(switch).replace('/', '-')}.cfg").write_text(text)
    return directory


def check(out, platform, **options):
    return verify_foreign(out, FABRIC, platform, **options)


def spoil(out, old, new, count=1, pattern=False, switch=SWITCH):
    path = out / f"{switch.replace('/', '-')}.cfg"
    text = path.read_text()
    changed = re.sub(old, new, text, count=count, flags=re.M) if pattern else text.replace(old, new, count)
    assert changed != text
    path.write_text(changed)


ROUTE = {
    "linux": r"^route add (5f00:0:\w+::/48) via (\S+) dev (\S+)$",
    "frr": r"^ipv6 route (5f00:0:\w+::/48) (\S+) (\S+)$",
    "sonic": r'^        "default\|(5f00:0:\w+::/48)": \{\s+"nexthop": "(\S+)",\s+"ifname": "(\S+)"\s+\}',
    "eos": r"^ipv6 route (5f00:0:\w+::/48) (\S+) (\S+)$",
    "cumulus": r"^nv set vrf default router static (5f00:0:\w+::/48) via (\S+) interface (\S+)$",
}


def test_other_addresses_and_further_lines_are_no_problem(out, platform):
    result = check(out, platform)
    assert [str(problem) for problem in result.problems] == []
    assert result.switches == 16
    assert result.entries == sum(
        len(table.own) + len(table.routes) for table in map(FABRIC.table, FABRIC.switches())
    )
    assert result.ignored >= 16
    assert bool(result.unchecked) == (platform in ("linux", "frr"))


@pytest.mark.parametrize(
    "changes",
    [
        {"parallel_links": 2},
        {"hosts": 17, "hosts_per_t0": 3, "oversubscription": 1.5, "parallel_links": None},
        {"hosts": 50, "tiers": 3, "parallel_links": None},
        {"hosts": 5, "tiers": 1, "parallel_links": None},
    ],
)
def test_what_openmrc_writes_is_right_by_this_measure_too(platform, changes, tmp_path):
    fabric = Fabric(Specification.model_validate({**BASE, **changes}))
    render(fabric, platform, tmp_path)
    result = verify_foreign(tmp_path, fabric, platform)
    assert ([str(problem) for problem in result.problems], result.notes) == ([], [])
    assert (result.ignored, result.unchecked) == (0, set())


def test_files_may_be_in_directories(out, platform):
    for switch in FABRIC.switches():
        name = str(switch).replace("/", "-")
        (out / name).mkdir()
        (out / f"{name}.cfg").rename(out / name / "running")
    assert check(out, platform).ok


def test_a_missing_route_is_named(out, platform):
    spoil(out, ROUTE[platform] + ",?", "", pattern=True)
    problems = check(out, platform).problems
    assert [(p.switch, p.text) for p in problems] == [
        (SWITCH, "the route for 5f00:0:e000::/48 (down0) is missing")
    ]


def test_two_exchanged_next_hops_are_named(out, platform):
    path = out / f"{SWITCH.replace('/', '-')}.cfg"
    text = path.read_text()
    first, second = list(re.finditer(ROUTE[platform], text, re.M))[-2:]
    a, b = text[first.start(2) : first.end(3)], text[second.start(2) : second.end(3)]
    text = text[: first.start(2)] + b + text[first.end(3) : second.start(2)] + a + text[second.end(3) :]
    path.write_text(text)
    problems = check(out, platform).problems
    assert len(problems) == 2
    assert re.fullmatch(
        r"5f00:0:\w+::/48 \(p1/t1-2\) leaves by \S+ to p1/t1-3; p1/t1-2 is behind \S+", problems[0].text
    )
    assert text.splitlines()[problems[0].line - 1].count(first[1]) == 1
    assert problems[0].file == "p1-t0-2.cfg"


def test_a_next_hop_that_nobody_has_is_named(out, platform):
    hop = 3 if platform == "eos" else 2
    path = out / f"{SWITCH.replace('/', '-')}.cfg"
    text = path.read_text()
    match = list(re.finditer(ROUTE[platform], text, re.M))[-1]
    path.write_text(text[: match.start(hop)] + "2001:db8:99::9" + text[match.end(hop) :])
    (problem,) = check(out, platform).problems
    assert problem.text.endswith("goes to 2001:db8:99::9, which is no neighbour's address")


def test_a_neighbour_with_another_address_is_found_at_the_switch_that_points_to_it(out, platform):
    # The next hops of p1/t0-2 are right by themselves: p1/t1-3 has another address than it used to have.
    port = next(p for p in FABRIC.ports(FABRIC.switch("p1/t1-3")) if p.peer == SWITCH)
    address = port.address.replace("fd5f:", "fdaa:")
    spoil(out, f"{address}/126", "fdaa:ffff::1/126", switch="p1/t1-3")
    problems = check(out, platform).problems
    assert [problem.switch for problem in problems] == [SWITCH]
    assert problems[0].text.endswith("which is no neighbour's address")


def test_a_more_specific_route_is_named_and_others_are_not(out, platform):
    lines = {
        "linux": "route add {} via fe80::1 dev up0\n",
        "frr": "ipv6 route {} fe80::1 up0\n",
        "eos": "ipv6 route {} Ethernet5/1 fe80::1\n",
        "cumulus": "nv set vrf default router static {} via fe80::1 interface swp5\n",
    }
    path = out / f"{SWITCH.replace('/', '-')}.cfg"
    for prefix in ("5f00:0:e000:1::/64", "5f00::/16"):
        if platform == "sonic":
            tables = json.loads(path.read_text())
            tables["STATIC_ROUTE"][f"default|{prefix}"] = {"nexthop": "fe80::1", "ifname": "Ethernet32"}
            path.write_text(json.dumps(tables, indent=4))
        else:
            path.write_text(path.read_text() + lines[platform].format(prefix))
    (problem,) = check(out, platform).problems
    assert problem.text == "5f00:0:e000:1::/64 is more specific than 5f00:0:e000::/48 and takes its packets"


def test_link_local_next_hops_are_taken_by_their_interface(out, platform):
    path = out / f"{SWITCH.replace('/', '-')}.cfg"
    hop = 3 if platform == "eos" else 2
    text = path.read_text()
    for match in reversed(list(re.finditer(ROUTE[platform], text, re.M))):
        text = text[: match.start(hop)] + "fe80::1" + text[match.end(hop) :]
    path.write_text(text)
    assert check(out, platform).problems == []


def test_a_foreign_usid_and_a_missing_one_are_named(out, platform):
    own = FABRIC.table(FABRIC.switch(SWITCH)).own[0]
    other = FABRIC.table(FABRIC.switch("p1/t0-3")).own[0]
    spoil(out, f"5f00:0:{own:x}::", f"5f00:0:{other:x}::", count=0 if platform != "eos" else 1, pattern=True)
    if platform == "eos":
        spoil(out, f"usid 0x{own:04x}", f"usid 0x{other:04x}")
    problems = [problem.text for problem in check(out, platform).problems]
    assert f"its own uSID 5f00:0:{own:x}::/48 is missing" in problems
    assert any("is not a uSID of this switch (p1/t0-3)" in text for text in problems)


def test_a_missing_switch_is_named(out, platform):
    (out / "p0-t1-1.cfg").unlink()
    problems = check(out, platform).problems
    assert ("p0/t1-1", "the switch's files are missing") in [(p.switch, p.text) for p in problems]


# The main files of Linux and FRR have no queues.
@pytest.mark.parametrize("platform", ["sonic", "eos", "cumulus"], indirect=True)
def test_queues_are_checked_where_a_file_says_them(out, platform):
    spoiled = {
        "sonic": (
            '"scheduler": "CONTROL"',
            '"scheduler": "DATA"',
            "control code points without strict priority",
        ),
        "eos": ("service-profile last-hop", "service-profile marking", "Ethernet1/1 must not mark ECN"),
        "cumulus": ("traffic-class 6 mode strict", "traffic-class 6 mode dwrr", "without strict priority"),
    }
    old, new, text = spoiled[platform]
    spoil(out, old, new, count=-1 if platform == "sonic" else 1)
    problems = check(out, platform).problems
    assert any(text in problem.text for problem in problems), [str(p) for p in problems]


@pytest.mark.parametrize("platform", ["frr", "sonic", "eos", "cumulus"], indirect=True)
def test_a_routing_protocol_is_named(out, platform):
    line = {
        "frr": "router bgp 65000",
        "eos": "router bgp 65000",
        "cumulus": "nv set vrf default router bgp state enabled",
    }
    if platform == "sonic":
        path = out / "p1-t0-2.cfg"
        tables = json.loads(path.read_text())
        path.write_text(json.dumps({**tables, "BGP_NEIGHBOR": {"fe80::1": {"asn": "1"}}}))
    else:
        path = out / "p1-t0-2.cfg"
        path.write_text(path.read_text() + line[platform] + "\n")
    (problem,) = check(out, platform).problems
    assert "routing protocol" in problem.text


def test_the_ports_may_be_others_than_the_plans(out, platform):
    listed = list(cabling.cables(FABRIC, platform, plan(FABRIC).asked))
    (a, b) = [i for i, c in enumerate(listed) if c.lower == "p0-t0-0" and c.upper in ("p0-t1-0", "p0-t1-1")]
    one, other = listed[a], listed[b]
    # The operator connected two uplinks of p0/t0-0 the other way round, and configured it so.
    path = out / "p0-t0-0.cfg"
    swap = {one.lower_port: other.lower_port, other.lower_port: one.lower_port}
    pattern = "|".join(rf"(?<![\w/]){re.escape(name)}(?![\w/])" for name in swap)
    path.write_text(re.sub(pattern, lambda match: swap[match[0]], path.read_text()))
    assert not check(out, platform).ok
    listed[a] = one._replace(lower_port=other.lower_port)
    listed[b] = other._replace(lower_port=one.lower_port)
    assert check(out, platform, cables=listed).problems == []


def test_a_file_may_have_the_name_of_its_switch_alone(out, platform):
    for path in list(out.iterdir()):
        path.rename(path.with_suffix(""))
    assert check(out, platform).ok


def test_a_switch_without_files_is_named_in_full(tmp_path):
    render(FABRIC, "linux", tmp_path)
    (tmp_path / SWITCH / "ip.batch").unlink()
    for path in (tmp_path / SWITCH).iterdir():
        path.unlink()
    first = verify_foreign(tmp_path, FABRIC, "linux").problems[0]
    assert str(first) == f"{SWITCH}: {tmp_path}: the switch's files are missing"


def test_prefixes_are_named_in_the_block_of_the_plan(tmp_path):
    fabric = Fabric(Specification.model_validate({**BASE, "addressing": {"block": "5f00:12::/32"}}))
    render(fabric, "linux", tmp_path)
    path = tmp_path / SWITCH / "ip.batch"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if "5f00:12:e000::/48" not in line))
    (problem,) = verify_foreign(tmp_path, fabric, "linux").problems
    assert problem.text == "the route for 5f00:12:e000::/48 (down0) is missing"
    assert [p.text for p in verify(tmp_path, walk=False).problems] == [problem.text]


def test_a_route_outside_the_block_takes_no_packets_of_the_plan(tmp_path):
    render(FABRIC, "linux", tmp_path)
    path = tmp_path / SWITCH / "ip.batch"
    path.write_text(path.read_text() + "route add 2001:db8:e000::/64 via fe80::1 dev up0\n")
    result = verify_foreign(tmp_path, FABRIC, "linux")
    assert (result.problems, result.ignored) == ([], 1)


# --- forms that others use ----------------------------------------------------------------------------------


def test_ranges_of_nvue_are_read(tmp_path):
    render(FABRIC, "cumulus", tmp_path)
    for path in tmp_path.rglob("nvue.cmds"):
        text = path.read_text().replace("swp1,swp2,swp3,swp4,swp5,swp6,swp7,swp8", "swp1-8")
        text = text.replace("swp1,swp2,swp3,swp4", "swp1-4").replace("swp5,swp6,swp7,swp8", "swp5-8")
        text = text.replace("traffic-class 0,1 ", "traffic-class 0-1 ").replace(
            "dscp 0,1,2,3,5", "dscp 0-3,5"
        )
        path.write_text(text)
    result = verify_foreign(tmp_path, FABRIC, "cumulus")
    assert (result.problems, result.notes) == ([], [])


def test_lists_of_nvue_are_read_as_nvue_reads_them():
    assert expand("swp1-2,5-6") == ["swp1", "swp2", "swp5", "swp6"]
    assert expand("swp1s0-1,swp17s0,1") == ["swp1s0", "swp1s1", "swp17s0", "swp17s1"]
    assert expand("swp1-2s0-1,eth0") == ["swp1s0", "swp1s1", "swp2s0", "swp2s1", "eth0"]
    assert expand("0-2,5") == ["0", "1", "2", "5"]


def test_a_route_of_nvue_may_be_a_line_for_each_setting(tmp_path):
    render(FABRIC, "cumulus", tmp_path)
    route = re.compile(r"^(nv set vrf default router static (\S+)) via (\S+) interface (\S+)$", re.M)
    lines = r"\1 address-family ipv6-unicast\n\1 via \3 type ipv6-address\n\1 via \3 interface \4"
    for path in tmp_path.rglob("nvue.cmds"):
        path.write_text(route.sub(lines, path.read_text()))
    result = verify_foreign(tmp_path, FABRIC, "cumulus")
    assert (result.problems, result.notes, result.ignored) == ([], [], 0)
    # Another next hop for the same prefix is still named.
    path = tmp_path / SWITCH / "nvue.cmds"
    prefix = route.search(path.read_text())
    assert prefix is not None
    path.write_text(path.read_text() + f"{prefix[1]} via fe80::7\n")
    (problem,) = verify_foreign(tmp_path, FABRIC, "cumulus").problems
    assert "second next hop, fe80::7" in problem.text


def test_maps_of_ports_that_are_not_in_the_fabric_are_no_problem(tmp_path):
    render(FABRIC, "sonic", tmp_path)
    path = tmp_path / SWITCH / "config_db.json"
    tables = json.loads(path.read_text())
    platforms = {"dscp_to_tc_map": "AZURE", "tc_to_queue_map": "AZURE", "pfc_enable": "3,4"}
    tables["PORT_QOS_MAP"] |= {"global": {"dscp_to_tc_map": "AZURE"}, "Ethernet508": platforms}
    path.write_text(json.dumps(tables, indent=4))
    result = verify_foreign(tmp_path, FABRIC, "sonic")
    assert (result.problems, result.notes) == ([], [])
    tables["PORT_QOS_MAP"]["Ethernet0"] |= {"pfc_enable": "3,4"}
    path.write_text(json.dumps(tables, indent=4))
    (problem,) = verify_foreign(tmp_path, FABRIC, "sonic").problems
    assert problem.text == "PFC is on at Ethernet0"


def test_the_format_line_of_newer_frr_is_read(tmp_path):
    render(FABRIC, "frr", tmp_path)
    for path in tmp_path.rglob("frr.conf"):
        text = path.read_text().replace(" block-len 32 node-len 16 func-bits 16", "")
        path.write_text(text.replace("behavior usid", "format usid-f3216").replace("ipv6 forwarding\n", ""))
    assert verify_foreign(tmp_path, FABRIC, "frr").problems == []
    for path in tmp_path.rglob("frr.conf"):
        path.write_text(path.read_text().replace("    format usid-f3216\n", ""))
    problems = verify_foreign(tmp_path, FABRIC, "frr").problems
    assert len(problems) == 16
    assert "not of 32-bit block and 16-bit node" in problems[0].text


def test_other_thresholds_and_unmapped_code_points_are_notes(tmp_path):
    render(FABRIC, "eos", tmp_path)
    path = tmp_path / SWITCH / "startup-config"
    text = path.read_text().replace(
        "minimum-threshold 60000 bytes maximum-threshold 240000 bytes",
        "minimum-threshold 70 kbytes maximum-threshold 300 kbytes",
    )
    path.write_text(text.replace(" 61 62 63 to", " to"))
    result = verify_foreign(tmp_path, FABRIC, "eos")
    assert result.problems == []
    assert [note.text for note in result.notes] == [
        "ECN thresholds are [(70000, 300000)], the plan has (60000, 240000)",
        "code points that keep a default class: 61, 62, 63",
    ]


@pytest.mark.parametrize(
    ("platform", "old", "new"),
    [
        ("cumulus", "dscp 4,8 switch-priority", "dscp 4,af41 switch-priority"),
        ("cumulus", "min-threshold 60000", "min-threshold 60KB"),
        ("cumulus", "max-threshold 240000", "max-threshold x"),
        ("eos", "qos map dscp 4 8 to", "qos map dscp 4 af41 to"),
        ("eos", "end usid 0x", "end usid x"),
        ("eos", "end usid 0x", "end usid 0x1234"),
    ],
)
def test_what_should_be_a_number_and_is_none_is_not_understood(platform, old, new, tmp_path):
    render(FABRIC, platform, tmp_path)
    path = tmp_path / SWITCH / MAIN[platform]
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    line = next(n for n, each in enumerate(path.read_text().splitlines(), start=1) if new in each)
    named = [problem for problem in verify(tmp_path, walk=False).problems if problem.line == line]
    assert [problem.text.partition(":")[0] for problem in named] == ["not understood"]
    assert verify_foreign(tmp_path, FABRIC, platform).ignored == 1


# --- refusals and the command -------------------------------------------------------------------------------


def test_an_empty_directory_and_a_strange_list_are_refused(tmp_path):
    with pytest.raises(
        Error, match=r"has no file of a switch, such as p0-t0-0.cfg or p0-t0-0/startup-config"
    ):
        verify_foreign(tmp_path, FABRIC, "eos")
    listed = list(cabling.cables(FABRIC, "eos", plan(FABRIC).asked))
    with pytest.raises(Error, match="has a link x--y, which the fabric does not have"):
        verify_foreign(tmp_path, FABRIC, "eos", cables=[listed[0]._replace(link="x--y")])


def test_the_command_says_what_it_found(tmp_path, capsys):
    spec = tmp_path / "fabric.yaml"
    spec.write_text(
        "hosts: 16\nnic: {rate: 400G}\nplanes: 2\ntiers: 2\nparallel_links: 1\nswitch: {radix: 8}\n"
    )
    render(FABRIC, "frr", tmp_path / "made")
    for path in (tmp_path / "made").rglob("qos.sh"):
        path.unlink()
    arguments = ["verify", str(tmp_path / "made"), "--fabric", str(spec), "--platform", "frr"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("every path arrives: frr, 16 switches, 112 entries,")
    assert "not checked: queues and ECN (no qos.sh)" in printed
    path = tmp_path / "made" / SWITCH / "frr.conf"
    path.write_text(path.read_text().replace("ipv6 route 5f00:0:e000::/48", "ipv6 route 5f00:0:e00f::/48"))
    assert main([*arguments, "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["problems"] == [
        {
            "switch": SWITCH,
            "file": "p1/t0-2/frr.conf",
            "line": 0,
            "text": "the route for 5f00:0:e000::/48 (down0) is missing",
        }
    ]
    assert main(["verify", str(tmp_path / "made"), "--fabric", str(spec)]) == 2
    assert main(["verify", str(tmp_path / "made"), "--fabric", str(spec), "--platform", "junos"]) == 2
