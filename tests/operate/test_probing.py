"""The probers of an agent: which loops, what becomes of their counts, and what is said without any."""

import logging
import threading
import time
from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openmrc import _core
from openmrc.errors import ArgumentError, DeviceError, PrivilegeError
from openmrc.fabric import Fabric
from openmrc.fabric.spec import Specification
from openmrc.localise import Kind, loops_of_host
from openmrc.operate import agent as agents
from openmrc.operate import probing
from openmrc.operate.linkmap import Map, Topology
from openmrc.operate.model import LoopSeen, Reply, Report
from openmrc.operate.probing import Probing, addresses
from tests.helpers.commands import one_line_error, run
from tests.helpers.controllers import BOOT
from tests.helpers.ends import eventually


def fabric_of(**fields):
    return Fabric(
        Specification.model_validate(
            {"name": "probed", "hosts": 8, "nic": {"rate": "200G"}, "planes": 2, "tiers": 2} | fields
        )
    )


@pytest.fixture
def fabric():
    return fabric_of(switch={"radix": 8}, parallel_links=1)


@st.composite
def fabrics(draw):
    planes = draw(st.integers(1, 3))
    fields = {
        "hosts": draw(st.integers(2, 40)),
        "planes": planes,
        "nic": {"rate": f"{planes * 100}G"},
        "tiers": draw(st.integers(1, 3)),
        "switch": {"radix": draw(st.sampled_from([4, 8, 12, 16, 64]))},
    }
    try:
        return fabric_of(**fields)
    except ArgumentError:
        return None


@settings(deadline=None)
@given(fabrics())
def test_every_link_has_a_prober_and_two_where_two_hosts_can(fabric):
    if fabric is None:
        return
    seen = Counter(
        component.name
        for host in range(fabric.hosts)
        for loop in loops_of_host(fabric, host)
        for component in loop.components
        if component.kind is Kind.LINK
    )
    for switch in fabric.switches():
        ports = fabric.ports(switch)
        hosts = sum(not port.is_uplink for port in ports)
        for port in ports if switch.tier == 0 else ():
            if port.is_uplink:
                assert seen[port.link] == min(2, hosts), port.link
            else:
                assert seen[port.link] >= 1, port.link


@settings(deadline=None)
@given(fabrics(), st.integers(0, 39))
def test_a_loop_has_an_address_that_leads_over_its_links_and_back(fabric, number):
    if fabric is None:
        return
    host = number % fabric.hosts
    loops = list(loops_of_host(fabric, host))
    for loop, (own, path) in zip(loops, addresses(fabric, host, loops), strict=True):
        assert own == fabric.host_addresses(host)[loop.plane]
        switches = {component.name for component in loop.components if component.kind is Kind.SWITCH}
        usids = [int(word, 16) for word in path.split("::")[0].split(":")[2:]]
        names = [fabric.core.usid_name(usid) for usid in usids]
        assert set(names[:-1]) == switches
        assert len(names) == (2 if loop.uplink is None else 4)
        assert names[-1].startswith("down")


def test_a_loop_that_the_fabric_has_not_has_no_address(fabric):
    loop = next(iter(loops_of_host(fabric, 0)))._replace(uplink=99)
    with pytest.raises(ArgumentError, match="uplink 99"):
        list(addresses(fabric, 0, [loop]))


class Prober:
    """In place of the core's: what it has counted is set by the test."""

    def __init__(self, loops, **options):
        self.loops, self.options, self.intervals, self.closed, self.gone = loops, options, [], False, None

    def take(self):
        taken, self.intervals = self.intervals, []
        if self.gone:
            raise DeviceError(self.gone)
        return taken

    def totals(self):
        return [("sent", 7)]

    def close(self):
        self.closed = True


