"""Tests that once could not fail: each fails when a fault is planted in what it tests.

A fault is a change of one piece of a module's source, or of the scenario that reaches the simulator. Faults
in Rust are built into a copy, in the long mode; the transport's are in crates/transport/tests/sabotage.rs.
"""

import importlib
import itertools
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from openmrc import sim
from tests.helpers.repository import ROOT, words
from tests.lab import test_demo
from tests.sim import test_grids, test_published, test_rocev2, test_scenarios, test_transports
from tests.verbs import test_impaired

FIGURES = "openmrc.sim.measures"
VERDICTS = "openmrc.sim.reproduce"


def faulty(name: str, right: str, wrong: str) -> ModuleType:
    """A copy of a module with one piece of its source replaced."""
    original = importlib.import_module(name)
    assert original.__file__ is not None
    source = Path(original.__file__).read_text(encoding="utf-8")
    assert source.count(right) == 1, f"{name} has no single {right!r}: name another piece of it"
    module = ModuleType(name)
    module.__file__ = original.__file__
    exec(compile(source.replace(right, wrong), original.__file__, "exec"), module.__dict__)
    return module


MEASURES = {
    "losses per connection are those per host": (
        "missed / len(_connected(results))",
        "missed / topology.hosts",
        test_published.test_losses_are_counted_per_connection_and_per_one_that_crosses_t1,
    ),
    "every connection crosses T1": (
        "src // below != dst // below",
        "src != dst",
        test_published.test_losses_are_counted_per_connection_and_per_one_that_crosses_t1,
    ),
    "losses of the first minute are late losses": (
        "late = float(missed[-1]) - first_minute",
        "late = float(missed[-1])",
        test_published.test_late_losses_are_those_after_the_first_minute,
    ),
    "the first minute is the whole run": (
        "first_minute = float(np.interp(_MINUTE_US, times, missed, left=0.0))",
        "first_minute = float(missed[-1])",
        test_published.test_late_losses_are_those_after_the_first_minute,
    ),
    "goodput that never returns has recovered at once": (
        "if len(back) else math.inf",
        "if len(back) else 0.0",
        test_published.test_the_time_to_recover_grows_with_what_holds_the_job_back,
    ),
    "a tenth of the goodput counts as recovered": (
        'smooth >= 0.95 * figures["before_gbps"]',
        'smooth >= 0.1 * figures["before_gbps"]',
        test_published.test_the_time_to_recover_grows_with_what_holds_the_job_back,
    ),
    "the last step is the first": (
        "results.steps[-1].took_us",
        "results.steps[0].took_us",
        test_published.test_the_last_step_is_that_after_the_loss_of_a_port,
    ),
    "the time to bypass counts from the start": (
        "return last - fault_us",
        "return last",
        test_published.test_the_time_to_bypass_a_fault_is_that_of_the_last_queue_pair,
    ),
    "the time to bypass is zero": (
        "            last = event.time_us\n",
        "            last = fault_us\n",
        test_published.test_the_time_to_bypass_a_fault_is_that_of_the_last_queue_pair,
    ),
    "the worst interval is the best": (
        "np.min(np.diff(reached)",
        "np.max(np.diff(reached)",
        test_published.test_the_worst_interval_and_even_shares_are_those_of_the_pattern,
    ),
    "the last fifth is the whole run": (
        "np.interp(times[-1] * 0.8, times, placed",
        "np.interp(times[-1] * 0.0, times, placed",
        test_published.test_the_late_goodput_is_that_of_the_last_fifth,
    ),
    "a trimmed packet is a pause": (
        'totals["pauses"]',
        'totals["trimmed_last_hop"]',
        test_published.test_pauses_are_those_of_pfc,
    ),
    "shares are always even": (
        "own.first_us / own.last_us",
        "own.last_us / own.last_us",
        test_published.test_the_worst_interval_and_even_shares_are_those_of_the_pattern,
    ),
    "goodput after a fault is half": (
        '_mean(figures, "after_gbps", total, ',
        '_mean(figures, "after_gbps", total * 0.8, ',
        test_grids.test_measures_are_those_of_the_run,
    ),
}


