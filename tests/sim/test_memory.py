"""The estimate of a run's memory against measured runs, and the refusal of a run that needs too much."""

import sys

import pytest

from openmrc.cli import main
from openmrc.sim import memory
from tests.helpers.sim_memory import LONG, QUICK, Scenario, measure

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

WITHIN = 0.2
"""Share by which the estimate may be wrong."""


def check(scenario: Scenario) -> None:
    estimated, taken = measure(scenario)
    assert abs(estimated / taken - 1) <= WITHIN, (
        f"estimated {estimated / 1e6:.1f} MB, took {taken / 1e6:.1f} MB"
    )


@pytest.mark.parametrize("name", QUICK)
def test_a_run_takes_what_is_estimated_within_a_fifth(name: str) -> None:
    check(QUICK[name])


@pytest.mark.long
@pytest.mark.parametrize("name", LONG)
def test_a_large_run_takes_what_is_estimated_within_a_fifth(name: str) -> None:
    check(LONG[name])


def test_a_run_that_would_be_killed_is_refused_before_it_begins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(memory, "available", lambda: 24_000_000_000)
    arguments = ["--hosts", "1000000", "--planes", "8", "--radix", "4096", "--size", "1000000000"]
    assert main(["simulate", *arguments]) != 0
    error = capsys.readouterr().err
    assert "GB of memory, and 24 GB are there" in error
