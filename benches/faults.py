"""Faults of a fabric in the packet simulator, found by probes: precision, recall, time to name, cost.

Every fault has a network of its own, with all hosts probing: see :mod:`openmrc.operate.drill`. 007 and
NetBouncer get the same counts at the end of each fault. Afterwards comes a quiet time with incasts and hosts
that stall, in which nothing may be named.

    python benches/faults.py                                 200 faults at 1,024 hosts, two at a time
    python benches/faults.py --faults 24 --hosts 64 --seed 3 --json
"""

import argparse
import gc
import json
import math
import signal
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from openmrc.errors import ArgumentError
from openmrc.operate import drill
from openmrc.operate.probed import EVALUATION_S, Cost
from openmrc.operate.probing import RATE

TARGETS = {"precision": 0.99, "recall": 0.99, "right component": 0.98}
MOST_SHARE = 0.001
"""Of bandwidth, for probes."""
MOST_QUIET_S = 900
"""Of a simulation; a longer time is several, each with a seed of its own."""


def one(hosts: int, number: int, seed: int, rate: int) -> drill.Outcome:
    """A drill in a process of its own."""
    # What a drill makes lasts as long as the drill: looking for garbage meanwhile takes a third of the time.
    gc.disable()
    outcome = drill.drill(drill.fabric_of(hosts), number, seed, rate=rate, baselines=True)
    gc.enable()
    gc.collect()
    return outcome


def part_of_quiet(hosts: int, seconds: float, seed: int, rate: int) -> tuple[int, Cost]:
    """How many faults were named in a quiet time, and what probes cost."""
    named, cost = drill.quiet(drill.fabric_of(hosts), seconds, seed, rate=rate)
    return len(named), cost


def percentile(values: Sequence[float], share: float) -> float:
    """The value that this share of them does not exceed; NaN of none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def figures(outcomes: Iterable[drill.Outcome]) -> dict[str, float]:
    """What was found of these faults.

    A fault is found if its component is named or suspected while it lasts. Wrong is what is named or
    suspected and is whole. A fault has the right component if it was named alone.
    """
    outcomes = list(outcomes)
    rows = [row for each in outcomes for row in each.score.rows]
    wrong = sum(len(each.score.wrong) for each in outcomes)
    named = sum(len(each.named) for each in outcomes)
    found = [row for row in rows if row.outcome in ("right", "suspected")]
    right = [row.after_s for row in rows if row.outcome == "right" and row.after_s is not None]
    return {
        "faults": len(rows),
        "precision": 1 - wrong / named if named else math.nan,
        "recall": len(found) / len(rows) if rows else math.nan,
        "right component": len(right) / len(found) if found else math.nan,
        "median s": percentile(right, 0.5),
        "p99 s": percentile(right, 0.99),
        "wrong": wrong,
    }


def baseline(outcomes: Iterable[drill.Outcome], name: str) -> tuple[float, float]:
    """Precision and recall of another localiser on the same counts."""
    triples = [each.baselines[name] for each in outcomes]
    blamed, right, found = (sum(column) for column in zip(*triples, strict=True))
    faults = sum(len(each.score.rows) for each in outcomes)
    return right / blamed if blamed else math.nan, found / faults


def report(
    outcomes: list[drill.Outcome], quiet: list[tuple[int, Cost]], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Everything that is to be told."""
    kinds = {
        kind: figures(each for each in outcomes if each.drawn.kind == kind)
        for kind in drill.KINDS
        if any(each.drawn.kind == kind for each in outcomes)
    }
    return {
        "hosts": arguments.hosts,
        "seed": arguments.seed,
        "probes a second and host": arguments.rate,
        "evaluation s": EVALUATION_S,
        "simulated s": sum(each.simulated_s for each in outcomes),
        "all": figures(outcomes),
        "kinds": kinds,
        "baselines": {name: baseline(outcomes, name) for name in ("007", "NetBouncer")},
        "share of bandwidth": statistics.mean(each.cost.share for each in outcomes),
        "quiet s": arguments.quiet,
        "false alarms": sum(count for count, _ in quiet),
        "lost in quiet": sum(cost.lost for _, cost in quiet),
        "probes in quiet": sum(cost.probes for _, cost in quiet),
        "missed": [
            f"{each.drawn.kind}: {row.injected.component} {row.outcome}"
            for each in outcomes
            for row in each.score.rows
            if row.outcome != "right"
        ],
        "wrongly named": [
            f"{each.drawn.kind}: {fault.kind} {fault.name} for {row.injected.component}"
            for each in outcomes
            for fault in each.score.wrong
            for row in each.score.rows[:1]
        ],
    }


