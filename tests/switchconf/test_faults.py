"""A wrong entry in any platform's files is found, and named by switch, file and line."""

import json
import re

import pytest

from openmrc.fabric import Fabric, Specification
from openmrc.switchconf import FILES, render, verify

FABRIC = Fabric(
    Specification.model_validate(
        {
            "hosts": 16,
            "nic": {"rate": "400G"},
            "planes": 2,
            "switch": {"radix": 8},
            "tiers": 2,
            "parallel_links": 1,
        }
    )
)
SWITCH = "p1/t0-2"
MAIN = {
    "linux": "ip.batch",
    "frr": "frr.conf",
    "sonic": "config_db.json",
    "eos": "startup-config",
    "cumulus": "nvue.cmds",
}
ROUTE = {
    "linux": r"^route add (\S+) via (\S+) dev (\S+)$",
    "frr": r"^ipv6 route (\S+) (\S+) (\S+)$",
    "sonic": r'^    "default\|(\S+)": \{"nexthop": "(\S+)", "ifname": "(\S+)"\},?$',
    "eos": r"^ipv6 route (\S+) (\S+) (\S+)$",
    "cumulus": r"^nv set vrf default router static (\S+) via (\S+) interface (\S+)$",
}


@pytest.fixture(params=list(FILES))
def platform(request):
    return request.param


@pytest.fixture
def out(platform, tmp_path):
    render(FABRIC, platform, tmp_path)
    assert verify(tmp_path).ok
    return tmp_path


class File:
    """The main file of a switch, which the test changes."""

    def __init__(self, out, platform, switch=SWITCH):
        self.path = out / switch / MAIN[platform]
        self.pattern = re.compile(ROUTE[platform])
        self.lines = self.path.read_text().splitlines()

    def routes(self):
        """Numbers of the lines that are routes, from 1."""
        return [n for n, line in enumerate(self.lines, start=1) if self.pattern.match(line)]

    def line(self, number):
        return self.lines[number - 1]

    def swap(self, a, b, group):
        """Exchanges parts of two routes."""
        one, other = (self.pattern.match(self.line(n)) for n in (a, b))
        for n, mine, theirs in ((a, one, other), (b, other, one)):
            start, end = mine.span(group)
            self.lines[n - 1] = mine.string[:start] + theirs[group] + mine.string[end:]

    def write(self):
        self.path.write_text("\n".join(self.lines) + "\n")


def find(out, line, text, switch=SWITCH):
    """The problems with this switch, line and text."""
    for walk in (False, True):
        problems = verify(out, walk=walk).problems
        named = [p for p in problems if p.switch == switch and p.line == line and re.search(text, p.text)]
        assert named, [str(p) for p in problems]
    return named


def test_a_route_to_the_wrong_switch_is_named(out, platform):
    file = File(out, platform)
    a, b = file.routes()[-2:]
    # The next hops of two uplinks are exchanged: each entry alone is possible.
    for group in (2, 3):
        file.swap(a, b, group)
    file.write()
    problem = find(out, a, r"leaves by \S+ to p1/t1-3; p1/t1-2 is behind")[0]
    assert problem.file == f"{SWITCH}/{MAIN[platform]}"
    find(out, b, r"leaves by \S+ to p1/t1-2; p1/t1-3 is behind")
    assert any("is lost" in p.text for p in verify(out).problems)


def test_a_next_hop_that_is_not_on_its_interface_is_named(out, platform):
    file = File(out, platform)
    a, b = file.routes()[-2:]
    file.swap(a, b, 2)
    file.write()
    find(out, a, r"leaves by|is behind")


def test_a_next_hop_nobody_has_is_named(out, platform):
    file = File(out, platform)
    number = file.routes()[0]
    match = file.pattern.match(file.line(number))
    hop = 3 if platform == "eos" else 2
    file.lines[number - 1] = match.string[: match.start(hop)] + "fd99::1" + match.string[match.end(hop) :]
    file.write()
    find(out, number, "fd99::1, which is no neighbour's address")


def test_a_missing_route_is_named(out, platform):
    file = File(out, platform)
    number = file.routes()[0]
    prefix = file.pattern.match(file.line(number))[1]
    del file.lines[number - 1]
    file.write()
    problems = verify(out, walk=False).problems
    assert [(p.switch, p.text) for p in problems] == [(SWITCH, f"the route for {prefix} (down0) is missing")]
    assert any("has no route for" in p.text for p in verify(out).problems)


def test_an_unused_route_is_named(out, platform):
    file = File(out, platform)
    number = file.routes()[0]
    line = file.line(number)
    file.lines.insert(number - 1, line.replace(file.pattern.match(line)[1], "5f00:0:dead::/48"))
    file.write()
    find(out, number, r"5f00:0:dead::/48 is never used here")


