"""Software NICs in a lab: entropy values are paths, writes survive failures, events name the failed link."""

import socket
from contextlib import ExitStack

import pytest

from openmrc.fabric import Fabric
from openmrc.lab import entered
from openmrc.lab.hosts import FIRST_SOURCE_PORT
from openmrc.localise import smallest_cover
from openmrc.verbs import EvState
from tests.helpers.labs import RING, needs_root, running, specification
from tests.helpers.rings import Ring

PACKETS = 40


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with running(tmp_path_factory.mktemp("lab"), "mrc") as lab:
        yield lab


@pytest.fixture(autouse=True)
def whole(request):
    yield
    if "lab" in request.fixturenames:
        request.getfixturevalue("lab").repair()


@pytest.fixture
def ring(lab):
    with ExitStack() as stack:
        yield Ring(lab, stack)


def active_path(ring, way):
    """A path that the queue pair has used so far."""
    context = ring.contexts[way.src]
    row = max(context.path_stats(), key=lambda row: row["tx_packets"])
    return ring.lab.path(way.src, way.dst, row["port"], row["ev"])


def crosses(lab, way, link):
    return any(link in path.links for path in lab.fabric.paths(way.src, way.dst))


@needs_root
@pytest.mark.parametrize("plane", [0, 1])
@pytest.mark.parametrize("dst", ["h15", "h1"])
def test_a_udp_source_port_is_the_path_of_its_number(lab, dst, plane):
    for number in range(4):
        source_port = FIRST_SOURCE_PORT + number
        path = lab.path("h0", dst, plane, source_port)
        assert path.plane == plane
        with entered(lab.namespace("h0")):
            sender = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
            sender.bind((lab.addresses("h0")[plane], source_port))
        with entered(lab.namespace(dst)):
            receiver = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
            receiver.bind((lab.addresses(dst)[plane], 4791))
            receiver.settimeout(10)
        with sender, receiver:
            before = {node: lab.counters(node) for node in lab.layout.nodes}
            for _ in range(PACKETS):
                sender.sendto(b"numbered", receiver.getsockname())
            for _ in range(PACKETS):
                assert receiver.recv(100) == b"numbered"
        used = set()
        for link in lab.layout.links.values():
            sent = [
                lab.counters(end.node)[end.port].tx_packets - before[end.node][end.port].tx_packets
                for end in link.ends
            ]
            if max(sent) >= PACKETS:
                used.add(link.name)
        assert used == set(path.links)


@needs_root
def test_a_cut_link_is_named_by_the_events_of_several_hosts(lab, ring):
    ring.write(2)
    link = active_path(ring, ring.ways[0]).links[1]
    lab.fail(link)
    links, dead = ring.named(lambda links: links == [link])
    assert links == [link]
    tellers = {path.src for path in dead if link in path.links}
    assert tellers <= {way.src for way in ring.ways if crosses(lab, way, link)}
    assert len(tellers) > 1


@needs_root
def test_a_silently_dead_link_is_named_although_its_ports_are_up(lab, ring):
    ring.write(2)
    link = active_path(ring, ring.ways[0]).links[1]
    lab.degrade(link, loss=1.0)
    assert ring.named(lambda links: links == [link])[0] == [link]


@needs_root
def test_writes_outlive_a_stopped_switch_and_use_it_again_when_it_is_back(lab, ring):
    ring.write(2)
    path = active_path(ring, ring.ways[0])
    switch = path.hops[1].switch
    lab.fail(switch)
    at_switch = {link.name for link in lab.layout.links_of(switch)}
    links, dead = ring.named(lambda links: bool(links) and at_switch.issuperset(links))
    assert links, "somebody has noticed"
    assert at_switch.issuperset(links)
    context = ring.contexts[dead[0].src]
    lab.repair(switch)
    while context.ev_events.get(timeout=60).state is not EvState.GOOD:
        pass
    ring.write(2)


@needs_root
def test_a_lost_nic_port_takes_its_plane_and_no_write_with_it(lab, ring):
    ring.write(2)
    lab.fail("h0:p0")
    while ring.contexts["h0"].ports_up() != [1]:
        ring.write(1)
    ring.write(5)
    assert ring.contexts["h4"].ports_up() == [0, 1]
    lab.repair("h0:p0")
    ring.write(2)
    while ring.contexts["h0"].ports_up() != [0, 1]:
        ring.write(1)


@needs_root
def test_a_lossy_link_costs_no_write(lab, ring):
    ring.write(1)
    lab.degrade(active_path(ring, ring.ways[0]).links[1], loss=0.01)
    ring.write(10)


@pytest.fixture(scope="module")
def fabric(tmp_path_factory):
    return Fabric.load(specification(tmp_path_factory.mktemp("fabric"), "located"))


def paths_of_ring(fabric):
    pairs = zip(RING, RING[1:] + RING[:1], strict=True)
    return [path for src, dst in pairs for path in fabric.paths(src, dst)]


def test_every_single_link_between_switches_is_found(fabric):
    paths = paths_of_ring(fabric)
    for broken in {link for path in paths for link in path.links[1:-1]}:
        dead = [path for path in paths if broken in path.links]
        assert smallest_cover(dead, [path for path in paths if path not in dead]) == [broken]


def test_two_broken_links_are_both_found(fabric):
    paths = paths_of_ring(fabric)
    broken = {"p0/t0-0:up1--p0/t1-1", "p1/t0-2:up3--p1/t1-3"}
    dead = [path for path in paths if broken.intersection(path.links)]
    assert set(smallest_cover(dead, [path for path in paths if path not in dead])) == broken


def test_links_that_the_dead_paths_cannot_tell_apart_are_all_named(fabric):
    [path] = fabric.paths("h0", "h15")[:1]
    assert set(smallest_cover([path], [])) == set(path.links)


def test_a_dead_path_of_living_links_accuses_nobody(fabric):
    path = fabric.paths("h0", "h15")[0]
    assert smallest_cover([path], [path]) == []
    assert smallest_cover([], [path]) == []
