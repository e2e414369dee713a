"""For which settings that the paper leaves open do the sentences of its figures 16 and 17 hold?

    python benches/open_settings.py [--seeds 3] [--jobs 2] [--keep DIR]

Rows P3 and P6 of docs/published.md with their claims and bounds; a line of a table is one choice of what
the paper does not say.
"""

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults import whole
from openmrc.sim.reproduce import Claim, Row, Verdict, reproduce, rows

HOSTS = 64
UPLINKS = (8, 16, 32, 64)
CLAIMS = 3
"""Of each row: P6's others are about loss."""


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

    def traffic(self, published: dict[str, Any]) -> list[dict[str, Any]]:
        """The row's exchange with this choice."""
        if published["kind"] == "collective":
            ring = {**published, "ranks": self._ring(), "bytes": published["bytes"] // self.rings}
            return [ring] * self.rings
        if self.rounds:
            return [{**published, "kind": "collective", "operation": "all-to-all"}]
        return [published]

    def _ring(self) -> list[int]:
        if self.neighbours == "same T0":
            return list(range(HOSTS))
        size = self.hosts_per_t0
        return [t0 * size + place for place in range(size) for t0 in range(HOSTS // size)]

    def row(self, published: Row) -> Row:
        """The row with this choice and without what depends on loss."""
        claims = [per_host(claim) for claim in published.claims[:CLAIMS]]
        topology = {
            "topology.hosts": min(1024, 128 * self.hosts_per_t0),
            "topology.hosts_per_t0": self.hosts_per_t0,
            "topology.uplinks_per_t0": self.uplinks,
        }
        needed = set().union(*(claim.runs() for claim in claims))
        made = published.model_copy(
            update={
                "base": {**published.base, "traffic": self.traffic(published.base["traffic"][0])},
                "runs": {
                    name: {**topology, **changes}
                    for name, changes in published.runs.items()
                    if name in needed
                },
                "rocev2": {} if self.dcqcn else {"dcqcn": False},
                "claims": claims,
            }
        )
        made._source = published._source
        return made


def per_host(claim: Claim) -> Claim:
    """The claim about several rings together: the bandwidth of a ring is that of each of its hosts."""
    assert claim.ratio is not None
    one, other = (figure.replace(".bus_gbps", ".goodput_per_host_gbps") for figure in claim.ratio)
    return claim.model_copy(update={"ratio": (one, other), "seeds": None})


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


def verdicts(name: str, choice: Choice, seeds: int, keep: Path | None) -> Sequence[Verdict]:
    """The claims of a row with a choice."""
    [published] = rows([name])
    return reproduce(choice.row(published), seeds=seeds, keep=keep).verdicts


def holds(verdict: Verdict) -> bool:
    """Whether the mean over the seeds is within the bounds."""
    low, high = verdict.bounds
    return verdict.ours is not None and (low or 0.0) <= verdict.ours <= (high or verdict.ours)


def cell(verdict: Verdict) -> str:
    """The mean, bold within the bounds, and the range over the seeds."""
    mark = "**" if holds(verdict) else ""
    return f"{mark}{verdict.ours:.3f}{mark} ({min(verdict.values):.2f} to {max(verdict.values):.2f})"


def show(title: str, told: list[tuple[Choice, Sequence[Verdict]]]) -> None:
    """Prints a table."""
    print(f"## {title}\n")
    claims = [f"{each.claim.says}, {_bounds(each)}" for each in told[0][1]]
    print(f"| uplinks | hosts a T0 | exchange | RoCE | {' | '.join(claims)} | hold |")
    print("|---" * (5 + len(claims)) + "|")
    for choice, found in told:
        shape = "in rounds" if choice.rounds else "at once"
        if "all-reduce" in title:
            shape = f"{choice.rings} ring{'s' * (choice.rings > 1)}, neighbours under {choice.neighbours}"
        roce = "DCQCN" if choice.dcqcn else "PFC alone"
        print(
            f"| {choice.uplinks} | {choice.hosts_per_t0} | {shape} | {roce} | {' | '.join(map(cell, found))}"
            f" | {sum(map(holds, found))} of {len(found)} |"
        )
    print()


def _bounds(verdict: Verdict) -> str:
    low, high = verdict.bounds
    return f"from {low:g}" if high is None else f"{low:g} to {high:g}"


def main() -> None:
    """Runs everything and prints the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seeds", type=whole(1, 1000), default=3, help="of the generator, from 1 on (default 3)"
    )
    parser.add_argument("--jobs", type=whole(1, 256), default=2, help="processes (default 2)")
    parser.add_argument("--keep", type=Path, help="a directory: finished runs are not repeated")
    arguments = parser.parse_args()
    began = time.monotonic()
    tables = {
        "Figure 16: all-reduce of 64 MiB": ("P3", rings()),
        "Figure 17: all-to-all": ("P6", all_to_alls()),
    }
    done = 0
    # Ctrl-C at a terminal is for all processes: those that work end at once.
    with ProcessPoolExecutor(
        arguments.jobs, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_DFL)
    ) as pool:
        tasks = {
            title: [pool.submit(verdicts, row, choice, arguments.seeds, arguments.keep) for choice in choices]
            for title, (row, choices) in tables.items()
        }
        for title, (_, choices) in tables.items():
            told = []
            for choice, task in zip(choices, tasks[title], strict=True):
                told.append((choice, task.result()))
                done += 1
                print(f"{done} choices in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
            show(title, told)


if __name__ == "__main__":
    try:
        main()
    except (KeyboardInterrupt, BrokenProcessPool):
        sys.exit(130)
