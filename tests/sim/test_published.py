"""The published rows: every one runs in its reduced form, and the verdict depends on what is measured."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from openmrc import sim
from openmrc.cli import main
from openmrc.errors import ArgumentError
from openmrc.sim import published_page, reproduce, transports
from openmrc.sim.measures import measures
from tests.helpers.repository import ROOT

ROWS = [row.row for row in reproduce.rows()]


@pytest.mark.parametrize("name", ROWS)
def test_a_row_in_its_reduced_form_is_within_its_bounds(name: str) -> None:
    (row,) = reproduce.rows([name])
    outcome = reproduce.reproduce(row, reduced=True, seeds=1)
    wrong = {
        verdict.claim.says: (verdict.values, verdict.bounds)
        for verdict in outcome.verdicts
        if not verdict.within
    }
    assert not wrong


def test_a_row_is_named_with_its_letter_or_without() -> None:
    assert [row.row for row in reproduce.rows(["p14", "P2"])] == ["P2", "P14A", "P14B", "P14C", "P14E"]
    assert [row.row for row in reproduce.rows(["P14a"])] == ["P14A"]
    with pytest.raises(ArgumentError, match="there is no row P14D"):
        reproduce.rows(["P14D"])


@pytest.mark.parametrize("name", [row.row for row in reproduce.rows() if row.sweeps])
def test_every_value_of_a_sweep_makes_runs_that_differ(name: str) -> None:
    (row,) = reproduce.rows([name])
    for sweep in row.sweeps:
        made = [
            row.varied(sweep, value).scenarios(full=False, reduced=False, seed=1) for value in sweep.values
        ]
        assert all(made[0].keys() == runs.keys() for runs in made)
        # What a claim is compared with may be the same for all values.
        varied = [run for run in made[0] if len({repr(runs[run]) for runs in made}) == len(made)]
        assert varied, sweep.over


def test_a_control_with_faults_of_its_own_keeps_them_in_a_sweep() -> None:
    (row,) = reproduce.rows(["P11"])
    (sweep,) = row.sweeps
    before = row.scenarios(full=False, reduced=False, seed=1)
    after = row.varied(sweep, 500).scenarios(full=False, reduced=False, seed=1)
    assert [run for run in after if after[run] != before[run]] == ["mrc"]


def test_what_is_kept_needs_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["reproduce", "--only", "P2", "--keep", str(tmp_path / "file")]) == 2
    assert "file: is no directory" in capsys.readouterr().err


def claim(**fields: object) -> reproduce.Claim:
    return reproduce.Claim.model_validate({"says": "a claim", "value": "run.figure", **fields})


def verdict(values: Sequence[float], **fields: object) -> reproduce.Verdict:
    made = claim(**fields)
    return reproduce.Verdict(made, values, made.bounds())


def test_a_claim_agrees_only_if_its_interval_lies_within_the_bounds() -> None:
    seeds = [0.9, 1.0, 1.1, 1.0]
    assert verdict(seeds, low=0.9, high=1.1).word == "agrees"
    assert verdict(seeds, low=0.91, high=1.1).word == "disagrees"
    assert verdict(seeds, low=0.9, high=1.09).word == "disagrees"
    # The mean is 1.0 +- 3.18 x 0.0816 / 2.
    half = 3.18 * math.sqrt(0.02 / 3) / 2
    assert verdict(seeds, low=1 - half - 1e-9, high=1 + half + 1e-9, over="mean").word == "agrees"
    assert verdict(seeds, low=1 - half + 1e-3, over="mean").word == "disagrees"
    assert verdict([], low=0).word == "disagrees"
    assert verdict([math.nan], high=1).word == "disagrees"


def test_what_was_calibrated_counts_neither_way() -> None:
    assert verdict([1.0], low=0.9, calibrated="a parameter").word == "calibrated"
    assert verdict([0.8], low=0.9, calibrated="a parameter").word == "disagrees"


def test_every_run_is_repeated_with_other_seeds() -> None:
    (row,) = reproduce.rows(["P13"])
    one, two = (row.scenarios(reduced=True, seed=seed)["mrc"] for seed in (1, 2))
    assert (one.seed, two.seed) == (1, 2)
    assert (one.traffic[0].seed, two.traffic[0].seed) == (1, 2)  # type: ignore[union-attr]
    outcome = reproduce.reproduce(row, reduced=True, seeds=2)
    assert len(outcome.verdicts[0].values) == 2
    assert len(set(outcome.verdicts[0].values)) == 2


def test_a_mean_may_take_more_seeds_than_its_row() -> None:
    (row,) = reproduce.rows(["P2"])
    (claim,) = row.claims
    more = claim.model_copy(update={"over": "mean", "seeds": 3})
    changes = {"claims": [claim, more], "runs": {**row.runs, "spare": {}}, "seeds": 2, "sweeps": []}
    made = row.model_copy(update=changes)
    made._source = row._source
    outcome = reproduce.reproduce(made)
    assert [len(each.values) for each in outcome.verdicts] == [2, 3]
    # The third seed has only the runs that the claim needs.
    assert [set(figures) for figures in outcome.figures] == [set(made.runs)] * 2 + [claim.runs()]
    assert {len(each.values) for each in reproduce.reproduce(made, seeds=1).verdicts} == {1}


def test_kept_runs_are_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = reproduce.rows(["P2"])
    first = reproduce.reproduce(row, seeds=2, keep=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2 * len(row.runs)

    def refuse(*_: object) -> None:
        raise AssertionError("a kept run was repeated")

    with monkeypatch.context() as patched:
        patched.setattr(reproduce, "run", refuse)
        again = reproduce.reproduce(row, seeds=2, keep=tmp_path)
        assert again == first
        assert again.took_s > 0
        # A third seed has other scenarios.
        with pytest.raises(AssertionError, match="repeated"):
            reproduce.reproduce(row, seeds=3, keep=tmp_path)
    assert reproduce.reproduce(row, seeds=3, keep=tmp_path).figures[:2] == first.figures


def test_rows_of_one_testbed_share_its_fabric_and_its_settings_of_rocev2() -> None:
    shared = [row for row in reproduce.rows() if row.testbed == "c"]
    assert [row.row for row in shared] == ["P3", "P4", "P5", "P6"]
    fabrics, settings = set(), set()
    for row in shared:
        for scenario in row.scenarios().values():
            topology = scenario.topology
            fabrics.add((topology.hosts, topology.radix, topology.hosts_per_t0, topology.uplinks_per_t0))
            if scenario.transport.kind == "rocev2":
                transport = scenario.transport.model_dump(exclude={"qps"})
                settings.add(str(sorted(transport.items(), key=str)))
    assert len(fabrics) == 1
    assert len(settings) == 1


def test_a_sweep_shows_the_claim_with_each_value() -> None:
    (row,) = reproduce.rows(["P2"])
    outcome = reproduce.reproduce(row, seeds=1, sweeps=True)
    (swept,) = outcome.swept
    values = [verdicts[0].ours for verdicts in swept.verdicts]
    assert values == sorted(values)
    # Two more switches: the difference grows by twice the latency.
    assert values[-1] - values[0] == pytest.approx(2 * 0.3, rel=0.01)
    text = "\n".join(published_page.page([outcome]))
    assert "is calibrated: two free parameters for one number" in text
    assert "0 of 1 claims agree, 0 do not, 1 are calibrated" in text


def run(**fields: object) -> sim.Results:
    return sim.run(
        sim.Scenario.model_validate(
            {"topology": {"hosts": 16, "planes": 4, "radix": 16, "hosts_per_t0": 8}, **fields}
        )
    )


def test_losses_are_counted_per_connection_and_per_one_that_crosses_t1() -> None:
    # Two connections of three cross; the third stays under its T0.
    flows = [[0, 8, 1 << 22, 0], [1, 9, 1 << 22, 0], [2, 3, 1 << 22, 0]]
    faults = [{"kind": "loss", "targets": ["fabric-links"], "probability": 0.01}]
    results = run(traffic=[{"kind": "flows", "flows": flows}], faults=faults, record={"series": True})
    figures = measures(results)
    missed = results.totals["losses_seen"] - results.totals["spurious"]
    assert missed > 10
    assert figures["lost_per_connection"] == pytest.approx(missed / 3)
    assert figures["lost_per_crossing"] == pytest.approx(missed / 2)
    assert figures["first_minute_lost_per_crossing"] == pytest.approx(missed / 2)
    assert "late_losses_per_host_s" not in figures
    whole = run(traffic=[{"kind": "flows", "flows": flows}], record={"series": True})
    assert measures(whole)["lost_per_crossing"] == 0


def test_late_losses_are_those_after_the_first_minute() -> None:
    flows = [[0, 8, 1 << 22, 0], [0, 8, 1 << 22, 90_000_000]]
    fault = {"kind": "loss", "targets": ["fabric-links"], "probability": 0.02}

    def figures(**when: float) -> dict[str, float]:
        results = run(
            traffic=[{"kind": "flows", "flows": flows}],
            faults=[{**fault, **when}],
            record={"series": True, "interval_us": 1_000_000},
            limit_us=200_000_000,
        )
        return measures(results)

    late, early = figures(at_us=80_000_000), figures(until_us=1_000_000)
    assert late["first_minute_lost_per_crossing"] == 0 < late["late_losses_per_host_s"]
    assert early["late_losses_per_host_s"] == 0 < early["first_minute_lost_per_crossing"]


def all_reduce(**fields: object) -> dict[str, float]:
    results = run(
        traffic=[{"kind": "collective", "operation": "ring-all-reduce", "bytes": 64 << 20}],
        record={"series": True, "events": True},
        **fields,
    )
    return measures(results)


def test_the_time_to_recover_grows_with_what_holds_the_job_back() -> None:
    ports = [f"h1:p{plane}--p{plane}/t0-0:down1" for plane in range(3)]
    down = {"kind": "down", "targets": ports, "at_us": 500, "until_us": 700}
    slow = {"kind": "slow", "targets": [ports[0].replace("p0", "p3")], "at_us": 600, "share": 0.25}
    quick, never = all_reduce(faults=[down]), all_reduce(faults=[down, slow])
    assert 0 <= quick["recover_us"] < 5_000
    # One port of this host stays at a quarter: 95 % of the goodput before never come back.
    assert never["recover_us"] == math.inf
    assert quick["during_gbps"] < 0.9 * quick["before_gbps"]
    assert quick["after_gbps"] > 0.95 * quick["before_gbps"]


def test_the_last_step_is_that_after_the_loss_of_a_port() -> None:
    training = {"kind": "training", "data": 16, "steps": 3, "microbatches": 1, "gradient_bytes": 16 << 20}
    port = {"kind": "down", "targets": ["h1:p0--p0/t0-0:down1"], "at_us": 1_500}
    results = run(traffic=[training], faults=[port])
    figures, steps = measures(results), [step.took_us for step in results.steps]
    assert figures["last_step_us"] == steps[-1]
    # The port is lost after the first step; from then on three ports of four exchange the gradients.
    assert steps[0] is not None
    assert results.steps[0].end_us is not None
    assert results.steps[0].end_us < 1_500
    assert 1.1 < figures["last_step_us"] / steps[0] < 4 / 3
    # A step without an end has no time.
    assert measures(run(traffic=[training], limit_us=1_500))["last_step_us"] == 0


def test_the_time_to_bypass_a_fault_is_that_of_the_last_queue_pair() -> None:
    link = "p1/t0-0:up3--p1/t1-0"
    results = run(
        traffic=[{"kind": "permutation", "bytes": 16 << 20}],
        faults=[{"kind": "down", "targets": [link], "at_us": 100}],
        record={"series": True, "events": True},
    )
    times = [event.time_us for event in results.log if event.kind == "ev-bad"]
    assert min(times) > 100
    figure = measures(results)["bypass_us"]
    assert min(times) - 100 <= figure <= max(times) - 100
    rtt_us = results.base_rtt_ps * 1e-6
    assert rtt_us / 2 < figure < 10 * rtt_us
    # A path over other links that is condemned later has nothing to do with this fault.
    (event, *_) = [event for event in results.log if event.kind == "ev-bad"]
    assert event.ev is not None
    log = list(results.log)
    pairs = {(event.host, event.peer) for event in log}
    host, peer = next((a, b) for a in range(8) for b in range(8, 16) if (a, b) not in pairs)
    other_plane = replace(event, time_us=10_000, ev=event.ev ^ 1 << 31)
    assert measures(replace(results, log=[*log, other_plane]))["bypass_us"] == figure
    late = replace(event, time_us=20_000, host=host, peer=peer)
    assert measures(replace(results, log=[*log, late]))["bypass_us"] == pytest.approx(19_900)


def test_the_worst_interval_and_even_shares_are_those_of_the_pattern() -> None:
    # The second message begins when half of the first is done, and shares its link until both end.
    flows = [[1, 0, 32 << 20, 0], [2, 0, 32 << 20, 300]]
    results = run(
        traffic=[{"kind": "flows", "flows": flows}, {"kind": "flows", "flows": [[8, 9, 32 << 20, 0]]}],
        record={"series": True},
    )
    figures = measures(results)
    first, last = results.completion_times_us()[0], results.summary(0).last_us
    assert last is not None
    assert figures["even0"] == pytest.approx(results.summary(0).first_us / last)  # type: ignore[operator]
    assert figures["even0"] < 1
    assert figures["even1"] == 1
    assert first > 0
    # Nobody disturbs the second pattern; its slowest tenth is its first, which begins with a latency.
    assert 0.85 < figures["worst1_gbps"] / figures["goodput1_gbps"] <= 1.0
    alone = figures["goodput1_gbps"]
    assert alone == pytest.approx(400 * 4096 / 4262, rel=0.03)


def test_the_late_goodput_is_that_of_the_last_fifth() -> None:
    # Two hosts send at first; when the second is done, a fifth of the first one's data is still to come.
    flows = [[0, 8, 64 << 20, 0], [1, 9, 48 << 20, 0]]
    results = run(traffic=[{"kind": "flows", "flows": flows}], record={"series": True})
    second, first = results.completion_times_us()
    assert second < 0.8 * first
    figures = measures(results)
    alone = (64 << 20) * 8e-3 / first
    assert figures["late_gbps"] == pytest.approx(alone, rel=0.03)
    assert figures["goodput_gbps"] == pytest.approx(alone * 112 / 64, rel=0.03)


def test_pauses_are_those_of_pfc() -> None:
    incast = [{"kind": "incast", "senders": [1, 2, 3, 4, 5, 6, 7], "receiver": 0, "bytes": 4 << 20}]

    def pauses(transport: str) -> tuple[float, int]:
        results = run(traffic=incast, transport=transport)
        return measures(results)["pauses"], results.totals["trimmed_last_hop"]

    lossless, trimming = pauses("rocev2:qps=1:dcqcn=false"), pauses("mrc")
    assert lossless[0] > 0 == lossless[1]
    assert trimming[0] == 0 < trimming[1]


def test_a_setting_of_rocev2_that_does_not_exist_is_named() -> None:
    (row,) = reproduce.rows(["P4"])
    scenario = row.scenarios(reduced=True)["rocev2"]
    with pytest.raises(ArgumentError, match="rocev2: qpz: there is no such field, did you mean qps"):
        transports.with_fields(scenario, {"qpz": 4})


def test_the_readme_says_what_the_table_says() -> None:
    repository = ROOT
    summary = re.compile(r"\d+ of \d+ claims agree, \d+ do not, \d+ are calibrated")
    page = summary.search((repository / "docs" / "published.md").read_text(encoding="utf-8"))
    readme = summary.search((repository / "README.md").read_text(encoding="utf-8"))
    assert page is not None
    assert readme is not None
    assert readme.group() == page.group()