def show(told: dict[str, Any]) -> None:
    """Prints the report as Markdown tables."""
    print("| fault | number | precision | recall | right component | named after: median | p99 |")
    print("|---|---|---|---|---|---|---|")
    for kind, row in {**told["kinds"], "**all**": told["all"]}.items():
        print(
            f"| {kind} | {row['faults']} | {row['precision']:.3f} | {row['recall']:.3f}"
            f" | {row['right component']:.3f} | {row['median s']:.1f} s | {row['p99 s']:.1f} s |"
        )
    print()
    for name, bound in TARGETS.items():
        reached = "met" if told["all"][name] >= bound else "MISSED"
        print(f"{name}: {told['all'][name]:.4f}, at least {bound} wanted: {reached}")
    share = told["share of bandwidth"]
    reached = "met" if share <= MOST_SHARE else "MISSED"
    print(f"probes: {share:.2e} of bandwidth, at most {MOST_SHARE} wanted: {reached}")
    for name, (precision, recall) in told["baselines"].items():
        print(f"{name}: precision {precision:.3f}, recall {recall:.3f}")
    print(
        f"quiet for {told['quiet s']:g} s with incasts and stalls: {told['false alarms']} false alarms,"
        f" {told['lost in quiet']} of {told['probes in quiet']:,} probes not back at the end"
    )
    for name in ("missed", "wrongly named"):
        for line in told[name]:
            print(f"{name}: {line}")


def whole(least: int, most: int) -> Any:
    """Reads a whole number in a range."""

    def read(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} to {most}")
        return int(text)

    return read


def collect(
    arguments: argparse.Namespace, done: dict[int, drill.Outcome], quiet: list[tuple[int, Cost]]
) -> None:
    """Runs the drills and the quiet time.

    Args:
        arguments: Of the command.
        done: Takes the outcome of each drill as it ends, by its number.
        quiet: Takes the parts of the quiet time at the end.
    """
    began = time.monotonic()
    # Ctrl-C at a terminal is for all processes: those that work end at once.
    ends = (signal.SIGINT, signal.SIG_DFL)
    with ProcessPoolExecutor(arguments.jobs, initializer=signal.signal, initargs=ends) as pool:
        tasks = {
            pool.submit(one, arguments.hosts, number, arguments.seed, arguments.rate): number
            for number in range(arguments.faults)
        }
        parts = max(arguments.jobs, math.ceil(arguments.quiet / MOST_QUIET_S)) if arguments.quiet else 0
        calm = [
            pool.submit(
                part_of_quiet, arguments.hosts, arguments.quiet / parts, arguments.seed + part, arguments.rate
            )
            for part in range(parts)
        ]
        try:
            for task in as_completed(tasks):
                outcome = task.result()
                done[tasks[task]] = outcome
                rows = ", ".join(
                    f"{row.outcome}" + (f" after {row.after_s:.1f} s" if row.after_s is not None else "")
                    for row in outcome.score.rows
                )
                took = f"{len(done)}/{arguments.faults} in {time.monotonic() - began:.0f} s"
                print(f"{took}: {outcome.drawn.kind}: {rows}", file=sys.stderr, flush=True)
            for part in as_completed(calm):
                quiet.append(part.result())
                took = f"quiet {len(quiet)}/{parts} in {time.monotonic() - began:.0f} s"
                print(f"{took}: {quiet[-1][0]} false alarms", file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        except BrokenProcessPool:
            time.sleep(0.5)  # If it was interrupted, this one is, too.
            raise


def main() -> None:
    """Draws faults, lets them happen, and prints what was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=whole(1, 100_000), default=200, help="drills (default 200)")
    parser.add_argument("--hosts", type=whole(16, 8192), default=1024, help="hosts (default 1024)")
    parser.add_argument("--seed", type=whole(0, 1 << 32), default=1, help="of the generator (default 1)")
    parser.add_argument("--rate", type=whole(1, 8000), default=RATE, help="probes a second and host")
    parser.add_argument(
        "--quiet", type=whole(0, 86_400), default=60, help="seconds without a fault (default 60)"
    )
    parser.add_argument("--jobs", type=whole(1, 256), default=2, help="processes (default 2)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    began = time.monotonic()
    done: dict[int, drill.Outcome] = {}
    quiet: list[tuple[int, Cost]] = []
    code = 0
    try:
        collect(arguments, done, quiet)
    except (KeyboardInterrupt, BrokenProcessPool) as error:
        code, why = 1, "a process was killed"
        if isinstance(error, KeyboardInterrupt):
            code, why = 130, "interrupted"
        arguments.quiet = 0
        print(f"\n{why} after {len(done)} of {arguments.faults} drills", file=sys.stderr)
        if not done:
            sys.exit(code)
    told = report([done[number] for number in sorted(done)], quiet, arguments)
    told["took s"] = time.monotonic() - began
    if arguments.json:
        print(json.dumps(told, indent=2))
    else:
        show(told)
    if code:
        sys.exit(code)


if __name__ == "__main__":
    try:
        main()
    except ArgumentError as error:
        sys.exit(f"error: {error}")
