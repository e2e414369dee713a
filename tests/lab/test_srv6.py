"""The NIC in SRv6 mode in a lab: it writes the outer headers itself, and kernel switches forward."""

import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import IPv6Address
from types import SimpleNamespace

import pytest

from openmrc.connect import Options, connect, listen
from openmrc.controller import Controller, Ev, EvField, EvMode, EvProbe, ProfileState
from openmrc.errors import ArgumentError, DeviceError
from openmrc.lab import entered
from openmrc.testing import Impairment, impaired
from openmrc.verbs import EvState, QpState, WcStatus
from openmrc.wire import EvFormat, parse_usids
from tests.helpers.labs import RING, carried, counted, needs_root, observe, running

pytestmark = needs_root

TSHARK = shutil.which("tshark")
PACKETS = 60
"""Packets per path when links are counted: more than neighbour discovery sends on a link in that time."""
NOISE = PACKETS // 2
MTU = 4096
SIZE = 1 << 19


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with running(tmp_path_factory.mktemp("lab"), "srv6") as lab:
        yield lab


@pytest.fixture(autouse=True)
def whole(lab):
    yield
    for switch in list(lab.state.soft):
        lab.stop_soft_switch(switch)
    lab.repair()


@dataclass
class OnePath:
    """A path of a fabric as an EV profile."""

    path: object
    active = 1

    @property
    def entries(self):
        return [SimpleNamespace(ev=self.path.ev, plane=self.path.plane, address=self.path.address)]


class Hosts:
    """Open devices in SRv6 mode, and queue pairs between them."""

    def __init__(self, lab, stack):
        self.lab = lab
        self._stack = stack
        self._contexts = {}

    def context(self, host, **options):
        if host not in self._contexts:
            with entered(self.lab.namespace(host)):
                device = self.lab.device(host, ev_format=EvFormat.SRV6, **options)
                self._contexts[host] = self._stack.enter_context(device.open())
        return self._contexts[host]

    def connect(self, src, dst, *, path=None, profile=None, size=SIZE, **options):
        """A connection for writes. ``path`` makes it the only path; feedback takes the same links back.
        ``profile`` is an EV profile of the writing end.
        """
        one, two = self.context(src), self.context(dst)
        inbox, outbox = bytearray(size), bytearray(size)
        two_pd, one_pd = two.alloc_pd(), one.alloc_pd()
        theirs = two_pd.create_qp(two.create_cq())
        done = one.create_cq()
        mine = one_pd.create_qp(done)
        here, there = Options(**options), Options(**options)
        if profile is not None:
            here = Options(ev_profile_id=profile.profile_id, **options)
        if path is not None:
            back = self.lab.fabric.path(dst, src, plane=path.plane, uplinks=path.uplinks)
            here = Options(ev_profile_id=self.profile(src, dst, path), **options)
            there = Options(ev_profile_id=self.profile(dst, src, back), **options)
        inbox_region, region = two_pd.register(inbox), one_pd.register(outbox)
        with listen("localhost", port=0, allow_addresses=["::/0"]) as listener, ThreadPoolExecutor() as pool:
            accepted = pool.submit(listener.accept, theirs, buffers=[inbox_region], options=there)
            # The contexts are in namespaces of their own: their addresses are not this process's.
            peer = self._stack.enter_context(
                connect("localhost", listener.address[1], mine, options=here, allow_addresses=["::/0"])
            )
            self._stack.enter_context(accepted.result())
        return SimpleNamespace(
            src=src,
            dst=dst,
            qp=mine,
            theirs=theirs,
            done=done,
            outbox=outbox,
            region=region,
            inbox=inbox,
            remote=peer.buffers[0],
        )

    def profile(self, src, dst, path):
        controller = Controller(self.context(src))
        profile = controller.ev_profile_to(self.context(dst).addresses, OnePath(path))
        return profile.profile_id


@pytest.fixture
def hosts(lab):
    with ExitStack() as stack:
        yield Hosts(lab, stack)


def write(way, text, *, length=None):
    """One write; its status."""
    length = length or len(way.outbox)
    way.outbox[:length] = (text.encode() * length)[:length]
    way.qp.write(way.region.sge(0, length), way.remote)
    [completion] = way.done.take(timeout=30)
    return completion.status


