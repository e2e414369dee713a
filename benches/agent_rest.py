"""What an agent takes at rest: processor time and memory, with real probes in a lab. Needs root.

    sudo python benches/agent_rest.py            30 s, 500 probes a second of each host

The lab is that of ``openmrc lab demo --operate``, with an agent for each of its eight hosts: eight hosts that
share a machine, where one of a cluster has its own. Each agent reads the devices of its own host.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import processes
from faults import whole
from openmrc.demos.lab import operated
from openmrc.demos.lab.scene import RING
from openmrc.errors import Error
from openmrc.operate.probing import RATE


def agents() -> list[int]:
    """The agents' process numbers."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue
        if b"openmrc" in line and b"agent" in line:
            found.append(int(entry.name))
    return found


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=whole(1, 3600), default=30, help="default 30")
    parser.add_argument("--probe-rate", type=int, default=RATE, help="probes a second and host")
    parser.add_argument("--traffic", type=float, default=1e6, help="bit/s of each host (default 1e6)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()

    def log(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    with operated.operation(given.traffic, log, probe_rate=given.probe_rate, agents=len(RING)):
        time.sleep(5.0)
        found = agents()
        began, before = time.monotonic(), [processes.cpu_s(pid) for pid in found]
        time.sleep(given.seconds)
        took = time.monotonic() - began
        shares = [(processes.cpu_s(pid) - since) / took for pid, since in zip(found, before, strict=True)]
        memory = [processes.memory(pid) / 1e6 for pid in found]
    result = {
        "agents": len(found),
        "of a core, %, median": 100 * statistics.median(shares),
        "of a core, %, most": 100 * max(shares),
        "memory, MB, most": max(memory),
    }
    if given.json:
        print(json.dumps(result, indent=2))
        return
    for what, figure in result.items():
        print(f"{what}: {figure:.3g}")


if __name__ == "__main__":
    try:
        main()
    except Error as error:
        sys.exit(f"error: {error}")
