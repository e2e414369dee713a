"""The time, algbw, busbw and step times of collective operations, wherever results are shown."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from openmrc import sim
from openmrc.cli import main
from openmrc.sim import sweep as sweeping
from openmrc.sim.text import headline

RANKS, SIZE = 16, 1 << 22
FABRIC = {"hosts": 32, "planes": 2, "radix": 16}
FACTORS = {
    "ring-all-reduce": 2 * 15 / 16,
    "recursive-doubling-all-reduce": 2 * 15 / 16,
    "all-gather": 15 / 16,
    "reduce-scatter": 15 / 16,
    "all-to-all": 15 / 16,
    "pipeline": 1.0,
}
STEPS = {
    "ring-all-reduce": 30,
    "recursive-doubling-all-reduce": 4,
    "all-gather": 15,
    "reduce-scatter": 15,
    "all-to-all": 15,
    "pipeline": 1,
}


def collective(operation: str, **changes: Any) -> dict[str, Any]:
    ranks = list(range(RANKS))
    return {"kind": "collective", "operation": operation, "ranks": ranks, "bytes": SIZE, **changes}


def scenario(*traffic: dict[str, Any], **changes: Any) -> sim.Scenario:
    return sim.Scenario.model_validate({"topology": FABRIC, "traffic": list(traffic), **changes})


@pytest.mark.parametrize("operation", FACTORS)
def test_time_and_bandwidths_are_those_of_nccl_tests(operation: str) -> None:
    results = sim.run(scenario(collective(operation, start_us=3.0)))
    (found,) = results.collectives
    sizes = {"all-to-all": RANKS * SIZE, "pipeline": 8 * SIZE}
    size = sizes.get(operation, SIZE)
    time = results.summary(0).makespan_us
    assert time is not None
    assert (found.ranks, found.bytes, found.steps) == (RANKS, size, STEPS[operation])
    assert found.time_us == pytest.approx(time)
    assert found.algbw_bps == pytest.approx(size * 8e6 / time)
    assert found.busbw_bps == pytest.approx(FACTORS[operation] * size * 8e6 / time)
    # No operation moves data faster than the hosts' ports, and the longest step is no shorter than the mean.
    assert found.busbw_bps < 2 * 100e9
    assert found.step_mean_us == pytest.approx(time / STEPS[operation])
    assert found.step_least_us <= found.step_mean_us <= found.step_most_us


def test_a_ring_is_as_fast_as_its_links() -> None:
    (found,) = sim.run(scenario(collective("ring-all-reduce", bytes=1 << 28))).collectives
    # 4,096 bytes of payload in 4,262 on the cable, and the latency of 30 steps.
    assert found.busbw_bps == pytest.approx(200e9 * 4096 / 4262, rel=0.03)


def test_parts_without_a_byte_are_not_sent_and_the_steps_stay() -> None:
    results = sim.run(scenario(collective("ring-all-reduce", bytes=5)))
    (found,) = results.collectives
    assert (found.steps, results.summary(0).messages) == (30, 30 * 5)


def test_an_operation_that_has_not_finished_has_no_time() -> None:
    results = sim.run(scenario(collective("ring-all-reduce"), limit_us=60.0))
    (found,) = results.collectives
    assert (found.time_us, found.algbw_bps, found.busbw_bps) == (None, None, None)
    assert found.step_mean_us is not None
    assert dict(headline(results))["ring-all-reduce, time"] == "-"


def test_an_all_to_all_at_once_is_a_collective_too_and_a_permutation_is_none() -> None:
    both = scenario(
        {"kind": "permutation", "bytes": SIZE}, {"kind": "all-to-all", "ranks": [1, 2, 3], "bytes": SIZE}
    )
    results = sim.run(both)
    (found,) = results.collectives
    assert (found.pattern, found.operation, found.ranks, found.bytes) == (1, "all-to-all", 3, 3 * SIZE)
    assert found.time_us == pytest.approx(results.summary(1).makespan_us)
    assert "all-to-all, traffic.1, time" in dict(headline(results))


def test_frames_and_json_have_every_operation_and_step() -> None:
    pytest.importorskip("pyarrow")
    pytest.importorskip("numpy")
    results = sim.run(scenario(collective("ring-all-reduce"), collective("all-gather", start_us=500.0)))
    frames = results.frames()
    assert frames["collectives"]["operation"].to_pylist() == ["ring-all-reduce", "all-gather"]
    steps = frames["collective_steps"].to_pylist()
    assert len(steps) == 30 + 15
    for each in results.collectives:
        took = [step["took_us"] for step in steps if step["pattern"] == each.pattern]
        assert sum(took) == pytest.approx(each.time_us)
    told = json.loads(json.dumps(results.to_dict()))["collectives"]
    assert [each["busbw_bps"] for each in told] == [each.busbw_bps for each in results.collectives]


def test_summary_compare_and_sweep_show_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "ring.yaml"
    file.write_text(yaml.safe_dump({"topology": FABRIC, "traffic": [collective("ring-all-reduce")]}))
    assert main(["simulate", str(file)]) == 0
    text = capsys.readouterr().out
    assert "ring-all-reduce, time" in text
    assert "algbw / busbw" in text
    assert main(["compare", str(file), "--transports", "mrc,rocev2"]) == 0
    text = capsys.readouterr().out
    assert {"collective", "algbw", "busbw"} <= set(text.split())
    grid = tmp_path / "grid.yaml"
    base = yaml.safe_load(file.read_text())
    grid.write_text(yaml.safe_dump({"base": base, "axes": {"topology.nic.rate": ["200G", "400G"]}}))
    assert main(["sweep", str(grid)]) == 0
    assert "busbw" in capsys.readouterr().out
    rows = sweeping.sweep(sweeping.load(grid), tmp_path / "grid.points").rows
    slow, fast = (row["collective_busbw_bps"] for row in rows)
    assert fast > 1.3 * slow
    # A run without collective operations has no such columns on the terminal.
    file.write_text(yaml.safe_dump({"topology": FABRIC, "traffic": [{"kind": "permutation", "bytes": 4096}]}))
    assert main(["compare", str(file), "--transports", "mrc"]) == 0
    assert "busbw" not in capsys.readouterr().out
