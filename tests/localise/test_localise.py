"""Which component is it: faults drawn by a seed, probes drawn from them, and the verdicts held against the
faults."""

import math
import random
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openmrc.errors import ArgumentError
from openmrc.fabric import Fabric
from openmrc.fabric.spec import Specification
from openmrc.localise import (
    Component,
    Cusum,
    Kind,
    Model,
    Observation,
    alarm_threshold,
    components_of_path,
    expected_probes,
    likelihood,
    localise,
    loops_of_host,
    smallest_cover,
)
from openmrc.localise.baselines import netbouncer, votes

PROBES = 10_000
BACKGROUND = 1e-6
LINKS_PER_OPTIC = 4


def fabric_of(hosts: int, planes: int, radix: int) -> Fabric:
    return Fabric(
        Specification.model_validate(
            {
                "name": "probed",
                "hosts": hosts,
                "nic": {"rate": f"{planes * 100}G"},
                "planes": planes,
                "switch": {"radix": radix},
                "tiers": 2,
                "parallel_links": 1,
            }
        )
    )


class Probed:
    """Every loop of every host of a fabric, with the faults that it can have."""

    def __init__(self, fabric: Fabric) -> None:
        uplinks = sorted(
            port.link
            for switch in fabric.switches()
            if switch.tier == 0
            for port in fabric.ports(switch)
            if port.is_uplink
        )
        self.optics = {link: f"optic {number // LINKS_PER_OPTIC}" for number, link in enumerate(uplinks)}
        self.loops = [
            loop.components
            for host in range(fabric.hosts)
            for loop in loops_of_host(fabric, host, groups=self.optics)
        ]
        by_kind: dict[Kind, set[Component]] = {kind: set() for kind in Kind}
        for components in self.loops:
            for component in components:
                by_kind[component.kind].add(component)
        self.by_kind = {kind: sorted(found) for kind, found in by_kind.items()}

    def draw(self, rng: random.Random, count: int) -> dict[Component, float]:
        """Faults with their shares of loss."""
        kinds = [Kind.HOST, Kind.LINK, Kind.UPWARD, Kind.DOWNWARD, Kind.SWITCH, Kind.GROUP]
        kinds += [Kind.LINK] * 4
        return {
            rng.choice(self.by_kind[rng.choice(kinds)]): rng.choice([1e-2, 1e-1, 0.5, 1.0])
            for _ in range(count)
        }

    def probe(self, faults: dict[Component, float], seed: int, probes: int = PROBES) -> list[Observation]:
        rng = np.random.default_rng(seed)
        arrives = [
            (1 - BACKGROUND) * math.prod(1 - loss for part, loss in faults.items() if part in components)
            for components in self.loops
        ]
        lost = rng.binomial(probes, 1 - np.array(arrives))
        return [
            Observation(components, probes, int(count))
            for components, count in zip(self.loops, lost, strict=True)
        ]


@pytest.fixture(scope="module")
def probed() -> Probed:
    return Probed(fabric_of(256, 4, 32))


def parts(components) -> set[tuple[str, str]]:
    return {component.part for component in components if component is not None}


def test_each_uplink_has_two_probers_and_each_cable_its_own(probed):
    seen = Counter(c.name for loop in probed.loops for c in loop if c.kind == Kind.LINK and ":up" in c.name)
    assert set(seen.values()) == {2}
    turning = [loop for loop in probed.loops if not any(":up" in c.name for c in loop)]
    assert len(turning) == 256 * 4


def test_nothing_is_blamed_where_nothing_is_wrong(probed):
    for seed in range(20):
        assert localise(probed.probe({}, seed)) == []


def test_seeded_faults_are_named_rightly(probed):
    right = named = true = 0
    for seed in range(60):
        faults = probed.draw(random.Random(seed), 1 + seed % 2)
        found = parts(verdict.component for verdict in localise(probed.probe(faults, seed)))
        truth = parts(faults)
        right += len(found & truth)
        named += len(found)
        true += len(truth)
    assert right / named >= 0.99, "precision"
    assert right / true >= 0.97, "recall"


