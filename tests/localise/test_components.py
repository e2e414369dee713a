"""What a probe or a packet needs, in full."""

import math

import pytest

from openmrc.fabric import Fabric
from openmrc.fabric.spec import Specification
from openmrc.localise import Component, Kind, components_of_path, localise_paths, loops_of_host

FABRIC = Fabric(
    Specification.model_validate(
        {
            "name": "small",
            "hosts": 5,
            "nic": {"rate": "200G"},
            "planes": 2,
            "switch": {"radix": 8},
            "tiers": 2,
            "parallel_links": 1,
        }
    )
)
"""Three hosts and three uplinks at the first T0 of a plane, two hosts and three uplinks at the second."""


def names(components):
    return sorted(map(str, components))


def test_a_path_needs_its_hosts_its_switches_and_each_link_in_its_direction():
    path = FABRIC.paths("h0", "h4")[0]
    assert path.links == (
        "h0:p0--p0/t0-0:down0",
        "p0/t0-0:up0--p0/t1-0",
        "p0/t0-1:up0--p0/t1-0",
        "h4:p0--p0/t0-1:down1",
    )
    alone = [
        "downward h4:p0--p0/t0-1:down1",
        "downward p0/t0-1:up0--p0/t1-0",
        "host h0",
        "host h4",
        "link h0:p0--p0/t0-0:down0",
        "link h4:p0--p0/t0-1:down1",
        "link p0/t0-0:up0--p0/t1-0",
        "link p0/t0-1:up0--p0/t1-0",
        "switch p0/t0-0",
        "switch p0/t0-1",
        "switch p0/t1-0",
        "upward h0:p0--p0/t0-0:down0",
        "upward p0/t0-0:up0--p0/t1-0",
    ]
    assert names(components_of_path(path)) == alone
    optic = {path.links[1]: "optic", "another": "other"}
    assert names(components_of_path(path, optic)) == sorted([*alone, "group optic"])


def test_a_loop_needs_both_directions_of_its_links():
    direct, up, *_ = loops_of_host(FABRIC, "h0", groups={"p0/t0-0:up0--p0/t1-0": "optic"})
    cable, uplink = "h0:p0--p0/t0-0:down0", "p0/t0-0:up0--p0/t1-0"
    turning = ["host h0", "switch p0/t0-0", *(f"{kind} {cable}" for kind in ("downward", "link", "upward"))]
    over = ["switch p0/t1-0", "group optic", *(f"{kind} {uplink}" for kind in ("downward", "link", "upward"))]
    assert (direct.host, direct.plane, direct.uplink) == ("h0", 0, None)
    assert names(direct.components) == sorted(turning)
    assert (up.host, up.plane, up.uplink) == ("h0", 0, 0)
    assert names(up.components) == sorted(turning + over)


def test_hosts_of_a_t0_take_turns_with_its_uplinks():
    def uplinks(host, **probers):
        loops = list(loops_of_host(FABRIC, host, **probers))
        assert [loop.uplink for loop in loops if loop.plane == 0] == [
            loop.uplink for loop in loops if loop.plane == 1
        ]
        return [loop.uplink for loop in loops if loop.plane == 0]

    assert [uplinks(host) for host in range(3)] == [[None, 0, 2], [None, 0, 1], [None, 1, 2]]
    assert [uplinks(host, probers=1) for host in range(3)] == [[None, 0], [None, 1], [None, 2]]
    # The last T0 has two hosts, and both probe each uplink.
    assert [uplinks(host) for host in (3, 4)] == [[None, 0, 1, 2]] * 2
    assert [uplinks(host, probers=1) for host in (3, 4)] == [[None, 0, 2], [None, 1]]


def test_a_cable_that_is_down_accuses_its_link_and_the_switch_at_its_upper_end():
    cable = "h0:p0--p0/t0-0:down0"
    [verdict] = localise_paths([], [], cables_down=[(cable, "p0/t0-0")])
    # Directions are a tenth as probable as the whole link, and count to it; so is a switch.
    suspects = {Component(Kind.LINK, cable): 12 / 13, Component(Kind.SWITCH, "p0/t0-0"): 1 / 13}
    assert dict(verdict.suspects) == pytest.approx(suspects)
    assert verdict.paths == 1
    # It counts as eight packets, of which a healthy link loses a millionth.
    assert verdict.evidence == pytest.approx(8 * math.log(1e6), rel=1e-5)
    # The same cable from a path that is believed dead besides: its losses are added up.
    path = FABRIC.paths("h0", "h4")[0]
    [both] = localise_paths([path], [], cables_down=[(cable, "p0/t0-0")])
    assert (str(both.component), both.paths) == (f"link {cable}", 2)


def test_paths_that_are_alive_have_lost_nothing():
    paths = FABRIC.paths("h0", "h4")
    [verdict] = localise_paths(paths[:1], paths[1:])
    assert verdict.paths == 1
    assert localise_paths([], paths) == []


def test_a_link_and_its_directions_are_one_part():
    assert {Component(kind, "l").part for kind in (Kind.LINK, Kind.UPWARD, Kind.DOWNWARD)} == {("link", "l")}
    assert Component(Kind.SWITCH, "s").part == ("switch", "s")
    assert Component(Kind.GROUP, "l").part != Component(Kind.LINK, "l").part
