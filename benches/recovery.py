"""How quickly MRC leaves a dead link in the lab: many cuts and lost ports under a ring of writes. Needs root.

    sudo .venv/bin/python benches/recovery.py --cuts 50

Every other cut is silent: the ports stay up and nothing but the loss tells. Times are from just before the
command to cut until the last data packet was sent on a path over the link, as the T0 saw it come in.
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

Result = dict[str, Any]

ALL_HOSTS = ("h0", "h2", "h4", "h6")
"""Under a T0 each."""

LOOK_NS = 200_000_000
"""After a fault."""
MARGIN_NS = 2_000_000
"""What was posted so short before may still meet the fault."""
CALM_NS = 10_000_000
"""For so long all has to go on as before, to be over."""
PAUSE_S = 0.5


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cuts", type=int, default=50)
    parser.add_argument("--ports", type=int, default=10, help="NIC ports lost (default 10)")
    parser.add_argument("--hosts", type=int, default=2, choices=(2, 3, 4), help="in the ring (default 2)")
    parser.add_argument("--nic", choices=("srv6", "udp"), default="srv6")
    parser.add_argument("--rate", type=float, default=100e6, help="of each host, bit/s (default 100e6)")
    parser.add_argument("--options", type=json.loads, default={}, help="other fields of the devices, as JSON")
    parser.add_argument("--json", type=Path, help="every single figure")
    options = parser.parse_args()
    spec = fabric().spec
    lab = Lab.up(Fabric(spec.model_copy(update={"name": "recovery"})))
    try:
        results = measure(lab, options)
    finally:
        lab.down()
    report(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


def measure(lab: Lab, options: argparse.Namespace) -> list[Result]:
    """Every fault: what it was, and its figures."""
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
            results.append(one(lab, ring, hosts, link.name, "silent" if silent else "cut"))
        for number in range(options.ports):
            host = hosts[number % len(hosts)]
            results.append(one(lab, ring, hosts, lab.layout.link(f"{host}:p{number // 2 % 2}").name, "port"))
        recording = ring.stop()
        for result in results:
            backlog(recording, result)
        for stream in ring.streams:
            stats = stream.qp.stats()
            print(
                f"{stream.src}: {stats['data_packets']} packets, {stats['retransmits']} again, "
                f"{stats['spurious']} for nothing, {stats['timeouts']} timeouts, "
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


def one(lab: Lab, ring: Ring, hosts: tuple[str, ...], what: str, kind: str) -> Result:
    """One fault, and its repair."""
    loss = 1.0 if kind == "silent" else None
    watching = []
    with lab.ready_to_fail(what, loss=loss) as fail:
        time.sleep(PAUSE_S)
        watching = taps(lab, hosts, {what})
        began = fail()
    time.sleep(LOOK_NS / 1e9)
    seen = [each for tap in watching for each in tap.seen() if each.time_ns >= began]
    for tap in watching:
        tap.close()
    result = {
        "kind": kind,
        "what": what,
        "began_ns": began,
        "data_ms": last_ms([each.time_ns for each in seen if each.is_data], began),
        "feedback_ms": last_ms([each.time_ns for each in seen if each.is_feedback], began),
        "data_packets": sum(each.is_data for each in seen),
    }
    if kind == "port":
        host, _, port = what.split("--")[0].partition(":p")
        rows = ring.contexts[host].path_stats()
        own = max(row["last_tx_ns"] for row in rows if row["port"] == int(port))
        result["own_ms"] = max(0.0, (own - began) / 1e6)
    lab.repair(what)
    time.sleep(PAUSE_S)
    return result


def last_ms(moments: list[int], began: int) -> float:
    """Milliseconds from a moment to the last of others."""
    return (max([*moments, began]) - began) / 1e6


def backlog(recording: Recording, result: Result) -> None:
    """Adds when all went on as before.

    What is posted and has not arrived piles up as long as goodput is below what is offered. So goodput is
    back once there is no more of it than there was at worst in the same time before the fault.
    """
    began = result["began_ns"]
    begin, end = began - LOOK_NS, began + LOOK_NS
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
                break  # Something else, long after.
        elif level <= usual and above is not None:
            back, above = when, None
    result["goodput_ms"] = (back - began) / 1e6
    result["slowest_ms"] = slowest / 1e6


def report(results: list[Result]) -> None:
    """Prints medians, 99th percentiles and worst cases."""
    print(f"{'':8}{'':16}{'median':>10}{'p99':>10}{'worst':>10}   ms")
    for kind in ("cut", "silent", "port"):
        rows = [result for result in results if result["kind"] == kind]
        for name in ("data_ms", "feedback_ms", "own_ms", "goodput_ms", "slowest_ms"):
            values = sorted(row[name] for row in rows if name in row)
            if values:
                p99 = values[min(len(values) - 1, round(0.99 * len(values)))]
                median = values[len(values) // 2]
                print(f"{kind:8}{name:16}{median:10.2f}{p99:10.2f}{values[-1]:10.2f}")


if __name__ == "__main__":
    sys.exit(main())
