"""Lines that others write, and what is read from them, for each system."""

import json

import pytest

from openmrc.switchconf import FILES, render_switch
from openmrc.switchconf.facts import Facts
from openmrc.switchconf.parse import PARSERS, Files
from openmrc.switchconf.parse.cumulus import expand
from tests.helpers.fabrics import six_hosts

FABRIC = six_hosts()


class Switch:
    """The files of p0/t0-0, which a test changes."""

    def __init__(self, platform, directory):
        self.platform, self.directory = platform, directory
        for name, text in render_switch(Facts(FABRIC, platform).of(FABRIC.switch("p0/t0-0")), platform):
            (directory / name).write_text(text)

    def parse(self):
        return PARSERS[self.platform](Files(self.directory))

    def replace(self, name, old, new):
        text = (self.directory / name).read_text()
        assert old in text
        (self.directory / name).write_text(text.replace(old, new, 1))

    def said(self, parsed=None):
        """What is not understood, and what is wrong, with file and line."""
        parsed = parsed or self.parse()
        said = [*parsed.unknown, *parsed.complaints]
        places = [(where.file, where.line(self.directory / where.file)) for where, _ in said]
        return [
            f"{file}:{line}: {text}" if line else f"{file}: {text}"
            for (file, line), (_, text) in zip(places, said, strict=True)
        ]


@pytest.fixture
def switch_of(tmp_path):
    return lambda platform: Switch(platform, tmp_path)


@pytest.mark.parametrize("platform", FILES)
def test_a_file_that_is_no_text_is_said_as_a_whole(platform, switch_of):
    switch = switch_of(platform)
    for path in switch.directory.iterdir():
        path.write_bytes(b"\n\xff")
        assert f"{path.name}: not UTF-8 text at byte 1" in switch.said()
        path.write_bytes(b"")
        assert not [each for each in switch.said() if each.startswith(f"{path.name}: not")]


def test_a_file_that_must_be_there_is_missed_and_another_is_absent(switch_of):
    switch = switch_of("linux")
    (switch.directory / "qos.sh").unlink()
    assert switch.said() == ["qos.sh: the file is missing"]
    # Of a configuration of others only one file must be there, by any name.
    (switch.directory / "ip.batch").rename(switch.directory / "theirs")
    for name, said in (("theirs", []), ("nothing", ["the file is missing"])):
        files = Files(switch.directory, ("ip.batch", switch.directory / name))
        parsed = PARSERS["linux"](files)
        assert ([text for _, text in parsed.complaints], files.absent) == (said, {"qos.sh"})
        assert (len(parsed.routes) > 0) == (name == "theirs")
        assert files.path("ip.batch") == switch.directory / name
        assert files.path("qos.sh") == switch.directory / "qos.sh"


@pytest.mark.parametrize("platform", FILES)
def test_empty_lines_and_comments_change_nothing(platform, switch_of):
    switch = switch_of(platform)
    before = switch.parse()
    for path in switch.directory.iterdir():
        mark = {"frr.conf": "! why\n", "startup-config": "! why\n", "config_db.json": ""}.get(
            path.name, "# why\n"
        )
        lines = path.read_text().splitlines(keepends=True)
        # A script's first line stays the first.
        path.write_text(lines[0] + "".join(f"\n{mark}{line}" for line in lines[1:]))
    after = switch.parse()
    assert switch.said(after) == switch.said(before) == []
    assert [route[:3] for route in after.routes] == [route[:3] for route in before.routes]
    assert [prefix for prefix, _ in after.own] == [prefix for prefix, _ in before.own]
    assert after.addresses.keys() == before.addresses.keys()
    for field in ("hostname", "marking", "thresholds", "strict_codes", "mapped_codes", "srv6_interfaces"):
        assert getattr(after, field) == getattr(before, field)


