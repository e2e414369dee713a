"""The agent of a host: what its processes see goes to the controller, deny lists come back.

It works without the controller: it keeps the last deny list, also over its own restart, and hands it to
processes that start meanwhile. Its processes work without it.
"""

import contextlib
import json
import logging
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from openmrc.errors import DeviceError, Error, FormatError
from openmrc.fabric import Fabric
from openmrc.files import read_text, write_text
from openmrc.observe import DevicePaths, Observer, devices
from openmrc.operate.announced import Announced, Process
from openmrc.operate.changes import Changes
from openmrc.operate.client import Client
from openmrc.operate.goodput import Received, Watched, job_name
from openmrc.operate.locate import Locator, Sight
from openmrc.operate.model import MOST_JOBS, MOST_PATHS, LoopSeen, Name, Report
from openmrc.operate.probing import Probing

PERIOD_S = 0.5
"""Between two looks at the processes; what has changed is reported at once."""
HEARTBEAT_S = 2.0
"""Between two reports of the same. A controller takes a host as silent after 5 s without one."""
LOOPS_S = 0.1
"""Between two looks at the loops, which cost little: where one begins to lose, the next report is at once."""
MOST_WAIT_S = 10.0
"""Between two attempts to reach the controller."""
_log = logging.getLogger("openmrc.agent")


