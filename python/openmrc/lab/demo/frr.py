"""The conventional way on the lab's links: FRR in every namespace, eBGP as in RFC 7938, BFD, ECMP.

Every switch and host runs zebra, bgpd and bfdd of its own. Sessions are between the two addresses of a link.
A host has one address, on its loopback interface, which it announces on both planes and nobody else's; so a
lost port costs it a path and not its address. T1 switches of a plane share an AS number, T0 switches and
hosts have their own.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from openmrc.errors import DeviceError
from openmrc.lab import Lab, system
from openmrc.lab.layout import Layout

DAEMONS = Path("/usr/lib/frr")
INSTALL = "FRR is not installed (Debian: apt install frr)"

_USER = "frr"
"""User and group of Debian's package."""

_PATIENCE_S = 90.0
_GRACE_S = 1.0
"""Seconds between SIGTERM and SIGKILL."""
_LOOPBACKS = "fd5e::"
_SYSCTL = """\
net.ipv6.fib_multipath_hash_policy = 1
net.ipv6.conf.all.ignore_routes_with_linkdown = 1
"""
"""A flow is told apart by its ports, and a next hop without carrier is passed over at once."""

_SEED = Path("/proc/sys/net/ipv4/fib_multipath_hash_seed")
"""Since Linux 6.11. With one seed for all, T0s would use only half of their uplinks: what comes in on a plane
is what the same hash has sent there."""


@dataclass(frozen=True)
class Timers:
    """What decides how long BGP takes to notice; all are printed with the results."""

    bfd_interval_ms: int = 100
    """Between BFD packets; three missing ones end a session. 0: without BFD."""
    bgp_hold_s: int = 9
    """BGP's hold time, which decides where there is no BFD; keepalives come three times as often."""
    connect_retry_s: int = 1
    """Until a session that was lost is tried again."""

    @property
    def described(self) -> str:
        """For people."""
        bfd = f"BFD 3 x {self.bfd_interval_ms} ms" if self.bfd_interval_ms else "without BFD"
        return f"{bfd}, BGP hold time {self.bgp_hold_s} s"


def why_not() -> str | None:
    """Why the conventional half cannot run here, or ``None``."""
    for daemon in ("zebra", "bgpd", "bfdd"):
        if not (DAEMONS / daemon).exists():
            return INSTALL
    return None


def version() -> str:
    """FRR's."""
    said = system.run([str(DAEMONS / "bgpd"), "--version"]).split()
    return said[said.index("version") + 1] if "version" in said else "unknown"


def loopback(host: str) -> str:
    """A host's address."""
    return f"{_LOOPBACKS}{int(host.removeprefix('h')) + 1:x}"


class Routing:
    """FRR in every namespace of a lab. Close it, or use it in ``with``."""

    def __init__(self, lab: Lab, timers: Timers) -> None:
        """Starts the daemons; routes are complete only after :meth:`wait_until_complete`.

        Raises:
            DeviceError: if a daemon does not start.
        """
        self._lab = lab
        self._timers = timers
        self._directory = lab.state.directory / "frr"
        nodes = lab.layout.nodes
        for host in lab.layout.hosts:
            system.ip([f"address replace {loopback(host)}/128 dev lo"], lab.namespace(host))
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(self._start, nodes))

    def _start(self, node: str) -> None:
        space = self._lab.namespace(node)
        directory = self._directory / node.replace("/", "-")
        directory.mkdir(parents=True, exist_ok=True)
        # The daemons give up root for a user of their own, who has to find his way here.
        for each in (directory, self._directory, self._lab.state.directory):
            each.chmod(0o755)
        shutil.chown(directory, _USER, _USER)
        system.sysctl(_SYSCTL, space)
        if _SEED.exists():
            number = self._lab.layout.nodes.index(node) + 1
            system.sysctl(f"net.ipv4.fib_multipath_hash_seed = {number}\n", space)
        files = configuration(self._lab.layout, node, self._timers)
        for daemon, text in files.items():
            (directory / f"{daemon}.conf").write_text(text, encoding="utf-8")
            command = [str(DAEMONS / daemon), "--daemon"]
            command += ["--config_file", str(directory / f"{daemon}.conf")]
            command += ["--pid_file", str(directory / f"{daemon}.pid")]
            command += ["--vty_socket", str(directory), "--vty_port", "0"]
            command += ["--socket", str(directory / "zserv.api")]
            command += ["--log", f"file:{directory / daemon}.log"]
            if daemon == "bfdd":
                command += ["--bfdctl", str(directory / "bfdd.sock")]
            # Daemons leave the terminal behind; what still holds our pipes would keep us waiting.
            said = directory / f"{daemon}.out"
            with said.open("wb") as out:
                done = subprocess.run(
                    [*system.inside(space), *command],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    check=False,
                )
            if done.returncode:
                raise DeviceError(f"{daemon} at {node} did not start: {_last(said)}")

    def wait_until_complete(self, check: Callable[[], None] = lambda: None) -> float:
        """Returns how many seconds it took until every route was there, over every path that is whole.

        Raises:
            DeviceError: if they do not come.
        """
        began = time.monotonic()
        while missing := self.missing():
            if time.monotonic() - began > _PATIENCE_S:
                raise DeviceError(f"BGP has not converged within {_PATIENCE_S:.0f} s: {missing}")
            check()
            time.sleep(0.25)
        return time.monotonic() - began

    def missing(self) -> str | None:
        """The first route found that lacks next hops, or ``None``."""
        layout = self._lab.layout
        for node in layout.nodes:
            if layout.switches.get(node) is not None and layout.switches[node].tier > 0:
                continue  # Has one route to each host, which the T0s below and above prove.
            found = _next_hops(self._lab.namespace(node))
            for host, wanted in expected(layout, node):
                if found.get(loopback(host), 0) < wanted:
                    return f"{node} has {found.get(loopback(host), 0)} of {wanted} next hops to {host}"
        return None

    def close(self) -> None:
        """Ends the daemons. Doing it twice is harmless."""
        _end(list(self._directory.glob("*/*.pid")))
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> "Routing":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def expected(layout: Layout, node: str) -> Iterator[tuple[str, int]]:
    """The hosts that a node needs a route to, and how many next hops it should have."""
    uplinks = [link for link in layout.links_of(node) if link.lower.node == node]
    for host in layout.hosts:
        if host != node:
            below = node in {link.upper.node for link in layout.links_of(host)}
            yield host, 1 if below else len(uplinks)


