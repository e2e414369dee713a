"""The probers of an agent: loops of each host to itself, counted for its reports.

The loops are those of :func:`openmrc.localise.loops_of_host`; the core sends and counts them
(``crates/prober``).
"""

import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from openmrc import _core
from openmrc.errors import ArgumentError, DeviceError, Error, PrivilegeError
from openmrc.fabric import Fabric
from openmrc.lab import system
from openmrc.lab.layout import namespace
from openmrc.localise import Loop, Recent, loops_of_host
from openmrc.localise.likelihood import evidence_against
from openmrc.operate.model import MOST_PATHS, LoopSeen
from openmrc.sourceroutes import own_addresses

RATE = 500
"""Probes a second of each host: the default of agents."""
MOST_RATE = 8_000
"""Probes a second of all hosts that one agent speaks for: in a lab they share a machine."""
INTERVAL_MS = 125
"""Probes are counted for the interval in which they were sent."""
GRACE_MS = 125
"""A probe that comes back later than this after its interval is lost. A path takes less than a millisecond;
the rest is for kernels that forward when they find time. A prober reads what has come before it counts."""
MOST_S = 30.0
"""Counts reach back this far at most: a link that loses a thousandth has lost enough by then."""
_WORST_FOR = 5000 // INTERVAL_MS
"""Intervals for which losses wait for a report: what is older is history and no evidence of now."""
_AGAIN_S = 10.0
"""Between two attempts of a host that could not probe."""
_SILENT_S = 5.0
"""Without any answer for so long from the start, the agent says so."""
_log = logging.getLogger("openmrc.agent")


@dataclass(slots=True)
class _Counted:
    """Probes of a loop."""

    loop: Loop
    recent: Recent
    worst: tuple[int, int] = (0, 0)
    """Sent and lost, when they said most against the loop since the last report."""
    age: int = 0
    """Intervals since then."""
    known: float = 0.0
    """What the last report said against the loop, nats."""

    def add(self, sent: int, lost: int) -> None:
        """Takes what an interval has brought."""
        self.recent.add(sent, lost)
        self.age += 1
        now = self.recent.sent, self.recent.lost
        if self.age > _WORST_FOR or evidence_against(*now) >= evidence_against(*self.worst):
            self.worst, self.age = now, 0

    def seen(self) -> tuple[int, int]:
        """Sent and lost, as they are or as they were at their worst since the last report."""
        now = self.recent.sent, self.recent.lost
        return self.worst if evidence_against(*self.worst) > evidence_against(*now) else now

    def told(self) -> None:
        """The controller has the worst."""
        self.known = evidence_against(*self.seen())
        self.worst = 0, 0

    @property
    def is_news(self) -> bool:
        """Whether the controller should hear at once how much is lost: twice what it knows of."""
        return evidence_against(*self.seen()) > 2 * self.known


class LoopCounts:
    """What a host's probes have brought, loop by loop, for its agent's reports."""

    def __init__(self, loops: Iterable[Loop], *, quiet: int = 0) -> None:
        """Starts without any, or with what has arrived so far.

        Args:
            loops: The loops, in the order of their numbers.
            quiet: Probes of each loop in each interval before, of which none was lost.
        """
        most = round(MOST_S * 1000 / INTERVAL_MS)
        self._loops = [_Counted(loop, Recent(most, quiet=quiet)) for loop in loops]
        self.answered = quiet > 0
        """Whether any probe has ever come back: without SRv6 in the switches none does, and no link is
        broken."""

    def take(self, intervals: Iterable[Sequence[tuple[int, int]]]) -> None:
        """Takes probes sent and lost, by loop, of intervals that are over."""
        for counts in intervals:
            answered = self.answered
            self.answered = answered or any(sent > lost for sent, lost in counts)
            for loop, (sent, lost) in zip(self._loops, counts, strict=True):
                loop.add(sent, lost)
                if not answered:
                    loop.told()  # What was lost before the first answer is no news.

    def seen(self) -> list[LoopSeen]:
        """The counts of each loop since its loss changed last, at most 30 s; none without any answer.

        A link that flaps is good again before anyone hears of it. So they are those of the time since
        :meth:`told`, at most 5 s, at which they said most against the loop.
        """
        if not self.answered:
            return []
        seen = ((each.loop, *each.seen()) for each in self._loops)
        return [
            LoopSeen(plane=loop.plane, uplink=loop.uplink, sent=sent, lost=lost)
            for loop, sent, lost in seen
            if sent
        ]

    @property
    def is_losing(self) -> bool:
        """Whether a loop is seen to lose."""
        return any(loop.seen()[1] for loop in self._loops)

    @property
    def is_news(self) -> bool:
        """Whether a loop loses much more than the controller has heard."""
        return self.answered and any(loop.is_news for loop in self._loops)

    def told(self) -> None:
        """The controller has what was seen."""
        for loop in self._loops:
            loop.told()


@dataclass(slots=True)
class _Probed:
    """A host that probes."""

    prober: _core.Prober
    counts: LoopCounts
    since: float


@dataclass(slots=True)
class _Waiting:
    """A host that cannot probe, or not yet."""

    until: float = 0.0
    said: str = ""


