"""Transports, switches and faults of the simulator by their names in a scenario; classes of a user's own."""

from collections.abc import Sequence
from typing import Any

import pytest

from openmrc import sim
from openmrc.errors import ArgumentError
from openmrc.sim import check, transports
from tests.helpers.faults import assert_felt, bytes_of_link, links_that_lost

SMALL = {"hosts": 32, "planes": 4, "radix": 16}


def scenario(size: int = 1 << 20, **fields: Any) -> sim.Scenario:
    return sim.Scenario.model_validate(
        {"topology": SMALL, "traffic": [{"kind": "permutation", "bytes": size}], **fields}
    )


def incast(**fields: Any) -> sim.Scenario:
    pattern = {"kind": "incast", "senders": list(range(8, 32)), "receiver": 0, "bytes": 1 << 20}
    return sim.Scenario.model_validate({"topology": SMALL, "traffic": [pattern], **fields})


TRANSPORTS: list[dict[str, Any]] = [
    {"kind": "mrc"},
    {"kind": "mrc", "destination_control": False},
    {"kind": "uet", "load_balancing": "oblivious"},
    {"kind": "uet", "load_balancing": "reps"},
    {"kind": "uet", "load_balancing": "skip", "evs": 64},
    {"kind": "adaptive"},
    {"kind": "adaptive", "target_us": 30, "increase": 2},
    {"kind": "rocev2"},
    {"kind": "rocev2", "qps": 16, "recovery": "selective-repeat", "dcqcn": False},
    {"kind": "rocev2", "qps": 4, "dcqcn": {"rate_timer_us": 300, "additive_bps": 40e6}},
]


@pytest.mark.parametrize("transport", TRANSPORTS, ids=lambda t: ",".join(str(v) for v in t.values()))
def test_every_transport_runs_on_the_network_it_is_meant_for_and_twice_the_same(
    transport: dict[str, Any],
) -> None:
    one, two = (sim.run(incast(transport=transport)) for _ in range(2))
    assert one.summary().delivered == 24
    assert one.totals == two.totals
    assert bytes(one.columns["delivered_ps"]) == bytes(two.columns["delivered_ps"])
    if transport["kind"] in ("mrc", "uet"):
        assert one.totals["pauses"] == 0 < one.totals["trimmed_last_hop"]
    else:
        assert one.totals["trimmed"] == one.totals["trimmed_last_hop"] == 0
    assert one.totals["dropped_data"] == 0


def test_the_fields_of_dcqcn_reach_the_rate_control() -> None:
    def last(dcqcn: object) -> float:
        results = sim.run(incast(transport={"kind": "rocev2", "dcqcn": dcqcn}))
        time = results.summary().last_us
        assert time is not None
        return time

    assert last(True) == last({})
    assert last({"rate_timer_us": 300}) != last(True) != last(False)


def test_switches_mark_and_drop_as_they_are_told() -> None:
    def totals(**switch: object) -> Any:
        transport = {"kind": "rocev2", "dcqcn": False}
        return sim.run(incast(transport=transport, network={"switch": switch})).totals

    lossless, lossy = totals(), totals(pfc=False, trim_last_hop=2.0)
    assert lossless["pauses"] > 0
    assert lossless["dropped_data"] == 0 < lossy["dropped_data"]
    assert lossy["pauses"] == 0
    small = totals(pfc={"xoff": 20_000, "xon_offset": 5_000})
    assert small["pauses"] > lossless["pauses"]
    assert small["dropped_data"] == 0
    assert totals(ecn=False)["marked"] == 0 < totals(ecn_min_bytes=20_000, ecn_max_bytes=20_000)["marked"]


