"""Reports of hosts that do not exist, with faults from a seeded generator: to see the controller at work.

Probes are drawn one by one from the losses of the components that they need, so the localiser has the task
that it has in a real fabric. Two jobs receive at the rate of the paths that lose nothing. Time is real;
nothing else of a network is simulated: no queues, no transport.
"""

import asyncio
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

from openmrc.fabric import Fabric, Path, Specification
from openmrc.localise import Component, Kind, components_of_path, loops_of_host
from openmrc.operate.model import JobSeen, LoopSeen, Report
from openmrc.operate.score import Injected
from openmrc.operate.service import Service

SPECIFICATION = {
    "name": "simulated",
    "hosts": 256,
    "nic": {"rate": "800G"},
    "planes": 8,
    "switch": {"radix": 32},
    "tiers": 2,
    "parallel_links": 1,
}
"""The fabric where none is named: 8 planes of 16 T0s and 16 T1s."""
PROBES = 200
"""Of each loop in a report."""
PERIOD_S = 1.0
MOST_HOSTS = 512
"""Hosts that report: of a larger fabric as many, spread evenly."""
_PATHS = 16
"""Paths in use of a host."""
_JOBS = ("train-a", "train-b")
_SHARE, _SPREAD = 0.9, 0.03
"""Of a port's rate that a job uses, and how much less that is at times."""
_LOSSES = (1.0, 1.0, 0.3, 0.05, 0.02)
_KINDS = (Kind.LINK,) * 6 + (Kind.UPWARD, Kind.SWITCH, Kind.HOST)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A fault of the generator."""

    component: Component
    loss: float
    began: float
    until: float
    """Monotonic times."""


class Simulated:
    """The hosts of a fabric."""

    def __init__(self, fabric: Fabric, *, seed: int = 1, every_s: float = 10.0) -> None:
        """Starts with everything healthy.

        Args:
            fabric: The fabric.
            seed: Of the generator.
            every_s: Mean time between two faults.
        """
        self.fabric = fabric
        self.faults: list[Drawn] = []
        self.drawn: list[Drawn] = []
        """All faults since the start, the oldest first."""
        self._random = random.Random(seed)
        self._every_s = every_s
        self._next = 0.0
        self._sequence = 0
        self._boot = f"{self._random.getrandbits(64):016x}"
        self._denied: frozenset[str] = frozenset()
        self._deny_version = 0
        self._hosts = reporting(fabric)
        self._loops = {host: list(loops_of_host(fabric, host)) for host in self._hosts}
        self._ways: dict[int, list[tuple[Path, frozenset[Component]]]] = {}
        """Of each host: paths to one peer, and all that they need."""
        self._received = {host: [0] * fabric.planes for host in self._hosts}
        self._counted = time.monotonic() - PERIOD_S
        self._noise = random.Random(seed)
        self._links = sorted(
            {
                c.name
                for loops in self._loops.values()
                for loop in loops
                for c in loop.components
                if c.kind is Kind.LINK
            }
        )

    def inject(self, component: Component, loss: float, until: float, *, began: float = 0.0) -> None:
        """Makes a component lose this share of packets until a monotonic time."""
        self.faults.append(Drawn(component, loss, began, until))
        self.drawn.append(self.faults[-1])

    def injected(self, until: float) -> list[Injected]:
        """All faults that began before a monotonic time, with times since 1970."""
        offset = time.time() - time.monotonic()
        return [
            Injected(
                each.component,
                each.loss,
                each.began + offset,
                each.until + offset if each.until <= until else None,
            )
            for each in self.drawn
            if each.began <= until
        ]

    def advance(self, now: float) -> None:
        """Ends faults, and begins one when it is time."""
        self.faults = [fault for fault in self.faults if fault.until > now]
        if not self._next:
            self._next = now + 3.0
        if now >= self._next:
            self._next = now + self._random.expovariate(1 / self._every_s)
            kind, loss = self._random.choice(_KINDS), self._random.choice(_LOSSES)
            self.inject(
                Component(kind, self._name(kind)), loss, now + self._random.uniform(15, 45), began=now
            )

    def _name(self, kind: Kind) -> str:
        if kind is Kind.HOST:
            return f"h{self._random.choice(self._hosts)}"
        if kind is Kind.SWITCH:
            return str(self._random.choice([s for s in self.fabric.switches() if s.tier]))
        return self._random.choice(self._links)

    def reports(self) -> Iterator[Report]:
        """Yields a report of every host, for the last period."""
        self._sequence += 1
        now = time.monotonic()
        # On a busy machine a period takes longer, and more is received in it.
        elapsed, self._counted = now - self._counted, now
        lossy = {fault.component: fault.loss for fault in self.faults}
        for place, host in enumerate(self._hosts):
            loops = []
            arriving: list[list[float]] = [[] for _ in range(self.fabric.planes)]
            for loop in self._loops[host]:
                arrives = 1.0
                for component in loop.components & lossy.keys():
                    arrives *= 1 - lossy[component]
                lost = (
                    PROBES - sum(self._random.random() < arrives for _ in range(PROBES)) if arrives < 1 else 0
                )
                arriving[loop.plane].append(arrives)
                loops.append(LoopSeen(plane=loop.plane, uplink=loop.uplink, sent=PROBES, lost=lost))
            job = _JOBS[place * len(_JOBS) // len(self._hosts)]
            yield Report(
                host=f"h{host}",
                boot=self._boot,
                sequence=self._sequence,
                time=time.time(),
                loops=loops,
                alive=self._in_use(host, lossy),
                deny_version=self._deny_version,
                devices=1,
                jobs=[job],
                counted_s=self._counted,
                goodput=[JobSeen(job=job, processes=1, received=self._receive(host, elapsed, arriving))],
            )

    def _receive(self, number: int, elapsed: float, arriving: list[list[float]]) -> list[int]:
        """Bytes by plane that a host has received since the start, with those of this period.

        Args:
            number: The host's.
            elapsed: Length of the period, seconds.
            arriving: By plane, the share of packets that arrive over each of its loops.
        """
        full = self.fabric.port_rate / 8 * elapsed * _SHARE * (1 - self._noise.uniform(0, _SPREAD))
        for plane, shares in enumerate(arriving):
            # Queue pairs leave a path that loses, unless all do.
            usable = sum(each == 1 for each in shares) / len(shares) or max(shares)
            self._received[number][plane] += round(full * usable)
        return list(self._received[number])

    def _in_use(self, number: int, lossy: dict[Component, float]) -> list[tuple[int, int]]:
        """Paths to one peer that are neither denied nor broken."""
        peer = (number + self.fabric.core.hosts_per_t0) % self.fabric.hosts
        if number not in self._ways:
            paths = [] if peer == number else self.fabric.paths(number, peer)
            chosen = paths[:: max(1, len(paths) // _PATHS)]
            self._ways[number] = [(path, components_of_path(path)) for path in chosen]
        return [
            (peer, path.ev)
            for path, components in self._ways[number]
            if self._denied.isdisjoint(path.links) and lossy.keys().isdisjoint(components)
        ]

    async def run(self, service: Service) -> None:
        """Reports to a controller until it is cancelled."""
        while True:
            began = time.monotonic()
            self.advance(began)
            replies = []
            for place, report in enumerate(self.reports()):
                replies.append(service.take(report))
                if place % 16 == 15:
                    await asyncio.sleep(0)
            for reply in replies:
                if reply.deny is not None:
                    self._denied, self._deny_version = frozenset(reply.deny), reply.deny_version
            await asyncio.sleep(max(0.05, began + PERIOD_S - time.monotonic()))


def reporting(fabric: Fabric) -> list[int]:
    """The hosts that report: all, or of more than :data:`MOST_HOSTS` some under different T0s."""
    if fabric.hosts <= MOST_HOSTS:
        return list(range(fabric.hosts))
    apart = fabric.hosts // MOST_HOSTS
    return [number * apart + number % apart for number in range(MOST_HOSTS)]


def fabric() -> Fabric:
    """The fabric where none is named."""
    return Fabric(Specification.model_validate(SPECIFICATION))