@dataclass(slots=True)
class Probing:
    """The probers of the hosts that an agent speaks for. Used by one thread."""

    fabric: Fabric
    hosts: list[str]
    rate: int
    """Probes a second of each host."""
    _running: dict[str, _Probed] = field(default_factory=dict)
    _waiting: dict[str, _Waiting] = field(default_factory=dict)
    _totals: Counter[str] = field(default_factory=Counter)
    """Of probers that have ended."""

    @classmethod
    def start(cls, fabric: Fabric, hosts: Iterable[str], rate: int) -> "Probing":
        """Begins to probe for these hosts, where that is possible; says why where it is not.

        Args:
            fabric: The fabric.
            hosts: Names of hosts.
            rate: Probes a second of each host; 0: none.
        """
        names = list(hosts)
        probing = cls(fabric, names, rate)
        if not rate or not names:
            return probing
        if rate * len(names) > MOST_RATE:
            probing.rate = max(1, MOST_RATE // len(names))
            _log.info("%d hosts share this machine: %d probes a second of each", len(names), probing.rate)
        try:
            fabric.core.check_addresses()
        except ArgumentError as error:
            _log.warning("no probes: the fabric has no SRv6 addresses (%s)", error)
            return probing
        probing._waiting = {host: _Waiting() for host in names}
        return probing

    @property
    def totals(self) -> dict[str, int]:
        """What all probers have done, by name."""
        total = self._totals.copy()
        for each in self._running.values():
            total.update(dict(each.prober.totals()))
        return dict(total)

    def close(self) -> None:
        """Ends all probers."""
        for host in list(self._running):
            self._end(host)
        self._waiting.clear()

    def turn(self) -> None:
        """Takes what has been counted, and starts probers that could not start before."""
        now = time.monotonic()
        for host, waiting in list(self._waiting.items()):
            if now >= waiting.until:
                self._try(host, waiting, now)
        for host, probed in list(self._running.items()):
            try:
                intervals = probed.prober.take()
            except DeviceError as error:
                _log.warning("no probes of %s: %s", host, error)
                self._end(host)
                self._waiting[host] = _Waiting(now + _AGAIN_S, str(error))
                continue
            probed.counts.take(intervals)
            if not probed.counts.answered and now >= probed.since + _SILENT_S:
                probed.since = float("inf")
                _log.warning("no probe of %s comes back, so none is counted: do its T0s forward SRv6?", host)

    def seen(self, host: str) -> list[LoopSeen]:
        """The counts of a host's loops (:meth:`LoopCounts.seen`)."""
        probed = self._running.get(host)
        return [] if probed is None else probed.counts.seen()

    def answered(self, host: str) -> bool:
        """Whether loops of a host have come back: its links are probed."""
        probed = self._running.get(host)
        return probed is not None and probed.counts.answered

    def suspects(self, host: str) -> bool:
        """Whether a loop of a host loses: it crosses links in both directions and cannot tell them apart."""
        probed = self._running.get(host)
        return probed is not None and probed.counts.answered and probed.counts.is_losing

    @property
    def is_news(self) -> bool:
        """Whether loops of a host lose much more than the controller has heard."""
        return any(probed.counts.is_news for probed in self._running.values())

    def told(self, host: str) -> None:
        """The controller has what was seen of a host."""
        if probed := self._running.get(host):
            probed.counts.told()

    def _try(self, host: str, waiting: _Waiting, now: float) -> None:
        try:
            prober, loops = self._open(host)
        except PrivilegeError as error:
            _log.warning("no probes of %s: %s", host, error)
            del self._waiting[host]
        except (Error, OSError) as error:
            if str(error) != waiting.said:
                _log.warning("no probes of %s yet: %s", host, error)
            self._waiting[host] = _Waiting(now + _AGAIN_S, str(error))
        else:
            if waiting.said:
                _log.info("%s probes", host)
            del self._waiting[host]
            self._running[host] = _Probed(prober, LoopCounts(loops), now)

    def _open(self, host: str) -> tuple[_core.Prober, list[Loop]]:
        loops = list(loops_of_host(self.fabric, host))[:MOST_PATHS]
        with _entered(self.fabric, host):
            prober = _core.Prober(
                list(addresses(self.fabric, host, loops)),
                rate=self.rate,
                traffic_class=self.fabric.spec.qos.dscp.control << 2,
                interval_ms=INTERVAL_MS,
                grace_ms=GRACE_MS,
            )
        return prober, loops

    def _end(self, host: str) -> None:
        probed = self._running.pop(host)
        probed.prober.close()
        self._totals.update(dict(probed.prober.totals()))


def addresses(fabric: Fabric, host: int | str, loops: Iterable[Loop]) -> Iterator[tuple[str, str]]:
    """Yields the address of the port and the outer destination address of each loop of a host.

    Raises:
        ArgumentError: if the fabric has no such loop.
    """
    number = fabric.host(host)
    own = fabric.host_addresses(number)
    for loop in loops:
        path = fabric.core.loop_address(number, loop.plane, loop.uplink)
        if path is None:
            raise ArgumentError(f"{loop.host} has no loop over plane {loop.plane}, uplink {loop.uplink}")
        yield own[loop.plane], path


def _entered(fabric: Fabric, host: str) -> AbstractContextManager[None]:
    """The host's network namespace: the own one, or that of a lab of the fabric's name."""
    if set(own_addresses()).isdisjoint(fabric.host_addresses(host)):
        space = namespace(fabric.spec.name, host)
        if system.existing([space]):
            return system.entered(space)
    return nullcontext()
