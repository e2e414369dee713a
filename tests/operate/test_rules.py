"""What limits decisions, when faults are over, and whether the simulated hosts' faults are named."""

import itertools
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openmrc.errors import ArgumentError
from openmrc.fabric import Fabric, Specification
from openmrc.localise import Component, Kind, Verdict
from openmrc.operate.events import packed, unpacked
from openmrc.operate.faults import CLEARS_AFTER_S, Faults
from openmrc.operate.linkmap import MOST_LINKS, Known, Map, Topology, differing
from openmrc.operate.model import Evidence, LoopSeen, Report
from openmrc.operate.policy import Hysteresis, Rules, below_floor
from openmrc.operate.simulated import Simulated, reporting
from openmrc.operate.validate import validate
from tests.helpers.labs import specification


@pytest.fixture(scope="module")
def fabric(tmp_path_factory):
    return Fabric.load(specification(tmp_path_factory.mktemp("fabric"), "ruled"))


@pytest.fixture(scope="module")
def topology(fabric):
    return Topology(fabric)


def test_every_link_has_a_number_in_a_rectangle_and_both_ports_name_it(fabric, topology):
    cables = {port.link for switch in fabric.switches() for port in fabric.ports(switch)}
    assert set(topology.links) == cables
    for name, link in topology.links.items():
        assert topology.names[link.number] == name
        assert topology.link(link.lower) == topology.link(link.upper) == link
    assert sum(panel.rows * panel.columns for panel in topology.panels) == len(topology.names)
    with pytest.raises(ArgumentError, match="no link and no port"):
        topology.link("<script>")


def test_ports_of_a_cage_share_an_optic_and_ports_of_their_own_do_not(topology):
    assert topology.optics == topology.optic_of == {}
    fields = {"hosts": 16, "nic": {"rate": "200G"}, "planes": 2, "tiers": 2, "parallel_links": 1}
    switch = {"radix": 8, "cages": 2}
    broken_out = Topology(Fabric(Specification.model_validate({"name": "cages", "switch": switch} | fields)))
    assert "p0/t0-0:down0-down3" in broken_out.optics
    name = "p1/t0-3:up0-up3"
    links = broken_out.optics[name]
    assert links == [broken_out.link(f"p1/t0-3:up{number}").name for number in range(4)]
    assert broken_out.parts(Component(Kind.GROUP, name)) == links
    assert {broken_out.optic_of[link] for link in links} == {name}


def test_a_fabric_with_more_links_than_a_controller_keeps_is_refused():
    big = {
        "name": "big",
        "hosts": 1_000_000,
        "nic": {"rate": "800G"},
        "planes": 8,
        "switch": {"radix": 512},
        "tiers": 3,
    }
    with pytest.raises(ArgumentError, match="a controller keeps at most"):
        Topology(Fabric(Specification.model_validate(big)))


def test_a_floor_counts_each_switch_and_each_host_and_one_link_always_stays(topology):
    uplinks, ports = topology.groups["p0/t0-0"], topology.groups["h0"]
    assert below_floor(topology, [], uplinks[:2], 0.5) is None
    assert below_floor(topology, uplinks[:2], uplinks[2:3], 0.5).startswith("p0/t0-0 would have 1 of 4")
    assert below_floor(topology, uplinks[:3], uplinks[3:], 0.0).startswith("p0/t0-0 would have 0 of 4")
    assert below_floor(topology, ports[:1], ports[1:], 0.0).startswith("h0 would have 0 of 2 ports")
    # A switch that is taken out needs no uplinks; its hosts need their other ports.
    whole = topology.links_of("p0/t0-0")
    assert below_floor(topology, [], whole, 0.5, drained="p0/t0-0") is None
    assert below_floor(topology, [], whole, 0.6, drained="p0/t0-0").startswith("h0 would have 1 of 2")


def test_a_link_that_flaps_stays_out_twice_as_long_each_time_until_it_has_been_good_for_long():
    rules = Rules(hold_s=30, most_hold_s=200, forget_s=1000)
    hysteresis, now, holds = Hysteresis(rules), 0.0, []
    for _ in range(5):
        hysteresis.denied("x", now)
        hysteresis.bad("x", now + 1)
        holds.append(hysteresis.hold("x"))
        assert not hysteresis.may_return("x", now + holds[-1])
        now += 1 + holds[-1]
        assert hysteresis.may_return("x", now)
    assert holds == [30, 60, 120, 200, 200]
    hysteresis.denied("x", now + 2000)
    assert hysteresis.hold("x") == 30