@pytest.mark.parametrize("fault", MEASURES)
def test_a_fault_in_a_figure_is_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right, wrong, test = MEASURES[fault]
    figures = faulty(FIGURES, right, wrong).measures
    for module in (test_published, test_grids):
        monkeypatch.setattr(module, "measures", figures)
    with pytest.raises(AssertionError):
        test()


JUDGEMENTS = {
    "one seed within the bounds is enough": (
        "least >= low",
        "greatest >= low",
        test_published.test_a_claim_agrees_only_if_its_interval_lies_within_the_bounds,
    ),
    "the upper bound is not looked at": (
        "high is None or greatest <= high",
        "high is None or least <= high",
        test_published.test_a_claim_agrees_only_if_its_interval_lies_within_the_bounds,
    ),
    "what was calibrated agrees": (
        "if self.claim.calibrated and self.within:",
        "if False:",
        test_published.test_what_was_calibrated_counts_neither_way,
    ),
    "every run has the first seed": (
        '        scenario = scenario.model_copy(update={"seed": seed,',
        '        scenario = scenario.model_copy(update={"seed": 1,',
        test_published.test_every_run_is_repeated_with_other_seeds,
    ),
}


@pytest.mark.parametrize("fault", JUDGEMENTS)
def test_a_fault_in_a_verdict_is_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right, wrong, test = JUDGEMENTS[fault]
    monkeypatch.setattr(test_published, "reproduce", faulty(VERDICTS, right, wrong))
    with pytest.raises(AssertionError):
        test()


ELSEWHERE = "h9:p3--p3/t0-1:down1"


def fields(scenario: sim.Scenario) -> dict[str, Any]:
    dumped: dict[str, Any] = scenario.model_dump(mode="json", exclude_unset=True)
    return dumped


def without_faults(scenario: sim.Scenario) -> dict[str, Any]:
    return {**fields(scenario), "faults": []}


def elsewhere(scenario: sim.Scenario) -> dict[str, Any]:
    """The same faults on another link."""
    moved = [{**fault, "targets": [ELSEWHERE]} for fault in fields(scenario).get("faults", [])]
    return {**fields(scenario), "faults": moved}


def felt(test: Callable[..., None], *kinds: str) -> list[Any]:
    """The test with the faults of these kinds."""
    (mark,) = test.pytestmark  # type: ignore[attr-defined]
    return [
        pytest.param(test, fault, id=f"{test.__module__}-{fault['kind']}")
        for fault in mark.args[1]
        if not kinds or fault["kind"] in kinds
    ]


ON_LINKS_TEST = test_scenarios.test_every_kind_of_fault_is_survived_and_felt_where_it_is
ON_OTHERS_TEST = test_transports.test_every_kind_of_fault_is_survived_and_felt_where_it_is


def run_instead(monkeypatch: pytest.MonkeyPatch, change: Callable[[sim.Scenario], dict[str, Any]]) -> None:
    """Every scenario that a test runs is changed on its way to the simulator."""
    run = sim.run
    monkeypatch.setattr(sim, "run", lambda scenario: run(sim.Scenario.model_validate(change(scenario))))


