"""Transfers among the hosts of a lab whose soft switches mark and trim: with which window do they go best?

Root only. The switches have ports of a fixed rate, so that queues form in the network.

    python benches/shapes.py [--rate 100M] [--mib 2] [--repetitions 3]
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openmrc.connect import connect, listen
from openmrc.fabric import Fabric
from openmrc.lab import Lab, entered
from openmrc.verbs import WcStatus

MESSAGE = 1 << 18
BASE_RTT_US = 2000.0
CONTROLS: dict[str, dict[str, Any]] = {"fixed": {"fixed_window": 1 << 20}, "nscc": {"fixed_window": 0}}


def shapes(hosts: Sequence[str]) -> dict[str, list[tuple[str, str]]]:
    """Senders and receivers of each shape; under different switches where they can be."""
    first, others = hosts[0], hosts[1:]
    eight = hosts[:8]
    return {
        "pair": [(first, others[0])],
        "1-to-8": [(first, to) for to in others[:8]],
        "8-to-1": [(sender, first) for sender in others[:8]],
        "15-to-1": [(sender, first) for sender in others],
        "all-to-all of 8": [(a, b) for a in eight for b in eight if a != b],
    }


@contextmanager
def soft_lab(rate: int) -> Iterator[Lab]:
    """A lab of 16 hosts and two planes, all of whose switches are soft."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "fabric.yaml"
        file.write_text(
            "name: shapes\nhosts: 16\nnic: {rate: 200G}\nplanes: 2\n"
            "switch: {radix: 8}\ntiers: 2\nparallel_links: 1\n"
        )
        lab = Lab.up(Fabric.load(file))
        try:
            for switch in lab.layout.switches:
                lab.start_soft_switch(switch, rate=rate, base_rtt_us=BASE_RTT_US)
            yield lab
        finally:
            lab.down()


def flow(stack: ExitStack, sender: Any, receiver: Any) -> SimpleNamespace:
    """A queue pair from one context to another."""
    inbox, outbox = bytearray(MESSAGE), bytearray(MESSAGE)
    theirs = receiver.alloc_pd()
    mine = sender.alloc_pd()
    region = mine.register(outbox)
    done = sender.create_cq()
    one, two = mine.create_qp(done), theirs.create_qp(receiver.create_cq())
    with listen("localhost", port=0, allow_addresses=["::/0"]) as listener, ThreadPoolExecutor() as pool:
        accepted = pool.submit(listener.accept, two, buffers=[theirs.register(inbox)])
        peer = stack.enter_context(connect("localhost", listener.address[1], one, allow_addresses=["::/0"]))
        stack.enter_context(accepted.result())
    return SimpleNamespace(qp=one, done=done, region=region, remote=peer.buffers[0], keep=(two, inbox))


def measure(lab: Lab, pairs: Sequence[tuple[str, str]], messages: int, **options: Any) -> dict[str, float]:
    """Runs one shape; goodput, shares and counters."""
    with ExitStack() as stack:
        contexts = {}
        for host in dict.fromkeys(host for pair in pairs for host in pair):
            with entered(lab.namespace(host)):
                device = lab.device(host, network_trims=True, base_rtt_us=BASE_RTT_US, **options)
                contexts[host] = stack.enter_context(device.open())
        flows = [flow(stack, contexts[sender], contexts[receiver]) for sender, receiver in pairs]
        start = time.monotonic()
        for _ in range(messages):
            for each in flows:
                each.qp.write(each.region, each.remote)
        left = [messages] * len(flows)
        shares: list[int] | None = None
        while any(left):
            time.sleep(0.0005)
            for number, each in enumerate(flows):
                for completion in each.done.poll(64):
                    if completion.status is not WcStatus.SUCCESS:
                        raise RuntimeError(f"a write failed: {completion}")
                    left[number] -= 1
            if shares is None and not all(left):
                shares = [messages - each for each in left]
            if time.monotonic() - start > 120:
                raise RuntimeError(f"not done after 120 s: {left}")
        seconds = time.monotonic() - start
        stats = [each.qp.stats() for each in flows]
        even = statistics.mean(shares or [1])
        packets = max(1, sum(s["data_packets"] for s in stats))
        return {
            "gbps": len(flows) * messages * MESSAGE * 8e-9 / seconds,
            "least_share": min(shares or [0]) / even,
            "most_share": max(shares or [0]) / even,
            "retransmitted": sum(s["retransmits"] for s in stats) / packets,
            "trimmed": float(sum(s["trimmed"] for s in stats)),
            "condemned": float(sum(s["condemned"] for s in stats)),
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures every shape with both controls, and prints a table or JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=int, default=100_000_000, help="of every switch port, bit/s")
    parser.add_argument("--messages", type=int, default=8, help=f"of {MESSAGE} bytes for each flow")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    results: dict[tuple[str, str], list[dict[str, float]]] = {}
    with soft_lab(chosen.rate) as lab:
        hosts = [f"h{4 * (n % 4) + n // 4}" for n in range(16)]
        for _ in range(chosen.repetitions):
            for name, pairs in shapes(hosts).items():
                for control, options in CONTROLS.items():
                    window = {"link_rate_bps": 2 * chosen.rate, **options}
                    result = measure(lab, pairs, chosen.messages, **window)
                    results.setdefault((name, control), []).append(result)
    rows = [
        {"shape": name, "control": control}
        | {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        for (name, control), runs in results.items()
    ]
    if chosen.json:
        json.dump(rows, sys.stdout, indent=1)
    else:
        for row in rows:
            numbers = "  ".join(
                f"{key} {value:.3g}" for key, value in row.items() if isinstance(value, float)
            )
            print(f"{row['shape']:16} {row['control']:6} {numbers}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
