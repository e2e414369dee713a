"""The simulator beside another one (``reference_network``) that shares nothing with it but the specification.

Where nothing is left open - no congestion control, one path a flow - times have to be the same to the
picosecond.
"""

import pytest

from tests.helpers.reference_network import Flow, Port, Reference, cut, data_bytes
from tests.helpers.reference_runs import BOTTOMLESS, GBPS, LINE_RATE, all_cables, chain, run

TIERS = {1: (4, 8, 2), 2: (8, 4, 4), 3: (16, 4, 6), 4: (32, 4, 8)}
"""Hosts, radix, and links that a packet crosses from the first host to the last."""


@pytest.mark.parametrize("tiers", TIERS)
@pytest.mark.parametrize("mtu", [256, 1024, 4096, 8192])
@pytest.mark.parametrize(("gbps", "cable_ns"), [(25, 500), (100, 10), (100, 5000), (400, 500), (800, 50)])
def test_one_packet_and_one_message_take_the_same_time_to_the_picosecond(
    tiers: int, mtu: int, gbps: int, cable_ns: int
) -> None:
    hosts, radix, hops = TIERS[tiers]
    for size in (1, mtu, mtu + 1, 20 * mtu - 3):
        results = run(
            {
                "hosts": hosts,
                "tiers": tiers,
                "radix": radix,
                "nic": {"rate": gbps * GBPS},
                "cables": all_cables(cable_ns),
            },
            [(0, hosts - 1, size, 0.0)],
            {"mtu": mtu, "switch": BOTTOMLESS},
            # One path: packets on several would overtake one another where the last one is short.
            transport={**LINE_RATE, "ev_active": 1, "ev_backup": 0},
        )
        flow = Flow(size, [chain(hops, gbps, cable_ns)], mtu=mtu)
        Reference().run([flow])
        assert results.columns["delivered_ps"][0] == flow.delivered


@pytest.mark.parametrize("shares", [(1, 0.5, 1, 1), (1, 1, 0.25, 1), (0.5, 1, 0.25, 0.5), (1, 0.25, 0.5, 1)])
def test_links_of_different_rates_in_a_row_agree_to_the_picosecond(shares: tuple[float, ...]) -> None:
    links = ["h0:p0--p0/t0-0:down0", "p0/t0-0:up0--p0/t1-0", "p0/t0-1:up0--p0/t1-0", "h1:p0--p0/t0-1:down0"]
    slow = [
        {"kind": "slow", "targets": [link], "share": share}
        for link, share in zip(links, shares, strict=True)
        if share < 1
    ]
    results = run(
        {"hosts": 2, "radix": 4, "hosts_per_t0": 1, "uplinks_per_t0": 1},
        [(0, 1, 200_000, 0.0)],
        faults=slow,
    )
    route = [Port(round(80 / share), 1_000_000) for share in shares]
    flow = Flow(200_000, [route])
    Reference().run([flow])
    assert results.columns["delivered_ps"][0] == flow.delivered


@pytest.mark.parametrize("planes", [2, 4, 8])
def test_one_message_over_several_planes_takes_as_long_to_the_picosecond(planes: int) -> None:
    for packets in (1, 5, 8, 100, 101):
        size = packets * 4096
        results = run({"hosts": 2, "tiers": 1, "planes": planes, "radix": 4}, [(0, 1, size, 0.0)])
        flow = Flow(size, [chain(2) for _ in range(planes)])
        Reference().run([flow])
        assert results.columns["delivered_ps"][0] == flow.delivered, packets


@pytest.mark.parametrize("senders", [2, 8, 31])
def test_an_incast_without_congestion_control_ends_at_the_same_picosecond(senders: int) -> None:
    size = 24 * 4096
    results = run(
        {"hosts": 32, "tiers": 1, "radix": 32}, [(src, 0, size, 0.0) for src in range(1, senders + 1)]
    )
    down = Port(80, 1_000_000)
    flows = [Flow(size, [[Port(80, 1_000_000), down]]) for _ in range(senders)]
    Reference().run(flows)
    theirs, ours = sorted(results.columns["delivered_ps"]), sorted(flow.delivered or 0 for flow in flows)
    assert theirs[-1] == ours[-1]
    # Whose packet goes first among those that come at once is open: so is who ends first, by a round.
    one_round = senders * data_bytes(4096) * 80
    assert all(abs(a - b) < one_round for a, b in zip(theirs, ours, strict=True))