@pytest.mark.parametrize(("test", "fault"), felt(ON_LINKS_TEST) + felt(ON_OTHERS_TEST))
def test_a_simulated_fault_without_effect_is_noticed(
    test: Callable[..., None], fault: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_instead(monkeypatch, without_faults)
    with pytest.raises(AssertionError):
        test(fault)


@pytest.mark.parametrize(
    ("test", "fault"),
    felt(ON_LINKS_TEST, "loss", "bit-errors", "flap", "random"),
)
def test_a_simulated_fault_on_another_link_is_noticed(
    test: Callable[..., None], fault: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_instead(monkeypatch, elsewhere)
    with pytest.raises(AssertionError):
        test(fault)


def with_transport(**changes: Any) -> Callable[[sim.Scenario], dict[str, Any]]:
    """The same scenario with other settings of the transport."""

    def change(scenario: sim.Scenario) -> dict[str, Any]:
        made = fields(scenario)
        return {**made, "transport": {**made["transport"], **changes}}

    return change


def with_lossy_switches(scenario: sim.Scenario) -> dict[str, Any]:
    """Without PFC: what does not fit is dropped."""
    return {**fields(scenario), "network": {"switch": {"preset": "rocev2-lossy"}}}


CLOSED_FORMS = {
    "only what is lost is sent again": (
        with_transport(recovery="selective-repeat"),
        lambda: test_rocev2.test_each_loss_costs_go_back_n_a_round_trip(100, 0.005),
    ),
    "DCQCN slows down a permutation": (
        with_transport(dcqcn={"rate_timer_us": 3000}),
        lambda: test_rocev2.test_a_permutation_takes_as_long_as_the_busiest_link_needs(1, 1),
    ),
    "switches drop": (
        with_lossy_switches,
        lambda: test_rocev2.test_an_incast_under_pfc_takes_the_least_time(7),
    ),
}


@pytest.mark.parametrize("fault", CLOSED_FORMS)
def test_rocev2_off_its_closed_form_is_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change, test = CLOSED_FORMS[fault]
    run_instead(monkeypatch, change)
    with pytest.raises(AssertionError):
        test()


NAMED = {
    "any link that is named is right": "right=bool(links)",
    "to name none is right": "right=truth.issuperset(links)",
}


@pytest.mark.parametrize("fault", NAMED)
def test_a_fault_in_the_lab_demos_verdict_is_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = faulty("openmrc.demos.lab.mrc", "right=bool(links) and truth.issuperset(links)", NAMED[fault])
    monkeypatch.setattr(test_demo, "mrc", judge)
    with pytest.raises(AssertionError):
        test_demo.test_a_verdict_is_wrong_if_it_names_another_link_or_none(
            test_demo.Layout(test_demo.fabric())
        )


COUNT = itertools.count(100)
SEEDS: dict[str, Callable[[int], int]] = {
    "every seed chooses the same paths": lambda _: 5,
    "a seed chooses other paths each time": lambda _: next(COUNT),
}


@pytest.mark.parametrize("fault", SEEDS)
def test_a_seed_of_impairments_that_decides_nothing_is_noticed(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hit_paths = test_impaired.hit_paths
    monkeypatch.setattr(
        test_impaired, "hit_paths", lambda *args, seed: hit_paths(*args, seed=SEEDS[fault](seed))
    )
    with pytest.raises(AssertionError):
        test_impaired.test_the_same_seed_chooses_the_same_paths()


PORTS = "crates/sim/src/fabric"
KERNELS = "crates/collectives/src/kernels.rs"
PHYSICS = "crates/sim/tests/physics.rs"
FAULTS = "crates/sim/tests/faults.rs"
KERNEL_TESTS = "crates/collectives/src/kernels/tests.rs"
PAGE = words("docs/benchmarks.md")

RUST = {
    "routing converges behind the failure": (
        f"{PORTS}/routing.rs",
        "let converged = detected + ",
        "let converged = clock.now + ",
        FAULTS,
        "routing_converges_behind_the_detection_and_not_behind_the_failure",
    ),
    "the end of a loss clears nothing": (
        f"{PORTS}/impairments.rs",
        "                    self.effects.remove(place);",
        "                    if !matches!(effect, Effect::Loss(_)) { self.effects.remove(place); }",
        FAULTS,
        "a_link_that_is_repaired_has_lost_its_loss_and_its_bit_errors",
    ),
    "a computed mark is a packet late": (
        f"{PORTS}/computed.rs",
        "let behind = (backlog.free - left) / per_limit_byte;",
        "let behind = (backlog.free - left).saturating_sub(left - leaves) / per_limit_byte;",
        PHYSICS,
        "a_packet_is_marked_if_the_threshold_is_behind_it_and_not_the_next_one",
    ),
    "a mark of real queues is a packet late": (
        f"{PORTS}/queued.rs",
        "limit_bytes(&ports[out], queue.data_bytes)",
        "limit_bytes(&ports[out], queue.data_bytes.saturating_sub(bytes))",
        PHYSICS,
        "a_packet_is_marked_if_the_threshold_is_behind_it_and_not_the_next_one",
    ),
    "a computed mark is a packet early": (
        f"{PORTS}/computed.rs",
        "let behind = (backlog.free - left) / per_limit_byte;",
        "let behind = (backlog.free - leaves) / per_limit_byte;",
        PHYSICS,
        "a_packet_is_marked_if_the_threshold_is_behind_it_and_not_the_next_one",
    ),
    "a mark of real queues is a packet early": (
        f"{PORTS}/queued.rs",
        "limit_bytes(&ports[out], queue.data_bytes)",
        "limit_bytes(&ports[out], queue.data_bytes + bytes)",
        PHYSICS,
        "a_packet_is_marked_if_the_threshold_is_behind_it_and_not_the_next_one",
    ),
    "a trimmed packet lacks a UDP header": (
        "crates/scenario/src/run/network.rs",
        "self.encapsulation.wire_bytes(TRIMMED)",
        "self.encapsulation.wire_bytes(TRIMMED) - 8",
        PHYSICS,
        "a_trimmed_packet_has_the_bytes_of_its_headers",
    ),
    "computed control goes before the packet in service": (
        f"{PORTS}/computed.rs",
        "port.control_free.max(now + in_service)",
        "port.control_free.max(now + 0 * in_service)",
        f"{PORTS}/computed.rs",
        "control_waits_for_the_packet_in_service_and_for_control_and_for_no_other_data",
    ),
    "control of real queues goes before the packet in service": (
        f"{PORTS}/queued.rs",
        "if !queue.busy {",
        "if !queue.busy || event.flags & flag::CONTROL != 0 {",
        PHYSICS,
        "no_packet_leaves_while_another_is_on_the_cable",
    ),
    "parts are summed backwards": (
        KERNELS,
        "for (k, part) in parts.iter().enumerate() {",
        "for (k, part) in parts.iter().rev().enumerate() {",
        KERNEL_TESTS,
        "narrow_types_are_summed_in_the_order_of_the_parts_and_in_single_precision",
    ),
    "a sum is rounded behind each part": (
        KERNELS,
        "                    _ => *sum + value,",
        "                    _ => E::narrow(*sum + value).widen(),",
        KERNEL_TESTS,
        "narrow_types_are_rounded_once_behind_the_last_part",
    ),
}


@pytest.mark.parametrize("fault", RUST)
def test_a_fault_in_rust_has_its_place_its_test_and_its_row(fault: str) -> None:
    path, right, wrong, tests, name = RUST[fault]
    assert f"| {fault} | `{tests}`, `{name}` |" in PAGE
    assert (ROOT / path).read_text(encoding="utf-8").count(right) == 1, f"name another piece of {path}"
    assert right != wrong
    assert f"fn {name}()" in (ROOT / tests).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of all Rust, to be built in."""
    if shutil.which("cargo") is None:
        pytest.skip("needs cargo")
    copy = tmp_path_factory.mktemp("workspace")
    for folder in ("crates", "benches"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("target", "results"))
    for file in ("Cargo.toml", "Cargo.lock", "LICENSE"):
        shutil.copy(ROOT / file, copy)
    return copy


@pytest.mark.long
@pytest.mark.parametrize("fault", RUST)
def test_a_fault_in_rust_is_noticed(fault: str, workspace: Path) -> None:
    path, right, wrong, tests, name = RUST[fault]
    source = workspace / path
    kept = source.read_text(encoding="utf-8")
    crate = Path(tests).parts[1]
    target = ["--test", Path(tests).stem] if Path(tests).parts[2] == "tests" else ["--lib"]
    command = ["cargo", "test", "--quiet", "--locked", "--package", f"openmrc-{crate}", *target, name]
    own = os.environ | {"CARGO_TARGET_DIR": str(workspace / "target")}
    try:
        source.write_text(kept.replace(right, wrong), encoding="utf-8")
        ended = subprocess.run(command, cwd=workspace, env=own, capture_output=True, text=True)
    finally:
        source.write_text(kept, encoding="utf-8")
    assert "test result: FAILED. 0 passed; 1 failed" in ended.stdout, ended.stdout + ended.stderr
