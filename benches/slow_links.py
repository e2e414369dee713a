"""One stream of writes over slow drop-tail links, and what a plane that fails does to it. Needs root.

    sudo .venv/bin/python benches/slow_links.py --markdown

Two hosts in network namespaces, and a third namespace between them that bridges each plane, with a queue of
limited length (tbf) in each direction. Nothing trims and nothing marks. A fault concerns plane 1, after a
quarter of the bytes: `cut` loses every packet without a word, `narrow` those of more than 1400 bytes.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from openmrc.connect import Token, connect, listen
from openmrc.lab.system import entered
from openmrc.verbs import AccessFlags, Device, EvState, QpCap, WcStatus

MESSAGE = 1 << 20
OUTSTANDING = 8
PATIENCE = 120.0
"""Seconds until a run is given up."""


@dataclass(frozen=True)
class Shape:
    """Links of one plane: megabits per second, kilobytes of queue."""

    planes: int
    rate: int
    queue: int
    size: int
    """Megabytes to write."""


SHAPES = {
    "2 x 150 Mb/s, 256 kB": Shape(planes=2, rate=150, queue=256, size=126),
    "2 x 1 Gb/s, 64 kB": Shape(planes=2, rate=1000, queue=64, size=252),
    "4 x 100 Mb/s, 128 kB": Shape(planes=4, rate=100, queue=128, size=126),
}
FAULTS = ("none", "cut", "narrow")


def run(*arguments: object) -> None:
    """Runs a command; its output is shown if it fails."""
    subprocess.run([str(argument) for argument in arguments], check=True)


@contextmanager
def network(shape: Shape) -> Iterator[list[str]]:
    """The namespaces of both hosts and of the bridges."""
    names = [f"openmrc-slow-{os.getpid()}-{part}" for part in ("a", "b", "middle")]
    middle = names[2]
    try:
        for name in names:
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        for plane in range(shape.planes):
            run("ip", "-n", middle, "link", "add", f"br{plane}", "mtu", 9000, "type", "bridge")
            run("ip", "-n", middle, "link", "set", f"br{plane}", "up")
            for host, name in enumerate(names[:2]):
                port = f"{'ab'[host]}{plane}"
                ends = ("type", "veth", "peer", f"p{plane}", "netns", name)
                run("ip", "-n", middle, "link", "add", port, "mtu", 9000, *ends)
                run("ip", "-n", middle, "link", "set", port, "master", f"br{plane}", "up")
                run("ip", "-n", name, "link", "set", f"p{plane}", "mtu", 9000, "up")
                run("ip", "-n", name, "address", "add", f"10.93.{plane}.{host + 1}/24", "dev", f"p{plane}")
                slow = ("tbf", "rate", f"{shape.rate}mbit", "burst", "32kb", "limit", f"{shape.queue}kb")
                tc = ("ip", "netns", "exec", middle, "tc", "qdisc", "add", "dev", port)
                run(*tc, "root", *slow)
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False)


def fail(middle: str, fault: str) -> None:
    """Plane 1 loses long packets, or all, in both directions."""
    longest = {"narrow": 1400, "cut": 68}[fault]
    for port in ("a1", "b1"):
        run("ip", "-n", middle, "link", "set", port, "mtu", longest)


def stream(shape: Shape, names: list[str], fault: str) -> dict[str, Any]:
    """Writes from the first host to the second."""
    token = Token("0123456789abcdef0123456789abcdef")
    with ExitStack() as stack:
        qps, contexts = [], []
        for host in range(2):
            with entered(names[host]):
                addresses = [f"10.93.{plane}.{host + 1}" for plane in range(shape.planes)]
                context = Device.from_addresses(*addresses, segmentation=False).open()
            contexts.append(stack.enter_context(context))
            pd, cq = context.alloc_pd(), context.create_cq(256)
            qps.append((pd, cq, pd.create_qp(cq, cq, cap=QpCap(max_send_wr=64))))
        memory = bytearray(MESSAGE)
        region = qps[1][0].register(memory, AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE)
        with entered(names[1]):
            listener = stack.enter_context(listen("10.93.0.2", 0, token=token))

        def serve() -> None:
            with entered(names[1]):
                listener.accept(qps[1][2], buffers=[region], timeout=30).close()

        server = threading.Thread(target=serve)
        server.start()
        with entered(names[0]):
            peer = connect(*listener.address, qps[0][2], token=token, timeout=30)
        server.join()
        pd, cq, qp = qps[0]
        source = pd.register(os.urandom(MESSAGE), AccessFlags.NONE)
        total = shape.size * 1_000_000 // MESSAGE
        posted = done = worst = 0
        begin = time.monotonic()
        failed = fault == "none"
        while done < total and time.monotonic() - begin < PATIENCE:
            while posted < min(total, done + OUTSTANDING):
                qp.write(source, peer.buffers[0])
                posted += 1
            cq.wait(0.05)
            for completion in cq.poll(OUTSTANDING):
                if completion.status is not WcStatus.SUCCESS:
                    raise RuntimeError(f"{completion.status.name} after {done} of {total} writes")
                done += 1
            if not failed and done * 4 >= total:
                fail(names[2], fault)
                failed = True
            worst = max(worst, condemned(qp, lambda port: port != 1 or fault == "none"))
        seconds = time.monotonic() - begin
        stats = qp.stats()
        return {
            "seconds": round(seconds, 2),
            "finished": done == total,
            "goodput_mbps": round(done * MESSAGE * 8 / seconds / 1e6, 1),
            "healthy_condemned_at_once": worst,
            "healthy_condemned_at_end": condemned(qp, lambda port: port != 1 or fault == "none"),
            **{name: stats[name] for name in ("condemned", "lost", "retransmits", "spurious", "timeouts")},
            "packets": stats["data_packets"],
        }


def condemned(qp: Any, is_healthy: Any) -> int:
    """Paths on healthy planes that are taken for broken."""
    return sum(state is EvState.ASSUMED_BAD and is_healthy(port) for port, _, state in qp.ev_states())


def main() -> int:
    """Measures and prints one line for each shape and fault."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, action="append", help="default: all")
    parser.add_argument("--fault", choices=FAULTS, action="append", help="default: all")
    parser.add_argument("--markdown", action="store_true", help="a table instead of JSON lines")
    options = parser.parse_args()
    if options.markdown:
        print("| links | fault of plane 1 | s | Mb/s | healthy paths condemned | sent again |")
        print("|---|---|---|---|---|---|")
    for name in options.shape or SHAPES:
        for fault in options.fault or FAULTS:
            with network(SHAPES[name]) as names:
                found = stream(SHAPES[name], names, fault)
            if options.markdown:
                again = found["retransmits"] / max(1, found["packets"])
                cells = [name, fault, found["seconds"], found["goodput_mbps"]]
                cells += [found["healthy_condemned_at_once"], f"{again:.1%}"]
                print("|", " | ".join(map(str, cells)), "|", flush=True)
            else:
                shape = asdict(SHAPES[name])
                print(json.dumps({"shape": name, "fault": fault, **shape, **found}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
