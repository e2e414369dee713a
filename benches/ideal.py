"""Completion times of simulated transports, divided by the least possible time, as a table.

    python benches/ideal.py [--transports mrc,uet,adaptive] [--quick]

The least possible time is a closed form: all headers on every cable, and the latency of the last packet
in the idle fabric. It does not contain feedback, collisions, or the time in which congestion control
finds the rate.
"""

import argparse
import statistics
from collections.abc import Iterator

from openmrc import sim
from openmrc.sim import transports

HEADERS = {"mrc": 166, "uet": 142, "adaptive": 126, "rocev2": 102}
SIZES = [64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20]


def full_packet(kind: str, mtu: int = 4096) -> int:
    """Bytes of a full packet on a cable, with all headers."""
    return mtu + HEADERS[kind]


def least_us(scenario: sim.Scenario, packets: int, links: int) -> float:
    """Time of ``packets`` packets to one host, in sequence on each plane, over ``links`` links."""
    gbps = scenario.topology.port_rate / 1e9
    packet_us = full_packet(scenario.transport.kind) * 8 / gbps * 1e-3
    rounds = -(-packets // scenario.topology.planes)
    return (rounds - 1) * packet_us + links * (packet_us + 1.0)


def ratios(scenario: sim.Scenario, packets: int, links: int, seeds: int) -> tuple[float, float]:
    """Median and last completion, each divided by the least time and averaged over seeds."""
    medians, lasts = [], []
    for seed in range(1, seeds + 1):
        summary = sim.run(scenario.model_copy(update={"seed": seed})).summary()
        least = least_us(scenario, packets, links)
        assert summary.delivered == summary.messages
        medians.append((summary.median_us or 0) / least)
        lasts.append((summary.last_us or 0) / least)
    return statistics.mean(medians), statistics.mean(lasts)


def shapes(quick: bool) -> Iterator[tuple[str, dict[str, object], dict[str, object], int, int]]:
    """Name, topology, pattern, packets to the busiest host, links of the longest path."""
    fabrics: list[tuple[str, dict[str, object], int]] = [
        ("1 tier, 1 x 800G", {"hosts": 32, "tiers": 1, "radix": 32, "planes": 1, "nic": {"rate": "800G"}}, 2),
        (
            "2 tiers, 1 x 400G",
            {"hosts": 64, "tiers": 2, "radix": 16, "planes": 1, "nic": {"rate": "400G"}},
            4,
        ),
        (
            "2 tiers, 4 x 100G",
            {"hosts": 64, "tiers": 2, "radix": 16, "planes": 4, "nic": {"rate": "400G"}},
            4,
        ),
        (
            "2 tiers, 8 x 100G",
            {"hosts": 64, "tiers": 2, "radix": 16, "planes": 8, "nic": {"rate": "800G"}},
            4,
        ),
        (
            "3 tiers, 1 x 400G",
            {"hosts": 128, "tiers": 3, "radix": 8, "planes": 1, "nic": {"rate": "400G"}},
            6,
        ),
    ]
    for name, fabric, links in fabrics:
        for size in SIZES[:-1] if quick else SIZES:
            pattern = {"kind": "permutation", "bytes": size, "seed": 3}
            yield f"permutation, {name}, {size >> 10} KiB", fabric, pattern, size // 4096, links
    name, fabric, links = fabrics[2]
    fabric = {**fabric, "hosts": 128}
    for senders in (8, 32, 100):
        for size in (64 << 10, 1 << 20):
            pattern = {"kind": "incast", "senders": list(range(8, 8 + senders)), "receiver": 0, "bytes": size}
            yield (
                f"incast {senders}:1, {name}, {size >> 10} KiB",
                fabric,
                pattern,
                senders * size // 4096,
                links,
            )
    for ranks in (16, 64):
        size = 256 << 10
        pattern = {"kind": "all-to-all", "ranks": list(range(ranks)), "bytes": size}
        yield (
            f"all-to-all {ranks}, {name}, {size >> 10} KiB",
            fabrics[2][1],
            pattern,
            (ranks - 1) * size // 4096,
            4,
        )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--transports", default="mrc", help="as openmrc compare takes them, without planes=")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="leave out the longest messages")
    parser.add_argument("--only", default="", help="only shapes with this text in their name")
    options = parser.parse_args()
    names = transports.names(options.transports)
    print("| shape | " + " | ".join(f"{name}: median | last" for name in names) + " |")
    print("|---|" + "---|" * (2 * len(names)))
    for name, fabric, pattern, packets, links in shapes(options.quick):
        if options.only not in name:
            continue
        base = sim.Scenario.model_validate({"topology": fabric, "traffic": [pattern]})
        cells = []
        for transport in names:
            cells += [
                f"{ratio:.2f}"
                for ratio in ratios(transports.apply(base, transport), packets, links, options.seeds)
            ]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
