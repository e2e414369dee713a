"""EV probes over the paths of a device's queue pairs, at the request of an agent: who answers on which path.

Idle queue pairs learn nothing about their paths. A probe that is not answered changes nothing of what a queue
pair believes: the agent is told, and decides.
"""

import contextlib
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from openmrc.errors import Error
from openmrc.observe.schema import ProbedPath, QueuePairPaths

MOST_PROBES = 1000
"""Paths of a request."""
ATTEMPTS = 4
"""A probe without an answer is repeated when its time is over. Answers return on the paths of the plane in
turn, so that a path back that is broken hides few of them."""
TIMEOUT_S = 0.1
"""For the answer to a probe."""
FORGOTTEN_S = 5.0
"""Without a request for so long, nothing is known any more: a path that was silent may be whole again."""
_MOST_THREADS = 16
"""Peers that are waited for at the same time."""

Remote = tuple[str, ...]
Path = tuple[int, int]


class Prober(Protocol):
    """What sends EV probes: :class:`openmrc.verbs.Context`."""

    def probe_paths(self, qp_num: int, paths: Sequence[Path], timeout: float) -> list[int | None]:
        """Round-trip times, nanoseconds, over these paths to a queue pair's peer; ``None``: no answer."""


class Part(NamedTuple):
    """Paths to one peer that are probed together."""

    remote: Remote
    qp_num: int
    paths: list[Path]


@dataclass(slots=True)
class _Record:
    """The probes of a path."""

    unanswered: int = 0
    """In a row."""
    since_ns: int = 0
    """When the first of them was sent, or the last one that was answered."""


@dataclass(slots=True)
class _Peer:
    """The paths to a peer, the one that was probed longest ago first."""

    qp_num: int
    records: dict[Path, _Record] = field(default_factory=dict)
    answers: bool = False
    """It has answered a probe, so that it is known to answer."""

    @property
    def is_suspect(self) -> bool:
        return any(record.unanswered for record in self.records.values())

    def keep(self, paths: Iterable[Path]) -> None:
        """Has these paths and no others."""
        wanted = dict.fromkeys(paths)
        self.records = {path: each for path, each in self.records.items() if path in wanted}
        for path in wanted:
            self.records.setdefault(path, _Record())

    def take(self, most: int) -> list[Path]:
        """The next paths, which go to the end of the row; one until the peer has answered."""
        taken = list(self.records)[: most if self.answers else 1]
        for path in taken:
            self.records[path] = self.records.pop(path)
        return taken


class EvProbes:
    """The EV probes of one device. :meth:`begin` and :meth:`of` are called by one thread."""

    def __init__(self, prober: Prober) -> None:
        self._prober = prober
        self._peers: dict[Remote, _Peer] = {}
        """The one that was probed longest ago first."""
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._turns = 0
        self._asked = 0.0
        """When the last request came, monotonic seconds."""

    def begin(self, pairs: Sequence[QueuePairPaths], most: int) -> int:
        """Probes paths of these queue pairs in a thread of its own, each path in its turn.

        Every second time those to peers come first that were silent on a path.

        Args:
            pairs: The queue pairs; what is known of others is forgotten.
            most: Paths, at most :data:`MOST_PROBES`.

        Returns:
            How many paths are probed; 0 while the last ones still are.
        """
        self._forget()
        self._asked = time.monotonic()
        if self._stopped.is_set() or (self._thread is not None and self._thread.is_alive()):
            return 0
        parts = self._choose(pairs, min(most, MOST_PROBES))
        if parts:
            self._thread = threading.Thread(
                target=self._run, args=(parts,), name="openmrc ev probes", daemon=True
            )
            self._thread.start()
        return sum(len(part.paths) for part in parts)

    def of(self, remote: Sequence[str]) -> list[ProbedPath]:
        """All paths to a peer that answers probes, those without an answer yet with time 0."""
        self._forget()
        with self._lock:
            peer = self._peers.get(tuple(remote))
            return [
                (*path, record.unanswered, record.since_ns)
                for path, record in (peer.records.items() if peer and peer.answers else ())
            ]

    def close(self) -> None:
        """Waits for the end of the probes that are under way."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _forget(self) -> None:
        if time.monotonic() > self._asked + FORGOTTEN_S:
            with self._lock:
                self._peers.clear()

    def _choose(self, pairs: Iterable[QueuePairPaths], most: int) -> list[Part]:
        wanted: dict[Remote, tuple[int, list[Path]]] = {}
        for pair in pairs:
            _, paths = wanted.setdefault(tuple(pair.remote), (pair.qp_num, []))
            paths += pair.good
        with self._lock:
            self._peers = {remote: peer for remote, peer in self._peers.items() if remote in wanted}
            for remote, (number, paths) in wanted.items():
                peer = self._peers.setdefault(remote, _Peer(number))
                peer.qp_num = number
                peer.keep(paths)
            order = list(self._peers)
            self._turns += 1
            if self._turns % 2 == 0:
                order.sort(key=lambda remote: not self._peers[remote].is_suspect)
            parts = []
            for remote in order:
                if most <= 0:
                    break
                peer = self._peers[remote] = self._peers.pop(remote)
                if taken := peer.take(most):
                    parts.append(Part(remote, peer.qp_num, taken))
                    most -= len(taken)
            return parts

    def _run(self, parts: Sequence[Part]) -> None:
        with ThreadPoolExecutor(min(_MOST_THREADS, len(parts))) as pool:
            list(pool.map(self._probe, parts))

    def _probe(self, part: Part) -> None:
        now, sent, waiting = time.monotonic_ns(), 0, part.paths
        # The device was closed, or the queue pair was and its paths with it.
        with contextlib.suppress(Error):
            while waiting and sent < ATTEMPTS and not self._stopped.is_set():
                rtts = self._prober.probe_paths(part.qp_num, waiting, TIMEOUT_S)
                waiting = [path for path, rtt in zip(waiting, rtts, strict=True) if rtt is None]
                sent += 1
            # A peer that answers nowhere may have ended, or does not know EV probes: no path is to blame.
            if sent and len(waiting) < len(part.paths):
                self._record(part, set(waiting), sent, now)

    def _record(self, part: Part, silent: set[Path], sent: int, now: int) -> None:
        with self._lock:
            if (peer := self._peers.get(part.remote)) is None:
                return
            peer.answers = True
            for path in part.paths:
                if (record := peer.records.get(path)) is None:
                    continue
                if path not in silent:
                    record.unanswered, record.since_ns = 0, now
                else:
                    record.since_ns = record.since_ns if record.unanswered else now
                    record.unanswered += sent
