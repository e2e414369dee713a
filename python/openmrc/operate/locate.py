"""Which cable is broken, from what the queue pairs of running processes believe of their paths."""

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from ipaddress import AddressValueError, IPv6Address
from typing import NamedTuple

from openmrc.errors import ArgumentError, DeviceError
from openmrc.fabric import Fabric, Path, SwitchId
from openmrc.lab.hosts import FIRST_SOURCE_PORT, path_of_port, paths_by_port
from openmrc.lab.layout import Layout
from openmrc.localise import Kind, Verdict, localise_paths
from openmrc.observe import DevicePaths, Observer, devices

RECENT_NS = 2_000_000_000
"""A path counts as alive if it was used within this time: one in reserve says nothing."""

PROBED_NS = 30_000_000_000
"""An answer to an EV probe counts for this time: idle paths are probed in turn."""
UNANSWERED = 8
"""EV probes in a row without an answer, while the peer answers on other paths: the path counts as dead."""


class CableDown(NamedTuple):
    """A port of a host without carrier."""

    link: str
    switch: str
    """The switch at the other end."""


@dataclass(slots=True)
class Sight:
    """What devices see of a fabric at a moment."""

    dead: list[Path] = field(default_factory=list)
    alive: list[Path] = field(default_factory=list)
    """Paths used lately, or probed, and after the last one was condemned."""
    cables_down: list[CableDown] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)
    """Hosts that see it."""
    notes: list[str] = field(default_factory=list)
    """What could not be used, and why."""

    def verdicts(self) -> list[Verdict]:
        """What has failed, the fault with most evidence first."""
        return localise_paths(self.dead, self.alive, cables_down=self.cables_down)


def published() -> tuple[list[DevicePaths], list[str]]:
    """The paths of all devices that this user's processes publish, and notes on those that do not answer."""
    found, notes = [], []
    for path in devices():
        try:
            with Observer(path) as observer:
                found.append(observer.paths())
        except DeviceError as error:
            notes.append(str(error))
        except OSError:
            continue  # It has just been closed.
    return found, notes


