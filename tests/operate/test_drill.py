"""Faults in the packet simulator, found by the agents' probes: what is drawn, what is named, what is not."""

import importlib.util
import sys

import pytest

from openmrc.errors import ArgumentError
from openmrc.localise import Kind, localise
from openmrc.operate import drill, linkmap
from openmrc.operate.probed import ProbedFabric, Stall
from tests.helpers.repository import ROOT

SMALL = "link loses 0.1%"
"""Its drill is long: benches/faults.py has it."""


@pytest.fixture(scope="module")
def fabric():
    return drill.fabric_of(64)


def found(fabric, number, seed=1):
    outcome = drill.drill(fabric, number, seed, evaluation_s=0.05)
    rows = [(row.injected.title, row.outcome) for row in outcome.score.rows]
    assert [each for _, each in rows] == ["right"] * len(rows), f"{outcome.drawn.kind}: {rows}"
    assert outcome.score.wrong == [], outcome.drawn.kind
    return outcome


@pytest.mark.parametrize("kind", [kind for kind in drill.KINDS if kind != SMALL])
def test_a_fault_is_named_and_nothing_else(fabric, kind):
    outcome = found(fabric, drill.KINDS.index(kind))
    assert outcome.drawn.kind == kind
    assert outcome.cost.share < 0.001


IGNORED = {
    "switches": ("T1 forwards nothing", lambda component: component.kind is Kind.SWITCH),
    "links": ("link loses 10%", lambda component: component.kind in (Kind.LINK, Kind.UPWARD, Kind.DOWNWARD)),
    "what is not a host": ("link down", lambda component: component.kind is not Kind.HOST),
}


@pytest.mark.parametrize("what", IGNORED)
def test_a_localiser_that_ignores_something_is_noticed(fabric, what, monkeypatch):
    kind, ignores = IGNORED[what]

    def without(observations):
        kept = (
            linkmap.Observation(frozenset(c for c in each.components if not ignores(c)), each.sent, each.lost)
            for each in observations
        )
        return localise(kept)

    monkeypatch.setattr(linkmap, "localise", without)
    with pytest.raises(AssertionError):
        found(fabric, drill.KINDS.index(kind))


def test_a_localiser_that_never_hears_of_losses_is_noticed(fabric, monkeypatch):
    monkeypatch.setattr(linkmap, "localise", lambda observations: [])
    with pytest.raises(AssertionError):
        found(fabric, 0)


def test_nothing_is_named_while_hosts_stall_and_receive_incasts(fabric):
    named, cost = drill.quiet(fabric, 6.0, 1)
    assert named == []
    assert cost.probes > 6 * 64 * 400


def test_a_host_that_is_away_for_longer_than_the_grace_accuses_nothing(fabric):
    probed = ProbedFabric(fabric, stalls=[Stall(5, 1.0, 4.0)])
    probed.run_until(6.0)
    assert probed.named == []
    assert not any(each.lost for each in probed.observations())


def test_the_same_seed_draws_the_same_faults_and_ends_the_same(fabric):
    first, second = (drill.draw(fabric, 5, 7) for _ in range(2))
    assert first == second
    assert first != drill.draw(fabric, 5, 8)
    kinds = [drill.draw(fabric, number, 7).kind for number in range(2 * len(drill.KINDS))]
    assert kinds == [*drill.KINDS] * 2
    rows = found(fabric, 6, 3).score.rows
    assert rows == found(fabric, 6, 3).score.rows


def test_what_does_not_exist_is_refused(fabric):
    fault = {"kind": "loss", "targets": ["p0/t0-99:up1--p0/t1-1"], "probability": 1.0}
    with pytest.raises(ArgumentError, match="t0-99"):
        ProbedFabric(fabric, faults=[fault])
    with pytest.raises(ArgumentError, match="rate"):
        ProbedFabric(fabric, rate=1_000_000)
    with pytest.raises(ArgumentError, match="hosts"):
        drill.fabric_of(3)


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("bench_faults", ROOT / "benches" / "faults.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_faults"] = module
    spec.loader.exec_module(module)
    return module


def test_the_benchmark_counts_what_was_found_and_what_was_not(fabric, bench):
    outcomes = [found(fabric, 0), found(fabric, 9)]
    figures = bench.figures(outcomes)
    assert figures["faults"] == 3
    assert (figures["precision"], figures["recall"], figures["right component"]) == (1.0, 1.0, 1.0)
    assert 0 < figures["median s"] <= figures["p99 s"] < 10
    assert bench.percentile([3.0, 1.0, 2.0], 0.5) == 2.0


@pytest.mark.parametrize("arguments", [["--hosts", "3"], ["--faults", "none"], ["--rate", "0"]])
def test_the_benchmark_says_what_is_wrong_with_its_arguments(bench, arguments, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["faults.py", *arguments])
    with pytest.raises(SystemExit) as error:
        bench.main()
    assert error.value.code == 2
    assert "is no whole number from" in capsys.readouterr().err


def test_the_benchmark_shows_what_it_has_when_it_is_interrupted(fabric, bench, capsys, monkeypatch):
    def interrupted(arguments, done, quiet):
        done[0] = found(fabric, 0)
        done[0].baselines.update({"007": (1, 1, 1), "NetBouncer": (2, 1, 1)})
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "collect", interrupted)
    monkeypatch.setattr(sys, "argv", ["faults.py", "--faults", "9"])
    with pytest.raises(SystemExit) as error:
        bench.main()
    assert error.value.code == 130
    printed = capsys.readouterr()
    assert "interrupted after 1 of 9 drills" in printed.err
    assert "| link down | 1 | 1.000 |" in printed.out
