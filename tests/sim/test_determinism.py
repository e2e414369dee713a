"""The same seed gives the same bits: again, elsewhere, and with several threads to a run; another seed
gives others.
"""

import hashlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from openmrc import sim
from openmrc.errors import ArgumentError

SCENARIOS: dict[str, dict[str, object]] = {
    "mrc": {"transport": {"kind": "mrc"}},
    "mrc, weighted queues": {"network": {"switch": {"control_share": 0.25}}},
    "rocev2": {"transport": {"kind": "rocev2", "qps": 2, "retry_count": 255}},
    "uet": {"transport": {"kind": "uet"}},
    "adaptive": {"transport": {"kind": "adaptive"}},
}
"""Each with everything that is left to chance: marks, losses, failures, hashes, arrivals."""


def scenario(name: str, seed: int, threads: int = 1) -> sim.Scenario:
    return sim.Scenario.model_validate(
        {
            "topology": {"hosts": 32, "planes": 2, "radix": 16},
            "traffic": [
                {"kind": "permutation", "bytes": 400_000},
                {"kind": "incast", "senders": [1, 2, 3, 9, 17, 25], "receiver": 30, "bytes": 300_000},
                {"kind": "random", "load": 0.3, "sizes": [(1000, 0.5), (100_000, 1.0)], "duration_us": 30},
            ],
            "faults": [
                {"kind": "loss", "targets": ["p0/t1-0"], "probability": 0.01},
                {"kind": "bit-errors", "targets": ["p1/t1-1"], "probability": 1e-7},
                {"kind": "random", "targets": ["p1/t1-0"], "mtbf_us": 20, "mttr_us": 5, "until_us": 60},
            ],
            "record": {"ports": True, "evs": True, "events": True},
            "limit_us": 20_000,
            "seed": seed,
            "threads": threads,
            **SCENARIOS[name],
        }
    )


def digest(name: str, seed: int, threads: int = 1) -> str:
    results = sim.run(scenario(name, seed, threads))
    hashed = hashlib.sha256(repr((sorted(results.totals.items()), results.log)).encode())
    for columns in (results.columns, results.links, results.evs or {}):
        for column in sorted(columns):
            hashed.update(bytes(columns[column]))
    return hashed.hexdigest()


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_run_is_the_same_again_and_in_other_threads_and_processes(name: str) -> None:
    first = digest(name, 7)
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: digest(name, 7), range(4))) == {first}
    for hash_seed in ("1", "2"):
        other = subprocess.run(
            [sys.executable, __file__, name],
            env={"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert other.stdout.strip() == first
    assert len({digest(name, seed) for seed in range(1, 6)}) == 5


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_run_is_the_same_with_every_number_of_threads(name: str) -> None:
    assert {digest(name, 7, threads) for threads in (1, 2, 3, 4)} == {digest(name, 7)}


class Fixed:
    """A window that never changes."""

    def __init__(self, mtu: int, rate_bps: int, base_rtt_ps: int) -> None:
        self.window = 64.0 * mtu

    def on_sack(self, now_ps: int, newly: int, rtt_ps: int | None, ecn: bool) -> None: ...

    def on_trim(self, now_ps: int, size: int) -> None: ...

    def on_loss(self, now_ps: int, size: int) -> None: ...


def test_a_class_of_ones_own_has_one_thread() -> None:
    assert sim.run(scenario("mrc", 7), congestion=Fixed).totals["data_packets"] > 0
    with pytest.raises(
        ArgumentError, match=r"threads: 2 threads would wait for each other .* with these it is 1"
    ):
        sim.run(scenario("mrc", 7, 2), congestion=Fixed)


@pytest.mark.parametrize("threads", [0, 257])
def test_a_number_of_threads_has_its_range(threads: int) -> None:
    with pytest.raises(ArgumentError, match=f"threads: .*{threads}.* 1 to 256"):
        sim.run(scenario("mrc", 7, threads))


if __name__ == "__main__":
    print(digest(sys.argv[1], 7))
