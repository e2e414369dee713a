"""Our simulator beside the UEC consortium's, and incasts beside the least time: tables of docs/simulator.md.

    python benches/agreement.py [--seeds 8] [--write]

The consortium's figures are in ``foreign.json``: flow completion with its acknowledgment, NSCC with trimming,
4,086 bytes of payload in 4,150 on the wire, trimmed packets of 64 bytes. Like for like is UET with random
entropy values, without what our project adds (destination flow control, spacing); its times are divided by
what the longer headers of our packets and trimmed packets cost. ``--write`` puts the tables into the page,
between their markers.
"""

import argparse
import json
import random
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from openmrc import sim

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "simulator.md"
FOREIGN: dict[str, dict[str, Any]] = json.loads((HERE / "foreign.json").read_text())

ITS_PACKET, ITS_PAYLOAD, ITS_TRIMMED = 4150, 4086, 64
OUR_PACKET, OUR_PAYLOAD, OUR_TRIMMED = 4238, 4096, 122
"""UET over IPv6 and Ethernet, with preamble and gap."""

LIKE = {"kind": "uet", "load_balancing": "oblivious", "destination_control": False, "spacing": False}
TRANSPORTS: dict[str, dict[str, Any]] = {
    "like for like": LIKE,
    "uet": {"kind": "uet"},
    "mrc": {"kind": "mrc"},
}


class Times(NamedTuple):
    """Completion times, microseconds, and what the headers of the run cost."""

    mean: float
    last: float
    headers: float


def scenario(shape: dict[str, Any], transport: dict[str, Any], seed: int) -> sim.Scenario:
    """A shape of the table with a transport."""
    pattern = {**shape["traffic"]}
    if pattern["kind"] == "incast":
        pattern["senders"] = random.Random(seed).sample(
            range(1, shape["topology"]["hosts"]), pattern["senders"]
        )
        pattern["receiver"] = 0
    else:
        pattern["seed"] = seed
    network = {
        "switch_latency_ns": 0,
        "nic_latency_ns": 0,
    }
    return sim.Scenario.model_validate(
        {
            "topology": {
                "planes": 1,
                "tiers": 2,
                "nic": {"rate": shape["rate"]},
                "cables": dict.fromkeys(("host_t0", "t0_t1", "t1_t2", "t2_t3"), 200),  # metres: 1 us
                **shape["topology"],
            },
            "network": network,
            "transport": transport,
            "traffic": [pattern],
            "seed": seed,
        }
    )


def times(made: sim.Scenario) -> Times:
    """Runs a scenario."""
    results = sim.run(made)
    columns = results.columns
    done = [
        (end - begin) * 1e-6 for begin, end in zip(columns["posted_ps"], columns["completed_ps"], strict=True)
    ]
    assert results.summary().delivered == len(done)
    trimmed = results.totals["trimmed_last_hop"] / results.totals["data_packets"]
    delivered = 1 - trimmed
    ours = (OUR_PACKET + trimmed / delivered * OUR_TRIMMED) / OUR_PAYLOAD
    its = (ITS_PACKET + trimmed / delivered * ITS_TRIMMED) / ITS_PAYLOAD
    return Times(statistics.fmean(done), max(done), ours / its)


def foreign_table(seeds: int) -> Iterator[str]:
    """The consortium's simulator and ours."""
    yield (
        "| shape, mean / last, us | its oblivious | its REPS | its bitmap "
        "| like for like, headers accounted for | ours to its, mean "
        "| our uet | our mrc | mrc to its best, mean / last |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for name, shape in FOREIGN.items():
        its = {column: tuple(shape[column]) for column in ("oblivious", "reps", "bitmap")}
        runs = {
            kind: [times(scenario(shape, transport, seed)) for seed in range(1, seeds + 1)]
            for kind, transport in TRANSPORTS.items()
        }
        mean = {kind: statistics.fmean(run.mean for run in each) for kind, each in runs.items()}
        last = {kind: statistics.fmean(run.last for run in each) for kind, each in runs.items()}
        like_mean = statistics.fmean(run.mean / run.headers for run in runs["like for like"])
        like_last = statistics.fmean(run.last / run.headers for run in runs["like for like"])
        best_mean = min(column[0] for column in its.values())
        best_last = min(column[1] for column in its.values())
        cells = [
            name,
            *(f"{column[0]:,.1f} / {column[1]:,.1f}" for column in its.values()),
            f"{like_mean:,.1f} / {like_last:,.1f}",
            f"{(like_mean / its['oblivious'][0] - 1) * 100:+.1f} %",
            *(f"{mean[kind]:,.1f} / {last[kind]:,.1f}" for kind in ("uet", "mrc")),
            f"{(mean['mrc'] / best_mean - 1) * 100:+.1f} / {(last['mrc'] / best_last - 1) * 100:+.1f} %",
        ]
        yield f"| {' | '.join(cells)} |"


def incast_table(seeds: int, most: int) -> Iterator[str]:
    """Last byte of incasts with MRC, divided by the least time: all packets in sequence on each plane."""
    sizes = [64 << 10, 256 << 10, 1 << 20, 4 << 20]
    yield f"| senders, planes | {' | '.join(f'{size >> 10:,} KiB' for size in sizes)} |"
    yield "|---|" + "---|" * len(sizes)
    for planes in (1, 4):
        for senders in (8, 32, 128, 512):
            cells = []
            for size in sizes:
                if senders * size > most:
                    cells.append("-")
                    continue
                each = [incast_ratio(senders, size, planes, seed) for seed in range(1, seeds + 1)]
                cells.append(f"{statistics.fmean(each):.2f}")
            yield f"| {senders}, {planes} x 100G | {' | '.join(cells)} |"


def incast_ratio(senders: int, size: int, planes: int, seed: int) -> float:
    """One incast: the last byte, divided by the least time."""
    made = sim.Scenario.model_validate(
        {
            "topology": {
                "hosts": 1024,
                "planes": planes,
                "radix": 64,
                "hosts_per_t0": 32,
                "uplinks_per_t0": 32,
            },
            "traffic": [
                {
                    "kind": "incast",
                    "senders": random.Random(seed).sample(range(1, 1024), senders),
                    "receiver": 0,
                    "bytes": size,
                }
            ],
            "seed": seed,
        }
    )
    packet_us = (4096 + 166) * 8e-5
    packets = -(-senders * size // 4096 // planes)
    last = sim.run(made).summary().last_us
    assert last is not None
    return last / ((packets - 1) * packet_us + 4 * (packet_us + 1))


def put(page: str, marker: str, lines: Iterator[str]) -> str:
    """The page with these lines between the marker's comments."""
    before, _, rest = page.partition(f"<!-- {marker} -->\n")
    _, end, after = rest.partition(f"<!-- end of {marker} -->")
    if not end:
        raise SystemExit(f"{PAGE} has no marker {marker}")
    return f"{before}<!-- {marker} -->\n" + "\n".join(lines) + f"\n{end}{after}"


def main() -> None:
    """Prints the tables, or writes them into the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--most", type=int, default=1 << 31, help="largest incast, bytes of all senders")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    tables = {
        "agreement": foreign_table(options.seeds),
        "incasts": incast_table(options.seeds, options.most),
    }
    if not options.write:
        for lines in tables.values():
            print("\n".join(lines) + "\n")
        return
    page = PAGE.read_text(encoding="utf-8")
    for marker, lines in tables.items():
        page = put(page, marker, lines)
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
