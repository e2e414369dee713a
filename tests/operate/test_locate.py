"""The broken cable is named from what running processes believe of their paths."""

import dataclasses
import json
from contextlib import ExitStack

import pytest

from openmrc.cli import main
from openmrc.fabric import Fabric, Specification
from openmrc.lab.hosts import FIRST_SOURCE_PORT, path_of_port, paths_by_port
from openmrc.lab.layout import Layout
from openmrc.localise import Kind
from openmrc.observe import DevicePaths, QueuePairPaths, publish
from openmrc.operate.locate import PROBED_NS, RECENT_NS, UNANSWERED, Locator, described
from openmrc.operate.watch import watching
from tests.helpers.ends import connected, eventually
from tests.helpers.labs import RING, needs_root, running, specification
from tests.helpers.rings import Ring


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENMRC_OBSERVE_DIR", str(tmp_path / "observed"))


@pytest.fixture(scope="module")
def fabric(tmp_path_factory):
    return Fabric.load(specification(tmp_path_factory.mktemp("fabric"), "located"))


def seen(fabric, src, dst, broken=(), *, ports_up=(0, 1), used_again=True):
    """What a device in SRv6 mode says that has used every path from one host to another."""
    paths = list(fabric.paths(src, dst))
    dead = [path for path in paths if set(broken) & set(path.links)]
    alive = [path for path in paths if path not in dead]
    return DevicePaths(
        device=f"mrc-{src}",
        pid=1,
        job=None,
        time_ns=2000,
        srv6=True,
        addresses=[str(each) for each in fabric.host_addresses(src)],
        ports_up=list(ports_up),
        queue_pairs=[
            QueuePairPaths(
                qp_num=1,
                remote=[str(each) for each in fabric.host_addresses(dst)],
                good=[(path.plane, path.ev) for path in alive],
                bad=[(path.plane, path.ev, 1000) for path in dead],
                denied=[],
            )
        ],
        left_out=0,
        counters=[
            {
                "port": path.plane,
                "ev": path.ev,
                "tx_packets": 5,
                "tx_bytes": 500,
                "last_tx_ns": 1500 if used_again else 500,
                "address": str(path.address),
            }
            for path in paths
        ],
    )


def ring(fabric, broken):
    pairs = zip(RING, RING[1:] + RING[:1], strict=True)
    return [seen(fabric, src, dst, broken) for src, dst in pairs]


def test_every_cable_between_switches_is_named_and_nothing_else(fabric):
    locator = Locator(fabric)
    assert locator.sight(ring(fabric, ())).verdicts() == []
    for link in {link for path in fabric.paths("h0", "h4") for link in path.links[1:-1]}:
        [verdict] = locator.sight(ring(fabric, [link])).verdicts()
        assert verdict.component == (Kind.LINK, link)
        assert link in described(verdict)


@pytest.fixture(scope="module")
def three_tiers():
    fields = {"hosts": 24, "nic": {"rate": "200G"}, "planes": 2, "tiers": 3, "t0s_per_pod": 2}
    return Fabric(Specification.model_validate({"name": "three", "switch": {"radix": 8}, **fields}))


def over_udp(fabric, src, dst, broken):
    """What a device over UDP sockets says, whose entropy values are source ports."""
    device, layout = seen(fabric, src, dst, broken), Layout(fabric)
    ports = range(FIRST_SOURCE_PORT, FIRST_SOURCE_PORT + paths_by_port(layout))
    port_of = {
        (path.plane, path.ev): port
        for port in ports
        for plane in range(fabric.planes)
        for path in [path_of_port(layout, src, dst, plane, port)]
    }
    [pair] = device.queue_pairs
    changed = dataclasses.replace(
        pair,
        good=[(plane, port_of[plane, ev]) for plane, ev in pair.good],
        bad=[(plane, port_of[plane, ev], since) for plane, ev, since in pair.bad],
    )
    counters = [{**row, "ev": port_of[row["port"], row["ev"]], "address": None} for row in device.counters]
    return dataclasses.replace(device, srv6=False, queue_pairs=[changed], counters=counters)


def test_over_udp_links_and_switches_above_the_t1s_are_named_too(three_tiers):
    fabric, locator = three_tiers, Locator(three_tiers)
    pairs = [(f"h{number}", f"h{(number + 8) % 24}") for number in range(0, 24, 4)]
    tops = [switch for switch in fabric.switches(0) if switch.tier == 2]
    above = [port.link for switch in tops for port in fabric.ports(switch)]
    assert len(above) == 24

    def named(broken):
        sight = locator.sight(over_udp(fabric, src, dst, broken) for src, dst in pairs)
        return [verdict.component for verdict in sight.verdicts()]

    assert named(()) == []
    assert [named([link]) for link in above] == [[(Kind.LINK, link)] for link in above]
    for switch in tops[:4]:
        assert named([port.link for port in fabric.ports(switch)]) == [(Kind.SWITCH, str(switch))]


def test_one_sender_cannot_tell_the_two_cables_of_a_path_apart_and_says_so(fabric):
    path = fabric.paths("h0", "h4")[0]
    [verdict] = Locator(fabric).sight([seen(fabric, "h0", "h4", [path.links[1]])]).verdicts()
    assert verdict.component is None
    assert {path.links[1], path.links[2]} <= {suspect.name for suspect, _ in verdict.suspects}
    assert described(verdict).startswith("one of these is broken: ")


