"""One iperf3 stream over kernel MPTCP with several subflows, in a network namespace of its own; prints JSON.

    sudo unshare --net .venv/bin/python benches/mptcp.py --paths 8

It configures the namespace: loopback up, and an endpoint of the path manager for each further subflow.
"""

import argparse
import json
import sys
from pathlib import Path

from instruments import NotMeasured, iperf3, run


def main() -> int:
    """Configures the namespace, measures, prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--paths", type=int, default=8, help="subflows, 1 to 9 (default 8)")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--cpus", default="0,1", help="cores of client and server (default 0,1)")
    options = parser.parse_args()
    cpus = [int(cpu) for cpu in options.cpus.split(",")]
    try:
        configure(options.paths)
        numbers = iperf3(options.seconds, cpus, address(1), "127.1.2.1", prefix=("mptcpize", "run"))
        joined = joins()
    except NotMeasured as reason:
        print(f"error: {reason}", file=sys.stderr)
        return 1
    # iperf3 has a control connection beside the one for data, and the kernel adds subflows to both.
    if joined < options.paths - 1:
        print(f"error: {joined} subflows joined, not {options.paths - 1}", file=sys.stderr)
        return 1
    print(json.dumps({"benchmark": "iperf3-mptcp", "paths": options.paths, **numbers}))
    return 0


def address(path: int) -> str:
    """The address from which a subflow starts; all of 127/8 is local."""
    return f"127.{path}.1.1"


def configure(paths: int) -> None:
    """Lets the kernel open a subflow from each address but the first, which the stream itself uses."""
    ip("link", "set", "lo", "up")
    if paths > 1:
        ip("mptcp", "limits", "set", "subflows", str(paths - 1))
    for path in range(2, paths + 1):
        ip("mptcp", "endpoint", "add", address(path), "dev", "lo", "subflow")


def joins() -> int:
    """Subflows that have joined a connection in this namespace."""
    lines = Path("/proc/net/netstat").read_text().splitlines()
    names, values = (line.split()[1:] for line in lines if line.startswith("MPTcpExt:"))
    return int(dict(zip(names, values, strict=True))["MPJoinAckRx"])


def ip(*arguments: str) -> None:
    """Runs iproute2's ``ip``."""
    run(["ip", *arguments], timeout=10)


if __name__ == "__main__":
    sys.exit(main())
