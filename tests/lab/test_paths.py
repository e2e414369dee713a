"""The kernel as judge of the arithmetic: packets in a lab take the links of the fabric's paths."""

import shutil
import time
from ipaddress import IPv6Address

import pytest

from tests.helpers.labs import Srv6Sender, carried, counted, needs_root, observe, one_by_one, running

pytest.importorskip("scapy", reason="scapy is not installed")
pytestmark = needs_root

TSHARK = shutil.which("tshark")
PACKETS = 40
"""Packets per path when links are counted: more than neighbour discovery sends on a link in that time."""
NOISE = PACKETS // 2


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with running(tmp_path_factory.mktemp("lab"), "paths") as lab:
        yield lab


@pytest.fixture(autouse=True)
def whole(lab):
    yield
    lab.repair()


@pytest.mark.parametrize("dst", ["h15", "h1"], ids=["over a T1", "under one T0"])
def test_every_path_takes_exactly_the_links_that_the_arithmetic_says(lab, dst):
    paths = lab.fabric.paths("h0", dst)
    assert len(paths) == (8 if dst == "h15" else 2)
    with Srv6Sender(lab, "h0", dst) as sender:
        for path in paths:
            before = counted(lab)
            sender.send(path, b"counted", PACKETS)
            assert len(sender.received(PACKETS)) == PACKETS
            loads = carried(lab, before, counted(lab))
            used = {name for name, load in loads.items() if max(load) >= PACKETS}
            assert used == set(path.links)
            for name in set(loads) - used:
                assert max(loads[name]) < NOISE, f"{name} is not on the path"
            # Up on the first half of the links, down on the second half, and not in the other direction.
            half = len(path.links) // 2
            for place, name in enumerate(path.links):
                up, down = loads[name]
                with_path, against = (up, down) if place < half else (down, up)
                assert with_path >= PACKETS > NOISE > against


@pytest.mark.skipif(TSHARK is None, reason="tshark is not installed (Debian: apt install tshark)")
def test_wireshark_sees_the_usid_list_shift_hop_by_hop(lab):
    path = lab.fabric.path("h0", "h15", plane=1, uplinks=(2,))
    assert len(path.hops) == 3
    half = len(path.links) // 2
    links = [lab.layout.links[name] for name in path.links]
    receivers = [link.upper if place < half else link.lower for place, link in enumerate(links)]
    with Srv6Sender(lab, "h0", "h15") as sender:
        observers = [observe(lab, end) for end in receivers]
        # An observer ends with the first packet that it sees; its start cannot be seen from outside.
        while any(observer.poll() is None for observer in observers):
            sender.send(path, b"observed")
            time.sleep(0.1)
        seen = [observer.communicate(timeout=60)[0].strip() for observer in observers]
    assert [IPv6Address(address) for address in seen] == list(path.addresses)


def test_a_path_through_a_cut_link_arrives_nowhere_and_every_other_arrives(lab):
    paths = list(lab.fabric.paths("h0", "h15"))
    cut = lab.layout.link("p1/t0-0:up2").name
    broken = {number for number, path in enumerate(paths) if cut in path.links}
    assert len(broken) == 1
    with Srv6Sender(lab, "h0", "h15") as sender:
        assert one_by_one(sender, paths) == set(range(len(paths)))
        lab.fail(cut)
        assert one_by_one(sender, paths) == set(range(len(paths))) - broken
        assert lab.repair() == [cut]
        assert one_by_one(sender, paths) == set(range(len(paths)))


def test_a_stopped_switch_takes_its_own_paths_and_no_others_and_comes_back(lab):
    paths = list(lab.fabric.paths("h0", "h15"))
    switch = "p0/t1-3"
    through = {n for n, path in enumerate(paths) if switch in [hop.switch for hop in path.hops]}
    assert len(through) == 1
    with Srv6Sender(lab, "h0", "h15") as sender:
        lab.fail(switch)
        assert one_by_one(sender, paths) == set(range(len(paths))) - through
        lab.repair(switch)
        assert one_by_one(sender, paths) == set(range(len(paths)))


def test_losing_a_nic_port_loses_its_plane(lab):
    paths = list(lab.fabric.paths("h0", "h15"))
    plane0 = {number for number, path in enumerate(paths) if path.plane == 0}
    with Srv6Sender(lab, "h0", "h15") as sender:
        lab.fail("h15:p0")
        assert not lab.counters("h15")["p0"].up
        assert lab.counters("h15")["p1"].up
        assert one_by_one(sender, paths) == set(range(len(paths))) - plane0


def test_overlapping_faults_are_repaired_one_by_one(lab):
    paths = list(lab.fabric.paths("h0", "h15"))
    path = paths[0]
    number, link, switch = {0}, path.links[1], path.hops[1].switch
    everything = set(range(len(paths)))
    with Srv6Sender(lab, "h0", "h15") as sender:
        lab.fail(link)
        lab.fail(switch)
        lab.repair(switch)
        assert one_by_one(sender, paths) == everything - number, "the cut link is still cut"
        lab.fail(switch)
        lab.repair(link)
        assert one_by_one(sender, paths) == everything - number, "the switch still stands"
        lab.repair(switch)
        assert one_by_one(sender, paths) == everything


def test_a_degraded_link_loses_its_share_and_its_ports_notice_nothing(lab):
    path = lab.fabric.paths("h0", "h15")[0]
    link = lab.layout.link(path.links[1])
    count, loss = 1000, 0.25
    with Srv6Sender(lab, "h0", "h15") as sender:
        sender.send(path, b"neighbours found")
        assert sender.received(1)
        lab.degrade(link.name, loss=loss)
        arrived = 0
        for _ in range(count // 50):
            sender.send(path, b"perhaps", 50)
            arrived += len(sender.received(50, patience_s=0.2))
        # Six standard deviations of the binomial distribution: sqrt(1000 x 0.25 x 0.75) = 13.7.
        assert abs(count - arrived - count * loss) < 6 * 13.7
        assert all(lab.counters(end.node)[end.port].up for end in link.ends)

        lab.degrade(link.name, loss=1.0)
        sender.send(path, b"lost", 50)
        assert sender.silent_for(0.5)
        assert all(lab.counters(end.node)[end.port].up for end in link.ends)

        lab.repair(link.name)
        sender.send(path, b"whole", 50)
        assert len(sender.received(50)) == 50


def test_a_packet_for_another_host_is_not_taken(lab):
    # The outer destination leads to h15, the inner one is h14's: h15 must neither accept nor forward it.
    path = lab.fabric.paths("h0", "h15")[0]
    with Srv6Sender(lab, "h0", "h15") as sender, Srv6Sender(lab, "h0", "h14") as other:
        sender.send(path, b"mine")
        assert sender.received(1) == [b"mine"]
        sender._raw.sendto(other.packet(path, b"not mine"), (str(path.address), 0))
        assert sender.silent_for(0.5)
        assert other.silent_for(0)
