"""Measures the memory of runs beside its estimate; as a program it prints the table of docs/simulator.md.

Each run is a process of its own, as memory that one run has freed would not count for the next.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

Scenario = dict[str, Any]


def permutation(hosts: int, planes: int, radix: int, size: int, **changes: Any) -> Scenario:
    topology = {"hosts": hosts, "planes": planes, "radix": radix}
    return {"topology": topology, "traffic": [{"kind": "permutation", "bytes": size}], **changes}


def others(pattern: dict[str, Any], **changes: Any) -> Scenario:
    return {"topology": {"hosts": 256, "planes": 4, "radix": 32}, "traffic": [pattern], **changes}


def all_to_all(ranks: int, size: int) -> dict[str, Any]:
    return {"kind": "all-to-all", "ranks": list(range(ranks)), "bytes": size}


QUICK: dict[str, Scenario] = {
    "4,096 hosts, 8 planes, permutation of 64 KiB": permutation(4096, 8, 512, 1 << 16),
    "4,096 hosts, 8 planes, permutation of 1 MiB": permutation(4096, 8, 512, 1 << 20),
    "1,024 hosts, RoCEv2 with 8 queue pairs, 1 MiB": permutation(
        1024, 4, 64, 1 << 20, transport={"kind": "rocev2", "qps": 8}
    ),
    "2,048 hosts, real queues, 1 MiB": permutation(2048, 4, 64, 1 << 20, network={"switch": {"exact": True}}),
    "256 hosts, random traffic, load 0.5, 1 ms": others(
        {"kind": "random", "load": 0.5, "sizes": [[4096, 0.5], [262144, 1]], "duration_us": 1000}
    ),
    "128 hosts, all-to-all of 64 KiB": others(all_to_all(128, 1 << 16)),
    "256 hosts, all-to-all, eight steps at once, 16 KiB": others(
        {"kind": "collective", "operation": "all-to-all", "bytes": 1 << 14}
    ),
    "1,024 hosts, four permutations of 512 KiB at once": {
        "topology": {"hosts": 1024, "planes": 4, "radix": 64},
        "traffic": [{"kind": "permutation", "bytes": 1 << 19}] * 4,
    },
    "1,024 hosts, eight permutations of 256 KiB, one after the other": {
        "topology": {"hosts": 1024, "planes": 4, "radix": 64},
        "traffic": [{"kind": "permutation", "bytes": 1 << 18, "start_us": 60.0 * i} for i in range(8)],
    },
    "512 hosts, RoCEv2, random traffic of 64 KiB, load 0.4": {
        "topology": {"hosts": 512, "planes": 2, "radix": 64},
        "traffic": [{"kind": "random", "load": 0.4, "sizes": [[65536, 1]], "duration_us": 1000}],
        "transport": {"kind": "rocev2"},
    },
    "1,024 hosts, every link sampled each 0.1 us": permutation(
        1024, 4, 64, 1 << 20, record={"series": True, "interval_us": 0.1, "links": "all"}
    ),
    "256 hosts, ring all-reduce of 16 MiB": others(
        {"kind": "collective", "operation": "ring-all-reduce", "bytes": 1 << 24}
    ),
}
"""Shapes that take some seconds together."""

LONG: dict[str, Scenario] = {
    "1,024 hosts, UET, everything recorded": permutation(
        1024,
        8,
        64,
        1 << 20,
        transport={"kind": "uet"},
        record={"series": True, "events": True, "ports": True, "evs": True},
    ),
    "1,024 hosts that are software, 8 planes, 4 MiB": permutation(
        1024, 8, 64, 1 << 22, network={"software": {}}
    ),
    "512 hosts, RoCEv2 with 4 queue pairs, random traffic of 8 KiB": {
        "topology": {"hosts": 512, "planes": 2, "radix": 64},
        "traffic": [{"kind": "random", "load": 0.4, "sizes": [[8192, 1]], "duration_us": 500}],
        "transport": {"kind": "rocev2", "qps": 4},
    },
    "2,048 hosts, 4 planes, UET, 1 MiB": permutation(2048, 4, 64, 1 << 20, transport={"kind": "uet"}),
    "2,048 hosts, 4 planes, adaptive, 1 MiB": permutation(
        2048, 4, 64, 1 << 20, transport={"kind": "adaptive"}
    ),
    "2,048 hosts, 4 planes, RoCEv2, 1 MiB": permutation(2048, 4, 64, 1 << 20, transport={"kind": "rocev2"}),
    "256 hosts, two training steps": others(
        {"kind": "training", "data": 8, "tensor": 8, "pipeline": 4, "steps": 2, "tensor_bytes": 1 << 20}
    ),
    "2,048 hosts, everything recorded": permutation(
        2048, 4, 64, 1 << 18, record={"series": True, "events": True, "ports": True, "evs": True}
    ),
    "4,096 hosts, 8 planes, permutation of 4 MiB": permutation(4096, 8, 512, 1 << 22),
    "16,384 hosts, 8 planes, 64 KiB": permutation(16_384, 8, 512, 1 << 16),
    "16,384 hosts, 8 planes, 1 MiB": permutation(16_384, 8, 512, 1 << 20),
    "16,384 hosts, 1 plane, 1 MiB": permutation(16_384, 1, 512, 1 << 20),
    "16,384 hosts, 8 planes, 4 MiB": permutation(16_384, 8, 512, 1 << 22),
    "256 hosts, all-to-all of 4 KiB": others(all_to_all(256, 1 << 12)),
    "512 hosts, 1 plane, ring all-reduce of 8 MiB": {
        "topology": {"hosts": 512, "planes": 1, "radix": 64},
        "traffic": [{"kind": "collective", "operation": "ring-all-reduce", "bytes": 1 << 23}],
    },
    "131,072 hosts, 8 planes, 1 MiB": permutation(131_072, 8, 512, 1 << 20),
}
"""Shapes that take minutes, or gigabytes."""


def measure(scenario: Scenario) -> tuple[int, int]:
    """Bytes that the run is estimated to take, and the most that it has taken beyond those of the program."""
    command = [sys.executable, str(Path(__file__)), json.dumps(scenario)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    estimated, taken = json.loads(done.stdout)
    return estimated, taken


def _resident(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


def _run(scenario: Scenario) -> None:
    from openmrc import sim
    from openmrc.sim.check import check

    parsed = sim.Scenario.model_validate(scenario)
    before = _resident("VmRSS:")
    estimated = sum(check(parsed).memory().values())
    sim.run(parsed).to_dict()
    print(json.dumps([estimated, _resident("VmHWM:") - before]))


def _table() -> None:
    print("| run | estimated | measured | |\n|---|---|---|---|")
    for name, scenario in {**QUICK, **LONG}.items():
        estimated, taken = measure(scenario)
        off = (estimated / taken - 1) * 100
        print(f"| {name} | {estimated / 1e6:,.0f} MB | {taken / 1e6:,.0f} MB | {off:+.0f} % |", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _run(json.loads(sys.argv[1]))
    else:
        _table()
