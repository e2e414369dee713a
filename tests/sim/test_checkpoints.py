"""Checkpoints: a run that goes on from one ends as the whole run; what is none of it is refused."""

import itertools
import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from openmrc import sim
from openmrc.cli import main
from openmrc.errors import ArgumentError, FormatError
from tests.helpers.commands import one_line_error
from tests.helpers.commands import run as command


def scenario(**fields: object) -> sim.Scenario:
    """Sixteen hosts whose messages take a million events; a link fails, and comes back."""
    return sim.Scenario.model_validate(
        {
            "topology": {"hosts": 16, "planes": 2, "radix": 16},
            "traffic": [{"kind": "permutation", "bytes": 64 << 20}],
            "faults": [{"kind": "down", "targets": ["h3:p1"], "at_us": 300, "until_us": 2000}],
            "record": sim.Record.everything(),
            **fields,
        }
    )


def interrupted(what: sim.Scenario, file: Path) -> None:
    """A run that was interrupted after its first steps has left a checkpoint."""

    def watch(so_far: sim.Progress, _planes: object) -> None:
        assert so_far.finished < so_far.messages
        signal.raise_signal(signal.SIGINT)

    results = sim.run(what, watch=watch, checkpoint=file)
    assert results.interrupted
    assert results.summary().delivered < 16


@pytest.mark.parametrize("transport", ["mrc", "uet", "rocev2"])
def test_a_resumed_run_ends_as_the_whole_one(tmp_path: Path, transport: str) -> None:
    what = scenario(transport=transport)
    file = tmp_path / "state"
    interrupted(what, file)
    resumed = sim.run(what, checkpoint=file, resume=file)
    assert not resumed.interrupted
    assert resumed == sim.run(what)
    assert resumed.series is not None
    # The file is of the end now.
    steps: list[sim.Progress] = []
    assert sim.run(what, steps.append, resume=file) == resumed
    assert len(steps) == 2
    assert [step.data_packets for step in steps] == [resumed.totals["data_packets"]] * 2


def test_checkpoints_are_written_while_a_run_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "state"
    seen: list[bool] = []
    sim.run(scenario(), watch=lambda *_: seen.append(file.exists()), checkpoint=file, every_s=0)
    assert not seen[0]
    assert seen[1]
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_a_checkpoint_of_another_run_is_refused_with_one_line(tmp_path: Path) -> None:
    what, file = scenario(), tmp_path / "state"
    interrupted(what, file)
    for other, words in (
        (what.model_copy(update={"seed": 99}), "another seed"),
        (what.model_copy(update={"threads": 2}), "threads: 1; this one has threads: 2"),
    ):
        with pytest.raises(FormatError, match=rf"^{re.escape(str(file))}: .*{words}"):
            sim.run(other, resume=file)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(FormatError, match="cut off or damaged"):
        sim.run(what, resume=file)
    file.write_text("topology: {hosts: 16}\n")
    with pytest.raises(FormatError, match="no checkpoint"):
        sim.run(what, resume=file)
    with pytest.raises(FileNotFoundError):
        sim.run(what, resume=tmp_path / "absent")
    with pytest.raises(FileNotFoundError):
        sim.run(what, checkpoint=tmp_path / "absent/state")


def no_selector(_ports: object, _seed: object) -> Any:
    """Stands for a class of one's own."""
    raise AssertionError("the run has begun")


def test_runs_whose_state_cannot_be_written_are_refused_before_they_begin(tmp_path: Path) -> None:
    file = tmp_path / "state"
    for what, own, words in (
        (scenario(engine="flow", record={}), None, "packet engine"),
        (scenario(record={"capture": {"links": ["h0:p0"]}}), None, "captures"),
        (scenario(), no_selector, "classes of your own"),
    ):
        with pytest.raises(ArgumentError, match=words):
            sim.run(what, checkpoint=file, path_selector=own)
    assert not file.exists()


def test_the_command_writes_and_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = tmp_path / "state"
    printed = []
    for option in ("--checkpoint", "--resume"):
        assert main(["simulate", "--hosts", "16", option, str(state), "--json"]) == 0
        printed.append(json.loads(capsys.readouterr().out))
        printed[-1].pop("wall_seconds")
    assert printed[0] == printed[1]
    refused = one_line_error(command("simulate", "--hosts", "32", "--resume", state))
    assert refused.startswith(f"error: {state}: the checkpoint is of another scenario")
    assert "--every goes with" in one_line_error(command("simulate", "--hosts", "16", "--every", "1min"))


def test_the_command_counts_what_it_has_simulated_since_the_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openmrc.cli.simulate.perf_counter", itertools.count().__next__)
    state = tmp_path / "state"
    speeds = []
    for option in ("--checkpoint", "--resume"):
        assert main(["simulate", "--hosts", "16", "--size", "16MiB", option, str(state)]) == 0
        speeds += re.findall(r"simulated +(.*)", capsys.readouterr().out)
    assert [each.strip() for each in speeds] == [
        "0.07 M data packets/s, 1.0 s",
        "0.00 M data packets/s, 1.0 s",
    ]