def test_flows_that_share_a_link_from_different_moments_agree_to_a_thousandth() -> None:
    topology = {"hosts": 8, "radix": 8, "hosts_per_t0": 4, "uplinks_per_t0": 1}
    flows = [(0, 4, 400_000, 0.0), (1, 5, 700_001, 3.7), (2, 6, 90_000, 11.3), (3, 7, 500_000, 1.1)]
    results = run(topology, flows)
    shared = chain(2)
    model = [Flow(size, [[*chain(1), *shared, *chain(1)]], int(us * 1e6)) for _, _, size, us in flows]
    Reference().run(model)
    # In the long run a sender answers a probe now and then, and its answer goes before the data.
    for theirs, flow in zip(results.columns["delivered_ps"], model, strict=True):
        assert flow.delivered is not None
        assert flow.delivered <= theirs < flow.delivered * 1.001


def test_a_host_shares_its_link_evenly_among_its_messages() -> None:
    sizes = [300_000, 200_000, 100_000]
    results = run(
        {"hosts": 4, "tiers": 1, "radix": 4}, [(0, dst + 1, size, 0.0) for dst, size in enumerate(sizes)]
    )
    nic = Port(80, 1_000_000)
    model = [Flow(size, [[nic, *chain(1)]]) for size in sizes]
    Reference().run(model)
    # The message posted first has a packet waiting behind its first one before there is a second message.
    for theirs, flow in zip(results.columns["delivered_ps"], model, strict=True):
        assert flow.delivered is not None
        assert abs(theirs - flow.delivered) <= data_bytes(4096) * 80


