"""Short incasts end near the least time: all packets in sequence on each port of the receiver."""

import random
import statistics

import pytest

from openmrc import sim


def last_over_least(senders: int, size: int, planes: int, seed: int) -> float:
    """The last byte of an incast under 1,024 hosts, divided by the least time."""
    pattern = {
        "kind": "incast",
        "senders": random.Random(seed).sample(range(1, 1024), senders),
        "receiver": 0,
        "bytes": size,
    }
    fabric = {"hosts": 1024, "planes": planes, "radix": 64, "hosts_per_t0": 32, "uplinks_per_t0": 32}
    results = sim.run(sim.Scenario.model_validate({"topology": fabric, "traffic": [pattern], "seed": seed}))
    last = results.summary().last_us
    assert last is not None
    packet_us = 4262 * 8e-5
    return last / ((senders * size // 4096 // planes - 1) * packet_us + 4 * (packet_us + 1))


@pytest.mark.parametrize(("senders", "planes"), [(8, 1), (32, 4)])
def test_the_last_senders_of_a_short_incast_take_the_link_over(senders: int, planes: int) -> None:
    """40 seeds take 1.07 and 1.10 in the mean. Where windows do not return at the end, it is 1.16."""
    ratios = [last_over_least(senders, 256 << 10, planes, seed) for seed in range(1, 41)]
    assert statistics.fmean(ratios) < 1.12, ratios
