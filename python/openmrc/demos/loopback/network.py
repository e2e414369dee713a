"""The faults in force, and what they did: the network's own view, to compare with the transport's."""

import threading
import time
from dataclasses import dataclass, field

from openmrc.closing import Closable
from openmrc.demos.director import Fault
from openmrc.demos.loopback.receiver import Receiver
from openmrc.testing import impair
from openmrc.verbs import EvState, QueuePair

_FAST = 0.0005
_SLOW = 0.01
_FAST_FOR_NS = 1_000_000_000
_STATES_EVERY_NS = 50_000_000


@dataclass
class FaultRecord:
    """What a fault did at the sender's side."""

    fault: Fault
    began_ns: int
    """Monotonic clock; not later than the first packet that it acted on."""
    ended_ns: int | None = None
    hits: list[int] = field(default_factory=list)
    """How often each of its rules acted on the sender's packets."""
    last_hit_ns: int | None = None
    """When its first rule acted last."""
    hits_over_time: list[tuple[int, int]] = field(default_factory=list)
    """Time and count of the first rule's actions, at each change that was seen."""


@dataclass
class PathStates:
    """States of the sender's paths over time."""

    time_ns: list[int] = field(default_factory=list)
    bad: list[list[float]] = field(default_factory=list)
    """Share of paths believed broken, per plane."""


class BadNetwork(Closable):
    """Puts faults in force at both ends and watches.

    Args:
        qp: The sender's queue pair.
        receiver: The other end.
        planes: How many.
    """

    def __init__(self, qp: QueuePair, receiver: Receiver, planes: int) -> None:
        self._qp = qp
        self._receiver = receiver
        self._planes = planes
        self._rules = impair(qp.context)
        self._active: list[FaultRecord] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.records: list[FaultRecord] = []
        self.states = PathStates()
        self._changed_ns = 0
        self._seed = 0
        self._thread = threading.Thread(target=self._watch, name="openmrc-demo-network", daemon=True)
        self._thread.start()

    def begin(self, fault: Fault) -> None:
        """Puts a fault in force besides those of now."""
        record = FaultRecord(fault, time.monotonic_ns(), hits=[0] * len(fault.rules))
        self.records.append(record)
        self._set([*self._active, record])

    def end(self, fault: Fault) -> None:
        """Ends a fault."""
        for record in self._active:
            if record.fault is fault:
                record.ended_ns = time.monotonic_ns()
        self._set([record for record in self._active if record.fault is not fault])

    def _set(self, active: list[FaultRecord]) -> None:
        rules = [rule for record in active for rule in record.fault.rules]
        with self._lock:
            self._update()
            self._active = active
            # New rules count from zero.
            self._before = {id(record): list(record.hits) for record in active}
            # A new seed each time. Otherwise the paths that lose packets would be those that are congested
            # later, and by then they are out of use.
            self._seed += 1
            self._rules.set(*rules, seed=self._seed)
            self._changed_ns = time.monotonic_ns()
        self._receiver.ask("impair", rules, self._seed)

    def close(self) -> None:
        """Stops watching. Closing twice is harmless."""
        self._stop.set()
        self._thread.join()

    def bad_paths(self) -> list[tuple[int, int]]:
        """For each plane: how many paths are believed broken, and how many there are."""
        counts = [[0, 0] for _ in range(self._planes)]
        for port, _, state in self._qp.ev_states():
            counts[port][0] += state is EvState.ASSUMED_BAD
            counts[port][1] += 1
        return [(bad, total) for bad, total in counts]

    def _watch(self) -> None:
        while True:
            now = time.monotonic_ns()
            pause = _FAST if now - self._changed_ns < _FAST_FOR_NS else _SLOW
            if self._stop.wait(pause):
                return
            with self._lock:
                self._update()
            if not self.states.time_ns or now - self.states.time_ns[-1] >= _STATES_EVERY_NS:
                self.states.time_ns.append(now)
                self.states.bad.append([bad / total if total else 0.0 for bad, total in self.bad_paths()])

    def _update(self) -> None:
        """Records what the rules have done."""
        hits, last = iter(self._rules.hits()), iter(self._rules.last_hit_ns())
        now = time.monotonic_ns()
        for record in self._active:
            before = record.hits[0]
            record.hits = [had + next(hits) for had in self._before[id(record)]]
            first, *_ = [next(last) for _ in record.hits]
            record.last_hit_ns = first or record.last_hit_ns
            if record.hits[0] != before:
                record.hits_over_time.append((now, record.hits[0]))
