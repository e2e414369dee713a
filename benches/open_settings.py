"""For which settings that the paper leaves open do the sentences of its figures 16 and 17 hold?

    python benches/open_settings.py [--seeds 1] [--jobs 2] [--json FILE]

64 hosts of testbed C, as in rows P3 and P6 of docs/published.md, with their bounds: MRC on four planes of
100 Gb/s and RoCEv2 on one of 400 Gb/s. A row of a table is one choice of what the paper does not say.
"""

import argparse
import itertools
import json
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from openmrc import sim
from openmrc.sim.reproduce import Row, rows

HOSTS = 64
ALL_REDUCE = 64 << 20
SIZES = {"small": 16 << 10, "large": 512 << 10}
"""Bytes of a pair in an all-to-all."""
UPLINKS = (8, 16, 32, 64)


class Sentence(NamedTuple):
    """A ratio of two runs' goodput, and its bounds."""

    says: str
    over: tuple[str, str]
    low: float
    high: float

    def holds(self, value: float) -> bool:
        """Whether the mean over the seeds is within the bounds."""
        return self.low <= value <= self.high


RING = (
    Sentence("MRC over 16 QPs, from 1", ("mrc", "rocev2-16"), 1.0, 9.0),
    Sentence("one QP over the line, 0.35 to 0.65", ("rocev2-1", "line"), 0.35, 0.65),
    Sentence("16 QPs over 8, 0.95 to 1.15", ("rocev2-16", "rocev2-8"), 0.95, 1.15),
)
ALL_TO_ALL = (
    Sentence("small: MRC over one QP, from 1", ("mrc-small", "rocev2-1-small"), 1.0, 9.0),
    Sentence("large: MRC over one QP, from 1", ("mrc-large", "rocev2-1-large"), 1.0, 9.0),
    Sentence("large: 16 QPs over one, 0.7 to 0.98", ("rocev2-16-large", "rocev2-1-large"), 0.7, 0.98),
)


