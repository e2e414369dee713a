"""Starts and stops soft switches in a lab: rates, finite queues, ECN marking and trimming.

The kernel keeps the addresses and answers neighbour discovery, but does not forward. ``python -m
openmrc.lab.softswitch CONFIG.json`` runs a soft switch in its namespace until SIGTERM, then prints its
counters.
"""

import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openmrc import _core
from openmrc.errors import DeviceError, Error, StateError
from openmrc.fabric import Fabric, SwitchId
from openmrc.files import write_text
from openmrc.lab import system
from openmrc.lab.layout import Layout, namespace
from openmrc.switchconf.facts import QosFacts

_READY = "ready"
_PATIENCE_S = 30.0


def configuration(
    layout: Layout, lab: str, switch: str, *, rate: int | None, base_rtt_us: float | None
) -> dict[str, Any]:
    """The configuration of a soft switch that replaces a switch of a lab.

    Args:
        layout: The lab's nodes and links.
        lab: Its name.
        switch: The switch.
        rate: Rate of every port, bit/s; ``None``: no limit.
        base_rtt_us: Thresholds are shares of rate x base_rtt; ``None``: that of the specification.
    """
    fabric, number = layout.fabric, layout.switches[switch]
    table, ports = fabric.table(number), fabric.ports(number)
    place = {port.number: index for index, port in enumerate(ports)}
    queues = _queues(fabric, rate, base_rtt_us)
    codes = fabric.spec.qos.dscp
    own = _macs(namespace(lab, switch))
    peers = {port.peer: _macs(namespace(lab, port.peer)) for port in ports}
    return {
        "block": fabric.spec.prefix_bits()[0],
        "own": table.own,
        "routes": [(usid, place[port]) for usid, port in table.routes],
        "ports": [
            {
                "name": port.name,
                "mac": own[port.name],
                "peer": peers[port.peer][port.peer_port],
                "rate": rate,
                "last_hop": _is_last_hop(number, port.is_uplink),
                "ecn_min": queues.ecn_min,
                "ecn_max": queues.ecn_max,
                "trim": queues.limit_last_hop if _is_last_hop(number, port.is_uplink) else queues.limit,
                "control": queues.control_limit,
            }
            for port in ports
        ],
        "dscp": [
            codes.no_trim,
            codes.data,
            codes.retransmission,
            codes.trimmed,
            codes.trimmed_last_hop,
            codes.control,
        ],
        "udp_port": _core.ROCE_PORT,
        "seed": number.plane << 24 | number.tier << 16 | number.index,
    }


def _queues(fabric: Fabric, rate: int | None, base_rtt_us: float | None) -> QosFacts:
    spec = fabric.spec
    if base_rtt_us is not None:
        spec = spec.model_copy(update={"qos": spec.qos.model_copy(update={"base_rtt_us": base_rtt_us})})
    return QosFacts.of(spec, rate or fabric.port_rate)


def _is_last_hop(switch: SwitchId, uplink: bool) -> bool:
    return switch.tier == 0 and not uplink


def _macs(space: str) -> dict[str, str]:
    found = json.loads(system.run(["ip", "-n", space, "-json", "link", "show", "type", "veth"]))
    return {entry["ifname"]: entry["address"] for entry in found}


def start(space: str, config: dict[str, Any], directory: Path) -> int:
    """Disables forwarding in the kernel and starts a soft switch; returns its process id once it forwards.

    Raises:
        DeviceError: if it does not start.
    """
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / f"{space}.json"
    write_text(file, json.dumps(config))
    system.sysctl("net.ipv6.conf.all.forwarding = 0\n", space)
    said, complaints = directory / f"{space}.out", directory / f"{space}.err"
    command = [*system.inside(space), sys.executable, "-m", "openmrc.lab.softswitch", str(file)]
    # A shell in between, so that the process outlives the command that has started it.
    background = f'"$@" < /dev/null > {shlex.quote(str(said))} 2> {shlex.quote(str(complaints))} & echo $!'
    pid = int(system.run(["setsid", "sh", "-c", background, "sh", *command]))
    deadline = time.monotonic() + _PATIENCE_S
    while not said.read_text(encoding="utf-8").startswith(_READY):
        if not _runs(pid) or time.monotonic() > deadline:
            system.sysctl("net.ipv6.conf.all.forwarding = 1\n", space)
            raise DeviceError(f"the soft switch in {space} did not start: {system.last_line(complaints)}")
        time.sleep(0.01)
    return pid


def stop(space: str, pid: int, directory: Path) -> dict[str, int]:
    """Ends a soft switch and enables forwarding in the kernel; returns the counters of the soft switch.

    Raises:
        StateError: if its process had ended before.
    """
    if _runs(pid, space):
        os.kill(pid, signal.SIGTERM)
        while _runs(pid, space):
            time.sleep(0.01)
    system.sysctl("net.ipv6.conf.all.forwarding = 1\n", space)
    lines = (directory / f"{space}.out").read_text(encoding="utf-8").splitlines()
    if len(lines) < 2:
        reason = system.last_line(directory / f"{space}.err")
        raise StateError(f"the soft switch in {space} had ended: {reason}")
    return dict(json.loads(lines[1]))


def _runs(pid: int, space: str | None = None) -> bool:
    """Whether the process lives, in the right namespace: process ids are reused."""
    try:
        inode = Path(f"/proc/{pid}/ns/net").stat().st_ino
        return space is None or inode == (system.NAMESPACES / space).stat().st_ino
    except OSError:
        return False


def main(arguments: Sequence[str]) -> int:
    """Runs a soft switch in this namespace."""
    config = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    stopped, wake = os.pipe()
    os.set_blocking(wake, False)
    # The signal handler in C writes to the pipe: the soft switch does not need the interpreter for it.
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        counted = _core.run_softswitch(
            config["block"],
            config["own"],
            [tuple(route) for route in config["routes"]],
            [_port(port) for port in config["ports"]],
            dscp=config["dscp"],
            udp_port=config["udp_port"],
            seed=config["seed"],
            stop=stopped,
            ready=lambda: print(_READY, flush=True),
        )
    except Error as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(dict(counted)), flush=True)
    return 0


def _port(port: dict[str, Any]) -> tuple[str, list[int], list[int], int | None, bool, int, int, int, int]:
    return (
        port["name"],
        list(bytes.fromhex(port["mac"].replace(":", ""))),
        list(bytes.fromhex(port["peer"].replace(":", ""))),
        port["rate"],
        port["last_hop"],
        port["ecn_min"],
        port["ecn_max"],
        port["trim"],
        port["control"],
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
