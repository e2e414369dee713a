"""`openmrc bench-collective --compare gloo`. `make test-torch` has torch."""

import json

import pytest

from openmrc.collectives import bench
from tests.helpers.commands import run
from tests.helpers.labs import needs_root

pytest.importorskip("torch", reason="torch is not installed (make test-torch)")

SMALL = ("--minbytes", "4KiB", "--maxbytes", "64KiB", "-f", "16", "-n", "3", "-w", "1")


def compared(*arguments):
    """What the command prints that compares with gloo."""
    done = run("bench-collective", *arguments, *SMALL, "--compare", "gloo", timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("operation", bench.OPERATIONS)
def test_gloo_is_measured_in_turns_and_gives_the_same_results(operation):
    for each in json.loads(compared(operation, "--json")):
        assert each["gloo"]["wrong"] == 0
        assert each["gloo"]["time_us"] > 0


def test_gloo_has_a_column_of_its_own():
    assert compared("all_reduce").splitlines()[1].split()[-1] == "gloo"


@needs_root
def test_gloo_is_measured_between_the_hosts_of_a_lab():
    for each in json.loads(compared("all_reduce", "--lab", "--json")):
        assert each["network_bytes"] > 0
        assert each["gloo"]["wrong"] == 0