# --- which way packets go ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dst", ["h15", "h1"], ids=["over a T1", "under one T0"])
def test_every_path_of_the_nic_takes_exactly_the_links_that_the_arithmetic_says(lab, hosts, dst):
    paths = lab.fabric.paths("h0", dst)
    for path in paths:
        way = hosts.connect("h0", dst, path=path)
        before = counted(lab)
        assert write(way, "counted", length=PACKETS * MTU) is WcStatus.SUCCESS
        assert way.inbox == way.outbox
        loads = carried(lab, before, counted(lab))
        # Feedback takes the same links in the other direction.
        half = len(path.links) // 2
        for name, (up, down) in loads.items():
            if name in path.links:
                assert (up if path.links.index(name) < half else down) >= PACKETS
            else:
                assert max(up, down) < NOISE, f"{name} is not on the path"
        way.qp.close()
        way.theirs.close()


@pytest.mark.skipif(TSHARK is None, reason="tshark is not installed (Debian: apt install tshark)")
def test_wireshark_sees_the_usid_list_of_the_nic_s_packets_shift_hop_by_hop(lab, hosts):
    path = lab.fabric.path("h0", "h15", plane=1, uplinks=(2,))
    way = hosts.connect("h0", "h15", path=path)
    links = [lab.layout.links[name] for name in path.links]
    receivers = [link.upper if place < len(links) // 2 else link.lower for place, link in enumerate(links)]
    observers = [observe(lab, end) for end in receivers]
    # An observer ends with the first packet that it sees; its start cannot be seen from outside.
    while any(observer.poll() is None for observer in observers):
        assert write(way, "observed", length=100) is WcStatus.SUCCESS
        time.sleep(0.1)
    seen = [observer.communicate(timeout=60)[0].strip() for observer in observers]
    assert [IPv6Address(address) for address in seen] == list(path.addresses)


def test_data_is_sprayed_over_every_path_and_its_address_is_shown(lab, hosts):
    way = hosts.connect("h0", "h15")
    for number in range(4):
        assert write(way, f"sprayed {number} ") is WcStatus.SUCCESS
        assert way.inbox == way.outbox
    rows = hosts.context("h0").path_stats()
    assert all(row["tx_packets"] > 0 for row in rows)
    paths = {path.ev: path for path in lab.fabric.paths("h0", "h15")}
    assert {row["ev"]: (row["port"], row["address"]) for row in rows} == {
        ev: (path.plane, str(path.address)) for ev, path in paths.items()
    }


def test_a_path_longer_than_an_address_goes_on_in_an_srh(lab, hosts):
    path = lab.fabric.path("h0", "h15", plane=0, uplinks=(1,))
    block, *usids = (f"{path.address.exploded}".split(":")[i] for i in range(6))
    first = IPv6Address(f"{block}:{usids[0]}:{usids[1]}:{usids[2]}::")
    rest = IPv6Address(f"{block}:{usids[0]}:{usids[3]}:{usids[4]}::")
    hosts.connect("h0", "h15")
    # By hand: no fabric of two tiers needs one.
    controller = Controller(hosts.context("h0"))
    peer = hosts.context("h15").addresses
    layout, split = controller.ev_format_profile(), controller.ev_profile()
    layout.modify(ProfileState.OFFLINE, ev_format=EvFormat.SRV6_SRH, widths=[128, 128])
    layout.modify(ProfileState.ONLINE)
    ev = Ev(0x7000_0000, 0)
    split.modify(
        ProfileState.OFFLINE,
        mode=EvMode.EXPLICIT,
        format_profile=layout,
        count=1,
        ports=(0,),
        peer=peer,
        routes={ev: (first, rest)},
    )
    split.replace_ev(None, ev)
    split.modify(ProfileState.ONLINE)
    before = counted(lab)
    results = controller.probe_ev([EvProbe(peer, ev)] * PACKETS)
    assert [result.rtt_ns for result in results if result.rtt_ns is None] == []
    loads = carried(lab, before, counted(lab))
    assert all(max(loads[name]) >= PACKETS for name in path.links)


def template(paths, spread):
    """Fields that expand to addresses of paths whose second uSID differs: (mask, smallest, largest)."""
    block, usids = parse_usids(paths[0].address)
    mask, low, high = spread
    fields = [EvField(width=32, init_val=block), *(EvField(width=16, init_val=usid) for usid in usids)]
    fields[2] = EvField(width=16, init_val=0, min_val=low, max_val=high, mask=mask)
    return fields


def srv6_profile(controller, widths, **attributes):
    layout, profile = controller.ev_format_profile(), controller.ev_profile()
    layout.modify(ProfileState.OFFLINE, ev_format=EvFormat.SRV6, widths=widths)
    layout.modify(ProfileState.ONLINE)
    profile.modify(ProfileState.OFFLINE, format_profile=layout, ports=(0,), **attributes)
    return profile


def test_generated_values_expand_to_every_path_of_a_plane(lab, hosts):
    paths = [path for path in lab.fabric.paths("h0", "h15") if path.plane == 0]
    t1s = sorted(parse_usids(path.address)[1][1] for path in paths)
    assert t1s == list(range(t1s[0], t1s[-1] + 1))
    controller = Controller(hosts.context("h0"))
    profile = srv6_profile(
        controller,
        [32, 16, 16, 16, 16],
        mode=EvMode.GENERATED,
        fields=template(paths, (0xF, t1s[0], t1s[-1])),
        count=len(paths),
        active=len(paths),
        peer=hosts.context("h15").addresses,
    )
    profile.modify(ProfileState.ONLINE)
    # The EV is the four bits of the mask, in the first byte of what packets carry.
    assert sorted(profile.query_evs()) == [Ev(usid << 28, 0) for usid in t1s]
    way = hosts.connect("h0", "h15", profile=profile)
    assert write(way, "generated ") is WcStatus.SUCCESS
    assert way.inbox == way.outbox
    rows = [row for row in hosts.context("h0").path_stats() if row["tx_bytes"] > MTU]
    assert {row["address"] for row in rows} == {str(path.address) for path in paths}
    assert way.qp.stats()["peer_unknown_entropy"] == 0


def test_a_literal_address_as_entropy_value_is_carried_by_a_label(lab, hosts):
    paths = [path for path in lab.fabric.paths("h0", "h15") if path.plane == 0][:2]
    controller = Controller(hosts.context("h0"))
    peer = hosts.context("h15").addresses
    profile = srv6_profile(
        controller,
        [32] * 4,
        mode=EvMode.EXPLICIT,
        fields=[EvField(width=32, mask=0xFFFFFFFF)] * 4,
        count=2,
        active=2,
        peer=peer,
    )
    evs = [Ev(int(path.address) << 128, 0) for path in paths]
    with pytest.raises(ArgumentError, match="a bit behind them is set"):
        profile.replace_ev(None, Ev(evs[0].value | 1, 0))
    for ev in evs:
        profile.replace_ev(None, ev)
    profile.modify(ProfileState.ONLINE)
    way = hosts.connect("h0", "h15", profile=profile)
    assert write(way, "literal ") is WcStatus.SUCCESS
    assert way.inbox == way.outbox
    rows = [row for row in hosts.context("h0").path_stats() if row["tx_bytes"] > MTU]
    assert {(row["ev"], row["address"]) for row in rows} == {
        (label, str(path.address)) for label, path in enumerate(paths)
    }
    assert way.qp.stats()["peer_unknown_entropy"] == 0
    assert all(result.rtt_ns for result in controller.probe_ev([EvProbe(peer, ev) for ev in evs]))
    # The controller names paths by address.
    assert [profile.query_ev_state(ev) for ev in evs] == [EvState.GOOD] * 2
    assert profile.modify_ev_state(evs[1], EvState.DENIED) == 1
    assert [profile.query_ev_state(ev) for ev in evs] == [EvState.GOOD, EvState.DENIED]

    def sent():
        return {row["ev"]: row["tx_bytes"] for row in hosts.context("h0").path_stats()}

    before = sent()
    assert write(way, "without ") is WcStatus.SUCCESS
    after = sent()
    assert after[0] - before[0] > SIZE // 2
    assert after[1] - before[1] < MTU


def test_frames_to_a_second_udp_port_are_received(lab, hosts):
    second = 4971
    peer = [(addr, second) for addr, _ in hosts.context("h15", udp_ports=[second]).addresses]
    path = lab.fabric.path("h0", "h15", plane=0, uplinks=(1,))
    controller = Controller(hosts.context("h0"))
    controller.ev_profile_to(peer, OnePath(path))
    probes = [EvProbe(peer, Ev(path.ev, path.plane))] * 3
    with Controller(hosts.context("h15")).add_peer(hosts.context("h0").addresses):
        assert all(result.rtt_ns for result in controller.probe_ev(probes))
        other = [EvProbe([(addr, 4972) for addr, _ in peer], Ev(path.ev, path.plane))]
        controller.ev_profile_to(other[0].peer, OnePath(path))
        assert controller.probe_ev(other, timeout=0.2)[0].rtt_ns is None


def test_ev_probes_go_along_their_path(lab, hosts):
    peer = hosts.context("h15").addresses
    controller = Controller(hosts.context("h0"))
    with Controller(hosts.context("h15")).add_peer(hosts.context("h0").addresses):
        paths = list(lab.fabric.paths("h0", "h15"))
        probes = [EvProbe(peer, Ev(path.ev, path.plane), number) for number, path in enumerate(paths)]
        assert all(result.rtt_ns for result in controller.probe_ev(probes))
        lab.fail(paths[0].hops[-1].switch)  # h15's own T0 in this plane
        answered = {result.ev.port for result in controller.probe_ev(probes, timeout=0.3) if result.rtt_ns}
        assert answered == {1 - paths[0].plane}


# --- failures ----------------------------------------------------------------------------------------------


def test_what_is_sent_on_a_path_through_a_cut_link_arrives_nowhere(lab, hosts):
    path = lab.fabric.path("h0", "h15", plane=1, uplinks=(2,))
    way = hosts.connect("h0", "h15", path=path, timeout=10, linear_cnt=1, exp_cnt=1)
    assert write(way, "before") is WcStatus.SUCCESS
    lab.fail("p1/t0-0:up2")
    before = counted(lab)
    arrived = bytes(way.inbox)
    assert write(way, "after") is WcStatus.RETRY_EXC_ERR
    assert way.inbox == arrived
    loads = carried(lab, before, counted(lab))
    [first, *others] = path.links
    assert max(loads[first]) > 0
    assert all(max(loads[name]) < NOISE for name in others)


def test_the_nic_condemns_the_path_through_a_cut_link_and_no_byte_is_wrong(lab, hosts):
    way = hosts.connect("h0", "h15")
    assert write(way, "before") is WcStatus.SUCCESS
    cut = lab.fabric.path("h0", "h15", plane=1, uplinks=(2,))
    lab.fail("p1/t0-0:up2")
    context = hosts.context("h0")
    condemned = set()
    for number in range(200):
        assert write(way, f"after {number} ") is WcStatus.SUCCESS
        assert way.inbox == way.outbox
        while (event := context.ev_events.poll()) is not None:
            (condemned.add if event.state is EvState.ASSUMED_BAD else condemned.discard)(event.ev)
        if condemned == {cut.ev}:
            break
    assert condemned == {cut.ev}
    lab.repair()
    while context.ev_events.get(timeout=60).state is not EvState.GOOD:
        pass


def test_a_ring_of_writes_outlives_faults_bit_exact(lab, hosts):
    ways = [hosts.connect(src, dst) for src, dst in zip(RING, RING[1:] + RING[:1], strict=True)]

    def rounds(count):
        for number in range(count):
            for way in ways:
                way.outbox[:] = (f"{way.src} {number} ".encode() * SIZE)[:SIZE]
                way.qp.write(way.region, way.remote)
            for way in ways:
                [completion] = way.done.take(timeout=60)
                assert completion.status is WcStatus.SUCCESS
                assert way.inbox == way.outbox

    rounds(2)
    for fault in ("p0/t0-0:up1", "p1/t1-2", "h0:p0"):
        lab.fail(fault)
        rounds(3)
        lab.repair()
        rounds(1)
    lab.degrade("p0/t0-1:up0", loss=0.01)
    rounds(3)


def test_a_lost_nic_port_takes_its_plane_and_both_ends_know(lab, hosts):
    way = hosts.connect("h0", "h15")
    assert write(way, "before") is WcStatus.SUCCESS
    lab.fail("h0:p0")
    while hosts.context("h0").ports_up() != [1] or way.theirs.ports_up() != [1]:
        assert write(way, "meanwhile") is WcStatus.SUCCESS
    before = [port["tx_packets"] for port in hosts.context("h0").stats()["ports"]]
    assert write(way, "after") is WcStatus.SUCCESS
    after = [port["tx_packets"] for port in hosts.context("h0").stats()["ports"]]
    assert after[0] == before[0]
    assert after[1] > before[1]
    lab.repair()
    while hosts.context("h0").ports_up() != [0, 1] or way.theirs.ports_up() != [0, 1]:
        assert write(way, "again") is WcStatus.SUCCESS


def test_an_impaired_network_costs_no_byte(lab, hosts):
    way = hosts.connect("h0", "h15")
    rules = [
        Impairment.drop(probability=0.01),
        Impairment.duplicate(probability=0.01),
        Impairment.reorder(probability=0.01),
        Impairment.corrupt(probability=0.01),
        Impairment.trim(probability=0.01),
        Impairment.ecn_mark(probability=0.01),
    ]
    with impaired(hosts.context("h0"), *rules, seed=3) as network:
        for number in range(20):
            assert write(way, f"impaired {number} ") is WcStatus.SUCCESS
            assert way.inbox == way.outbox
        assert all(network.hits())
    causes = hosts.context("h15").stats()["causes"]
    assert causes["rx_bad_icrc"] > 0
    assert way.theirs.stats()["trimmed_in"] > 0


def test_marks_and_trimmed_packets_of_a_switch_are_understood(lab, hosts):
    for host in ("h0", "h15"):
        hosts.context(host, network_trims=True)
    way = hosts.connect("h0", "h15", path=lab.fabric.path("h0", "h15", plane=0, uplinks=(1,)))
    lab.start_soft_switch("p0/t1-1", rate=50_000_000, base_rtt_us=2000)
    for number in range(3):
        assert write(way, f"too fast {number} ") is WcStatus.SUCCESS
        assert way.inbox == way.outbox
    counters = lab.stop_soft_switch("p0/t1-1")
    assert counters["trimmed"] > 0
    assert way.theirs.stats()["trimmed_in"] > 0
    assert hosts.context("h15").stats()["ports"][0]["rx_ecn_marked"] > 0


CONGESTED = {"rate": 200_000_000, "base_rtt_us": 4000}
"""A receiver's link whose round trip holds 100,000 bytes."""


def trimmed_in_an_incast(lab, **options):
    """Two hosts write to one over a slow last hop; the share of data packets that its switch trimmed."""
    slow = {"link_rate_bps": CONGESTED["rate"], "base_rtt_us": CONGESTED["base_rtt_us"]}
    with ExitStack() as stack:
        hosts = Hosts(lab, stack)
        for host in ("h0", "h4", "h15"):
            hosts.context(host, network_trims=True, **slow, **options)
        ways = [
            hosts.connect(src, "h15", path=lab.fabric.path(src, "h15", plane=0, uplinks=(1,)), size=1 << 18)
            for src in ("h0", "h4")
        ]
        lab.start_soft_switch("p0/t0-3", **CONGESTED)
        for way in ways:
            way.outbox[:] = (f"{way.src} ".encode() * len(way.outbox))[: len(way.outbox)]
            for _ in range(4):
                way.qp.write(way.region, way.remote)
        for way in ways:
            taken = 0
            while taken < 4:
                completions = way.done.take(timeout=60)
                assert {completion.status for completion in completions} == {WcStatus.SUCCESS}
                taken += len(completions)
            assert way.inbox == way.outbox
        counters = lab.stop_soft_switch("p0/t0-3")
        sent = sum(way.qp.stats()["data_packets"] for way in ways)
    return counters["trimmed"] / sent


def test_nscc_finds_the_rate_of_a_congested_link(lab):
    fixed = trimmed_in_an_incast(lab, fixed_window=300_000)
    nscc = trimmed_in_an_incast(lab, fixed_window=0)
    assert fixed > 0.5, "two such windows are twice what the link and its queue hold"
    assert nscc < fixed / 4


# --- the host's kernel -------------------------------------------------------------------------------------


def test_the_host_s_kernel_neither_delivers_a_second_copy_nor_says_that_nobody_listens(lab, hosts):
    way = hosts.connect("h0", "h15")
    # The packets that prove the path MTU are duplicates on purpose.
    before, duplicates = snmp6(lab, "h15"), way.theirs.stats()["duplicates_in"]
    assert write(way, "once") is WcStatus.SUCCESS
    after = snmp6(lab, "h15")
    assert way.theirs.stats()["duplicates_in"] == duplicates
    for counter in ("Icmp6OutDestUnreachs", "Udp6InDatagrams", "Udp6NoPorts"):
        assert after[counter] == before[counter], counter
    with entered(lab.namespace("h15")), pytest.raises(DeviceError, match="Address already in use"):
        lab.device("h15").open()


def snmp6(lab, host):
    lines = subprocess.run(
        lab.command(host, ["cat", "/proc/net/snmp6"]), capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return {name: int(count) for name, count in (line.split() for line in lines)}


def test_who_polls_from_another_namespace_sees_the_links_of_the_device(lab, hosts):
    way = hosts.connect("h0", "h15")
    context = hosts.context("h0")
    with context.polling():
        # Any change of an interface makes the engine check all of them again, in the polling thread.
        change = ["ip", "link", "set", "p0", "txqueuelen", "900"]
        subprocess.run(lab.command("h0", change), check=True)
        for _ in range(5000):
            context.progress()
    assert context.ports_up() == [0, 1]
    assert write(way, "polled") is WcStatus.SUCCESS


# --- what is refused ---------------------------------------------------------------------------------------


def test_without_the_capability_one_error_says_what_to_do():
    program = (
        "from openmrc.verbs import Device\n"
        "from openmrc.wire import EvFormat\n"
        "Device.from_addresses('::1', ev_format=EvFormat.SRV6).open()"
    )
    # In its own user namespace, root has no capability over the host's network.
    result = subprocess.run(
        ["unshare", "--user", sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert "CAP_NET_RAW" in result.stderr.splitlines()[-1]


def test_a_path_of_another_plane_is_refused(lab, hosts):
    path = lab.fabric.path("h0", "h15", plane=1, uplinks=(0,))
    wrong = SimpleNamespace(entries=[SimpleNamespace(ev=path.ev, plane=0, address=path.address)], active=1)
    controller = Controller(hosts.context("h0"))
    with pytest.raises(DeviceError, match=f"port 0: no route to {path.address} by p0"):
        controller.ev_profile_to(hosts.context("h15").addresses, wrong)


def test_a_next_hop_that_nobody_answers_for_is_named(lab, hosts):
    path = lab.fabric.path("h0", "h15", plane=0, uplinks=(0,))
    nowhere = IPv6Address("5f00:0:dddd:1::")
    route = ["ip", "-6", "route", "add", "5f00:0:dddd::/48", "dev", "p0"]
    subprocess.run(lab.command("h0", route), check=True)
    silent = SimpleNamespace(entries=[SimpleNamespace(ev=path.ev, plane=0, address=nowhere)], active=1)
    controller = Controller(hosts.context("h0"))
    with pytest.raises(DeviceError, match=f"no neighbour answers for {nowhere} on p0"):
        controller.ev_profile_to(hosts.context("h15").addresses, silent)


def test_an_mtu_without_room_for_the_outer_header_is_refused(lab, hosts):
    hosts.context("h0")
    subprocess.run(lab.command("h0", ["ip", "link", "set", "p0", "mtu", "4200"]), check=True)
    try:
        with pytest.raises(ArgumentError, match=r"path_mtu 4096 needs an interface MTU of .*, p0 has 4200"):
            hosts.connect("h0", "h15")
    finally:
        subprocess.run(lab.command("h0", ["ip", "link", "set", "p0", "mtu", "9216"]), check=True)


def test_a_profile_to_another_peer_is_refused(lab, hosts):
    hosts.context("h15")
    wrong = hosts.profile("h0", "h15", lab.fabric.paths("h0", "h15")[0])
    qp = hosts.context("h0").alloc_pd().create_qp(hosts.context("h0").create_cq())
    qp.modify(QpState.INIT)
    with pytest.raises(ArgumentError, match=f"EV profile {wrong} end at"):
        qp.modify(
            QpState.RTR,
            dest_qp_num=7,
            rq_psn=0,
            remote=[(addr, 4791) for addr in lab.addresses("h4")],
            ev_profile_id=wrong,
        )


def test_a_peer_of_another_fabric_has_no_paths(hosts):
    with pytest.raises(ArgumentError, match="fd00::99 is no host's address"):
        Controller(hosts.context("h0")).add_peer([("fd00::99", 4791), ("fd00::9a", 4791)])