def evaluated(fabric_map, simulated, now):
    for report in simulated.reports():
        assert fabric_map.take(report, now, now)
    return fabric_map.evaluate(fabric_map.collect(now, 5.0))


KINDS = [
    (Component(Kind.LINK, "p0/t0-1:up2--p0/t1-2"), 1.0),
    (Component(Kind.LINK, "p0/t0-1:up2--p0/t1-2"), 0.05),
    (Component(Kind.LINK, "h5:p1--p1/t0-1:down1"), 0.3),
    (Component(Kind.SWITCH, "p1/t1-3"), 1.0),
    (Component(Kind.HOST, "h7"), 1.0),
]


@pytest.mark.parametrize(("component", "loss"), KINDS, ids=lambda each: str(each))
def test_a_fault_of_simulated_hosts_is_named_and_is_over(fabric, topology, component, loss):
    fabric_map, simulated = Map(topology), Simulated(fabric, seed=5)
    faults = Faults(topology, [], 1)
    assert evaluated(fabric_map, simulated, 1.0)[0] == []
    simulated.inject(component, loss, until=10.0)
    verdicts, evidence = evaluated(fabric_map, simulated, 2.0)
    assert [verdict.component for verdict in verdicts] == [component]
    [opened], _ = faults.see(verdicts, 2.0, lambda link: False)
    assert (opened.kind, opened.name) == (str(component.kind), component.name)
    bad = {link for link, found in evidence.items() if found.name in ("BROKEN", "LOSSY")}
    assert bad == (set() if component.kind is Kind.HOST else set(topology.parts(component)))
    # Silence ends no fault, packets do.
    late = 3.0 + CLEARS_AFTER_S
    assert faults.see([], late, lambda link: False) == ([], [])
    simulated.faults.clear()
    verdicts, evidence = evaluated(fabric_map, simulated, late)
    _, [closed] = faults.see(verdicts, late, lambda link: evidence[link].name == "GOOD")
    assert (closed.id, closed.until) == (opened.id, late)


def named_by(topology, number):
    link = topology.names[number]
    component = Component(Kind.LINK, link)
    return Verdict(component, 1.0, 1.0, 100.0, ((component, 1.0),), 2), link


def test_what_is_named_once_becomes_no_fault(topology):
    faults = Faults(topology, [], 1, confirmed_after_s=1.0)
    (first, link), (second, _) = named_by(topology, 0), named_by(topology, 1)

    def opened(now, *verdicts):
        return [fault.name for fault in faults.see(verdicts, now, lambda link: False)[0]]

    assert opened(1.0, first) == []
    assert opened(1.5, first, second) == []
    assert opened(2.0, first) == [link]
    assert opened(2.5, first) == []
    assert list(faults.open) == [f"link {link}"]


def test_what_waits_is_looked_at_again_when_it_may_become_a_fault(topology):
    faults, (first, _) = Faults(topology, [], 1, confirmed_after_s=1.0), named_by(topology, 0)
    assert faults.confirms_at(0.0) is None
    faults.see([first], 1.0, lambda link: False)
    assert (faults.confirms_at(1.0), faults.confirms_at(2.0)) == (2.0, None)
    faults.see([first], 2.0, lambda link: False)
    assert faults.confirms_at(1.0) is None


def test_a_link_that_its_switch_explains_must_be_named_twice_again(topology):
    faults, (first, link) = Faults(topology, [], 1, confirmed_after_s=1.0), named_by(topology, 0)
    switch = Component(Kind.SWITCH, topology.links[link].upper.partition(":")[0])
    whole = Verdict(switch, 1.0, 1.0, 100.0, ((switch, 1.0),), 2)
    for now, verdict in ((1.0, first), (1.5, whole), (2.5, whole), (4.0, first)):
        faults.see([verdict], now, lambda link: False)
    assert list(faults.open) == [f"switch {switch.name}"]
    faults.see([first], 5.0, lambda link: False)
    assert f"link {link}" in faults.open


def test_a_flapping_link_is_a_fault_when_it_is_named_again(topology):
    faults = Faults(topology, [], 1, confirmed_after_s=1.0)
    verdict, link = named_by(topology, 0)
    named = []
    for now, verdicts in ((1.0, [verdict]), (1.5, []), (12.0, [verdict]), (14.0, []), (15.0, [verdict])):
        named += [(now, fault.name) for fault in faults.see(verdicts, now, lambda link: False)[0]]
    assert named == [(15.0, link)], "after eleven seconds it begins anew"