CHANGES = [
    # Linux.
    ("linux", "setup.sh", "sysctl -q -p", "sysctl -p", ["setup.sh: does not run `sysctl -q -p sysctl.conf`"]),
    # FRR: what follows the end of a section does not belong to it.
    (
        "frr",
        "frr.conf",
        "!\nipv6 route",
        "!\nipv6 address fd00::1/64\nipv6 route",
        ["frr.conf:39: not understood: ipv6 address fd00::1/64"],
    ),
    (
        "frr",
        "frr.conf",
        "node-len 16 func-bits 16",
        "node-len 16 func-bits 8",
        ["frr.conf:50: locator own0, 5f00:0:1::/48: not of 32-bit block and 16-bit node"],
    ),
    ("frr", "setup.sh", "./qos.sh", "true", ["setup.sh: does not run `./qos.sh`"]),
    (
        "frr",
        "daemons",
        "staticd=yes",
        "staticd=yes\npimd=yes",
        ["daemons:4: runs a routing protocol: pimd=yes"],
    ),
    # EOS.
    (
        "eos",
        "startup-config",
        "   uc-tx-queue 0\n      no priority\n",
        "   uc-tx-queue 0\n",
        ["startup-config: queue 0 of profile marking keeps its default priority: `no priority` is missing"],
    ),
    (
        "eos",
        "startup-config",
        "router srv6\n",
        "router srv6\n   new\n",
        ["startup-config:89: not understood:    new"],
    ),
    ("eos", "startup-config", "hostname", "   new\nhostname", ["startup-config:4: not understood:    new"]),
    # Cumulus Linux.
    (
        "cumulus",
        "nvue.cmds",
        "nv set qos mapping",
        "nv unset qos mapping",
        ["nvue.cmds:30: not understood: nv unset qos mapping default-global trust l3"],
    ),
]


NEW = [
    ("linux", "ip.batch", "link add sr0", "link add other type bridge"),
    ("linux", "sysctl.conf", "net.ipv6.conf.all.accept_ra", "net.ipv4.ip_forward = 1"),
    ("frr", "frr.conf", "hostname", "log syslog"),
    ("frr", "frr.conf", " ipv6 address", " shutdown"),
    ("frr", "frr.conf", "    behavior usid", "    new"),
    ("eos", "startup-config", "hostname", "ntp server 192.0.2.1"),
    ("eos", "startup-config", "   mtu", "   shutdown"),
    ("eos", "startup-config", "   mtu", "   service-profile unknown"),
    ("eos", "startup-config", "   qos trust dscp", "   new"),
    ("eos", "startup-config", "   vrf default", "   new"),
    ("eos", "startup-config", "   ipv6 address 5f00:0:1::/48", "   ip address 192.0.2.1/32"),
    ("cumulus", "nvue.cmds", "nv set system hostname", "nv set service ntp mgmt server 192.0.2.1"),
    ("cumulus", "nvue.cmds", "nv set interface swp1 description", "nv set interface swp1 link state down"),
    ("cumulus", "nvue.cmds", "nv set qos mapping", "nv set qos other"),
    (
        "cumulus",
        "nvue.cmds",
        "nv set vrf default router static",
        "nv set vrf default router static ::/0 blackhole",
    ),
    ("cumulus", "nvue.cmds", "nv set vrf default", "nv set vrf default router static ::/0 via fe80::1 tag 7"),
]


@pytest.mark.parametrize(("platform", "name", "before", "line"), NEW)
def test_a_line_that_no_part_of_a_file_has_is_not_understood(platform, name, before, line, switch_of):
    switch = switch_of(platform)
    lines = (switch.directory / name).read_text().splitlines()
    at = next(n for n, each in enumerate(lines, start=1) if each.startswith(before))
    switch.replace(name, f"\n{before}", f"\n{line}\n{before}")
    said = [each for each in switch.said() if "not understood" in each]
    assert said == [f"{name}:{at}: not understood: {line}"]


@pytest.mark.parametrize(("platform", "name", "old", "new", "said"), CHANGES)
def test_a_changed_line_is_said_with_its_place(platform, name, old, new, said, switch_of):
    switch = switch_of(platform)
    switch.replace(name, old, new)
    assert switch.said() == said


@pytest.mark.parametrize(
    ("line", "enabled"),
    [("up1.seg6_enabled = 1", True), ("up1.seg6_enabled = 0", False), ("up1.forwarding = 1", False)],
)
def test_srv6_is_on_at_an_interface_only_if_its_own_setting_is_one(line, enabled, switch_of):
    switch = switch_of("linux")
    switch.replace("sysctl.conf", "up1.seg6_enabled = 1", line)
    assert ("up1" in switch.parse().srv6_interfaces) == enabled


def test_a_queue_outside_of_the_loops_marks_at_no_port(switch_of):
    switch = switch_of("linux")
    red = "red limit 9 min 1 max 2 avpkt 4200 bandwidth 1mbit burst 1 probability 1 ecn"
    path = switch.directory / "qos.sh"
    path.write_text(path.read_text() + f'tc qdisc replace dev "down0" parent 1:2 handle 20: {red}\n')
    parsed = switch.parse()
    assert parsed.marking == {"up0", "up1", "up2"}
    assert parsed.thresholds == {(60_000, 240_000), (1, 2)}


