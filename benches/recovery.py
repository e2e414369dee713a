"""How quickly MRC leaves a dead link in the lab: cuts and lost ports during a ring of writes. Needs root.

    sudo .venv/bin/python benches/recovery.py --cuts 50

Every second cut is silent: the ports stay up and only packets are lost. Times begin just before the
command that cuts. They end with the last data packet that a T0 received for a path over the link.
"""

import argparse
import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

from openmrc.demos.lab.mrc import taps
from openmrc.demos.lab.recording import Recording
from openmrc.demos.lab.ring import Ring
from openmrc.demos.lab.scene import fabric
from openmrc.fabric import Fabric
from openmrc.lab import Lab
from pauses import Pauses

Result = dict[str, Any]

ALL_HOSTS = ("h0", "h2", "h4", "h6")
"""One host of each T0."""

OBSERVED_NS = 200_000_000
"""Observed time after a fault, and before it."""
MARGIN_NS = 2_000_000
"""Writes posted this long before a fault may still be affected by it."""
CALM_NS = 10_000_000
"""The effect of a fault has ended if the backlog stays at its usual level for this long."""
PAUSE_S = 0.5


def main() -> int:
    """Measures and prints the report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cuts", type=int, default=50)
    parser.add_argument("--ports", type=int, default=10, help="NIC ports lost (default 10)")
    parser.add_argument("--hosts", type=int, default=2, choices=(2, 3, 4), help="hosts (default 2)")
    parser.add_argument("--nic", choices=("srv6", "udp"), default="srv6")
    parser.add_argument("--rate", type=float, default=100e6, help="load of each host, bit/s (default 100e6)")
    parser.add_argument("--options", type=json.loads, default={}, help="device fields, as JSON")
    parser.add_argument("--json", type=Path, help="write the figures of every fault to this file")
    options = parser.parse_args()
    spec = fabric().spec
    lab = Lab.up(Fabric(spec.model_copy(update={"name": "recovery"})))
    try:
        with Pauses() as pauses:
            results = measure(lab, options, pauses)
    finally:
        lab.down()
    report(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


def measure(lab: Lab, options: argparse.Namespace, pauses: Pauses) -> list[Result]:
    """The kind, the target and the figures of every fault."""
    hosts = ALL_HOSTS[: options.hosts]
    ring = Ring(lab, options.rate, hosts, srv6=options.nic == "srv6", **options.options)
    gc.disable()
    results = []
    try:
        ring.start()
        time.sleep(1.0)
        links = [link for link in lab.layout.links.values() if link.lower.node in t0s(lab, hosts)]
        for number in range(options.cuts):
            link = links[number * 5 % len(links)]
            silent = number % 2 == 1
            results.append(one_fault(lab, ring, hosts, link.name, "silent" if silent else "cut"))
        for number in range(options.ports):
            host = hosts[number % len(hosts)]
            link = lab.layout.link(f"{host}:p{number // 2 % 2}")
            results.append(one_fault(lab, ring, hosts, link.name, "port"))
        recording = ring.stop()
        pauses.stop()
        for result in results:
            backlog(recording, result)
            beyond(pauses, result)
        for stream in ring.streams:
            stats = stream.qp.stats()
            print(
                f"{stream.src}: {stats['data_packets']} packets, {stats['retransmits']} retransmitted, "
                f"{stats['spurious']} spurious, {stats['timeouts']} timeouts, "
                f"RTT {stats['srtt_ns'] / 1e3:.0f} us, "
                f"reorder window {stats['reorder_window_ns'] / 1e3:.0f} us"
            )
        print(f"{recording.pieces} writes, {recording.wrong} wrong")
    finally:
        gc.enable()
        ring.close()
    return results


def t0s(lab: Lab, hosts: tuple[str, ...]) -> set[str]:
    """The T0s of the hosts."""
    return {link.upper.node for host in hosts for link in lab.layout.links_of(host)}


def one_fault(lab: Lab, ring: Ring, hosts: tuple[str, ...], target: str, kind: str) -> Result:
    """Causes one fault, measures, repairs it."""
    loss = 1.0 if kind == "silent" else None
    observers = []
    with lab.ready_to_fail(target, loss=loss) as fail:
        time.sleep(PAUSE_S)
        observers = taps(lab, hosts, {target})
        began = fail()
    time.sleep(OBSERVED_NS / 1e9)
    seen = [each for tap in observers for each in tap.seen() if each.time_ns >= began]
    for tap in observers:
        tap.close()
    result = {
        "kind": kind,
        "target": target,
        "began_ns": began,
        "data_ms": last_ms([each.time_ns for each in seen if each.is_data], began),
        "feedback_ms": last_ms([each.time_ns for each in seen if each.is_feedback], began),
        "data_packets": sum(each.is_data for each in seen),
    }
    if kind == "port":
        host, _, port = target.split("--")[0].partition(":p")
        rows = ring.contexts[host].path_stats()
        own = max(row["last_tx_ns"] for row in rows if row["port"] == int(port))
        result["own_ms"] = max(0.0, (own - began) / 1e6)
    lab.repair(target)
    time.sleep(PAUSE_S)
    return result


def last_ms(moments: list[int], began: int) -> float:
    """Milliseconds from ``began`` to the last of ``moments``; 0 if all are earlier."""
    return (max([*moments, began]) - began) / 1e6


def backlog(recording: Recording, result: Result) -> None:
    """Adds the time until goodput was back, and the slowest write.

    Writes that are posted and have not arrived are the backlog. It grows while goodput is below the
    offered load. So goodput is back when the backlog is no longer than its maximum before the fault.
    """
    began = result["began_ns"]
    begin, end = began - OBSERVED_NS, began + OBSERVED_NS
    waits = recording.waits
    changes, slowest = [], 0
    for posted, wait in zip(waits.posted_ns, waits.wait_ns, strict=True):
        if posted + wait >= begin and posted < end:
            changes += [(posted, 1), (posted + wait, -1)]
        if began - MARGIN_NS <= posted < end:
            slowest = max(slowest, wait)
    level = usual = 0
    back, above = began, None
    for when, change in sorted(changes):
        level += change
        if when < began:
            usual = max(usual, level)
        elif level > usual and above is None:
            above = when
            if above - back > CALM_NS:
                break  # A later peak with another cause.
        elif level <= usual and above is not None:
            back, above = when, None
    result["goodput_ms"] = (back - began) / 1e6
    result["slowest_ms"] = slowest / 1e6


def beyond(pauses: Pauses, result: Result) -> None:
    """Adds the times without the pauses of the machine within them."""
    began = result["began_ns"]
    for name in ("data", "goodput"):
        length = result[f"{name}_ms"]
        paused = pauses.within_ns(began, began + round(length * 1e6)) / 1e6
        result[f"{name}_beyond_ms"] = length - paused


def report(results: list[Result]) -> None:
    """Prints medians, 99th percentiles and worst cases."""
    print(f"{'':8}{'':18}{'median':>10}{'p99':>10}{'worst':>10}   ms")
    for kind in ("cut", "silent", "port"):
        rows = [result for result in results if result["kind"] == kind]
        for name in (
            "data_ms",
            "data_beyond_ms",
            "feedback_ms",
            "own_ms",
            "goodput_ms",
            "goodput_beyond_ms",
            "slowest_ms",
        ):
            values = sorted(row[name] for row in rows if name in row)
            if values:
                p99 = values[min(len(values) - 1, round(0.99 * len(values)))]
                median = values[len(values) // 2]
                print(f"{kind:8}{name:18}{median:10.2f}{p99:10.2f}{values[-1]:10.2f}")


if __name__ == "__main__":
    sys.exit(main())
