"""What a switch port does - ECN, trimming, scheduling, chance - against formulas and ``reference_network``.

Most runs end before any feedback can reach a sender: cables are long, so nothing but the switch is at work.
"""

import math

import pytest

from openmrc import sim
from openmrc.sim.results import NEVER
from tests.helpers.reference_network import TRIMMED, Flow, Port, Reference, data_bytes
from tests.helpers.reference_runs import BOTTOMLESS, GBPS, all_cables, chain, run

FULL = data_bytes(4096)
LONG = 50_000
"""Cables of 10 km: a round trip of 200 us, in which nothing is heard of what was sent."""


def overload(
    senders: int,
    packets: int,
    exact: bool,
    until_us: float,
    faults: list[dict[str, object]] | None = None,
    **switch: object,
) -> sim.Results:
    """So many senders to one host.

    What they send reaches the switch after 50 us and the host after 101; what they send again, the switch
    after 250.
    """
    return run(
        {"hosts": senders + 1, "tiers": 1, "radix": 64, "cables": all_cables(LONG)},
        [(src, 0, packets * 4096, 0.0) for src in range(1, senders + 1)],
        {"switch": {**BOTTOMLESS, "control": 64, "exact": exact, **switch}},
        limit_us=until_us,
        faults=faults or [],
    )