def test_real_queues_agree_with_computed_departures() -> None:
    computed = sim.run(scenario()).summary().last_us
    real = sim.run(scenario(network={"switch": {"exact": True}})).summary().last_us
    assert computed is not None
    assert real == pytest.approx(computed, rel=0.03)


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "reboot", "targets": ["p2/t1-1"], "at_us": 5, "down_us": 20},
        {"kind": "nic-port", "targets": ["h3:p1"]},
        {
            "kind": "transceiver",
            "targets": ["p1/t0-0"],
            "ports": [0, 1, 2, 3],
            "down_us": 5,
            "up_us": 5,
            "times": 3,
        },
        {"kind": "broken", "targets": ["fabric-links"], "share": 0.05},
        {
            "kind": "random",
            "targets": ["links"],
            "effect": "loss",
            "amount": 0.1,
            "mtbf_us": 20,
            "mttr_us": 5,
            "until_us": 60,
        },
        {"kind": "loss", "targets": ["host-links"], "probability": 0.01},
    ],
    ids=lambda fault: fault["kind"],
)
def test_every_kind_of_fault_is_survived_and_felt_where_it_is(fault: dict[str, Any]) -> None:
    record = {"ports": True}
    healthy, broken = sim.run(scenario(record=record)), sim.run(scenario(faults=[fault], record=record))
    assert broken.summary().delivered == 32
    assert_felt(healthy, broken, fault["kind"], fault.get("effect", "down"))
    lost_on = links_that_lost(broken)
    (target,) = fault["targets"]
    if fault["kind"] == "nic-port":
        # The host knows it from the start: nothing is sent there.
        (port,) = [link for link in broken.link_names if link.startswith(f"{target}--")]
        assert bytes_of_link(broken, port) < bytes_of_link(healthy, port) / 2
        return
    if fault["kind"] == "broken":
        return
    assert lost_on
    match fault["kind"], target:
        case "transceiver", _:
            # The ports that are named, of this switch.
            expected = {f"h{port}:p1--{target}:down{port}" for port in fault["ports"]}
            assert lost_on <= expected, lost_on
        case _, "fabric-links":
            assert all(link.startswith("p") for link in lost_on), lost_on
        case _, "host-links":
            assert all(link.startswith("h") for link in lost_on), lost_on
        case _, "links":
            pass
        case _:
            assert all(target in link for link in lost_on), lost_on


def test_routing_that_reacts_loses_fewer_packets_than_routing_that_does_not() -> None:
    fault = {"kind": "down", "targets": ["p0/t1-0"], "at_us": 10}

    def lost(**network: object) -> int:
        results = sim.run(
            scenario(8 << 20, transport={"kind": "uet"}, network=network, faults=[fault], limit_us=2000)
        )
        return results.totals["dropped_down"]

    assert 0 < lost(detection_us=20, convergence_us=20) < lost() == lost(reroutes=False)


@pytest.mark.parametrize("kind", ["uet", "rocev2", "adaptive"])
def test_routing_reacts_by_default_for_transports_that_rely_on_it(kind: str) -> None:
    filled = check.filled(transports.apply(scenario(), kind)).network
    assert filled.reroutes
    # A lost carrier, BFD, BGP (docs/spec/baselines.md, "Routing").
    assert (filled.detection_us, filled.silent_detection_us, filled.convergence_us) == (1e3, 3e5, 1e5)
    assert not check.filled(scenario()).network.reroutes


def test_routing_learns_of_a_silent_link_later_than_of_one_without_carrier() -> None:
    def lost(fault: dict[str, object]) -> int:
        network = {"detection_us": 20, "silent_detection_us": 100, "convergence_us": 20}
        fault = {"targets": ["p0/t0-0:up0--p0/t1-0"], "at_us": 10, **fault}
        results = sim.run(
            scenario(8 << 20, transport={"kind": "uet"}, network=network, faults=[fault], limit_us=2000)
        )
        return results.totals["dropped_down"] + results.totals["dropped_lossy"]

    assert 0 < lost({"kind": "down"}) < lost({"kind": "loss", "probability": 1.0})


