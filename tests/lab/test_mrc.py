"""Software NICs in a lab: entropy values are paths, writes survive failures, events name the failed link."""

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from openmrc.connect import Options, connect, listen
from openmrc.controller import Controller, EvMode, ProfileState
from openmrc.fabric import Fabric
from openmrc.lab import entered
from openmrc.lab.hosts import FIRST_SOURCE_PORT
from openmrc.localise import smallest_cover
from openmrc.verbs import EvState, WcStatus
from openmrc.wire import EvFormat
from tests.helpers.labs import RING, needs_root, running, specification

PACKETS = 40
SIZE = 1 << 19


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with running(tmp_path_factory.mktemp("lab"), "mrc") as lab:
        yield lab


@pytest.fixture(autouse=True)
def whole(request):
    yield
    if "lab" in request.fixturenames:
        request.getfixturevalue("lab").repair()


class Ring:
    """A queue pair from each host of the ring to the next."""

    def __init__(self, lab, stack):
        self.lab = lab
        self._stack = stack
        self._states = {}
        self.contexts = {}
        for host in RING:
            with entered(lab.namespace(host)):
                self.contexts[host] = stack.enter_context(lab.device(host, seed=RING.index(host)).open())
        self.ways = [self._connect(src, dst) for src, dst in zip(RING, RING[1:] + RING[:1], strict=True)]

    def _connect(self, src, dst):
        one, two = self.contexts[src], self.contexts[dst]
        inbox, outbox = bytearray(SIZE), bytearray(SIZE)
        two_pd, one_pd = two.alloc_pd(), one.alloc_pd()
        theirs = two_pd.create_qp(two.create_cq())
        done = one.create_cq()
        mine = one_pd.create_qp(done)
        options = Options(ev_profile_id=self._every_path(one))
        inbox_region, outbox_region = two_pd.register(inbox), one_pd.register(outbox)
        with listen("localhost", port=0, allow_addresses=["::/0"]) as listener, ThreadPoolExecutor() as pool:
            accepted = pool.submit(listener.accept, theirs, buffers=[inbox_region])
            # The contexts are in namespaces of their own: their addresses are not this process's.
            peer = self._stack.enter_context(
                connect("localhost", listener.address[1], mine, options=options, allow_addresses=["::/0"])
            )
            self._stack.enter_context(accepted.result())
        return SimpleNamespace(
            src=src,
            dst=dst,
            qp=mine,
            done=done,
            outbox=outbox,
            region=outbox_region,
            inbox=inbox,
            remote=peer.buffers[0],
            keep=(theirs, inbox_region),
        )

    def _every_path(self, context):
        """A profile with all paths in rotation and none in reserve: all paths but condemned ones are used."""
        control = Controller(context)
        format_profile, profile = control.ev_format_profile(), control.ev_profile()
        format_profile.modify(ProfileState.OFFLINE, ev_format=EvFormat.UDP, widths=[16])
        format_profile.modify(ProfileState.ONLINE)
        profile.modify(ProfileState.OFFLINE, mode=EvMode.AUTO, format_profile=format_profile, active=8)
        profile.modify(ProfileState.ONLINE)
        return profile.profile_id

    def write(self, rounds):
        """Every host writes ``times`` times to the next; checks that the data arrive."""
        for number in range(rounds):
            for way in self.ways:
                way.outbox[:] = (f"{way.src} {number} ".encode() * SIZE)[:SIZE]
                way.qp.write(way.region, way.remote)
            for way in self.ways:
                [completion] = way.done.take(timeout=30)
                assert completion.status is WcStatus.SUCCESS
                assert way.inbox == way.outbox

    def paths(self):
        """Paths that the senders have condemned, and paths that they use."""
        dead, alive = [], []
        for way in self.ways:
            context = self.contexts[way.src]
            while (event := context.ev_events.poll()) is not None:
                if event.qp_num == way.qp.qp_num:
                    self._states[way.src, event.port, event.ev] = event.state
            for row in context.path_stats():
                path = self.lab.path(way.src, way.dst, row["port"], row["ev"])
                given_up = self._states.get((way.src, row["port"], row["ev"])) is EvState.ASSUMED_BAD
                (dead if given_up else alive).append(path)
        return dead, alive

    def named(self, enough):
        """The links that the events name, once that is ``enough``, and the dead paths.

        On a busy machine a host without a processor condemns working paths until its probes are answered. So
        the result may need some rounds to become stable.
        """
        for _ in range(50):
            self.write(2)
            dead, alive = self.paths()
            links = smallest_cover(dead, alive)
            if enough(links):
                break
        return links, dead


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
    links, _ = ring.named(lambda links: bool(links) and at_switch.issuperset(links))
    assert links, "somebody has noticed"
    assert at_switch.issuperset(links)
    context = ring.contexts[RING[0]]
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
