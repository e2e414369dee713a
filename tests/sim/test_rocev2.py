"""RoCEv2 against closed forms: what go-back-N costs under random loss, what DCQCN makes of a shared link."""

import statistics

import pytest

from openmrc import sim
from tests.helpers.reference_network import BTH, ICRC, on_cable

MIDDLE = on_cable(BTH + 4096 + ICRC, srv6=False)
ACK = on_cable(BTH + 4 + ICRC, srv6=False)


@pytest.mark.parametrize(("gbps", "loss"), [(100, 0.002), (100, 0.005), (400, 0.001)])
def test_each_loss_costs_go_back_n_a_round_trip(gbps: int, loss: float) -> None:
    packets, links = 4096, 4
    times = []
    for seed in range(1, 9):
        results = sim.run(
            sim.Scenario.model_validate(
                {
                    "topology": {
                        "hosts": 2,
                        "radix": 4,
                        "hosts_per_t0": 1,
                        "uplinks_per_t0": 1,
                        "nic": {"rate": gbps * 1_000_000_000},
                    },
                    "transport": {"kind": "rocev2", "dcqcn": False, "retry_count": 255},
                    "traffic": [{"kind": "flows", "flows": [(0, 1, packets * 4096, 0.0)]}],
                    "faults": [{"kind": "loss", "targets": ["p0/t0-0:up0--p0/t1-0"], "probability": loss}],
                    "seed": seed,
                }
            )
        )
        last = results.summary().last_us
        assert last is not None
        # Where the first packet that is sent again is lost too, nobody says so: a timeout (4.096 us x 2^8).
        times.append(last - results.totals["timeouts"] * 1048.576)
    packet, ack = MIDDLE * 8e-3 / gbps, ACK * 8e-3 / gbps
    one_way, back = links * (packet + 1), links * (ack + 1)
    # The next packet tells of the gap; its NAK turns the sender round.
    expected = (packets - 1) * packet + one_way + packets * loss * (packet + one_way + back)
    assert statistics.mean(times) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("senders", [2, 4])
def test_dcqcn_fills_a_shared_link_in_the_long_run_and_shares_it_evenly(senders: int) -> None:
    def times(size: int, seed: int) -> list[float]:
        results = sim.run(
            sim.Scenario.model_validate(
                {
                    "topology": {"hosts": 16, "radix": 16, "nic": {"rate": "100G"}},
                    "transport": {"kind": "rocev2"},
                    "traffic": [
                        {
                            "kind": "incast",
                            "senders": list(range(8, 8 + senders)),
                            "receiver": 0,
                            "bytes": size,
                        }
                    ],
                    "seed": seed,
                }
            )
        )
        return results.completion_times_us()

    # Marks are few and each cuts a rate deeply, so chance decides for long who is ahead. After 256 MiB each,
    # the first of two senders was done in 0.57 to 0.97 of the last one's time, by the seed; after 1 GiB in
    # 0.84 to 0.99.
    took_longer, shares = [], []
    for seed in range(1, 6):
        short, long = times(256 << 20, seed), times(1 << 30, seed)
        took_longer.append(long[-1] - short[-1])
        shares.append(long[0] / long[-1])
    more = senders * (768 << 20) // 4096 * MIDDLE * 8e-3 / 100
    # What the longer messages took longer is not about finding the rate.
    assert statistics.median(took_longer) < more / 0.9
    assert statistics.median(shares) > 0.9


def busiest_us(results: sim.Results, gbps: int) -> float:
    """Time that the busiest link needs for what it carried."""
    return max(results.links["bytes"]) * 8e-3 / gbps


@pytest.mark.parametrize("qps", [1, 4])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_permutation_takes_as_long_as_the_busiest_link_needs(qps: int, seed: int) -> None:
    results = sim.run(
        sim.Scenario.model_validate(
            {
                "topology": {"hosts": 64, "radix": 16, "nic": {"rate": "400G"}},
                "transport": {"kind": "rocev2", "qps": qps, "dcqcn": False},
                "traffic": [{"kind": "permutation", "bytes": 16 << 20, "seed": seed}],
                "record": {"ports": True},
                "seed": seed,
            }
        )
    )
    last = results.summary().last_us
    assert last is not None
    # PFC holds up flows behind those of the busiest link.
    assert 1.0 < last / busiest_us(results, 400) < 1.2


@pytest.mark.parametrize("senders", [2, 7, 15])
def test_an_incast_under_pfc_takes_the_least_time(senders: int) -> None:
    results = sim.run(
        sim.Scenario.model_validate(
            {
                "topology": {"hosts": 32, "radix": 16, "nic": {"rate": "100G"}},
                "transport": {"kind": "rocev2", "dcqcn": False},
                "traffic": [
                    {
                        "kind": "incast",
                        "senders": list(range(8, 8 + senders)),
                        "receiver": 0,
                        "bytes": 4 << 20,
                    }
                ],
            }
        )
    )
    last = results.summary().last_us
    assert last is not None
    packet = MIDDLE * 8e-3 / 100
    least = (senders * (4 << 20) // 4096 - 1) * packet + 4 * (packet + 1)
    assert last == pytest.approx(least, rel=0.01)