def test_a_permutation_on_fixed_paths_agrees_to_a_few_packets() -> None:
    # Half of the hosts send to the other half: nothing but data goes their way.
    half, size = 16, 60 * 4096
    flows = [(src, half + (src * 7 + 3) % half, size, 0.0) for src in range(half)]
    results = run(
        {"hosts": 2 * half, "radix": 8},
        flows,
        transport={**LINE_RATE, "ev_active": 1, "ev_backup": 0},
        record={"evs": True, "ports": True},
    )
    # One plane, four uplinks: an entropy value's two highest bits are the path (docs/spec/wire.md, "Where the
    # entropy value goes").
    assert results.evs is not None
    uplink = {src: ev >> 30 for src, ev in zip(results.evs["src"], results.evs["ev"], strict=True)}
    assert len(results.evs["ev"]) == half, "one path a flow"
    links: dict[tuple[object, ...], Port] = {}

    def link(*name: object) -> Port:
        return links.setdefault(name, Port(80, 1_000_000))

    model = []
    for src, dst, size, _ in flows:
        up, down = link("up", src // 4, uplink[src]), link("down", uplink[src], dst // 4)
        model.append(Flow(size, [[link("nic", src), up, down, link("host", dst)]]))
    Reference().run(model)
    # Of packets that come at once either may be first, at every switch on the way.
    for theirs, ours in zip(
        sorted(results.columns["delivered_ps"]), sorted(flow.delivered or 0 for flow in model), strict=True
    ):
        assert abs(theirs - ours) <= 3 * data_bytes(4096) * 80
    busiest = max(port.sent for port in links.values())
    assert busiest > size * 2, "paths that meet are what this is about"


def relative(ours: int | None, theirs: int) -> float:
    assert ours
    return theirs / ours - 1


def collective(ranks: int, operation: str, size: int, **fields: object) -> int:
    """When the last byte of it is in place."""
    traffic = {"kind": "collective", "operation": operation, "bytes": size, **fields}
    results = run({"hosts": ranks, "tiers": 1, "radix": ranks}, traffic=[traffic])
    assert results.summary().delivered == results.summary().messages
    return max(results.columns["delivered_ps"])


def model_of(ranks: int, sends: list[tuple[int, int, int, list[int]]]) -> int:
    """The same by the reference: (source, destination, bytes, messages it waits for), one T0."""
    nics, downs = chain(ranks), chain(ranks)
    flows: list[Flow] = []
    for src, dst, size, after in sends:
        waits = [flows[i] for i in after]
        flows.append(Flow(size, [[nics[src], downs[dst]]], after=waits, connection=(src, dst)))
    Reference().run(flows)
    return max(flow.delivered or 0 for flow in flows)


FEEDBACK = 0.05
"""What SACKs, which the reference does not send, may cost where hosts both send and receive."""


@pytest.mark.parametrize("ranks", [2, 5, 16])
@pytest.mark.parametrize("size", [64 << 10, 4 << 20])
def test_ring_collectives_take_what_their_steps_take(ranks: int, size: int) -> None:
    chunk = -(-size // ranks)
    for operation, steps in (
        ("ring-all-reduce", 2 * (ranks - 1)),
        ("all-gather", ranks - 1),
        ("reduce-scatter", ranks - 1),
    ):
        sends = [
            (i, (i + 1) % ranks, chunk, [(step - 1) * ranks + (i - 1) % ranks] if step else [])
            for step in range(steps)
            for i in range(ranks)
        ]
        ideal = model_of(ranks, sends)
        # Closed form: in each step a chunk goes over two cables, stored and forwarded packet by packet.
        packets = [data_bytes(payload) for payload in cut(chunk, 4096)]
        step_ps = (sum(packets) + max(packets[-1], packets[-2] if len(packets) > 1 else 0)) * 80 + 2_000_000
        assert ideal <= steps * step_ps * 1.001
        took = collective(ranks, operation, size)
        assert 0 <= relative(ideal, took) < FEEDBACK, operation


@pytest.mark.parametrize("ranks", [2, 8, 16])
def test_recursive_doubling_takes_log2_steps(ranks: int) -> None:
    size, steps = 1 << 20, ranks.bit_length() - 1
    sends = [
        (i, i ^ 1 << step, size, [(step - 1) * ranks + (i ^ 1 << step - 1)] if step else [])
        for step in range(steps)
        for i in range(ranks)
    ]
    ideal = model_of(ranks, sends)
    assert 0 <= relative(ideal, collective(ranks, "recursive-doubling-all-reduce", size)) < FEEDBACK


@pytest.mark.parametrize("ranks", [3, 8])
def test_a_pipeline_takes_the_stages_and_then_a_microbatch_each(ranks: int) -> None:
    size, batches = 300_000, 12
    sends = [
        (stage, stage + 1, size, [(stage - 1) * batches + batch] if stage else [])
        for stage in range(ranks - 1)
        for batch in range(batches)
    ]
    ideal = model_of(ranks, sends)
    assert 0 <= relative(ideal, collective(ranks, "pipeline", size, microbatches=batches)) < FEEDBACK


@pytest.mark.parametrize("ranks", [4, 16])
def test_an_all_to_all_takes_what_each_host_has_to_receive(ranks: int) -> None:
    size = 128 << 10
    everybody = run(
        {"hosts": ranks, "tiers": 1, "radix": ranks},
        traffic=[{"kind": "all-to-all", "bytes": size}],
    )
    pairs = [(i, (i + step) % ranks) for step in range(1, ranks) for i in range(ranks)]
    at_once = model_of(ranks, [(src, dst, size, []) for src, dst in pairs])
    # Eight steps are under way at once.
    waits = [
        [(step - 9) * ranks + (i - (step - 8)) % ranks] if step > 8 else []
        for step in range(1, ranks)
        for i in range(ranks)
    ]
    stepped = model_of(ranks, [(*pair, size, after) for pair, after in zip(pairs, waits, strict=True)])
    least = (ranks - 1) * sum(map(data_bytes, cut(size, 4096))) * 80 + data_bytes(4096) * 80 + 2_000_000
    assert at_once >= least
    took = max(everybody.columns["delivered_ps"]), collective(ranks, "all-to-all", size)
    assert 0 <= relative(at_once, took[0]) < FEEDBACK
    assert 0 <= relative(stepped, took[1]) < FEEDBACK
