"""A T1 of a lab is drained under load: is every write in time, and is "empty" right by the switch's counters?

    sudo python benches/drain.py                 20 drains, each T1 of the lab in turn

The lab is that of ``openmrc lab demo --operate``: eight hosts, two planes, a ring of writes; no probes, so
that an empty switch forwards nothing. Writes are timed from when they are posted to when their data was
checked. Those of a drain, from the request until half a second after "empty", are compared with those of as
long a time just before it.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from faults import whole
from openmrc.demos.lab import operated
from openmrc.errors import DeviceError, Error
from openmrc.lab import Lab, counters
from openmrc.operate.client import Client
from openmrc.operate.model import Action, Request

QUIET_S = 0.5
"""After "empty": what the switch forwards in this time counts."""
LATE_NS = 5_000_000
MOST_S = 30.0
"""Until a switch is empty, or used again."""


@dataclass(frozen=True)
class Drained:
    """A drain; times by the monotonic clock, ns."""

    began: int
    empty: int
    ended: int
    forwarded: int
    """Packets of the switch in :data:`QUIET_S` after "empty"."""


def _ask(client: Client, action: Action, what: str) -> None:
    outcome = client.act(Request(action=action, what=what, why="to measure", who="bench"))
    if not outcome.done:
        raise DeviceError(f"{action} {what}: {outcome.reason}")


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + MOST_S
    while not condition():
        if time.monotonic() > end:
            raise DeviceError(f"not within {MOST_S:g} s")
        time.sleep(0.01)


def _forwarded(lab: Lab, switch: str) -> int:
    return sum(each.tx_packets for each in counters.read(lab.namespace(switch)).values())


def drained(lab: Lab, client: Client, switch: str) -> Drained:
    """Drains a switch, looks at its counters, and takes it back."""
    used = _forwarded(lab, switch)
    _until(lambda: _forwarded(lab, switch) > used + 100)
    began = time.monotonic_ns()
    _ask(client, Action.DRAIN, switch)
    _until(lambda: all(each.state == "empty" for each in client.status().drains))
    empty, before = time.monotonic_ns(), _forwarded(lab, switch)
    time.sleep(QUIET_S)
    found = Drained(began, empty, time.monotonic_ns(), _forwarded(lab, switch) - before)
    _ask(client, Action.UNDRAIN, switch)
    _until(lambda: not client.status().drains)
    time.sleep(2 * (found.ended - began) / 1e9)
    return found


def main() -> None:
    """Drains and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--drains", type=whole(1, 1000), default=20, help="how many (default 20)")
    parser.add_argument("--rate", type=float, default=10e6, help="bit/s of each host (default 10e6)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()

    def log(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    with operated.operation(given.rate, log, probe_rate=0) as (lab, ring, client):
        switches = sorted(str(each) for each in lab.fabric.switches() if each.tier == 1)
        time.sleep(3.0)
        found = [drained(lab, client, switches[n % len(switches)]) for n in range(given.drains)]
        recording = ring.stop()
    waits = list(zip(recording.waits.posted_ns, recording.waits.wait_ns, strict=True))

    def within(begin: int, end: int) -> list[int]:
        return [wait for posted, wait in waits if begin <= posted < end]

    windows = {
        "drained": [within(each.began, each.ended) for each in found],
        "before": [within(2 * each.began - each.ended, each.began) for each in found],
    }
    result: dict[str, float] = {"drains": len(found), "wrong": recording.wrong}
    for name, of_drains in windows.items():
        longest = [max(each) / 1e6 for each in of_drains]
        result |= {
            f"writes, {name}": sum(map(len, of_drains)),
            f"later than 5 ms, {name}": sum(wait > LATE_NS for each in of_drains for wait in each),
            f"longest of a drain, ms, {name}: median": statistics.median(longest),
            f"longest of all, ms, {name}": max(longest),
        }
    result |= {
        "until empty, s, median": statistics.median((each.empty - each.began) / 1e9 for each in found),
        "until empty, s, longest": max((each.empty - each.began) / 1e9 for each in found),
        "packets forwarded when empty": sum(each.forwarded for each in found),
    }
    if given.json:
        print(json.dumps(result, indent=2))
        return
    for what, figure in result.items():
        print(f"{what}: {figure:,}" if isinstance(figure, int) else f"{what}: {figure:.2f}")


if __name__ == "__main__":
    try:
        main()
    except Error as error:
        sys.exit(f"error: {error}")
