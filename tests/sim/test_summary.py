"""Percentiles and fairness of a run's messages, beside other programs' definitions."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from openmrc import sim
from openmrc.sim import text
from openmrc.sim.results import NEVER

np = pytest.importorskip("numpy")

BEGIN_PS = 1_000_000


@pytest.fixture(scope="module")
def run() -> sim.Results:
    """A short run, whose columns the tests replace."""
    hosts = {"topology": {"hosts": 16, "planes": 2, "radix": 16}}
    traffic = [{"kind": "permutation", "bytes": 4096, "start_us": 1}]
    return sim.run(sim.Scenario.model_validate({**hosts, "traffic": traffic}))


def with_messages(run: sim.Results, rows: Sequence[tuple[int, int, int | None]]) -> sim.Results:
    """The same with messages posted at once: sender, bytes, and when the last byte was in place, ps."""
    columns = {name: [0] * len(rows) for name in run.columns} | {
        "src": [src for src, _, _ in rows],
        "bytes": [size for _, size, _ in rows],
        "posted_ps": [BEGIN_PS] * len(rows),
        "delivered_ps": [NEVER if done is None else done for _, _, done in rows],
    }
    return replace(run, columns={n: memoryview(np.array(c, dtype=np.uint64)) for n, c in columns.items()})


@pytest.mark.parametrize("seed", range(50))
def test_percentiles_are_nearest_ranks_over_all_messages(run: sim.Results, seed: int) -> None:
    """numpy's inverted distribution function is the nearest rank; what is never delivered takes for ever."""
    drawn = random.Random(seed)
    times = [
        None if drawn.random() < 0.03 else drawn.randrange(1, 10**9) for _ in range(drawn.randint(1, 300))
    ]
    found = with_messages(run, [(1, 10, None if t is None else BEGIN_PS + t) for t in times]).summary()
    judge = [np.inf if t is None else t * 1e-6 for t in times]
    for percent, value in ((50, found.median_us), (99, found.p99_us)):
        nearest = np.percentile(judge, percent, method="inverted_cdf")
        assert (np.inf if value is None else value) == pytest.approx(nearest)
    done = [t * 1e-6 for t in times if t is not None]
    assert found.first_us == pytest.approx(min(done, default=None))
    assert found.last_us == pytest.approx(max(done, default=None))


def test_the_99th_percentile_of_a_hundred_messages_is_not_the_largest(run: sim.Results) -> None:
    hundred = [(1, 10, BEGIN_PS + number * 1_000_000) for number in range(1, 101)]
    assert with_messages(run, hundred).summary().p99_us == pytest.approx(99)
    assert with_messages(run, [*hundred[:-2], (1, 10, None), (1, 10, None)]).summary().p99_us is None
    assert with_messages(run, [(1, 10, None)]).summary().median_us is None


@pytest.mark.parametrize("shares", [[1, 1, 1, 1], [1, 0, 0, 0], [5, 1], [3, 2, 1]])
def test_fairness_is_jains_index_of_the_senders(run: sim.Results, shares: list[int]) -> None:
    rows = [(host, 1000 * share, BEGIN_PS + 5_000 if share else None) for host, share in enumerate(shares)]
    index = sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))
    assert with_messages(run, rows).summary(0).fairness == pytest.approx(index)


def test_a_sender_that_ends_earlier_had_more(run: sim.Results) -> None:
    rows = [(0, 1000, BEGIN_PS + 1_000), (1, 1000, BEGIN_PS + 3_000)]  # Goodputs of 3 to 1.
    assert with_messages(run, rows).summary(0).fairness == pytest.approx(16 / 20)
    assert with_messages(run, rows[:1]).summary(0).fairness is None
    assert with_messages(run, [(0, 9, None), (1, 9, None)]).summary(0).fairness is None


def test_what_was_not_delivered_is_said(run: sim.Results) -> None:
    lost = with_messages(run, [(0, 9, None), (1, 9, None), (2, 9, BEGIN_PS + 9)])
    assert dict(text.headline(lost))["completion time, median"] == "not delivered"