def test_faults_of_the_generator_come_and_go(fabric):
    simulated = Simulated(fabric, seed=2, every_s=1.0)
    seen = []
    for second in range(200):
        simulated.advance(1000.0 + second)
        seen.append(len(simulated.faults))
    assert max(seen) > 5
    assert 0 in seen
    again = Simulated(fabric, seed=2, every_s=1.0)
    for second in range(200):
        again.advance(1000.0 + second)
    assert again.faults == simulated.faults


def test_of_a_large_fabric_some_hosts_report_under_every_t0(fabric):
    assert reporting(fabric) == list(range(fabric.hosts))
    large = SimpleNamespace(hosts=131_072)
    found = reporting(large)
    assert [host // 256 for host in found] == list(range(512))
    assert {host % 256 for host in found} == set(range(256))


known = st.dictionaries(st.integers(0, 30), st.sampled_from(list(Evidence)))


@given(known, known)
def test_the_map_counts_and_shows_what_is_known_however_it_changes(topology, first, second):
    fabric_map = Map(topology)
    names = [name for name in topology.names if name is not None]
    for step in (first, second):
        evidence = Known({names[number]: each for number, each in step.items()})
        changed = differing(fabric_map.evidence, evidence)
        fabric_map.evidence = evidence
        fabric_map.refresh(changed)
        shown = fabric_map.snapshot()
        for number, name in enumerate(topology.names):
            assert shown[number] == (255 if name is None else evidence[name])
        by_evidence, _ = fabric_map.counts()
        for each in Evidence:
            assert by_evidence[each.name.lower()] == sum(evidence[name] is each for name in names)


@given(st.lists(st.tuples(st.integers(0, MOST_LINKS - 1), st.integers(0, 255))))
def test_cells_of_an_event_are_read_as_they_were_written(cells):
    assert unpacked(packed(cells)) == cells


@pytest.mark.parametrize("text", ["AAA", "AAAA", "AAAAAA=", "\u00e9", "AAAA AAA=", "<b>"])
def test_cells_that_are_none_are_a_value_error(text):
    with pytest.raises(ValueError, match=r"padding|base64|ASCII|words"):
        unpacked(text)


def test_verdicts_for_the_hosts_of_a_job(fabric, topology):
    fabric_map, simulated = Map(topology), Simulated(fabric, seed=3)
    simulated.inject(Component(Kind.LINK, topology.groups["h0"][0]), 1.0, 99.0)
    for link in topology.groups["h8"]:
        simulated.inject(Component(Kind.LINK, link), 1.0, 99.0)
    verdicts, evidence = evaluated(fabric_map, simulated, 1.0)
    fabric_map.evidence = evidence
    faults = Faults(topology, [], 1)
    faults.see(verdicts, 1.0, lambda link: False)
    del fabric_map.hosts["h15"]
    found = validate(fabric_map, ["h0", "h4", "h8", "h15"], faults.ranked(), 1.0, 5.0)
    assert {each.host: each.verdict for each in found.hosts} == {
        "h0": "degraded",
        "h4": "pass",
        "h8": "fail",
        "h15": "unknown",
    }
    assert found.verdict == "fail"
    with pytest.raises(ArgumentError, match="h16 does not exist"):
        validate(fabric_map, ["h16"], [], 1.0, 5.0)


def test_a_report_of_another_boot_starts_anew(fabric, topology):
    fabric_map = Map(topology)
    first, second = (next(Simulated(fabric, seed=seed).reports()) for seed in (1, 2))
    taken = [fabric_map.take(report, 1.0, 1.0) for report in (first, first, second)]
    assert taken == [True, False, True]
    assert len(list(itertools.islice(fabric_map.heard(6.5, 5.0), 1))) == 0


def test_losses_in_a_report_that_is_replaced_are_evaluated_once(fabric, topology):
    fabric_map = Map(topology)

    def take(sequence, lost=0):
        loops = [LoopSeen(plane=0, uplink=None, sent=40, lost=lost)]
        report = Report(host="h0", boot="0" * 16, sequence=sequence, loops=loops)
        assert fabric_map.take(report, 1.0, 1.0)

    def lost():
        return [each.lost for view in fabric_map.collect(1.0, 5.0) for each in view.observations]

    take(1, lost=9)
    take(2, lost=4)
    take(3)
    assert lost() == [9], "the worst of what no evaluation has had, and each loop once"
    assert lost() == [0]
    take(4, lost=9)
    assert lost() == [9]
    take(5)
    assert lost() == [0], "an evaluation has had the losses"
    take(6, lost=4)
    take(7, lost=9)
    assert lost() == [9]