class _Kept(BaseModel):
    """What an agent keeps over its restart."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    fabric: str
    deny_version: int
    deny: list[Name] = Field(max_length=1 << 20)


@dataclass(slots=True)
class Counts:
    """What an agent has done."""

    reports: dict[str, int] = field(default_factory=lambda: {"sent": 0, "failed": 0})
    paths_denied: int = 0
    paths_allowed: int = 0
    paths_probed: int = 0
    """With EV probes; without those of processes that have announced themselves."""
    devices: int = 0
    connected: bool = False
    dead_paths: int = 0
    alive_paths: int = 0


class Told:
    """What the controller has of a host."""

    def __init__(self) -> None:
        """It has nothing yet."""
        self._content: dict[str, Any] = {}
        self._losing: list[LoopSeen] = []
        self._since = 0.0

    def is_due(self, content: dict[str, Any], loops: Iterable[LoopSeen], now: float) -> bool:
        """Whether a report of this is due: it is news, or there was none for long.

        Args:
            content: The report but for its loops and changes.
            loops: Counts of loops. Of those that lose nothing they grow with every turn, and are no news.
            now: Monotonic seconds.
        """
        losing = [loop for loop in loops if loop.lost]
        news = (content, losing) != (self._content, self._losing)
        return news or now - self._since >= HEARTBEAT_S - PERIOD_S / 2

    def told(self, content: dict[str, Any], loops: Iterable[LoopSeen], now: float) -> None:
        """The controller has this."""
        self._content, self._since = content, now
        self._losing = [loop for loop in loops if loop.lost]


class _Seen(NamedTuple):
    """A device at a look."""

    key: str
    """What tells devices apart: the name of its socket, or of the process that has announced itself."""
    paths: DevicePaths
    received: list[int]
    """Bytes by port."""
    asked: Path | Process
    """Its socket, or the connection of a process that has announced itself."""


class Agent:
    """The agent of one host, or of several hosts of a lab."""

    def __init__(
        self,
        fabric: Fabric,
        hosts: Iterable[str],
        connect: Callable[[str], Client],
        *,
        state: Path | None = None,
        probe_rate: int = 0,
        announced: Announced | None = None,
    ) -> None:
        """Takes over what an earlier one has kept, and begins to probe.

        Args:
            fabric: The fabric.
            hosts: Names of the hosts that it speaks for.
            connect: Makes a client with the token of a host.
            state: A file for the deny list; ``None``: it is lost with the agent.
            probe_rate: Probes a second of each host; 0: none.
            announced: Processes that announce themselves; it is closed with the agent.

        Raises:
            ArgumentError: if there is no such host.
            FormatError: if the file is wrong.
        """
        self.fabric = fabric
        self.hosts = [f"h{fabric.host(host)}" for host in hosts]
        self.deny: frozenset[str] = frozenset()
        self.deny_version = 0
        self.counts = Counts()
        self._locator = Locator(fabric)
        self._received = {host: Received(fabric.planes) for host in self.hosts}
        self._began = time.monotonic()
        self._clients = {host: connect(host) for host in self.hosts}
        self.announced = announced
        self._state = state
        self._boot = secrets.token_hex(8)
        self._sequence = 0
        self._failures = 0
        self._told: dict[str, Told] = {}
        self._changes = {host: Changes() for host in self.hosts}
        self._elsewhere: set[tuple[Path, int]] = set()
        """Sockets, with their inodes, of devices of other hosts: a lab has many."""
        self._ended = threading.Event()
        if state is not None and state.exists():
            self._restore(state)
        self.probing = Probing.start(fabric, self.hosts, probe_rate)

    def _restore(self, state: Path) -> None:
        try:
            kept = _Kept.model_validate_json(read_text(state))
        except ValidationError:
            raise FormatError(f"{state} is not what an agent keeps; remove it") from None
        if kept.fabric == self.fabric.spec.name:
            self.deny, self.deny_version = frozenset(kept.deny), kept.deny_version

    def close(self) -> None:
        """Ends :meth:`run`, also from another thread or a signal."""
        self._ended.set()

    def run(self) -> None:
        """Looks and reports until it is closed."""
        try:
            while not self._ended.is_set():
                began = time.monotonic()
                self.turn()
                if self._failures:
                    self._ended.wait(max(0.0, began + self._backoff() - time.monotonic()))
                else:
                    self._rest(began + PERIOD_S)
        finally:
            self.probing.close()
            if self.announced is not None:
                self.announced.close()
            for client in self._clients.values():
                client.close()

    def _rest(self, until: float) -> None:
        """Waits until this monotonic time, but no longer than until loops have news."""
        while (left := until - time.monotonic()) > 0:
            if self._ended.wait(min(left, LOOPS_S)):
                return
            self.probing.turn()
            if self.probing.is_news:
                return

    def _backoff(self) -> float:
        """Doubles with each failure, and differs from agent to agent: they do not come back all at once."""
        longest = min(MOST_WAIT_S, PERIOD_S * 2.0 ** min(self._failures, 10))
        return random.uniform(longest / 2, longest)

    def turn(self) -> None:
        """Looks once, applies the deny list, and reports."""
        self.probing.turn()
        by_host: dict[str, list[_Seen]] = {host: [] for host in self.hosts}
        for each in self._look():
            host = self._locator.host(each.paths)
            if host in by_host:
                by_host[host].append(each)
        asks = {host: self._needs_ev_probes(host) for host in by_host}
        for host, found in by_host.items():
            if asks[host]:
                self._send_ev_probes(found)
        applied = True
        for each in (device for found in by_host.values() for device in found):
            applied &= self._apply(each)
        dead = alive = 0
        for host, found in by_host.items():
            # Once its loops are whole again, what probes have found before is history.
            sight = self._locator.sight((device.paths for device in found), probed=asks[host])
            dead, alive = dead + len(sight.dead), alive + len(sight.alive)
            self._report(host, found, sight, applied=applied)
        self.counts.devices = sum(map(len, by_host.values()))
        self.counts.dead_paths, self.counts.alive_paths = dead, alive

    def _look(self) -> list[_Seen]:
        found = []
        elsewhere, self._elsewhere = self._elsewhere, set()
        for path in devices():
            try:
                socket = path, path.stat().st_ino
                if socket in elsewhere:
                    self._elsewhere.add(socket)
                    continue
                with Observer(path, patience_s=0.5) as observer:
                    received = [port["rx_bytes"] for port in observer.state().stats["ports"]]
                    seen = _Seen(path.name, observer.paths(), received, path)
            except (DeviceError, OSError):
                continue  # It is stopped, or has just been closed.
            if self._locator.host(seen.paths) in (None, *self.hosts):
                found.append(seen)
            else:
                self._elsewhere.add(socket)
        if self.announced is not None:
            for process in self.announced.look(each.key for each in found):
                if process.paths is not None:
                    found.append(_Seen(process.key, process.paths, process.received, process))
        return found

    def _needs_ev_probes(self, host: str) -> bool:
        """Whether loops do not tell enough: none of the host answers, or one loses.

        A queue pair's path crosses each link in one direction, so that its probes tell which one is silent.
        """
        return not self.probing.answered(host) or self.probing.suspects(host)

    def _send_ev_probes(self, seen: list[_Seen]) -> None:
        """Has the devices of a host send EV probes on their paths, at the rate of its loops."""
        if not self.probing.rate or not seen:
            return
        most = max(1, round(self.probing.rate * PERIOD_S / len(seen)))
        for each in seen:
            if isinstance(each.asked, Process):
                each.asked.probe(most)
                continue
            # It has just been closed, or is of a version without these probes.
            with contextlib.suppress(DeviceError, OSError), Observer(each.asked, patience_s=0.5) as observer:
                self.counts.paths_probed += observer.probe(most)

    def _apply(self, seen: _Seen) -> bool:
        """Hands the deny list to a device; whether the device was as it should be before."""
        changes = [each for each in self._locator.crossing(seen.paths, self.deny) if each[2] or each[3]]
        if not changes:
            return True
        if isinstance(seen.asked, Process):
            for pair, port, deny, allow in changes:
                seen.asked.deny(pair, port, deny)
                seen.asked.deny(pair, port, allow, denied=False)
                self.counts.paths_denied += len(deny)
                self.counts.paths_allowed += len(allow)
            return False
        try:
            with Observer(seen.asked, patience_s=0.5) as observer:
                for pair, port, deny, allow in changes:
                    if deny:
                        self.counts.paths_denied += observer.deny(pair, port, deny)
                    if allow:
                        self.counts.paths_allowed += observer.deny(pair, port, allow, denied=False)
        except (DeviceError, OSError):
            pass
        return False

    def _report(self, host: str, seen: list[_Seen], sight: Sight, *, applied: bool) -> None:
        dead = dict.fromkeys((self.fabric.host(path.dst), path.ev) for path in sight.dead)
        alive = dict.fromkeys((self.fabric.host(path.dst), path.ev) for path in sight.alive)
        loops = self.probing.seen(host)
        planes = sorted({int(each.switch[1 : each.switch.index("/")]) for each in sight.cables_down})
        content: dict[str, Any] = {
            "ports_down": planes,
            "dead": list(dead)[:MOST_PATHS],
            "alive": list(alive)[:MOST_PATHS],
            # Until every process has the list, the agent has not.
            "deny_version": self.deny_version if applied else 0,
            "devices": len(seen),
            "jobs": sorted(filter(None, {job_name(each.paths.job) for each in seen}))[:MOST_JOBS],
        }
        goodput = self._received[host].see(
            Watched(each.key, each.paths, each.received, self._locator.planes(each.paths.addresses, host))
            for each in seen
        )
        now = time.monotonic()
        told = self._told.setdefault(host, Told())
        changes = self._changed(host, seen)
        if not changes and not told.is_due(content, loops, now):
            return
        self._sequence += 1
        report = Report(
            **content,
            changes=changes,
            loops=loops,
            host=host,
            boot=self._boot,
            sequence=self._sequence,
            time=time.time(),
            counted_s=now - self._began,
            goodput=goodput,
        )
        try:
            reply = self._clients[host].report(report)
        except Error as error:
            self._failed(error)
            return
        if self._failures or not self.counts.connected:
            _log.info("connected to %s", self._clients[host].address)
        self._failures, self.counts.connected = 0, True
        self.counts.reports["sent"] += 1
        told.told(content, loops, now)
        self._changes[host].told(changes)
        self.probing.told(host)
        if reply.deny is not None and (reply.deny_version, frozenset(reply.deny)) != (
            self.deny_version,
            self.deny,
        ):
            self.deny, self.deny_version = frozenset(reply.deny), reply.deny_version
            self._keep()

    def _changed(self, host: str, seen: Iterable[_Seen]) -> list[tuple[int, int, int]]:
        changes = self._changes[host]
        changes.see(
            {
                each.key: (
                    ((pair, self.fabric.host(path.dst), path.ev), times)
                    for pair, path, times in self._locator.changes(each.paths)
                )
                for each in seen
            }
        )
        return changes.due()

    def _failed(self, error: Error) -> None:
        self.counts.reports["failed"] += 1
        self._told.clear()
        if self.counts.connected or not self._failures:
            _log.warning("%s; %d links stay denied", error, len(self.deny))
        self._failures, self.counts.connected = self._failures + 1, False

    def _keep(self) -> None:
        if self._state is None:
            return
        kept: dict[str, Any] = {
            "fabric": self.fabric.spec.name,
            "deny_version": self.deny_version,
            "deny": sorted(self.deny),
        }
        try:
            self._state.parent.mkdir(0o755, parents=True, exist_ok=True)
            write_text(self._state, json.dumps(kept))
        except OSError as error:
            _log.warning("the deny list is not kept: %s", error)