def idle(fabric, src, dst, broken=(), *, unanswered=UNANSWERED, began=1000, asked=1200):
    """What a device says that has used no path, and probed every one."""
    device = seen(fabric, src, dst, broken)
    [pair] = device.queue_pairs
    good = [(port, ev) for port, ev in pair.good]
    dead = [(port, ev) for port, ev, _ in pair.bad]
    probed = [(port, ev, 0, asked) for port, ev in good]
    probed += [(port, ev, unanswered, began) for port, ev in dead]
    changed = dataclasses.replace(pair, good=good + dead, bad=[], probed=probed)
    counters = [{**row, "last_tx_ns": 0} for row in device.counters]
    return dataclasses.replace(device, queue_pairs=[changed], counters=counters)


def idle_ring(fabric, broken, **probes):
    pairs = zip(RING, RING[1:] + RING[:1], strict=True)
    return [idle(fabric, src, dst, broken, **probes) for src, dst in pairs]


def test_every_cable_of_an_idle_fabric_is_named_by_ev_probes(fabric):
    locator = Locator(fabric)
    assert locator.sight(idle_ring(fabric, ())).verdicts() == []
    for link in {link for path in fabric.paths("h0", "h4") for link in path.links[1:-1]}:
        [verdict] = locator.sight(idle_ring(fabric, [link])).verdicts()
        assert verdict.component == (Kind.LINK, link)


def test_what_probes_have_found_may_be_left_out(fabric):
    link = fabric.paths("h0", "h4")[0].links[1]
    sight = Locator(fabric).sight(idle_ring(fabric, [link]), probed=False)
    assert (sight.dead, sight.alive) == ([], [])


def test_a_few_unanswered_probes_and_answers_from_before_say_nothing(fabric):
    locator = Locator(fabric)
    link = fabric.paths("h0", "h4")[0].links[1]
    assert locator.sight(idle_ring(fabric, [link], unanswered=UNANSWERED - 1)).dead == []
    sight = locator.sight([idle(fabric, "h0", "h4", [link], asked=999)])
    assert (len(sight.dead), sight.alive) == (1, [])
    old = dataclasses.replace(idle(fabric, "h0", "h4"), time_ns=PROBED_NS + 5000)
    assert locator.sight([old]).alive == []


def test_where_paths_are_probed_their_use_says_nothing_as_probes_use_them(fabric):
    device = seen(fabric, "h0", "h4")
    [pair] = device.queue_pairs
    (first, second, third), rest = pair.good[:3], pair.good[3:]
    probed = [(*first, UNANSWERED, 1), (*second, 1, 1), (*third, 0, 0)]
    used = dataclasses.replace(device, queue_pairs=[dataclasses.replace(pair, probed=probed)])
    sight = Locator(fabric).sight([used])
    assert [(path.plane, path.ev) for path in sight.dead] == [first]
    assert [(path.plane, path.ev) for path in sight.alive] == rest


def test_paths_that_were_not_used_since_acquit_nobody(fabric):
    locator = Locator(fabric)
    link = fabric.paths("h0", "h4")[0].links[1]
    sight = locator.sight([seen(fabric, "h0", "h4", [link], used_again=False)])
    assert (len(sight.dead), sight.alive) == (1, [])


def test_paths_in_reserve_are_not_in_use(fabric):
    device = seen(fabric, "h0", "h4")
    late = dataclasses.replace(device, time_ns=device.time_ns + RECENT_NS)
    locator = Locator(fabric)
    assert (len(locator.sight([device]).alive), locator.sight([late]).alive) == (8, [])


def test_a_port_without_carrier_names_its_cable_and_condemns_no_path(fabric):
    link = fabric.paths("h0", "h4")[0].first_link
    sight = Locator(fabric).sight([seen(fabric, "h0", "h4", [link], ports_up=[1])])
    assert sight.dead == []
    [verdict] = sight.verdicts()
    assert verdict.component == (Kind.LINK, link)


def test_devices_of_another_network_are_noted(fabric, capsys, tmp_path):
    with connected() as (a, _), publish(a.context):
        assert main(["locate", str(specification(tmp_path, "located"))]) == 5
    printed = capsys.readouterr()
    assert "is not in fabric located" in printed.err
    assert "OPENMRC_OBSERVE=1" in printed.err


@needs_root
def test_a_cut_cable_is_named_from_running_processes_by_the_command_and_by_who_waits(tmp_path, capsys):
    said = []
    with running(tmp_path, "locate") as lab, ExitStack() as stack:
        ring = Ring(lab, stack)
        for context in ring.contexts.values():
            stack.enter_context(publish(context))
        stack.enter_context(watching(lab.fabric, said.append))
        ring.write(2)
        row = max(ring.contexts["h0"].path_stats(), key=lambda row: row["tx_packets"])
        link = lab.path("h0", "h4", row["port"], row["ev"]).links[1]
        lab.degrade(link, loss=1.0)

        def named():
            ring.write(2)
            code = main(["lab", "locate", "--json", "--lab", lab.name])
            found = json.loads(capsys.readouterr().out)["faults"]
            return code == 1 and [fault["component"] for fault in found] == [{"kind": "link", "name": link}]

        assert eventually(named, 60)
        assert eventually(
            lambda: ring.write(1) or any(f"cable {link} is broken" in each for each in said), 60
        )
        lab.repair(link)
        # Condemned paths are probed: they come back without traffic.
        assert eventually(lambda: main(["lab", "locate", "--lab", lab.name]) == 0, 60)
        assert "nothing is broken" in capsys.readouterr().out