def test_uet_has_the_destination_flow_control_that_mrc_has() -> None:
    def trimmed(**fields: object) -> int:
        results = sim.run(
            sim.Scenario.model_validate(
                {
                    "topology": {"hosts": 16, "radix": 16},
                    "transport": {"kind": "uet", **fields},
                    "traffic": [
                        {"kind": "incast", "senders": list(range(1, 9)), "receiver": 0, "bytes": 4 << 20}
                    ],
                }
            )
        )
        return results.totals["trimmed_last_hop"]

    assert 2 * trimmed() < trimmed(destination_control=False)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"faults": [{"kind": "nic-port", "targets": ["h99:p1"]}]}, "no port h99:p1"),
        ({"faults": [{"kind": "reboot", "targets": ["h1:p1"], "down_us": 1}]}, "not all switches"),
        (
            {
                "faults": [
                    {"kind": "loss", "targets": ["switches"], "probability": 0.1, "direction": "upward"}
                ]
            },
            "direction: a switch has none; name links",
        ),
        (
            {
                "faults": [
                    {"kind": "transceiver", "targets": ["p0/t0-0"], "ports": [40], "down_us": 1},
                ]
            },
            "no cable on port 40",
        ),
        ({"transport": {"kind": "rocev2"}, "network": {"switch": {"pfc": {"buffer": 1000}}}}, "headroom"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        sim.run(scenario(**change))


@pytest.mark.parametrize(
    "transport", [{"kind": "tcp"}, {"kind": "uet", "evs": 0}, {"kind": "rocev2", "dcqcn": {"gain": 1}}]
)
def test_a_transport_that_makes_no_sense_is_none(transport: dict[str, object]) -> None:
    with pytest.raises(ArgumentError):
        scenario(transport=transport)


class RoundRobin:
    """Every path in turn."""

    made = 0

    def __init__(self, ports: Sequence[int], seed: int) -> None:
        type(self).made += 1
        self.ports, self.next = ports, seed
        self.counts = {"acked": 0, "congested": 0, "lost": 0}

    def select(self, now_ps: int, free: int, avoid: int | None) -> int | None:
        for _ in self.ports:
            self.next = (self.next + 1) % len(self.ports)
            if free >> self.ports[self.next] & 1 and self.next != avoid:
                return self.next
        return None

    def acked(self, path: int) -> None:
        assert 0 <= path < len(self.ports)
        self.counts["acked"] += 1

    def congested(self, path: int) -> None:
        self.counts["congested"] += 1

    def lost(self, path: int) -> None:
        self.counts["lost"] += 1


class Fixed:
    """A window of one bandwidth-delay product, whatever happens."""

    def __init__(self, mtu: int, rate_bps: int, base_rtt_ps: int) -> None:
        self.window: float = rate_bps / 8 * base_rtt_ps * 1e-12
        assert self.window > 10 * mtu

    def on_sack(self, now_ps: int, newly: int, rtt_ps: int | None, ecn: bool) -> None:
        assert rtt_ps is None or rtt_ps > 0

    def on_trim(self, now_ps: int, size: int) -> None: ...

    def on_loss(self, now_ps: int, size: int) -> None: ...


def test_a_path_selector_of_ones_own_chooses_the_paths() -> None:
    RoundRobin.made = 0
    own = sim.run(scenario(200_000), path_selector=RoundRobin)
    assert RoundRobin.made == 64, "one for each end of each connection"
    assert own.summary().delivered == 32
    assert own.totals == sim.run(scenario(200_000), path_selector=RoundRobin).totals
    assert own.totals["condemned"] == 0


def test_a_congestion_controller_of_ones_own_is_the_built_in_one_if_it_does_the_same() -> None:
    results = sim.run(scenario(500_000), congestion=Fixed)
    window = int(Fixed(1, 400_000_000_000, results.base_rtt_ps).window)
    built_in = sim.run(scenario(500_000, transport={"kind": "mrc", "fixed_window": window}))
    assert results.totals["data_packets"] == built_in.totals["data_packets"]
    assert results.summary().last_us == pytest.approx(built_in.summary().last_us, rel=0.02)


class OopsError(Exception):
    pass


def test_what_a_class_of_ones_own_raises_comes_out_as_it_is() -> None:
    class Failing(Fixed):
        def on_sack(self, now_ps: int, newly: int, rtt_ps: int | None, ecn: bool) -> None:
            raise OopsError("on purpose")

    class Unmakeable(RoundRobin):
        def __init__(self, ports: Sequence[int], seed: int) -> None:
            raise OopsError("never made")

    class OffTheMap(RoundRobin):
        def select(self, now_ps: int, free: int, avoid: int | None) -> int | None:
            return 1000

    class Interrupted(RoundRobin):
        def acked(self, path: int) -> None:
            raise KeyboardInterrupt

    with pytest.raises(OopsError, match="on purpose"):
        sim.run(scenario(), congestion=Failing)
    with pytest.raises(OopsError, match="never made"):
        sim.run(scenario(), path_selector=Unmakeable)
    with pytest.raises(ArgumentError, match="path 1000: there are 0 to"):
        sim.run(scenario(), path_selector=OffTheMap)
    assert sim.run(scenario(), path_selector=Interrupted).summary().delivered < 32


def test_classes_of_ones_own_stand_in_for_parts_of_mrc_and_uet_only() -> None:
    with pytest.raises(ArgumentError, match="parts of mrc and uet"):
        sim.run(scenario(transport={"kind": "rocev2"}), path_selector=RoundRobin)
    with pytest.raises(ArgumentError, match="fixed_window"):
        sim.run(scenario(transport={"kind": "mrc", "fixed_window": 100_000}), congestion=Fixed)
