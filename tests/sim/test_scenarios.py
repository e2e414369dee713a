"""The simulator as a user meets it: scenarios as data, results as columns, errors that say what is wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from openmrc import sim
from openmrc.cli import main
from openmrc.errors import ArgumentError, FormatError
from tests.helpers.faults import assert_felt, bytes_of_link, links_that_lost
from tests.helpers.repository import ROOT

SMALL = sim.Topology(hosts=32, planes=4, radix=16)


def permutation(size: int = 1 << 20, **fields: object) -> sim.Scenario:
    return sim.Scenario.model_validate(
        {"topology": SMALL, "traffic": [{"kind": "permutation", "bytes": size}], **fields}
    )


def test_every_byte_of_a_permutation_is_delivered_and_the_columns_say_when() -> None:
    results = sim.run(permutation())
    summary = results.summary()
    assert (summary.delivered, summary.failed, summary.bytes) == (32, 0, 32 << 20)
    columns = results.columns
    assert sorted(columns["src"]) == sorted(columns["dst"]) == list(range(32))
    for posted, delivered, completed in zip(
        columns["posted_ps"], columns["delivered_ps"], columns["completed_ps"], strict=True
    ):
        assert posted < delivered <= completed <= results.totals["end_ps"]
    assert results.totals["data_bytes"] == 32 << 20


def test_goodput_stays_below_the_rate_of_the_ports_and_near_what_headers_leave() -> None:
    goodput = sim.run(permutation(16 << 20)).summary().goodput_bps
    assert goodput is not None
    share = goodput / (32 * 400e9)
    # 4096 of 4262 bytes on the cable are payload: 96 % (published: ~770 of 800 Gb/s).
    assert 0.85 < share < 4096 / 4262


def test_the_same_scenario_gives_the_same_results_and_another_seed_others() -> None:
    first, again = sim.run(permutation()), sim.run(permutation())
    other = sim.run(permutation(seed=2))
    assert first.totals == again.totals
    assert bytes(first.columns["delivered_ps"]) == bytes(again.columns["delivered_ps"])
    assert bytes(first.columns["delivered_ps"]) != bytes(other.columns["delivered_ps"])


def test_columns_become_arrays_without_copying() -> None:
    np = pytest.importorskip("numpy")
    results = sim.run(permutation(100_000))
    arrays = results.to_numpy()
    assert arrays["bytes"].dtype == np.uint64
    assert arrays["bytes"].sum() == 3_200_000
    assert np.shares_memory(arrays["src"], np.frombuffer(results.columns["src"], dtype=np.uint64))


def test_columns_become_an_arrow_table() -> None:
    pytest.importorskip("pyarrow")
    table = sim.run(permutation(100_000)).to_arrow()
    assert table.num_rows == 32
    assert sum(table["bytes"].to_pylist()) == 3_200_000


def test_a_broken_link_loses_packets_but_no_message() -> None:
    scenario = permutation(faults=[{"kind": "down", "targets": ["p1/t0-0:up2--p1/t1-0"], "at_us": 5}])
    results = sim.run(scenario)
    assert results.summary().delivered == 32
    assert results.totals["dropped_down"] > 0
    assert results.totals["condemned"] > 0


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "loss", "targets": ["p0/t1-0"], "probability": 0.05},
        {"kind": "bit-errors", "targets": ["p0/t1-0"], "probability": 1e-6},
        {"kind": "slow", "targets": ["h3:p1--p1/t0-0:down3"], "share": 0.5, "until_us": 20},
        {"kind": "flap", "targets": ["p2/t1-1"], "down_us": 3, "up_us": 3, "times": 3},
        {"kind": "random", "targets": ["p2/t1-0", "p2/t1-1"], "mtbf_us": 10, "mttr_us": 2, "until_us": 40},
    ],
    ids=lambda fault: fault["kind"],
)
def test_every_kind_of_fault_is_survived_and_felt_where_it_is(fault: dict[str, Any]) -> None:
    record = {"ports": True}
    healthy = sim.run(permutation(record=record))
    broken = sim.run(permutation(faults=[fault], record=record))
    assert broken.summary().delivered == 32
    assert_felt(healthy, broken, fault["kind"])
    if fault["kind"] == "slow":
        # For 20 us the host's port carries half.
        (link,) = fault["targets"]
        assert bytes_of_link(broken, link) < bytes_of_link(healthy, link)
    else:
        lost_on = links_that_lost(broken)
        assert lost_on
        assert all(any(target in link for target in fault["targets"]) for link in lost_on), lost_on


@pytest.mark.parametrize(
    ("traffic", "messages"),
    [
        ({"kind": "incast", "senders": [1, 2, 3], "receiver": 0, "bytes": 100_000}, 3),
        ({"kind": "all-to-all", "bytes": 1000, "ranks": [0, 9, 31]}, 6),
        ({"kind": "random", "load": 0.3, "sizes": [(1000, 0.5), (100_000, 1.0)], "duration_us": 20}, None),
        ({"kind": "flows", "flows": [(0, 1, 5000, 0), (1, 0, 7000, 3.5)]}, 2),
        ({"kind": "collective", "operation": "ring-all-reduce", "bytes": 1 << 20}, 2 * 31 * 32),
        ({"kind": "collective", "operation": "all-gather", "bytes": 1 << 20, "ranks": [0, 1, 2]}, 6),
        ({"kind": "collective", "operation": "pipeline", "bytes": 1000, "ranks": [0, 8, 16]}, 16),
    ],
    ids=lambda value: value.get("operation", value["kind"]) if isinstance(value, dict) else "",
)
def test_every_pattern_runs_to_its_end(traffic: dict[str, object], messages: int | None) -> None:
    results = sim.run(sim.Scenario.model_validate({"topology": SMALL, "traffic": [traffic]}))
    summary = results.summary()
    assert summary.delivered == summary.messages > 0
    assert messages is None or summary.messages == messages


def test_mrc_on_planes_is_ahead_of_rocev2_on_one_fast_plane() -> None:
    mrc = sim.run(permutation(4 << 20)).summary()
    for qps in (1, 4):
        rocev2 = sim.run(
            sim.Scenario.model_validate(
                {
                    "topology": {"hosts": 32, "planes": 1, "radix": 16, "nic": {"rate": "400G"}},
                    "network": {"routing": "ecmp", "switch": {"preset": "rocev2"}},
                    "transport": {"kind": "rocev2", "qps": qps},
                    "traffic": [{"kind": "permutation", "bytes": 4 << 20}],
                }
            )
        ).summary()
        assert rocev2.messages == rocev2.delivered == 32
        assert mrc.last_us is not None
        assert rocev2.last_us is not None
        assert mrc.last_us < rocev2.last_us


def test_a_pattern_begins_when_it_is_told_to() -> None:
    pattern = {"kind": "permutation", "bytes": 1000, "start_us": 7}
    results = sim.run(sim.Scenario.model_validate({"topology": SMALL, "traffic": [pattern]}))
    assert set(results.columns["posted_ps"]) == {7_000_000}


def test_the_time_limit_ends_the_run() -> None:
    results = sim.run(permutation(100 << 20, limit_us=20))
    assert results.totals["end_ps"] == 20_000_000
    assert results.summary().delivered == 0
    assert results.summary().goodput_bps is None


def test_progress_is_told_up_to_the_end() -> None:
    seen: list[sim.Progress] = []
    sim.run(permutation(), seen.append)
    assert seen[-1].finished == seen[-1].messages == 32


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"traffic": [{"kind": "flows", "flows": [(0, 99, 1000, 0)]}]}, "h99 does not exist"),
        ({"traffic": [{"kind": "flows", "flows": [(5, 5, 1000, 0)]}]}, "would send to itself"),
        ({"faults": [{"kind": "down", "targets": ["p9/t1-0"]}]}, "p9"),
        ({"faults": [{"kind": "down", "targets": ["h3"]}]}, "name its cable"),
        ({"topology": {"hosts": 8, "radix": 8, "nic": {"rate": 7_000_000_000}}}, "whole picoseconds"),
        ({"topology": {"hosts": 1000, "radix": 4}}, "hosts: 1000 do not fit"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(change: dict[str, object], words: str) -> None:
    scenario = {"topology": SMALL, "traffic": [{"kind": "permutation", "bytes": 1000}], **change}
    with pytest.raises(ArgumentError, match=words):
        sim.run(sim.Scenario.model_validate(scenario))


@pytest.mark.parametrize(
    "change",
    [
        {"traffic": []},
        {"traffic": [{"kind": "permutation", "bytes": 0}]},
        {"traffic": [{"kind": "random", "load": 0.5, "sizes": [(10, 0.4)], "duration_us": 1}]},
        {"network": {"switch": {"ecn_min": 0.9, "ecn_max": 0.1}}},
        {"limit": 3},
    ],
)
def test_a_scenario_that_makes_no_sense_is_no_scenario(change: dict[str, object]) -> None:
    with pytest.raises(ArgumentError):
        sim.Scenario.model_validate(
            {"topology": SMALL, "traffic": [{"kind": "permutation", "bytes": 1000}], **change}
        )


YAML = """\
topology: {hosts: 16, planes: 2, radix: 8, nic: {rate: 800G}}
traffic:
  - {kind: incast, senders: [1, 2, 3], receiver: 0, bytes: 200000}
faults:
  - {kind: flap, targets: ["p1/t1-1"], at_us: 2, down_us: 4, up_us: 4}
"""


def test_a_file_runs_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text(YAML)
    assert sim.load(file).topology.port_rate == 400_000_000_000
    assert main(["simulate", str(file), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["summary"]["delivered"] == 3
    assert main(["simulate", str(file)]) == 0
    assert "3 of 3" in capsys.readouterr().out


def test_without_a_file_the_options_make_the_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["simulate", "--hosts", "16", "--planes", "2", "--radix", "8", "--size", "50000", "--json"]) == 0
    )
    assert json.loads(capsys.readouterr().out)["summary"]["bytes"] == 16 * 50_000


EXAMPLES = sorted((ROOT / "examples" / "scenarios").glob("*.yaml"))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_every_example_delivers_every_message(file: Path) -> None:
    summary = sim.run(sim.load(file)).summary()
    assert summary.delivered == summary.messages > 0


def test_an_error_in_a_file_names_the_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text(YAML.replace("receiver: 0", "receiver: 0, colour: 3"))
    with pytest.raises(FormatError, match="colour"):
        sim.load(file)
    assert main(["simulate", str(file)]) == 1
    assert "colour" in capsys.readouterr().err
