"""Packets walked through tables by hand: where they arrive, and the reason where they do not."""

from ipaddress import IPv6Address
from itertools import pairwise

import pytest

from openmrc.switchconf.parse import Parsed, Route, Where
from openmrc.switchconf.walk import Tables, World, connect, tables_of, usid_of

BLOCK = 0x5F000001
PLACE = Where("file", 1)


def route(prefix, next_hop="fe80::1", interface=None):
    return Route(prefix, interface, next_hop, PLACE)


def table(own, egress):
    """A table with a route for each uSID of `egress`."""
    routes = {usid: route(f"5f00:1:{usid:x}::/48", interface=port) for usid, port in egress.items()}
    return Tables(set(own), routes, dict(egress))


def chain(switches):
    """Switches s1, s2, ... that hand uSID 5 on; the last one has a host."""
    names = [f"s{n}" for n in range(1, switches + 1)]
    neighbours = {(a, "up"): (b, "down") for a, b in pairwise(names)}
    return World({name: table([], {5: "up"}) for name in names}, neighbours, {(names[-1], "up"): "h1"})


def test_a_switch_shifts_its_own_usid_away_and_sends_by_the_next_one():
    tables = {"a": table([0x1], {0x2: "up"}), "b": table([0x2], {0xFFFF: "down"})}
    world = World(tables, {("a", "up"): ("b", "up")}, {("b", "down"): "h3"})
    host, reason, last, taken = world.deliver("a", IPv6Address("5f00:1:1:2:ffff::"))
    assert (host, reason, last, taken) == ("h3", "", "b", tables["b"].routes[0xFFFF])
    assert [each.used for each in tables.values()] == [{0x1, 0x2}, {0x2, 0xFFFF}]


def test_the_address_that_has_no_route_is_named_as_it_is_at_that_switch():
    tables = {"a": table([0x1], {0x2: "up"}), "b": table([0x2], {})}
    world = World(tables, {("a", "up"): ("b", "up")}, {})
    host, reason, last, taken = world.deliver("a", IPv6Address("5f00:1:1:2:3:4:8005:7"))
    assert (host, reason) == (None, "b has no route for 5f00:1:3:4:8005:7::")
    assert (last, taken) == ("a", tables["a"].routes[0x2])
    assert world.deliver("b", IPv6Address("5f00:1:8003:4:5:6:7:8")) == (
        None,
        "b has no route for 5f00:1:8003:4:5:6:7:8",
        "b",
        None,
    )


def test_a_port_without_a_cable_is_named():
    tables = {"a": table([0x1], {0x2: "up"})}
    found = World(tables, {}, {}).deliver("a", IPv6Address("5f00:1:1:2::"))
    assert found == (None, "nothing is connected to up of a", "a", tables["a"].routes[0x2])


def test_a_packet_that_more_than_16_switches_hand_on_is_in_a_loop():
    address = IPv6Address("5f00:1:5::")
    for switches, host, reason in ((1, "h1", ""), (16, "h1", ""), (17, None, "it goes round in a loop")):
        assert chain(switches).deliver("s1", address)[:2] == (host, reason)
    circle = World({"a": table([], {5: "up"})}, {("a", "up"): ("a", "down")}, {})
    assert circle.deliver("a", address) == (None, reason, "a", circle.tables["a"].routes[5])


def test_the_two_interfaces_of_one_127_are_connected_and_no_others():
    # Six is with seven, and neither with the others of the same /126; two and three are at one switch.
    addresses = {"a": {"x": 6, "y": 9, "z": 12}, "b": {"x": 7, "y": 5, "z": 10}, "c": {"x": 2, "y": 3}}
    assert connect(addresses) == {
        ("a", "x"): ("b", "x"),
        ("b", "x"): ("a", "x"),
        ("c", "x"): ("c", "y"),
        ("c", "y"): ("c", "x"),
    }


def test_an_address_that_three_interfaces_share_connects_none():
    assert connect({"a": {"x": 6}, "b": {"x": 7}, "c": {"x": 7}}) == {}


@pytest.mark.parametrize(
    ("prefix", "usid"),
    [
        ("5f00:1:0::/48", 0),
        ("5f00:1:1::/48", 1),
        ("5f00:1:8000::/48", 0x8000),
        ("5f00:1:ffff::/48", 0xFFFF),
        ("5f00:0001:00a0:0000::0/48", 0xA0),
        # Bits beyond the prefix, another length, another block, and no prefix at all.
        ("5f00:1:2::1/48", None),
        ("5f00:1:2::2/48", None),
        ("5f00:1:2:8000::/48", None),
        ("5f00:1:2::/47", None),
        ("5f00:1:2::/64", None),
        ("5f00:1:2::", None),
        ("5f00:0:2::/48", None),
        ("5f00:2:2::/48", None),
        ("5f01:1:2::/48", None),
        ("nonsense/48", None),
    ],
)
def test_a_usid_is_a_48_of_the_block_and_nothing_else(prefix, usid):
    assert usid_of(prefix, BLOCK) == usid


def test_a_table_has_the_first_route_of_each_usid_and_nothing_outside_the_block():
    parsed = Parsed()
    parsed.own = [("2001:db8::/48", PLACE), ("5f00:1:7::/48", PLACE)]
    first = route("5f00:1:5::/48", interface="up0")
    parsed.routes = [
        route("2001:db8:5::/48", interface="eth0"),
        first,
        route("5f00:1:5::/48", interface="up1"),
    ]
    assert tables_of(parsed, BLOCK) == Tables({7}, {5: first}, {5: "up0"})


@pytest.mark.parametrize(
    ("address", "next_hop", "interface"),
    [
        ("fd5f::4/127", "fd5f::5", "up0"),
        ("fd5f::5/127", "fd5f::4", "up0"),
        ("fd5f:0:0::4/127", "fd5f::0:5", "up0"),
        ("fd5f::4/127", "fd5f::6", ""),
        ("fd5f::4/127", "fd5f::4", ""),
        # What is no address is nobody's other end, not even that of the lowest addresses.
        ("::/127", "nonsense", ""),
        ("::1/127", "nonsense", ""),
        ("nonsense/127", "::", ""),
        ("nonsense/127", "::1", ""),
        ("nonsense/127", "nonsense", ""),
    ],
)
def test_a_next_hop_without_an_interface_is_behind_the_other_end_of_its_127(address, next_hop, interface):
    parsed = Parsed()
    parsed.address("up0", address, PLACE)
    parsed.routes = [route("5f00:1:5::/48", next_hop)]
    assert tables_of(parsed, BLOCK).egress == {5: interface}