def test_a_more_specific_route_is_named(out, platform):
    file = File(out, platform)
    number = file.routes()[0]
    prefix = file.pattern.match(file.line(number))[1]
    file.lines.insert(number - 1, file.line(number).replace(prefix, prefix.replace("/48", "/64")))
    file.write()
    find(out, number, "never used here")


def test_a_second_next_hop_is_named(out, platform):
    file = File(out, platform)
    a, b = file.routes()[-2:]
    first, second = file.pattern.match(file.line(a)), file.line(b)
    extra = second.replace(file.pattern.match(second)[1], first[1])
    file.lines.insert(b, extra)
    if platform == "sonic":
        file.lines[b - 1] = file.lines[b - 1].rstrip(",") + ","
        file.lines[b] = file.lines[b].rstrip(",")
    file.write()
    find(out, b + 1, "second next hop|there twice")


def test_a_switch_with_anothers_usid_is_named(out, platform):
    own = {switch: FABRIC.table(FABRIC.switch(switch)).own[0] for switch in (SWITCH, "p1/t0-3")}
    file = File(out, platform)
    mine, other = (f"5f00:0:{usid:x}::" for usid in own.values())
    text = "\n".join(file.lines).replace(mine, other)
    text = text.replace(f"usid 0x{own[SWITCH]:04x}", f"usid 0x{own['p1/t0-3']:04x}")
    file.lines = text.split("\n")
    file.write()
    problems = verify(out, walk=False).problems
    assert {p.switch for p in problems} == {SWITCH}
    wrong = [p for p in problems if "is not a uSID of p1/t0-2 (p1/t0-3)" in p.text]
    assert len(wrong) == 1
    line = file.lines[wrong[0].line - 1]
    assert other.strip(":") in line or f"{own['p1/t0-3']:x}" in line
    assert any("own uSID" in p.text and "is missing" in p.text for p in problems)


def test_a_wrong_link_address_is_named(out, platform):
    file = File(out, platform)
    port = FABRIC.ports(FABRIC.switch(SWITCH))[0]
    number = next(n for n, line in enumerate(file.lines, start=1) if f"{port.address}/127" in line)
    file.lines[number - 1] = file.lines[number - 1].replace(f"{port.address}/127", "fd5f::99/127")
    file.write()
    find(out, number, r"has address fd5f::99/127, its end of h8:p1--p1/t0-2:down0 is")


def test_files_of_two_switches_exchanged_are_named(out, platform):
    a, b = out / "p0" / "t1-0", out / "p0" / "t1-1"
    spare = out / "spare"
    a.rename(spare)
    b.rename(a)
    spare.rename(b)
    named = {p.switch for p in verify(out, walk=False).problems}
    assert named == {"p0/t1-0", "p0/t1-1"}


def test_a_missing_switch_is_named(out, platform):
    for file in (out / "p0" / "t1-1").iterdir():
        file.unlink()
    (out / "p0" / "t1-1").rmdir()
    problems = verify(out, walk=False).problems
    assert [(p.switch, p.text) for p in problems] == [("p0/t1-1", "the switch's files are missing")]


def test_a_switch_too_many_is_named(out, platform):
    (out / "p0" / "t1-99").mkdir()
    problems = verify(out, walk=False).problems
    assert [(p.switch, p.text) for p in problems] == [("p0/t1-99", "the fabric has no such switch")]


def test_ecn_on_a_last_hop_is_named(out, platform):
    name = "qos.sh" if platform in ("linux", "frr") else MAIN[platform]
    path = out / SWITCH / name
    text = path.read_text()
    spoiled = {
        "linux": text.replace('marking="up0', 'marking="down0 up0'),
        "frr": text.replace('marking="up0', 'marking="down0 up0'),
        "sonic": text.replace(
            '"Ethernet0|0-1": {"scheduler": "DATA"',
            '"Ethernet0|0-1": {"scheduler": "DATA", "wred_profile": "MARKING"',
        ),
        "eos": text.replace("service-profile last-hop", "service-profile marking", 1),
        "cumulus": text.replace(
            "qos congestion-control profile marking",
            "qos congestion-control profile marking\n"
            "nv set interface swp1 qos congestion-control profile marking",
        ),
    }[platform]
    assert spoiled != text
    path.write_text(spoiled)
    problems = verify(out, walk=False).problems
    assert [p.switch for p in problems] == [SWITCH]
    assert re.search(r"(down0|Ethernet0|Ethernet1/1|swp1) must not mark ECN", problems[0].text)


PLANTED = {
    "linux": ("ip.batch", "route add default via fe80::1 dev up0", "default is never used here"),
    "frr": ("frr.conf", "router bgp 65000", "runs a routing protocol"),
    "sonic": ("config_db.json", '  "BGP_NEIGHBOR": {"fe80::1": {"asn": "1"}},', "no routing protocol"),
    "eos": ("startup-config", "router ospf3 1", "runs a routing protocol"),
    "cumulus": (
        "nvue.cmds",
        "nv set vrf default router bgp neighbor swp1 remote-as external",
        "runs a routing protocol",
    ),
}


