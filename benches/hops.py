"""MRC in SRv6 mode and plain UDP over the kernel switches of a lab; called by ``run.py``.

Four links and three switches are between the two hosts. For UDP, the switches of one path forward two extra
addresses by plain IPv6 routes. MRC sprays over all paths by their uSID lists. Sender and receiver have a core
each; the kernel forwards on the sender's core.
"""

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from openmrc import _core
from openmrc.errors import Error
from openmrc.fabric import Fabric
from openmrc.handshake import Accept, End, Offer, Options
from openmrc.lab import Lab, entered, system
from openmrc.verbs import QpCap, QueuePair, RemoteBuffer
from openmrc.wire import EvFormat

SPECIFICATION = """\
name: {name}
hosts: 4
nic: {{rate: 200G}}
planes: 2
switch: {{radix: 4}}
tiers: 2
parallel_links: 1
"""
SRC, DST = "h0", "h3"
PLAIN = {SRC: "fd0b::1", DST: "fd0b::2"}
"""Addresses that the switches of one path forward without SRv6."""
PATH_MTU = 4096
_MEMORY = 1 << 20
"""As many bytes as the UDP ceiling has."""


@contextmanager
def lab_with_plain_routes() -> Iterator[Lab]:
    """A lab of two planes with two T0 and two T1 each, removed afterwards."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "hops.yaml")
        file.write_text(SPECIFICATION.format(name=f"bench-{os.getpid()}"))
        lab = Lab.up(Fabric.load(file))
    try:
        add_plain_routes(lab)
        yield lab
    finally:
        lab.down()


def add_plain_routes(lab: Lab) -> None:
    """Adds routes for the plain addresses to all nodes of the first path, in both directions."""
    path = lab.fabric.paths(SRC, DST)[0]
    nodes = [SRC, *(hop.switch for hop in path.hops), DST]
    links = [lab.layout.links[name] for name in path.links]
    for place, link in enumerate(links):
        ends = {end.node: end for end in link.ends}
        near, far = ends[nodes[place]], ends[nodes[place + 1]]
        for here, there, target in ((near, far, DST), (far, near, SRC)):
            route = f"route add {PLAIN[target]}/128 via {there.address} dev {here.port}"
            system.ip([route], lab.namespace(here.node))
    for host, port in ((SRC, links[0]), (DST, links[-1])):
        device = next(end.port for end in port.ends if end.node == host)
        system.ip([f"address add {PLAIN[host]}/128 dev {device} nodad"], lab.namespace(host))


def mrc(lab: Lab, *, size: int, seconds: float, cpus: tuple[int, int]) -> dict[str, float]:
    """Packets per second and goodput of writes of ``size`` bytes."""
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    server = fork.Process(target=_serve, args=(lab, theirs, cpus[1]), daemon=True)
    server.start()
    try:
        os.sched_setaffinity(0, {cpus[0]})
        with entered(lab.namespace(SRC)):
            context = lab.device(SRC, ev_format=EvFormat.SRV6).open()
        with context:
            qp, completions, source = _endpoint(context)
            end = End([qp], options=Options(path_mtu=PATH_MTU))
            ours.send(end.accept())
            offer: Offer = ours.recv()
            end.connect(offer)
            [target] = offer.buffers
            ours.send("connected")
            for length in (0.2, seconds):  # the first run is a warm-up
                before = qp.stats()
                result = _core.write_bw(
                    context._core,
                    [qp._core],
                    completions._core,
                    source,
                    (target.addr, target.length, target.rkey),
                    _core.PerfControl(),
                    size=size,
                    iterations=None,
                    duration=length,
                    depth=max(8, min(512, (4 << 20) // size)),
                    post_list=64 if size < 4096 else 1,
                    signal_every=64 if size < 4096 else 1,
                    inline=False,
                    polling=True,
                    bucket=0.001,
                )
            after, elapsed = qp.stats(), result["elapsed_ns"] / 1e9
            packets = after["data_packets"] - before["data_packets"]
            again = after["retransmits"] - before["retransmits"]
            ours.send("done")
    finally:
        server.join(10)
        server.kill()
    return {
        "pps": (packets - again) / elapsed,
        "gbps": result["bytes"] * 8 / elapsed / 1e9,
        "retransmits": again / max(1, packets),
    }


def _serve(lab: Lab, channel: Connection, cpu: int) -> None:
    os.sched_setaffinity(0, {cpu})
    with entered(lab.namespace(DST)):
        context = lab.device(DST, ev_format=EvFormat.SRV6).open()
    with context:
        qp, _, inbox = _endpoint(context)
        accept: Accept = channel.recv()
        buffer = RemoteBuffer(inbox.addr, inbox.length, inbox.rkey)
        end = End([qp], buffers=[buffer], options=Options(path_mtu=PATH_MTU))
        end.connect(accept)
        channel.send(end.offer())
        for _ in ("connected", "done"):
            channel.recv()


def _endpoint(context: Any) -> tuple[QueuePair, Any, Any]:
    pd, completions = context.alloc_pd(), context.create_cq(4096)
    qp = pd.create_qp(completions, cap=QpCap(max_send_wr=1024))
    return qp, completions, _core.PerfBuffer(pd._core, _MEMORY)


def main() -> int:
    """Measures UDP and MRC once and prints one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bench-binary", type=Path, required=True, help="the program openmrc-bench")
    parser.add_argument("--size", type=int, default=4096, help="bytes of a datagram, and of a write")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--cpus", default="0,1", help="cores of sender and receiver")
    options = parser.parse_args()
    first, second = map(int, options.cpus.split(","))
    try:
        with lab_with_plain_routes() as lab:
            between = ",".join(f"{lab.namespace(host)}@{PLAIN[host]}" for host in (SRC, DST))
            plain = json.loads(
                system.run(
                    [
                        str(options.bench_binary),
                        "udp-ceiling",
                        *("--size", str(options.size), "--seconds", str(options.seconds)),
                        *("--cpus", options.cpus, "--between", between),
                    ]
                )
            )
            # One packet per write would measure the cost of posting, so a write is 1 MiB, cut into packets
            # of the path MTU.
            size = 1 << 20 if options.size >= 4096 else options.size
            result = mrc(lab, size=size, seconds=options.seconds, cpus=(first, second))
    except Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps({"udp": {"pps": plain["pps"], "gbps": plain["gbps"]}, "mrc": result}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