@dataclass(frozen=True)
class Choice:
    """What the paper leaves open."""

    uplinks: int
    hosts_per_t0: int = 8
    neighbours: str = "other T0s"
    """Where the next rank of the ring is, if it can be."""
    rings: int = 1
    rounds: bool = False
    """The all-to-all in rounds of one pair each; else everything at once."""
    dcqcn: bool = True
    """Else PFC alone."""

    def ranks(self) -> list[int]:
        """The hosts in the order of the ring."""
        size = self.hosts_per_t0
        if self.neighbours == "same T0":
            return list(range(HOSTS))
        return [t0 * size + place for place in range(size) for t0 in range(HOSTS // size)]

    def traffic(self, size: int | None) -> list[dict[str, Any]]:
        """An all-reduce over rings side by side, or an all-to-all with this size a pair."""
        if size is None:
            ring = {"kind": "collective", "operation": "ring-all-reduce", "ranks": self.ranks()}
            return [{**ring, "bytes": ALL_REDUCE // self.rings}] * self.rings
        ranks = list(range(HOSTS))
        if self.rounds:
            return [{"kind": "collective", "operation": "all-to-all", "ranks": ranks, "bytes": size}]
        return [{"kind": "all-to-all", "bytes": size, "ranks": ranks}]


def rings() -> list[Choice]:
    """The choices for figure 16: one thing differs from the first."""
    others: list[dict[str, Any]] = [{}, {"neighbours": "same T0"}, {"rings": 4}, {"dcqcn": False}]
    found = [Choice(uplinks, **other) for other in others for uplinks in UPLINKS]
    found += [Choice(uplinks, rings=4) for uplinks in (9, 10, 12)]
    found += [Choice(uplinks, rings=8) for uplinks in (8, 9, 10, 12)]
    return [*found, *(Choice(uplinks, hosts_per_t0=16) for uplinks in (16, 64))]


def all_to_alls() -> list[Choice]:
    """The choices for figure 17."""
    others: list[dict[str, Any]] = [{}, {"rounds": True}, {"dcqcn": False}]
    found = [Choice(uplinks, **other) for other in others for uplinks in UPLINKS]
    return [*found, *(Choice(uplinks, hosts_per_t0=16) for uplinks in (16, 64))]


def goodput(choice: Choice, run: str, seed: int) -> float:
    """Gb/s of one run: of an all-reduce its bandwidth as nccl-tests counts it, over all rings."""
    transport, _, size = run.partition("-") if run.startswith("mrc") else run.rpartition("-")
    if run.startswith("rocev2") and size not in SIZES:
        transport, size = run, ""
    qps = transport.partition("-")[2]
    [p3] = rows(["P3"])
    base = {
        **p3.base,
        "topology": {
            "hosts": min(1024, 128 * choice.hosts_per_t0),
            "planes": 4,
            "radix": 128,
            "hosts_per_t0": choice.hosts_per_t0,
            "uplinks_per_t0": choice.uplinks,
        },
        "traffic": choice.traffic(SIZES.get(size)),
        "limit_us": 100_000_000,
    }
    fields = {"transport": f"rocev2:qps={qps}:planes=1"} if qps else {}
    settings = {} if choice.dcqcn else {"dcqcn": False}
    row: Row = p3.model_copy(
        update={"base": base, "testbed": None, "runs": {run: fields}, "rocev2": settings, "claims": []}
    )
    row._source = p3._source
    results = sim.run(row.scenarios(seed=seed)[run])
    if size:
        bits = results.summary().goodput_bps
    else:
        bits = sum(each.busbw_bps or 0.0 for each in results.collectives)
    return (bits or 0.0) / 1e9


class Told(NamedTuple):
    """A choice, and the mean of each sentence's ratio over the seeds."""

    choice: Choice
    values: tuple[float, ...]


def tell(choice: Choice, sentences: tuple[Sentence, ...], found: dict[str, float], seeds: int) -> Told:
    """The sentences' ratios with this choice."""

    def of(run: str, seed: int) -> float:
        return 400.0 if run == "line" else found[_key(choice, run, seed)]

    values = (
        statistics.fmean(of(each.over[0], seed) / of(each.over[1], seed) for seed in range(1, seeds + 1))
        for each in sentences
    )
    return Told(choice, tuple(values))


def _key(choice: Choice, run: str, seed: int) -> str:
    """What a run depends on: MRC's has no DCQCN."""
    fields = asdict(choice)
    if run.startswith("mrc"):
        del fields["dcqcn"]
    return json.dumps([fields, run, seed])


def _kept(file: Path | None) -> dict[str, float]:
    lines = file.read_text().splitlines() if file and file.exists() else []
    return dict(json.loads(line) for line in lines)


def show(title: str, sentences: tuple[Sentence, ...], told: list[Told]) -> None:
    """Prints a table; values within their bounds are bold."""
    print(f"### {title}\n")
    print(
        "| uplinks | hosts a T0 | exchange | RoCE |",
        *(f" {each.says} |" for each in sentences),
        " hold |",
        sep="",
    )
    print("|---" * (5 + len(sentences)) + "|")
    for choice, values in told:
        shape = "in rounds" if choice.rounds else "at once"
        if sentences is RING:
            shape = f"{choice.rings} ring{'s' * (choice.rings > 1)}, neighbours under {choice.neighbours}"
        held = [each.holds(value) for each, value in zip(sentences, values, strict=True)]
        cells = [
            f"**{value:.3f}**" if holds else f"{value:.3f}" for value, holds in zip(values, held, strict=True)
        ]
        roce = "DCQCN" if choice.dcqcn else "PFC alone"
        print(
            f"| {choice.uplinks} | {choice.hosts_per_t0} | {shape} | {roce} | {' | '.join(cells)}"
            f" | {sum(held)} of {len(held)} |"
        )
    print()


def main() -> None:
    """Runs everything and prints the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=1, help="of the generator, from 1 on (default 1)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--json", type=Path, help="also write the values to this file")
    parser.add_argument("--keep", type=Path, help="a file with what is known: finished runs are not repeated")
    arguments = parser.parse_args()
    plan = [(each, RING) for each in rings()] + [(each, ALL_TO_ALL) for each in all_to_alls()]
    tasks: dict[str, tuple[Choice, str, int]] = {}
    for (choice, sentences), seed in itertools.product(plan, range(1, arguments.seeds + 1)):
        for run in {run for each in sentences for run in each.over if run != "line"}:
            tasks[_key(choice, run, seed)] = choice, run, seed
    began, found = time.monotonic(), _kept(arguments.keep)
    tasks = {key: task for key, task in tasks.items() if key not in found}
    with ProcessPoolExecutor(arguments.jobs) as pool:
        pending = {pool.submit(goodput, *task): key for key, task in tasks.items()}
        for done in as_completed(pending):
            found[pending[done]] = done.result()
            if arguments.keep:
                with arguments.keep.open("a") as file:
                    print(json.dumps([pending[done], done.result()]), file=file)
            print(
                f"{len(found)} known, {len(tasks)} to do, in {time.monotonic() - began:.0f} s",
                file=sys.stderr,
                flush=True,
            )
    told = {
        title: (sentences, [tell(choice, sentences, found, arguments.seeds) for choice in choices])
        for title, sentences, choices in (
            ("Figure 16: all-reduce of 64 MiB", RING, rings()),
            ("Figure 17: all-to-all", ALL_TO_ALL, all_to_alls()),
        )
    }
    for title, (sentences, each) in told.items():
        show(title, sentences, each)
    if arguments.json:
        plain = {
            title: [{**asdict(one.choice), "values": one.values} for one in each]
            for title, (_, each) in told.items()
        }
        arguments.json.write_text(json.dumps(plain, indent=1))


if __name__ == "__main__":
    main()