def model_of_overload(
    senders: int, packets: int, room: int | None, trims: bool = True, slower: int = 1
) -> tuple[Port, list[Flow]]:
    down = Port(80 * slower, LONG * 1000 + 500_000, room=room, trims=trims)
    flows = [Flow(packets * 4096, [[*chain(1, cable_ns=LONG), down]]) for _ in range(senders)]
    Reference().run(flows)
    return down, flows


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(("senders", "packets", "share"), [(3, 40, 0.05), (8, 40, 0.05), (31, 30, 0.1)])
def test_as_many_packets_are_trimmed_or_dropped_as_do_not_fit(
    senders: int, packets: int, share: float, exact: bool
) -> None:
    for overflow in ("trim", "drop"):
        results = overload(senders, packets, exact, 240, trim_last_hop=share, overflow=overflow)
        room = int(results.base_rtt_ps / 80 * share)
        down, _ = model_of_overload(senders, packets, room, overflow == "trim")
        counted = results.totals["trimmed_last_hop" if overflow == "trim" else "dropped_data"]
        expected = down.trimmed if overflow == "trim" else down.dropped
        assert expected > packets
        # With real queues what counts is what waits; without, the rest of the packet on the cable as well.
        assert abs(counted - expected) <= (max(2, expected // 50) if exact else 0), overflow


def shares(results: sim.Results) -> tuple[float, float]:
    """Bytes of whole packets, and of trimmed ones, that have reached hosts."""
    count, size = results.totals["arrived"], results.totals["arrived_bytes"]
    whole = (size - count * TRIMMED) / (FULL - TRIMMED)
    assert whole == int(whole)
    return whole * FULL, (count - whole) * TRIMMED


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(("queues", "divisor"), [("configured", 1), ("scaled", 4)])
def test_a_slow_link_has_the_queue_that_was_chosen(queues: str, divisor: int, exact: bool) -> None:
    slow = {"kind": "slow", "targets": ["h0:p0"], "share": 0.25, "at_us": 0}
    results = overload(8, 40, exact, 240, [slow], trim_last_hop=0.1, slow_queues=queues)
    room = int(results.base_rtt_ps / 80 * 0.1)
    down, _ = model_of_overload(8, 40, room // divisor, slower=4)
    assert down.trimmed > 40
    assert results.totals["trimmed_last_hop"] == pytest.approx(down.trimmed, abs=2 if exact else 1)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("share", [0.125, 0.25, 0.5])
def test_weighted_queues_share_a_port_by_their_weights_while_both_have_packets(
    share: float, exact: bool
) -> None:
    # Of 60 packets that come at a time 59 are trimmed: more than control's share, for 200 packets' time.
    results = overload(60, 200, exact, 160, trim_last_hop=0.1, control_share=share)
    data, control = shares(results)
    assert control / (data + control) == pytest.approx(share, rel=0.05)


@pytest.mark.parametrize("exact", [False, True])
def test_strict_priority_lets_control_go_first(exact: bool) -> None:
    results = overload(20, 60, exact, 200, trim_last_hop=0.1)
    data, control = shares(results)
    down, _ = model_of_overload(20, 60, int(results.base_rtt_ps / 80 * 0.1))
    # All that was trimmed has got through although data waits.
    assert control == results.totals["trimmed_last_hop"] * TRIMMED
    assert results.totals["trimmed_last_hop"] == pytest.approx(down.trimmed, abs=1 if exact else 0)
    assert data == pytest.approx(down.sent - control, abs=FULL if exact else 0)


@pytest.mark.parametrize("senders", [4, 12, 30])
def test_data_leaves_early_by_what_overtakes_it_at_most(senders: int) -> None:
    """Departures computed on arrival do not count control that comes while data waits."""
    packets = 60
    # A message a packet, so that it is known of each when it came.
    results = run(
        {"hosts": senders + 1, "tiers": 1, "radix": 64, "cables": all_cables(LONG)},
        [(src, 0, 4096, 0.0) for _ in range(packets) for src in range(1, senders + 1)],
        {"switch": {**BOTTOMLESS, "control": 64, "trim_last_hop": 0.1}},
        limit_us=200,
    )
    room = int(results.base_rtt_ps / 80 * 0.1)
    down = Port(80, LONG * 1000 + 500_000, room=room)
    nics = [chain(1, cable_ns=LONG) for _ in range(senders)]
    flows = [Flow(4096, [[*nics[src], down]]) for _ in range(packets) for src in range(senders)]
    Reference().run(flows)
    early = []
    for time, flow in zip(results.columns["delivered_ps"], flows, strict=True):
        if flow.delivered is None or flow.last is None or time == NEVER:
            continue
        packet = flow.last
        overtook = sum(size for at, size in down.overtaking if packet.queued <= at <= packet.left)
        lead = flow.delivered - time
        # Which of those that come at once is first is open.
        assert -senders * FULL * 80 <= lead <= (overtook + senders * FULL) * 80
        early.append((lead, packet.left - packet.queued, overtook * 80))
    print(len(early), max(early), sum(e for e, _, _ in early) / len(early), max(w for _, w, _ in early))
    assert len(early) > packets


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    ("low", "high", "probability"),
    [(100_000, 100_000, 1.0), (50_000, 250_000, 1.0), (50_000, 250_000, 0.2), (1, 400_000, 0.5)],
)
def test_as_many_packets_are_marked_as_the_formula_says(
    low: int, high: int, probability: float, exact: bool
) -> None:
    def chance(behind: int) -> float:
        if behind < low:
            return 0.0
        return 1.0 if behind >= high else probability * (behind - low) / (high - low)

    # No packet comes in the moment in which another leaves: what counts then is open.
    packets, starts, pace = 110, (0.0, 0.1, 0.17, 0.23), 113
    slow = {"kind": "slow", "targets": ["p0/t0-0:up0--p0/t1-0"], "share": 80 / pace}
    marked = expected = variance = 0.0
    for seed in range(1, 6):
        results = run(
            {
                "hosts": 8,
                "radix": 8,
                "hosts_per_t0": 4,
                "uplinks_per_t0": 1,
                "cables": all_cables(LONG),
            },
            [(src, src + 4, packets * 4096, start) for src, start in enumerate(starts)],
            {
                "switch": {
                    **BOTTOMLESS,
                    "exact": exact,
                    "ecn": True,
                    "ecn_min_bytes": low,
                    "ecn_max_bytes": high,
                    "ecn_probability": probability,
                },
            },
            faults=[slow],
            seed=seed,
        )
        up = Port(pace, LONG * 1000 + 500_000, mark=chance)
        lines = [[*chain(1, cable_ns=LONG), up, *chain(2, cable_ns=LONG)] for _ in starts]
        flows = [
            Flow(packets * 4096, [line], round(us * 1e6)) for line, us in zip(lines, starts, strict=True)
        ]
        Reference().run(flows)
        assert max(results.columns["delivered_ps"]) == max(flow.delivered or 0 for flow in flows)
        marked += results.totals["marked"]
        expected += up.expected_marks
        variance += up.variance
    assert expected > 100
    assert abs(marked - expected) <= 4 * math.sqrt(variance)


def crossings(results: sim.Results, link: int = 0) -> tuple[int, int]:
    """Full packets that went up a link, and how many of them were lost."""
    assert results.links is not None
    row = 2 * link
    return round(results.links["bytes"][row] / FULL), results.links["lost"][row]


@pytest.mark.parametrize(
    ("fault", "probability"),
    [
        ({"kind": "loss", "probability": 0.01}, 0.01),
        ({"kind": "loss", "probability": 0.3}, 0.3),
        # Preamble and gap carry no bits of the frame.
        ({"kind": "bit-errors", "probability": 1e-6}, 1 - (1 - 1e-6) ** (8 * (FULL - 20))),
        ({"kind": "bit-errors", "probability": 1e-5}, 1 - (1 - 1e-5) ** (8 * (FULL - 20))),
    ],
)
def test_as_many_packets_are_lost_as_chance_will_have_it(
    fault: dict[str, object], probability: float
) -> None:
    sent = lost = 0
    for seed in range(1, 5):
        results = run(
            {"hosts": 2, "tiers": 1, "radix": 2},
            [(0, 1, 4000 * 4096, 0.0)],
            faults=[{**fault, "targets": ["h0:p0--p0/t0-0:down0"]}],
            record={"ports": True},
            seed=seed,
        )
        assert results.summary().delivered == 1
        some = crossings(results)
        sent, lost = sent + some[0], lost + some[1]
    assert sent >= 16_000
    deviation = math.sqrt(sent * probability * (1 - probability))
    assert abs(lost - sent * probability) < 4 * deviation


def uplinks(results: sim.Results, t0s: range) -> list[list[int]]:
    """Bytes that went up each link of these T0s."""
    columns = results.links
    by_t0: dict[int, list[int]] = {t0: [] for t0 in t0s}
    for row, size in enumerate(columns["bytes"]):
        if columns["layer"][row] == 1 and not columns["down"][row] and columns["lower"][row] in by_t0:
            by_t0[columns["lower"][row]].append(size)
    return list(by_t0.values())


def test_ecmp_spreads_flows_evenly_and_keeps_each_on_its_link() -> None:
    """Half of the T0s send to the other half, so that nothing but data goes up theirs."""
    links, per_t0, qps = 8, 8, 16
    flows = [
        (t0 * 8 + host, 64 + (t0 * 8 + host * 5 + t0) % 64, qps * 4096, 0.0)
        for t0 in range(8)
        for host in range(8)
    ]
    squares = degrees = 0.0
    for seed in range(1, 4):
        results = run(
            {"hosts": 128, "radix": 16},
            flows,
            {"switch": {"preset": "rocev2"}},
            transport={"kind": "rocev2", "qps": qps, "dcqcn": False},
            record={"ports": True},
            seed=seed,
        )
        expected = per_t0 * qps / links
        for loads in uplinks(results, range(8)):
            one = sum(loads) / (per_t0 * qps)
            counts = [load / one for load in loads]
            assert all(count == int(count) for count in counts), "whole flows, each on one link"
            squares += sum((count - expected) ** 2 / expected for count in counts)
            degrees += links - 1
    # Chi-square over that many degrees of freedom: its mean, and four of its standard deviations.
    assert abs(squares - degrees) < 4 * math.sqrt(2 * degrees)


def test_adaptive_routing_gives_each_link_what_it_can_carry() -> None:
    slow = {"kind": "slow", "targets": ["p0/t0-0:up0--p0/t1-0"], "share": 0.25}
    results = run(
        {"hosts": 8, "radix": 8},
        [(src, 4 + src, 16 << 20, 0.0) for src in range(4)],
        {"switch": {"preset": "adaptive"}, "routing": "adaptive"},
        transport={"kind": "adaptive"},
        faults=[slow],
        record={"ports": True},
    )
    ((first, *others),) = uplinks(results, range(1))
    for other in others:
        assert first / other == pytest.approx(0.25, rel=0.1)
    assert max(others) / min(others) < 1.05


@pytest.mark.parametrize(
    ("gbps", "cable_ns"), [(100, 10), (100, 40_000), (400, 500), (400, 5000), (800, 10_000)]
)
@pytest.mark.parametrize("threshold", [{"xoff": 20_000}, {"alpha": 1 / 64}], ids=["static", "dynamic"])
def test_headroom_is_enough_for_every_cable(gbps: int, cable_ns: int, threshold: dict[str, float]) -> None:
    """Hosts that send at line rate whatever happens, until they are paused."""
    results = run(
        {
            "hosts": 16,
            "radix": 8,
            "hosts_per_t0": 4,
            "uplinks_per_t0": 2,
            "oversubscription": 2,
            "nic": {"rate": gbps * GBPS},
            "cables": all_cables(cable_ns),
        },
        [(src, 0, 1 << 21, 0.0) for src in range(1, 16)]
        + [(src, src + 1, 1 << 20, 0.0) for src in range(15)],
        {
            "switch": {"preset": "rocev2", "pfc": {"buffer": 64 << 20, **threshold}},
        },
        transport={"kind": "rocev2", "dcqcn": False, "timeout_us": 1e6},
    )
    assert results.summary().delivered == 30, "no deadlock"
    assert results.totals["dropped_data"] == 0
    assert results.totals["pauses"] > 0