def configuration(layout: Layout, node: str, timers: Timers) -> dict[str, str]:
    """The configuration files of a node's daemons, by daemon."""
    host = node in layout.hosts
    lines = [
        "frr defaults datacenter",
        f"hostname {node.replace('/', '-')}",
        "bgp as-path access-list own permit ^$" if host else "!",
        f"router bgp {_as_number(layout, node)}",
        f" bgp router-id {_router_id(layout, node)}",
        " no bgp ebgp-requires-policy",
        " no bgp default ipv4-unicast",
        " no bgp network import-check",
        " bgp bestpath as-path multipath-relax",
        f" timers bgp {max(1, timers.bgp_hold_s // 3)} {timers.bgp_hold_s}",
    ]
    family = [" address-family ipv6 unicast", "  maximum-paths 64"]
    if host:
        family.append(f"  network {loopback(node)}/128")
    for link in layout.links_of(node):
        peer = link.upper if link.lower.node == node else link.lower
        own = link.lower if link.lower.node == node else link.upper
        lines += [
            f" neighbor {peer.address} remote-as external",
            f" neighbor {peer.address} interface {own.port}",
            f" neighbor {peer.address} advertisement-interval 0",
            f" neighbor {peer.address} timers connect {timers.connect_retry_s}",
        ]
        if timers.bfd_interval_ms:
            lines += [f" neighbor {peer.address} bfd", f" neighbor {peer.address} bfd profile lab"]
        family.append(f"  neighbor {peer.address} activate")
        if host:
            family.append(f"  neighbor {peer.address} filter-list own out")
    files = {
        # FRR 8.4 does not give the kernel a nexthop object again that went with its interface.
        "zebra": "frr defaults datacenter\nno zebra nexthop kernel enable\n",
        "bgpd": "\n".join([*lines, *family, " exit-address-family", "exit", ""]),
    }
    if timers.bfd_interval_ms:
        interval = timers.bfd_interval_ms
        files["bfdd"] = (
            "bfd\n profile lab\n  detect-multiplier 3\n"
            f"  receive-interval {interval}\n  transmit-interval {interval}\n exit\nexit\n"
        )
    return files


def _as_number(layout: Layout, node: str) -> int:
    if node in layout.hosts:
        return 4_200_100_000 + layout.hosts.index(node)
    switch = layout.switches[node]
    if switch.tier == 0:
        return 4_200_200_000 + list(layout.switches).index(node)
    return 4_200_300_000 + switch.plane


def _router_id(layout: Layout, node: str) -> str:
    number = layout.nodes.index(node) + 1
    return f"10.0.{number >> 8}.{number & 255}"


def _next_hops(space: str) -> dict[str, int]:
    """Live next hops by destination."""
    routes = json.loads(
        system.run(["ip", "-n", space, "-6", "-json", "route", "show", "proto", "bgp"]) or "[]"
    )
    dead = {"dead", "linkdown"}
    found = {}
    for route in routes:
        hops = route.get("nexthops") or [route]
        found[route["dst"]] = sum(not dead.intersection(hop.get("flags", [])) for hop in hops)
    return found


def _end(pid_files: list[Path]) -> None:
    """Ends daemons, all at once; those that take too long are killed."""
    pids = set()
    for file in pid_files:
        with suppress(OSError, ValueError):
            pids.add(int(file.read_text()))
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + _GRACE_S
        while pids and time.monotonic() < deadline:
            pids = {pid for pid in pids if Path(f"/proc/{pid}").exists()}
            time.sleep(0.01)


def _last(file: Path) -> str:
    lines = file.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it does not say why"
