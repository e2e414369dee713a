"""The conventional way on the lab's links: FRR in every namespace, eBGP as in RFC 7938, BFD, ECMP.

Every switch and host runs zebra, bgpd and bfdd of its own. Sessions are between the two addresses of a link.
A host announces its one address, on its loopback interface, on both planes, and no other address. So a lost
port costs it a path and not its address. T1 switches of a plane share an AS number; T0 switches and hosts
have one each.
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

from openmrc.closing import Closable
from openmrc.errors import DeviceError
from openmrc.files import write_text
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
"""The hash covers the ports, and a next hop without carrier is skipped at once."""

_SEED = Path("/proc/sys/net/ipv4/fib_multipath_hash_seed")
"""Since Linux 6.11. If all nodes had the same seed, T0s would use only half of their uplinks: the same hash
has already selected the packets that arrive on a plane."""


@dataclass(frozen=True)
class Timers:
    """What decides how fast BGP detects a fault; printed with the results."""

    bfd_interval_ms: int = 100
    """Time between BFD packets; three missing packets end a session. 0: without BFD."""
    bgp_hold_s: int = 9
    """BGP's hold time, which decides without BFD; keepalives are sent three times as often."""
    connect_retry_s: int = 1
    """Time until a lost session is retried."""

    @property
    def described(self) -> str:
        """For people."""
        bfd = f"BFD 3 x {self.bfd_interval_ms} ms" if self.bfd_interval_ms else "without BFD"
        return f"{bfd}, BGP hold time {self.bgp_hold_s} s"


def why_not() -> str | None:
    """Why the conventional run is not possible here, or ``None``."""
    for daemon in ("zebra", "bgpd", "bfdd"):
        if not (DAEMONS / daemon).exists():
            return INSTALL
    return None


def version() -> str:
    """Version of FRR."""
    said = system.run([str(DAEMONS / "bgpd"), "--version"]).split()
    return said[said.index("version") + 1] if "version" in said else "unknown"


def loopback(host: str) -> str:
    """The address of a host."""
    return f"{_LOOPBACKS}{int(host.removeprefix('h')) + 1:x}"


class Routing(Closable):
    """FRR in every namespace of a lab."""

    def __init__(self, lab: Lab, timers: Timers) -> None:
        """Starts the daemons. Routes are complete after :meth:`wait_until_complete`.

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
        # The daemons drop root and run as a user of their own, who must reach this directory.
        for each in (directory, self._directory, self._lab.state.directory):
            each.chmod(0o755)
        shutil.chown(directory, _USER, _USER)
        system.sysctl(_SYSCTL, space)
        if _SEED.exists():
            number = self._lab.layout.nodes.index(node) + 1
            system.sysctl(f"net.ipv4.fib_multipath_hash_seed = {number}\n", space)
        files = configuration(self._lab.layout, node, self._timers)
        for daemon, text in files.items():
            write_text(directory / f"{daemon}.conf", text)
            command = [str(DAEMONS / daemon), "--daemon"]
            command += ["--config_file", str(directory / f"{daemon}.conf")]
            command += ["--pid_file", str(directory / f"{daemon}.pid")]
            command += ["--vty_socket", str(directory), "--vty_port", "0"]
            command += ["--socket", str(directory / "zserv.api")]
            command += ["--log", f"file:{directory / daemon}.log"]
            if daemon == "bfdd":
                command += ["--bfdctl", str(directory / "bfdd.sock")]
            # A daemon would keep a pipe open; output goes to a file.
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
                raise DeviceError(f"{daemon} at {node} did not start: {system.last_line(said)}")

    def wait_until_complete(self, check: Callable[[], None] = lambda: None) -> float:
        """Waits until every route has all its next hops; returns the seconds it took.

        Raises:
            DeviceError: if BGP does not converge.
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
                continue  # It has one route to each host, which the routes of the T0s imply.
            found = _next_hops(self._lab.namespace(node))
            for host, wanted in expected(layout, node):
                if found.get(loopback(host), 0) < wanted:
                    return f"{node} has {found.get(loopback(host), 0)} of {wanted} next hops to {host}"
        return None

    def close(self) -> None:
        """Ends the daemons. Closing twice is harmless."""
        _end(list(self._directory.glob("*/*.pid")))
        shutil.rmtree(self._directory, ignore_errors=True)


def expected(layout: Layout, node: str) -> Iterator[tuple[str, int]]:
    """Yields the hosts to which a node needs a route, and how many next hops each route should have."""
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
        # FRR 8.4 does not restore a nexthop object that the kernel removed with its interface.
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
    """Ends daemons, all at once; kills those that take too long."""
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
