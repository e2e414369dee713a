"""Faults in a lab with real packets, under a real controller and agent: what is named, and when. Needs root.

    sudo python benches/lab_faults.py                        50 cuts and silent directions of links
    sudo python benches/lab_faults.py --loss 1% --faults 25 --within 1.5s --probe-rate 5000 --agents 8

The lab is that of ``openmrc lab demo --operate``: eight hosts, two planes, a ring of writes. Links are drawn
from all of the fabric, hosts' cables included; they are cut, silent away from the hosts, and silent towards
them, in turn. Each fault is repaired once it is named, or missed.
"""

import argparse
import json
import random
import statistics
import sys

from faults import whole
from openmrc.demos.director import Fault
from openmrc.demos.lab import operated
from openmrc.demos.lab.scene import fabric
from openmrc.errors import Error
from openmrc.lab import Layout
from openmrc.operate.probing import RATE
from openmrc.operate.score import Score, as_dict
from openmrc.units import parse_share, parse_time


def drawn(count: int, seed: int, loss: float | None) -> list[Fault]:
    """Faults of links, in the order in which they happen."""
    dice = random.Random(seed)
    names = sorted(Layout(fabric()).links)
    found = []
    for number in range(count):
        what = dice.choice(names)
        if loss is not None:
            fault = Fault("link", f"loses {loss:.1%}", 0.0, 0.0, what=what, loss=loss)
        elif number % 3 == 0:
            fault = Fault("link", "cut", 0.0, 0.0, what=what)
        elif number % 3 == 1:
            fault = Fault("link", "silent upwards", 0.0, 0.0, what=what, loss=1.0, direction="up")
        else:
            fault = Fault("link", "silent downwards", 0.0, 0.0, what=what, loss=1.0, direction="down")
        found.append(fault)
    return found


def show(found: Score, within_s: float) -> None:
    """Prints a row for each kind of fault, and what was wrong."""
    print(f"| fault | number | named rightly | within {within_s:g} s | median | longest |")
    print("|---|---|---|---|---|---|")
    titles = list(dict.fromkeys(row.injected.title for row in found.rows))
    for title in [*titles, "**all**"]:
        rows = [row for row in found.rows if title in (row.injected.title, "**all**")]
        times = [row.after_s for row in rows if row.outcome == "right" and row.after_s is not None]
        shown = (f"{statistics.median(times):.2f} s", f"{max(times):.2f} s") if times else ("-", "-")
        soon = sum(time <= within_s for time in times)
        print(f"| {title} | {len(rows)} | {len(times)} | {soon} | {shown[0]} | {shown[1]} |")
    for row in found.rows:
        if row.outcome != "right":
            print(f"{row.outcome}: {row.injected.component}, {row.injected.title}")
    for fault in found.wrong:
        print(f"wrongly named: {fault.kind} {fault.name}, loss {fault.loss:.1%}, {fault.paths} lossy paths")


def main() -> None:
    """Makes the faults and prints what was named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=whole(1, 100_000), default=50, help="how many (default 50)")
    parser.add_argument("--seed", type=int, default=1, help="of the generator (default 1)")
    parser.add_argument("--loss", type=parse_share, help="links lose this share, instead of everything")
    parser.add_argument("--limit", type=parse_time, default=20.0, help="until one is missed (default 20s)")
    parser.add_argument("--within", type=parse_time, default=1.0, help="the target (default 1s)")
    parser.add_argument("--rate", type=float, default=10e6, help="bit/s of each host (default 10e6)")
    parser.add_argument("--probe-rate", type=int, default=RATE, help="probes a second and host")
    parser.add_argument("--agents", type=whole(1, 8), default=1, help="that the hosts share (default 1)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    outcome = operated.run(
        arguments.limit * arguments.faults,
        arguments.rate,
        lambda text: print(text, file=sys.stderr, flush=True),
        faults=drawn(arguments.faults, arguments.seed, arguments.loss),
        probe_rate=arguments.probe_rate,
        agents=arguments.agents,
    )
    if arguments.json:
        print(json.dumps(as_dict(outcome.score), indent=2))
    else:
        show(outcome.score, arguments.within)
    print(f"{outcome.pieces} writes arrived, {outcome.wrong} with wrong data", file=sys.stderr)


if __name__ == "__main__":
    try:
        main()
    except Error as error:
        sys.exit(f"error: {error}")