class Locator:
    """Turns paths of devices into paths of a fabric.

    Entropy values of devices in SRv6 mode are those of the fabric. Those of devices over UDP sockets are
    source ports, which name a path only where the hosts' routes map them, as a lab's do.
    """

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self._layout = Layout(fabric)
        self._numbered: int | None = None

    def host(self, device: DevicePaths) -> str | None:
        """The host that a device belongs to; ``None``: it is not in the fabric."""
        return self._host(device.addresses)

    def crossing(
        self, device: DevicePaths, links: frozenset[str]
    ) -> Iterator[tuple[int, int, list[int], list[int]]]:
        """What has to change so that a device uses none of these links, and all others.

        Yields:
            Queue pair, port, entropy values that are to be denied, and denied ones that are to be allowed.
        """
        host = self._host(device.addresses)
        for pair in device.queue_pairs if host is not None else ():
            peer = self._host(pair.remote)
            if peer is None or peer == host:
                continue
            changes: defaultdict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
            for port, ev in [*pair.good, *((port, ev) for port, ev, _ in pair.bad)]:
                path = self._path(device, str(host), peer, port, ev)
                if path is not None and not links.isdisjoint(path.links):
                    changes[port][0].append(ev)
            for port, ev in pair.denied:
                path = self._path(device, str(host), peer, port, ev)
                if path is not None and links.isdisjoint(path.links):
                    changes[port][1].append(ev)
            for port, (deny, allow) in changes.items():
                yield pair.qp_num, port, deny, allow

    def sight(self, seen: Iterable[DevicePaths], *, probed: bool = True) -> Sight:
        """What these devices see of the fabric.

        Args:
            seen: What they say.
            probed: Whether what EV probes have found counts.
        """
        sight = Sight()
        for device in seen:
            host = self._host(device.addresses)
            if host is None:
                shown = ", ".join(device.addresses[:2])
                name = self.fabric.spec.name
                sight.notes.append(
                    f"{device.device} of process {device.pid} ({shown}) is not in fabric {name}"
                )
                continue
            sight.hosts.add(host)
            self._see(device, host, sight, probed=probed)
            if device.left_out:
                sight.notes.append(
                    f"{device.device} of process {device.pid}: {device.left_out} queue pairs were left out"
                )
        return sight

    def changes(self, device: DevicePaths) -> Iterator[tuple[int, Path, int]]:
        """Yields queue pair, path, and how often the path was condemned or taken back."""
        host = self._host(device.addresses)
        for pair in device.queue_pairs if host is not None else ():
            peer = self._host(pair.remote) if pair.changes else None
            if peer is None or peer == host:
                continue
            for port, ev, times in pair.changes:
                if path := self._path(device, str(host), peer, port, ev):
                    yield pair.qp_num, path, times

    def _see(self, device: DevicePaths, host: str, sight: Sight, *, probed: bool) -> None:
        planes = self.planes(device.addresses, host)
        for port in planes.keys() - set(device.ports_up):
            down = self.cable(host, planes[port])
            if down not in sight.cables_down:
                sight.cables_down.append(down)
        last: dict[tuple[int, int, str | None], int] = {
            (row["port"], row["ev"], row.get("address")): row["last_tx_ns"] for row in device.counters
        }
        condemned = [since for pair in device.queue_pairs for *_, since in pair.bad]
        since = max([device.time_ns - RECENT_NS, *condemned])
        silent = [
            began
            for pair in device.queue_pairs
            for *_, unanswered, began in pair.probed
            if unanswered >= UNANSWERED
        ]
        probed_since = max([device.time_ns - PROBED_NS, *condemned, *silent])
        for pair in device.queue_pairs:
            peer = self._host(pair.remote)
            if peer is None or peer == host:
                continue
            rows = pair.probed if probed else ()
            probes = {(port, ev): (unanswered, began) for port, ev, unanswered, began in rows}
            for port, ev, _ in pair.bad:
                # A port without carrier explains its paths.
                if port in device.ports_up and (path := self._path(device, host, peer, port, ev)):
                    sight.dead.append(path)
            for port, ev in pair.good:
                if (path := self._path(device, host, peer, port, ev)) is None:
                    continue
                address = str(path.address) if device.srv6 else None
                # Probes use a path, too: where it is probed, that it was used says nothing.
                if (port, ev) in probes:
                    unanswered, began = probes[port, ev]
                    if unanswered >= UNANSWERED and port in device.ports_up:
                        sight.dead.append(path)
                    elif not unanswered and began >= max(probed_since, 1):
                        sight.alive.append(path)
                elif last.get((port, ev, address), 0) > max(since, 0):
                    sight.alive.append(path)

    def planes(self, addresses: Iterable[str], host: str) -> dict[int, int]:
        """The plane of each port of a device, by its address."""
        own = {IPv6Address(each): plane for plane, each in enumerate(self.fabric.host_addresses(host))}
        found = {}
        for port, address in enumerate(addresses):
            with contextlib.suppress(AddressValueError):
                if (plane := own.get(IPv6Address(address))) is not None:
                    found[port] = plane
        return found

    def cable(self, host: str, plane: int) -> CableDown:
        """The cable of a host's port."""
        t0 = SwitchId(plane, 0, self.fabric.host(host) // self.fabric.core.hosts_per_t0)
        link = next(port.link for port in self.fabric.ports(t0) if port.peer == host)
        return CableDown(link, str(t0))

    def _host(self, addresses: list[str]) -> str | None:
        for address in addresses:
            try:
                if (found := self.fabric.host_of_address(address)) is not None:
                    return found
            except ArgumentError:  # It is no IPv6 address: fabrics have only those.
                continue
        return None

    def _path(self, device: DevicePaths, src: str, dst: str, port: int, ev: int) -> Path | None:
        try:
            if device.srv6:
                return self.fabric.path(src, dst, ev=ev)
            if self._numbered is None:
                self._numbered = paths_by_port(self._layout)
            if 0 <= ev - FIRST_SOURCE_PORT < self._numbered and port < self.fabric.planes:
                return path_of_port(self._layout, src, dst, port, ev)
        except ArgumentError:
            pass
        return None


def described(verdict: Verdict) -> str:
    """A verdict as a sentence."""
    names = [_name(suspect.kind, suspect.name) for suspect, _ in verdict.suspects]
    counted = f"{verdict.paths} dead path{'' if verdict.paths == 1 else 's'}"
    confidence = f"confidence {verdict.confidence:.2f}"
    if verdict.component is not None:
        return f"{_name(verdict.component.kind, verdict.component.name)} is broken: {counted}, {confidence}"
    return f"one of these is broken: {', '.join(names)} ({counted})"


def _name(kind: Kind, name: str) -> str:
    word = {Kind.LINK: "cable", Kind.UPWARD: "cable", Kind.DOWNWARD: "cable"}.get(kind, str(kind))
    direction = {Kind.UPWARD: " (away from the hosts)", Kind.DOWNWARD: " (towards the hosts)"}.get(kind, "")
    return f"{word} {name}{direction}"


def as_dict(verdict: Verdict) -> dict[str, object]:
    """A verdict, for JSON."""
    return {
        "component": _as_dict(verdict.component) if verdict.component else None,
        "confidence": verdict.confidence,
        "loss": verdict.loss,
        "evidence_nats": verdict.evidence,
        "paths": verdict.paths,
        "suspects": [{**_as_dict(suspect), "probability": share} for suspect, share in verdict.suspects],
    }


def _as_dict(component: tuple[Kind, str]) -> dict[str, str]:
    return {"kind": str(component[0]), "name": component[1]}