@pytest.fixture
def probers(monkeypatch):
    """The probers that are made, by the order in which they are."""
    made = []

    def make(*arguments, **options):
        made.append(Prober(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(_core, "Prober", make)
    return made


@pytest.fixture
def clock(monkeypatch):
    """Sets the time of what probes and reports."""

    class Clock:
        now = 1000.0

        def run(self, turn, *times):
            for self.now in times:
                turn()

    clock = Clock()
    for module in (probing, agents):
        own = SimpleNamespace(monotonic=lambda: clock.now, time=time.time)
        monkeypatch.setattr(module, "time", own)
    return clock


def refusing(monkeypatch, error):
    def make(*_, **__):
        raise error

    monkeypatch.setattr(_core, "Prober", make)


def test_counts_of_loops_are_reported_once_a_probe_has_come_back(fabric, probers, caplog):
    probes = Probing.start(fabric, ["h0"], 100)
    probes.turn()
    [prober] = probers
    assert prober.options["rate"] == 100
    assert prober.options["traffic_class"] == fabric.spec.qos.dscp.control << 2
    loops = len(prober.loops)
    prober.intervals = [[(50, 50)] * loops]
    probes.turn()
    assert probes.seen("h0") == [], "a fabric without SRv6 is not broken"
    prober.intervals = [[(50, 0)] + [(50, 50)] * (loops - 2) + [(0, 0)]]
    probes.turn()
    seen = {(loop.plane, loop.uplink): (loop.sent, loop.lost) for loop in probes.seen("h0")}
    assert seen[0, None] == (50, 0)
    assert len(seen) == loops
    assert sum(lost for _, lost in seen.values()) == 100 * (loops - 2) + 50
    assert probes.seen("h1") == []
    assert probes.totals == {"sent": 7}
    probes.close()
    assert prober.closed
    assert probes.totals == {"sent": 7}


def test_without_an_answer_the_agent_says_so_once(fabric, probers, caplog, clock):
    probes = Probing.start(fabric, ["h0"], 100)
    clock.run(probes.turn, 1000.0, 1004.0, 1006.0, 1020.0)
    assert [record.message for record in caplog.records] == [
        "no probe of h0 comes back, so none is counted: do its T0s forward SRv6?"
    ]


def test_what_keeps_a_host_from_probing_is_said_once(fabric, monkeypatch, caplog, clock):
    caplog.set_level(logging.INFO)
    refusing(monkeypatch, DeviceError("no interface of this network namespace has the address fd5f::1"))
    probes = Probing.start(fabric, ["h0", "h1"], 100)
    clock.run(probes.turn, 1000.0, 1001.0, 1011.0, 1022.0)
    assert len(caplog.records) == 2
    assert "no probes of h0 yet: no interface of this network namespace" in caplog.text
    caplog.clear()
    monkeypatch.setattr(_core, "Prober", Prober)
    clock.run(probes.turn, 1040.0)
    assert [record.message for record in caplog.records] == ["h0 probes", "h1 probes"]


def test_without_the_privilege_nothing_is_tried_again(fabric, monkeypatch, caplog):
    refusing(monkeypatch, PrivilegeError("probes need root or CAP_NET_RAW"))
    probes = Probing.start(fabric, ["h0"], 100)
    probes.turn()
    monkeypatch.setattr(_core, "Prober", None)
    probes.turn()
    assert [record.message for record in caplog.records] == [
        "no probes of h0: probes need root or CAP_NET_RAW"
    ]


def test_a_fabric_without_srv6_addresses_is_not_probed(probers, caplog):
    fabric = fabric_of(hosts=32, switch={"radix": 4}, tiers=4, planes=1, nic={"rate": "100G"})
    with pytest.raises(ArgumentError):
        fabric.core.check_addresses()
    probes = Probing.start(fabric, ["h0"], 100)
    probes.turn()
    assert probers == []
    assert "no probes: the fabric has no SRv6 addresses" in caplog.text


def test_a_prober_whose_interface_is_gone_is_started_again(fabric, probers, caplog, clock):
    probes = Probing.start(fabric, ["h0"], 100)
    probes.turn()
    probers[0].gone = "interface p0 does not exist any more"
    clock.run(probes.turn, 1001.0, 1002.0, 1012.0)
    assert [prober.closed for prober in probers] == [True, False]
    assert "no probes of h0: interface p0 does not exist any more" in caplog.text


def test_hosts_that_share_a_machine_share_its_probes(fabric, probers):
    probes = Probing.start(fabric, [f"h{number}" for number in range(8)], 5000)
    probes.turn()
    assert {prober.options["rate"] for prober in probers} == {1000}
    assert Probing.start(fabric, ["h0"], 0).totals == {}


class Controller:
    """In place of a client: keeps the reports."""

    address = "nowhere"

    def __init__(self):
        self.reports = []

    def report(self, report):
        self.reports.append(report)
        return Reply(deny_version=0)

    def close(self):
        """Nothing is open."""


def test_an_agent_reports_loops_that_lose_at_once_and_others_with_its_heartbeat(
    fabric, probers, tmp_path, monkeypatch, clock
):
    monkeypatch.setenv("OPENMRC_OBSERVE_DIR", str(tmp_path))
    controller = Controller()
    agent = agents.Agent(fabric, ["h0"], lambda _: controller, probe_rate=100)
    agent.turn()
    [prober] = probers
    loops = len(prober.loops)

    def turn_with(first):
        def turn():
            prober.intervals = [[first] + [(5, 0)] * (loops - 1)]
            agent.turn()

        return turn

    clock.run(turn_with((5, 0)), 1000.5, 1001.0, 1001.5)
    assert len(controller.reports) == 1, "what is well waits for the heartbeat"
    clock.run(agent.turn, 1002.0)
    assert len(controller.reports) == 2
    assert controller.reports[-1].loops[0] == LoopSeen(plane=0, uplink=None, sent=15, lost=0)
    clock.run(turn_with((5, 5)), 1002.5, 1003.0)
    assert len(controller.reports) == 4
    assert controller.reports[-1].loops[0] == LoopSeen(plane=0, uplink=None, sent=10, lost=10)


def test_a_link_that_is_good_again_before_the_report_is_reported_once(
    fabric, probers, tmp_path, monkeypatch, clock
):
    monkeypatch.setenv("OPENMRC_OBSERVE_DIR", str(tmp_path))
    controller = Controller()
    agent = agents.Agent(fabric, ["h0"], lambda _: controller, probe_rate=100)
    agent.turn()
    [prober] = probers
    others = [(5, 0)] * (len(prober.loops) - 1)

    def turn_with(*first):
        def turn():
            prober.intervals = [[counts, *others] for counts in first]
            agent.turn()

        return turn

    clock.run(turn_with(*[(5, 0)] * 9, (5, 5), (5, 0), (5, 0)), 1000.5)
    assert controller.reports[-1].loops[0] == LoopSeen(plane=0, uplink=None, sent=5, lost=5)
    clock.run(turn_with((5, 0), (5, 0)), 1001.0)
    assert controller.reports[-1].loops[0] == LoopSeen(plane=0, uplink=None, sent=20, lost=0)


def test_losses_wait_five_seconds_for_a_report(fabric):
    counts = probing.LoopCounts(list(loops_of_host(fabric, 0))[:1])
    waits = 5000 // probing.INTERVAL_MS
    counts.take([[(5, 0)]] * 9 + [[(5, 5)]] + [[(5, 0)]] * waits)
    assert [loop.lost for loop in counts.seen()] == [5]
    counts.take([[(5, 0)]])
    assert [(loop.sent, loop.lost) for loop in counts.seen()] == [(5 * (waits + 1), 0)]


def test_a_loop_that_loses_is_news_until_it_is_told_and_again_when_it_loses_twice_as_much(fabric):
    counts = probing.LoopCounts(list(loops_of_host(fabric, 0))[:2])
    counts.take([[(50, 50), (50, 50)]])
    assert not counts.is_news, "nothing has come back yet"
    counts.take([[(50, 0), (50, 0)]])
    assert not counts.is_news
    counts.take([[(50, 1), (50, 0)]])
    assert counts.is_news
    counts.told()
    assert not counts.is_news
    counts.take([[(50, 0), (50, 0)]])
    assert not counts.is_news, "more of the same"
    counts.take([[(50, 4), (50, 0)]])
    assert counts.is_news
    counts.told()
    counts.take([[(50, 0), (50, 0)]] * round(1000 * probing.MOST_S / probing.INTERVAL_MS))
    counts.told()
    assert not counts.is_news
    counts.take([[(50, 1), (50, 0)]])
    assert counts.is_news, "it was whole meanwhile"


def test_a_loop_that_begins_to_lose_ends_the_agents_rest(fabric, probers, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENMRC_OBSERVE_DIR", str(tmp_path))
    monkeypatch.setattr(agents, "PERIOD_S", 600.0)
    controller = Controller()
    agent = agents.Agent(fabric, ["h0"], lambda _: controller, probe_rate=100)
    running = threading.Thread(target=agent.run)
    running.start()
    try:
        assert eventually(lambda: probers and controller.reports, 30)
        [prober] = probers
        prober.intervals = [[(5, 0)] * len(prober.loops)]
        assert eventually(lambda: not prober.intervals, 30)
        assert len(controller.reports) == 1
        prober.intervals = [[(5, 5)] + [(5, 0)] * (len(prober.loops) - 1)]
        assert eventually(lambda: len(controller.reports) == 2, 30)
        assert controller.reports[-1].loops[0] == LoopSeen(plane=0, uplink=None, sent=10, lost=5)
    finally:
        agent.close()
        running.join()
    assert len(controller.reports) == 2


def test_a_device_of_another_host_is_read_once_and_again_if_its_socket_is_another(
    fabric, tmp_path, monkeypatch
):
    own, other = tmp_path / "1-1.sock", tmp_path / "2-1.sock"
    read = []

    class Reader:
        def __init__(self, path, patience_s):
            self.path = path

        def __enter__(self):
            read.append(self.path)
            return self

        def __exit__(self, *_):
            pass

        def state(self):
            return SimpleNamespace(stats={"ports": []})

        def paths(self):
            return self.path

    own.touch()
    other.touch()
    monkeypatch.setattr(agents, "devices", lambda: [own, other])
    monkeypatch.setattr(agents, "Observer", Reader)
    agent = agents.Agent(fabric, ["h0"], lambda _: Controller())
    monkeypatch.setattr(agent._locator, "host", lambda paths: "h0" if paths == own else "h1")
    for _ in range(3):
        assert [each.paths for each in agent._look()] == [own]
    assert read == [own, other, own, own]
    # A process that has the number of one that ended; its file has an inode of its own.
    other.rename(tmp_path / "kept")
    other.touch()
    agent._look()
    assert read[-2:] == [own, other]


def test_a_prober_refuses_what_it_cannot_do():
    options = {"rate": 10, "traffic_class": 0, "interval_ms": 100, "grace_ms": 100}
    loop = ("2001:db8::1", "5f00:0:1:e000::")
    with pytest.raises(ArgumentError, match="loops: there are none"):
        _core.Prober([], **options)
    with pytest.raises(ArgumentError, match="rate: 0 probes a second; it must be 1 to 100000"):
        _core.Prober([loop], **options | {"rate": 0})
    with pytest.raises(ArgumentError, match="interval: it must be at least a millisecond"):
        _core.Prober([loop], **options | {"interval_ms": 0})
    with pytest.raises(ArgumentError, match='"x" is not an IPv6 address'):
        _core.Prober([("x", loop[1])], **options)
    with pytest.raises(
        DeviceError, match="no interface of this network namespace has the address 2001:db8::1"
    ):
        _core.Prober([loop], **options)


def test_the_rate_of_probes_has_limits():
    assert "--probe-rate" in one_line_error(run("agent", "--probe-rate", "-1"))


def test_a_controller_takes_every_loop_that_a_host_has_and_no_other(fabric):
    links = Map(Topology(fabric))
    shared = {(loop.plane, loop.uplink) for loop in loops_of_host(fabric, "h0")}
    uplinks = fabric.core.uplinks(0)
    assert {uplink for _, uplink in shared} != {None, *range(uplinks)}

    def report(plane, uplink):
        seen = LoopSeen(plane=plane, uplink=uplink, sent=10, lost=0)
        return Report(host="h0", boot=BOOT, sequence=time.monotonic_ns(), loops=[seen])

    for plane in range(fabric.planes):
        for uplink in (None, *range(uplinks)):
            assert links.take(report(plane, uplink), 0.0, 0.0)
    for plane, uplink in ((0, uplinks), (fabric.planes, 0)):
        with pytest.raises(ArgumentError, match=f"h0 has no loop over plane {plane}, uplink {uplink}"):
            links.take(report(plane, uplink), 0.0, 0.0)