def test_a_line_that_does_not_belong_is_named(out, platform):
    name, line, text = PLANTED[platform]
    path = out / SWITCH / name
    lines = path.read_text().splitlines()
    at = 1 if platform == "sonic" else len(lines) - 1
    if platform in ("frr", "eos"):
        at = lines.index("!") + 1
    lines.insert(at, line)
    path.write_text("\n".join(lines) + "\n")
    find(out, at + 1, text)


def test_pfc_is_named(tmp_path):
    spoil = {
        "eos": ("   no priority-flow-control", "   priority-flow-control on", "PFC is on at Ethernet1/1"),
        "cumulus": (
            "nv set router segment",
            "nv set interface swp1 qos pfc profile x\nnv set router segment",
            "PFC is on at swp1",
        ),
        "sonic": (
            '"Ethernet0": {"dscp_to_tc_map"',
            '"Ethernet0": {"pfc_enable": "3", "dscp_to_tc_map"',
            "PFC is on at Ethernet0",
        ),
    }
    for platform, (old, new, text) in spoil.items():
        out = tmp_path / platform
        render(FABRIC, platform, out)
        path = out / SWITCH / MAIN[platform]
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new, 1))
        assert [p.text for p in verify(out, walk=False).problems] == [text]


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\xfe", b"{", b"[]", b'{"INTERFACE": 3}', b'{"STATIC_ROUTE": {"x": 1}}', b"\n" * 100],
)
def test_any_other_content_is_a_problem_not_a_crash(out, platform, content):
    (out / SWITCH / MAIN[platform]).write_bytes(content)
    problems = verify(out).problems
    assert SWITCH in {p.switch for p in problems}
    json.dumps([p._asdict() for p in problems])


QUEUES = [
    (
        "eos",
        "   uc-tx-queue 0\n      no priority\n!",
        "   uc-tx-queue 0\n!",
        "queue 0 of profile last-hop keeps its",
    ),
    ("eos", " 59 60 61", " 59 61", "code points without a traffic class, which keep a default: 60"),
    ("sonic", '      "60": "0",\n', "", "code points without a traffic class, which keep a default: 60"),
    (
        "sonic",
        '"Ethernet0|6": {"scheduler": "CONTROL"',
        '"Ethernet0|6": {"scheduler": "DATA"',
        "queue 6 is strict at some ports only",
    ),
    ("sonic", '"Ethernet0|6"', '"Ethernet0|6-99999999999"', "a port has fewer than 1024 queues"),
    ("cumulus", ",40,41,42,", ",", "code points without a traffic class, which keep a default: 40, 41, 42"),
    ("cumulus", "bw-percent 50", "bw-percent 50\nnv set qos x", "not understood"),
    (
        "cumulus",
        "nv set qos egress-scheduler default-global traffic-class 0,1 bw-percent 50\n",
        "",
        "traffic class 0 has mode dwrr and no bw-percent",
    ),
    (
        "cumulus",
        "nv set interface swp1,swp2,swp3,swp4 qos congestion-control profile last-hop\n",
        "",
        "swp1 must not mark ECN: it is a last hop",
    ),
    (
        "cumulus",
        "congestion-control last-hop traffic-class 0 ecn disabled",
        "congestion-control last-hop traffic-class 0 ecn enabled",
        "swp1 must not mark ECN: it is a last hop",
    ),
]


@pytest.mark.parametrize(("platform", "old", "new", "text"), QUEUES)
def test_a_queue_that_keeps_a_default_is_named(platform, old, new, text, tmp_path):
    render(FABRIC, platform, tmp_path)
    path = tmp_path / SWITCH / MAIN[platform]
    before = path.read_text()
    assert old in before
    path.write_text(before.replace(old, new, 1))
    problems = verify(tmp_path, walk=False).problems
    assert any(text in problem.text for problem in problems), [str(p) for p in problems]
    assert {problem.switch for problem in problems} == {SWITCH}


@pytest.mark.parametrize(
    ("platform", "line", "text"),
    [
        ("linux", "ip.batch", "does not load ip.batch"),
        ("linux", "./qos.sh", "does not run `./qos.sh`"),
        ("frr", "ip link set dev sr0 up", "does not run `ip link set dev sr0 up`"),
    ],
    indirect=["platform"],
)
def test_a_setup_script_that_leaves_a_step_out_is_named(out, line, text):
    path = out / SWITCH / "setup.sh"
    kept = [each for each in path.read_text().splitlines() if each.startswith("#") or line not in each]
    path.write_text("\n".join(kept) + "\n")
    (problem,) = verify(out).problems
    assert str(problem) == f"{SWITCH}: {SWITCH}/setup.sh: {text}"