@pytest.mark.parametrize(
    ("kind", "loss"), [(kind, loss) for kind in Kind for loss in (1.0, 0.01)], ids=lambda value: str(value)
)
def test_every_kind_is_told_from_the_others(probed, kind, loss):
    for seed in range(6):
        fault = random.Random(seed).choice(probed.by_kind[kind])
        verdicts = localise(probed.probe({fault: loss}, seed))
        assert parts(v.component for v in verdicts) == {fault.part}
        [verdict] = verdicts
        assert verdict.confidence > 0.9
        assert verdict.loss == pytest.approx(loss, rel=0.3)
        assert verdict.evidence > 32


def test_a_host_that_stalls_accuses_no_link(probed):
    [verdict] = localise(probed.probe({Component(Kind.HOST, "h17"): 0.3}, 5))
    assert verdict.component == Component(Kind.HOST, "h17")


def test_one_way_paths_tell_the_directions_of_a_link_apart(probed):
    fabric = fabric_of(16, 2, 8)
    pairs = [(src, dst) for src in range(16) for dst in range(16) if src // 4 != dst // 4]
    paths = [path for src, dst in pairs for path in fabric.paths(src, dst)]
    broken = paths[0].links[1]
    for kind in (Kind.UPWARD, Kind.DOWNWARD, Kind.LINK):
        fault = Component(kind, broken)
        seen = [
            Observation(each, 1000, 1000 if fault in each else 0) for each in map(components_of_path, paths)
        ]
        assert [verdict.component for verdict in localise(seen)] == [fault]


def test_what_cannot_be_told_apart_is_unknown_with_its_suspects():
    a, b = Component(Kind.SWITCH, "p0/t1-0"), Component(Kind.SWITCH, "p0/t1-1")
    [verdict] = localise([Observation(frozenset({a, b}), 1000, 500)])
    assert verdict.component is None
    assert {suspect for suspect, _ in verdict.suspects} == {a, b}
    assert [share for _, share in verdict.suspects] == pytest.approx([0.5, 0.5])
    assert "unknown, perhaps" in str(verdict)


def test_baselines_on_the_same_faults(probed):
    """Of single links that lose 5 %, each names some; none names more than ours."""
    rng, ours, voted, fitted = random.Random(1), 0, 0, 0
    for seed in range(12):
        link = rng.choice(probed.by_kind[Kind.LINK])
        # Without kinds that only we know: links and switches, as the papers have them.
        seen = [
            Observation(frozenset(c for c in o.components if c.kind == Kind.LINK), o.sent, o.lost)
            for o in probed.probe({link: 0.05}, seed)
        ]
        ours += [v.component for v in localise(seen)] == [link]
        voted += votes(seen)[:1] == [link]
        fitted += set(netbouncer(seen)) == {link}
    assert ours == 12
    assert ours >= max(voted, fitted)
    assert min(voted, fitted) > 0, "the baselines find something at all"


@pytest.mark.parametrize(
    ("lost", "penalty", "share"),
    [
        (5, 0.05, 0.5),
        (2, 0.05, 0.775 / 0.95),
        (0, 0.05, None),
        (6, 2, 0.0),
        (5, 2, 0.0),
        (4, 2, None),
        (10, 0.05, 0.0),
    ],
)
def test_netbouncer_takes_the_share_of_one_component_from_its_closed_form(lost, penalty, share):
    """With a penalty above what was seen of it, a component is at one end or the other."""
    link = Component(Kind.LINK, "link")
    found = netbouncer([Observation(frozenset([link]), 10, lost)], penalty=penalty)
    assert found == ({} if share is None else {link: pytest.approx(share)})


def test_links_that_the_same_dead_paths_share_are_named_together_and_others_one_by_one():
    def path(*links):
        return SimpleNamespace(links=links)

    # "x" and "y" are on the same two paths; "z" is on as many, and on others.
    dead = [path("x", "y", "a"), path("x", "y", "b"), path("z", "c"), path("z", "d")]
    assert smallest_cover(dead, [path("a", "c")]) == ["x", "y", "z"]
    assert smallest_cover([*dead, path("z", "e")], [path("a", "c")]) == ["z", "x", "y"]
    assert smallest_cover([path("x", "a"), path("a")], [path("a")]) == ["x"]


def test_probes_until_an_alarm_are_the_threshold_over_the_divergence():
    # Half is lost instead of a quarter: each probe adds ln(4/3) / 2 on average.
    assert expected_probes(math.log(4 / 3), 0.25, 0.5) == pytest.approx(2)


def test_the_numbers_of_the_page_on_operation():
    threshold = alarm_threshold(1_048_576, 1000, 1)
    assert threshold == pytest.approx(32.1, abs=0.1)
    seconds = [expected_probes(threshold, 1e-6, loss) / 1000 for loss in (1e-3, 1e-2, 1e-1)]
    assert seconds == pytest.approx([5.4, 0.4, 0.03], rel=0.1)


@given(st.lists(st.booleans(), max_size=300), st.integers(1, 50))
def test_a_batch_raises_no_alarm_earlier_than_its_worst_order(outcomes, size):
    whole, single = Cusum(20), Cusum(20)
    for start in range(0, len(outcomes), size):
        batch = outcomes[start : start + size]
        whole.observe(len(batch), sum(batch))
        for lost in sorted(batch):
            single.observe(1, int(lost))
    assert whole.evidence == pytest.approx(single.evidence)


def test_cusum_raises_alarms_about_when_expected_and_not_before():
    threshold = alarm_threshold(1, 1000, 1)
    rng = np.random.default_rng(7)
    delays = []
    for _ in range(200):
        cusum = Cusum(threshold, background=1e-4)
        count = 0
        while not cusum.observe(10, int(rng.binomial(10, 0.01))):
            count += 10
        delays.append(count)
    expected = expected_probes(threshold, 1e-4, 0.01)
    assert 0.7 * expected < np.mean(delays) < 1.5 * expected
    quiet = Cusum(threshold, background=1e-4)
    assert not any(quiet.observe(100, int(lost)) for lost in rng.binomial(100, 1e-4, size=50_000))


def test_counts_that_cannot_be_are_refused():
    for sent, lost in ((1, 2), (3, -1), (-1, -1)):
        with pytest.raises(ArgumentError, match="it must be 0 to sent"):
            Observation(frozenset(), sent, lost)


def test_an_empty_model_of_faults_ends(probed):
    assert localise([]) == []
    assert localise(probed.probe({}, 0), Model(least_evidence=5, background=1e-3)) == []


def test_a_search_that_passes_over_what_cannot_be_better_has_the_verdicts_of_one_that_tries_all(
    probed, monkeypatch
):
    worlds = []
    for seed in range(12):
        rng = random.Random(seed)
        faults = probed.draw(rng, rng.randint(1, 4))
        # Few losses leave several suspects.
        worlds.append(probed.probe(faults, seed))
        worlds.append(probed.probe(dict.fromkeys(faults, 0.005), seed, probes=500))
    shortened = [localise(world) for world in worlds]
    passed_over = likelihood._Search._fit
    monkeypatch.setattr(
        likelihood._Search,
        "_unexplained",
        lambda search, without=(): [math.inf] * len(search._sets),
    )
    tried = Counter()

    def counted(search, component, without=()):
        tried[component] += 1
        return passed_over(search, component, without)

    monkeypatch.setattr(likelihood._Search, "_fit", counted)
    for world, found in zip(worlds, shortened, strict=True):
        every = localise(world)
        assert [verdict.component for verdict in every] == [verdict.component for verdict in found]
        for one, other in zip(every, found, strict=True):
            assert other.confidence == pytest.approx(one.confidence, abs=1e-12)
            assert other.evidence == pytest.approx(one.evidence, rel=1e-12)
    assert len(tried) > 100  # Else nothing was left out that this test could notice.
