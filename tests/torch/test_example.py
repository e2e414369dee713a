"""The training example runs as its first lines say. `make test-torch` has torch."""

import os
import re
import subprocess
import sys

import pytest

from openmrc import workload
from tests.helpers.repository import ROOT

pytest.importorskip("torch", reason="torch is not installed (make test-torch)")


def torchrun(*arguments, directory, ranks=2):
    """Runs a script in some processes; what it printed."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            f"{ranks}",
            *arguments,
        ],
        cwd=ROOT / "examples" / directory,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_example_trains_over_mrc():
    printed = torchrun("train.py", directory="train")
    losses = [float(loss) for loss in re.findall(r"^step \d+: loss ([\d.]+),", printed, re.MULTILINE)]
    assert len(losses) == 5
    assert losses[-1] < losses[0] / 2


def test_accelerate_takes_a_group_that_was_made_by_name():
    pytest.importorskip("accelerate")
    printed = torchrun("with_accelerate.py", directory="train")
    losses = [float(loss) for loss in re.findall(r"^epoch \d+: loss ([\d.]+)$", printed, re.MULTILINE)]
    assert len(losses) == 8
    assert losses[-1] < losses[0] / 10
    assert printed.endswith("mrc: rank 0, rank 1\n")


def test_the_trainer_of_transformers_does_too():
    pytest.importorskip("transformers")
    found = re.search(
        r"^mrc: loss ([\d.]+), then ([\d.]+)$", torchrun("with_trainer.py", directory="train"), re.MULTILINE
    )
    assert found is not None
    assert float(found[2]) < float(found[1])


@pytest.mark.parametrize(
    ("kind", "operations"),
    [
        ("fsdp", {"all_gather", "reduce_scatter", "all_reduce"}),
        ("experts", {"all_to_all", "all_reduce", "broadcast"}),
    ],
)
def test_what_is_recorded_can_run(tmp_path, kind, operations):
    torchrun("record.py", kind, str(tmp_path / kind), "1", directory="train", ranks=4)
    step = workload.load(tmp_path / kind)
    workload.require(step, kind)
    assert {row.operation for row in workload.volume(step).classes[0].rows if row.operation} == operations


def test_lightning_takes_the_backend_by_name():
    pytest.importorskip("lightning")
    printed = torchrun("with_lightning.py", directory="train")
    losses = re.findall(r"^epoch \d+: loss ([\d.]+) over mrc$", printed, re.MULTILINE)
    assert len(losses) == 8
    assert float(losses[-1]) < float(losses[0]) / 10


def test_ray_train_takes_the_backend_by_name(tmp_path):
    pytest.importorskip("ray")
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "train" / "with_ray.py"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert set(re.findall(r"rank (\d) over mrc", done.stdout + done.stderr)) == {"0", "1"}
    found = re.search(r"^loss ([\d.]+)$", done.stdout, re.MULTILINE)
    assert found is not None, done.stdout
    assert float(found[1]) < 15  # It begins at 140.


def test_the_script_for_nccl_checks_what_it_measures():
    printed = torchrun("collectives.py", "--backend", "gloo", "--most", "65536", directory="nccl")
    rows = re.findall(r"^ *(\w+) +(\d+) bytes +([\d.]+) GB/s  right$", printed, re.MULTILINE)
    assert [(name, int(size)) for name, size, _ in rows] == [
        (name, size) for size in (1024, 8192, 65536) for name in ("all_reduce", "all_gather", "broadcast")
    ]
    assert "WRONG" not in printed