@pytest.mark.parametrize(
    ("names", "single"),
    [
        ("swp1,2s0", ["swp1", "swp2s0"]),
        ("e1,2", ["e1", "e2"]),
        ("swp9-11", ["swp9", "swp10", "swp11"]),
        ("5", ["5"]),
        ("eth0,swp3-3", ["eth0", "swp3"]),
    ],
)
def test_a_number_in_a_list_of_nvue_has_the_letters_before_it(names, single):
    assert expand(names) == single


def tables_of(switch, change):
    path = switch.directory / "config_db.json"
    tables = json.loads(path.read_text())
    change(tables)
    path.write_text(json.dumps(tables))
    return switch.parse()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "config_db.json: not a config_db: tables of entries of fields expected"),
        ('{"PORT": 3}', "config_db.json: not a config_db: tables of entries of fields expected"),
        (
            '{"PORT": {"Ethernet0": 3}}',
            "config_db.json: not a config_db: argument of type 'int' is not iterable",
        ),
        ('\n{"PORT": {},\n "VLAN": {},\n\n "PORT": {}}', "config_db.json:5: PORT is there twice"),
        ('{"PORT": {}, "PORT": {}}', "config_db.json:1: PORT is there twice"),
        (
            '{\n"NTP": {},\n"SYSLOG": {},\n"PORT": {},\n"PORT": {},\n"VLAN": {}\n}',
            "config_db.json:5: PORT is there twice",
        ),
        ('{"PORT":\n{}', "config_db.json:2: not JSON: Expecting ',' delimiter"),
        (
            '{\n"BGP_GLOBALS": {}}',
            "config_db.json:2: table BGP_GLOBALS must not be there: no routing protocol, no PFC",
        ),
        ('{\n"NTP": {}}', "config_db.json:2: not understood: table NTP"),
    ],
)
def test_what_is_wrong_with_a_config_db_is_said_with_its_line(text, said, switch_of):
    switch = switch_of("sonic")
    (switch.directory / "config_db.json").write_text(text)
    assert switch.said() == [said]


@pytest.mark.parametrize(
    ("queue", "fits"), [("7", True), ("7-9", True), ("1023", True), ("1024", False), ("7-1024", False)]
)
def test_a_port_of_sonic_has_fewer_than_1024_queues(queue, fits, switch_of):
    switch = switch_of("sonic")
    parsed = tables_of(switch, lambda tables: tables["QUEUE"].update({f"Ethernet0|{queue}": {}}))
    refused = f"config_db.json: not a config_db: queue {queue}: a port has fewer than 1024 queues"
    assert switch.said(parsed) == ([] if fits else [refused])


def test_a_code_point_of_sonic_is_strict_and_mapped_if_it_is_so_at_every_port(switch_of):
    switch = switch_of("sonic")

    def other_map(tables):
        codes = dict(tables["DSCP_TO_TC_MAP"]["FABRIC"])
        del codes["63"]
        codes["12"] = codes["0"]
        tables["DSCP_TO_TC_MAP"]["OTHER"] = codes
        tables["PORT_QOS_MAP"]["Ethernet0"]["dscp_to_tc_map"] = "OTHER"

    parsed = tables_of(switch, other_map)
    assert parsed.strict_codes == {16, 46}
    assert parsed.mapped_codes == set(range(63))
    # Where no port has a map, no code point is either.
    parsed = tables_of(switch, lambda tables: tables["PORT_QOS_MAP"].clear())
    assert (parsed.strict_codes, parsed.mapped_codes) == (set(), set())


def test_routes_of_other_vrfs_and_several_next_hops_are_said_and_the_rest_is_read(switch_of):
    switch = switch_of("sonic")

    def more(tables):
        routes = {"mgmt|::/0": {"nexthop": "fe80::1"}, **tables["STATIC_ROUTE"]}
        routes["default|2001:db8::/48"] = {"nexthop": "fe80::1,fe80::2", "ifname": "Ethernet0,Ethernet8"}
        routes["2001:db8:1::/48"] = {"nexthop": "fe80::1", "ifname": "Ethernet0,Ethernet8"}
        routes["2001:db8:2::/48"] = {"nexthop": "fe80::1"}
        tables["STATIC_ROUTE"] = routes

    before = len(switch.parse().routes)
    parsed = tables_of(switch, more)
    assert switch.said(parsed) == [
        "config_db.json:1: a route of VRF mgmt",
        "config_db.json:1: 2001:db8::/48 has more than one next hop: fe80::1,fe80::2",
        "config_db.json:1: 2001:db8:1::/48 has more than one next hop: fe80::1",
    ]
    assert len(parsed.routes) == before + 3
    assert parsed.routes[-1][:3] == ("2001:db8:2::/48", None, "fe80::1")
