"""Runs of our simulator that ``reference_network`` can repeat."""

from openmrc import sim
from tests.helpers.reference_network import Port

GBPS = 1_000_000_000
LINE_RATE = {"kind": "mrc", "fixed_window": 1 << 40, "mpr": 255, "destination_control": False}
"""Sends as long as there is anything to send."""
BOTTOMLESS = {"trim": 64, "trim_last_hop": 64, "ecn": False}


def run(
    topology: dict[str, object],
    flows: list[tuple[int, int, int, float]] | None = None,
    network: dict[str, object] | None = None,
    **fields: object,
) -> sim.Results:
    scenario = {
        "topology": topology,
        "network": {"switch": BOTTOMLESS, **(network or {})},
        "transport": LINE_RATE,
        "traffic": [{"kind": "flows", "flows": flows}],
        **fields,
    }
    return sim.run(sim.Scenario.model_validate(scenario))


def per_byte(gbps: int) -> int:
    return 8000 // gbps


def chain(hops: int, gbps: int = 100, cable_ns: int = 500, device_ns: int = 500) -> list[Port]:
    return [Port(per_byte(gbps), (cable_ns + device_ns) * 1000) for _ in range(hops)]


def all_cables(delay_ns: int) -> dict[str, float]:
    """Cables of one length: 5 ns for a metre."""
    return dict.fromkeys(("host_t0", "t0_t1", "t1_t2", "t2_t3"), delay_ns / 5)
