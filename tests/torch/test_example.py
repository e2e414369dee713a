"""The training example runs as its first lines say. `make test-torch` has torch."""

import os
import re
import subprocess
import sys

import pytest

from tests.helpers.repository import ROOT

pytest.importorskip("torch", reason="torch is not installed (make test-torch)")


def test_the_example_trains_over_mrc():
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"],
        cwd=ROOT / "examples" / "train",
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    losses = [float(loss) for loss in re.findall(r"^step \d+: loss ([\d.]+),", done.stdout, re.MULTILINE)]
    assert len(losses) == 5
    assert losses[-1] < losses[0] / 2
