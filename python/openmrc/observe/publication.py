"""Publishes an open device at a local socket: a thread that answers with counters and sends events.

One socket for each open device, in a directory of the user's own. Requests and answers are lines of JSON. The
agent of the host is a reader that the publication itself connects to (:mod:`openmrc.observe.announce`).
Other users are refused by the kernel's word (SO_PEERCRED), readers are limited in number, and a reader that
does not read loses its connection, not the device its time.
"""

import contextlib
import dataclasses
import itertools
import json
import logging
import os
import selectors
import socket
import stat
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from openmrc.closing import Closable
from openmrc.errors import ArgumentError
from openmrc.observe import announce
from openmrc.observe.ev_probes import EvProbes, Prober
from openmrc.observe.schema import (
    ContextStats,
    DevicePaths,
    DeviceState,
    Event,
    PathStats,
    QueuePairPaths,
)

MOST_READERS = 16
"""Connections at a time; further ones are closed."""
MOST_REQUEST = 1024
"""Bytes of a request's line."""
MOST_UNREAD = 1 << 20
"""Bytes that a reader may leave unread before its connection is closed."""
MOST_PATHS = 16_000
MOST_COUNTERS = 4_000
"""Paths, and paths with their counters, in an answer: so many fit into what a reader may leave unread."""
_serial = itertools.count()


class Events(Protocol):
    """A reader of events."""

    def fileno(self) -> int:
        """Readable while there are unread events."""

    def poll(self) -> Any:
        """The oldest, or ``None``."""

    def subscribe(self) -> "Events":
        """A reader of its own."""

    def close(self) -> None:
        """Ends it."""

    @property
    def dropped(self) -> int:
        """Events lost to this reader."""


class Observed(Prober, Protocol):
    """What an open device offers: :class:`openmrc.verbs.Context`."""

    async_events: Any
    ev_events: Any

    @property
    def name(self) -> str:
        """Of the device."""

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """By port."""

    def ports_up(self) -> list[int]:
        """Numbers of the ports that are up."""

    def stats(self) -> ContextStats:
        """Its counters."""

    @property
    def srv6(self) -> bool:
        """Whether it builds SRv6 frames."""

    def path_stats(self) -> list[PathStats]:
        """Counters per path."""

    def path_states(self) -> list[tuple[int, list[str], list[tuple[int, int, str]]]]:
        """Number, the peer's addresses, and port, entropy value and state of every path, by queue pair."""

    def deny_path(self, qp_num: int, port: int, ev: int, *, denied: bool) -> bool:
        """Takes a path out of a queue pair's rotation, or back; whether the queue pair has it."""


def directory() -> Path:
    """Where this user's processes publish their devices; ``OPENMRC_OBSERVE_DIR`` names another place."""
    named = os.environ.get("OPENMRC_OBSERVE_DIR")
    if named:
        return Path(named)
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime, "openmrc") if runtime else Path("/tmp") / f"openmrc-{os.getuid()}"


def checked_directory() -> Path:
    """The directory, made if it is missing.

    Raises:
        ArgumentError: if it is somebody else's, or others may write there.
    """
    path = directory()
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise ArgumentError(
            f"{path}: devices are published in a directory of one's own that only the owner may write to;"
            " name another in OPENMRC_OBSERVE_DIR"
        )
    return path


class Publication(Closable):
    """A published device; closing it ends the publication and not the device."""

    def __init__(self, observed: Observed) -> None:
        """Begins.

        Raises:
            ArgumentError: if the directory is not the user's own.
            OSError: if there are no descriptors, or the directory cannot be written to.
        """
        self._observed = observed
        self._number = next(_serial)
        self.path = checked_directory() / f"{os.getpid()}-{self._number}.sock"
        self._readers: dict[int, _Reader] = {}
        self._agent_socket = announce.agent_socket()
        self._agent: _Reader | None = None
        self._announced = -announce.AGAIN_S
        self._condemned: dict[tuple[int, int, int], int] = {}
        self._changes: defaultdict[int, Counter[tuple[int, int]]] = defaultdict(Counter)
        """By queue pair: how often each path was condemned or taken back."""
        self._probes = EvProbes(observed)
        self._pairs: list[QueuePairPaths] = []
        """As a reader has seen them last."""
        self._stopped = threading.Event()
        self._pid = os.getpid()
        with contextlib.ExitStack() as stack:
            self._events: list[Events] = [
                stack.enter_context(contextlib.closing(events.subscribe()))
                for events in (observed.async_events, observed.ev_events)
            ]
            self._selector = stack.enter_context(selectors.DefaultSelector())
            self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            stack.callback(os.close, self._wake)
            self._listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            self.path.unlink(missing_ok=True)
            self._listener.bind(os.fspath(self.path))
            stack.callback(self.path.unlink, missing_ok=True)
            self._listener.listen()
            self._listener.setblocking(False)
            for fd in (self._listener.fileno(), self._wake, *(events.fileno() for events in self._events)):
                self._selector.register(fd, selectors.EVENT_READ)
            self._thread = threading.Thread(target=self._run, name="openmrc observe", daemon=True)
            self._thread.start()
            self._resources = stack.pop_all()

    def close(self) -> None:
        """Ends the thread and removes the socket."""
        # In the child of a fork there is no thread to end, and the socket is the parent's.
        if self._stopped.is_set() or os.getpid() != self._pid:
            return
        self._stopped.set()
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        self._probes.close()
        for reader in self._readers.values():
            reader.connection.close()
        self._resources.close()

    def state(self) -> DeviceState:
        """The device now."""
        return DeviceState(
            device=self._observed.name,
            job=os.environ.get("OPENMRC_JOB"),
            pid=os.getpid(),
            program=" ".join([Path(sys.argv[0]).name, *sys.argv[1:]])[:256],
            time_ns=time.monotonic_ns(),
            addresses=[address for address, _ in self._observed.addresses],
            ports_up=self._observed.ports_up(),
            stats=self._observed.stats(),
            condemned=len(self._condemned),
        )

    def paths(self) -> DevicePaths:
        """What its queue pairs believe of their paths; those with condemned ones come first."""
        pairs: list[QueuePairPaths] = []
        peers: set[tuple[str, ...]] = set()
        for number, remote, states in self._observed.path_states():
            by_state: dict[str, list[tuple[int, int]]] = {"assumed_bad": [], "denied": []}
            good: list[tuple[int, int]] = []
            for port, ev, state in states:
                by_state.get(state, good).append((port, ev))
            bad = [
                (port, ev, self._condemned.get((number, port, ev), 0)) for port, ev in by_state["assumed_bad"]
            ]
            changes = [(port, ev, times) for (port, ev), times in self._changes.get(number, {}).items()]
            probed = self._probes.of(remote) if tuple(remote) not in peers else []
            peers.add(tuple(remote))
            pairs.append(
                QueuePairPaths(
                    qp_num=number,
                    remote=remote,
                    good=good,
                    bad=bad,
                    denied=by_state["denied"],
                    changes=changes,
                    probed=probed,
                )
            )
        for number in self._changes.keys() - {pair.qp_num for pair in pairs}:
            del self._changes[number]
        pairs.sort(key=lambda pair: not pair.bad)
        room, shown = MOST_PATHS, []
        for pair in pairs:
            room -= len(pair.good) + len(pair.bad) + len(pair.denied) + len(pair.changes) + len(pair.probed)
            if room < 0:
                break
            shown.append(pair)
        self._pairs = shown
        return DevicePaths(
            device=self._observed.name,
            pid=os.getpid(),
            job=os.environ.get("OPENMRC_JOB"),
            time_ns=time.monotonic_ns(),
            srv6=self._observed.srv6,
            addresses=[address for address, _ in self._observed.addresses],
            ports_up=self._observed.ports_up(),
            queue_pairs=shown,
            left_out=len(pairs) - len(shown),
            counters=self._observed.path_stats()[:MOST_COUNTERS],
        )

    def _run(self) -> None:
        while not self._stopped.is_set():
            for key, ready in self._selector.select(self._announce()):
                if key.fd == self._listener.fileno():
                    self._accept()
                elif key.fd in self._readers:
                    self._serve(self._readers[key.fd], ready)
            for event in self._take_events():
                line = _line({"event": dataclasses.asdict(event)})
                for reader in [each for each in self._readers.values() if each.follows]:
                    self._send(reader, line)

    def _announce(self) -> float | None:
        """Connects to the agent when it is time; seconds until it is next, ``None`` if that is not needed."""
        if self._agent_socket is None or self._agent is not None:
            return None
        wait = self._announced + announce.AGAIN_S - time.monotonic()
        if wait > 0:
            return wait
        self._announced = time.monotonic()
        connection = announce.connected(self._agent_socket)
        if connection is None:
            return announce.AGAIN_S
        reader = self._agent = self._add(connection)
        self._send(reader, _line({"announce": announce.VERSION, "number": self._number}))
        return announce.AGAIN_S

    def _take_events(self) -> Iterator[Event]:
        for events in self._events:
            # A closed context has no more of them: the publication is closed next.
            with contextlib.suppress(Exception):
                while (event := events.poll()) is not None:
                    yield self._published(event)

    def _published(self, event: Any) -> Event:
        fields = {
            name: value
            for name in type(event).__dataclass_fields__
            if (value := getattr(event, name)) not in (None, ())
        }
        kind = str(fields.pop("type", None) or fields.pop("state"))
        now = fields.pop("time_ns", time.monotonic_ns())
        if kind in ("assumed_bad", "good"):
            self._changes[event.qp_num][event.port, event.ev] += 1
        if kind == "assumed_bad":
            self._condemned[event.qp_num, event.port, event.ev] = event.time_ns
        elif kind == "good":
            self._condemned.pop((event.qp_num, event.port, event.ev), None)
        return Event(kind=kind, time_ns=now, device=self._observed.name, fields=fields)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            # Out of descriptors, or the reader has gone: the next one is accepted when there is room.
            self._stopped.wait(0.05)
            return
        _, uid = announce.credentials(connection)
        accepted = sum(reader is not self._agent for reader in self._readers.values())
        if uid not in (os.getuid(), 0) or accepted >= MOST_READERS:
            connection.close()
            return
        connection.setblocking(False)
        self._add(connection)

    def _add(self, connection: socket.socket) -> "_Reader":
        reader = self._readers[connection.fileno()] = _Reader(connection)
        self._selector.register(connection, selectors.EVENT_READ)
        return reader

    def _serve(self, reader: "_Reader", ready: int) -> None:
        if ready & selectors.EVENT_WRITE:
            self._send(reader, b"")
        if not ready & selectors.EVENT_READ:
            return
        try:
            received = reader.connection.recv(MOST_REQUEST)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        reader.received += received
        *lines, reader.received = reader.received.split(b"\n")
        for line in lines:
            self._answer(reader, line)
        if not received or len(reader.received) > MOST_REQUEST:
            self._drop(reader)

    def _answer(self, reader: "_Reader", line: bytes) -> None:
        match line.strip():
            case b"state" | b"paths" as request:
                answer: dict[str, Any]
                try:
                    found = self.state() if request == b"state" else self.paths()
                    answer = {request.decode(): dataclasses.asdict(found)}
                except Exception as error:
                    answer = {"error": str(error)}
                self._send(reader, _line(answer))
            case request if request.startswith((b"deny ", b"allow ")):
                self._send(reader, _line(self._deny(request)))
            case request if request.startswith(b"probe "):
                self._send(reader, _line(self._probe(request)))
            case b"follow":
                reader.follows = True
                self._send(reader, _line({"following": self._observed.name}))
            case _:
                self._send(
                    reader,
                    _line({"error": "a request is a line: state, paths, deny, allow, probe, or follow"}),
                )

    def _deny(self, request: bytes) -> dict[str, Any]:
        """``deny QP PORT EV EV ...``: paths that must not be used, or may again (``allow``)."""
        action, *words = request.split()
        try:
            number, port, *evs = (int(word) for word in words)
            if not 0 <= port < 256 or not all(0 <= ev < 1 << 32 for ev in evs):
                raise ValueError
            denied = action == b"deny"
            done = [self._observed.deny_path(number, port, ev, denied=denied) for ev in evs]
        except ValueError:
            return {"error": "a request is: deny|allow QUEUE-PAIR PORT ENTROPY-VALUE ..."}
        except Exception as error:
            return {"error": str(error)}
        return {"denied" if denied else "allowed": sum(done)}

    def _probe(self, request: bytes) -> dict[str, Any]:
        """``probe NUMBER``: sends EV probes on so many of the paths that :meth:`paths` has told last."""
        word = request.split()[1]
        if not word.isdigit() or len(word) > 9 or not int(word):
            return {"error": "a request is: probe NUMBER"}
        return {"probing": self._probes.begin(self._pairs, int(word))}

    def _send(self, reader: "_Reader", line: bytes) -> None:
        reader.unsent += line
        try:
            while reader.unsent:
                sent = reader.connection.send(reader.unsent)
                del reader.unsent[:sent]
        except BlockingIOError:
            if len(reader.unsent) > MOST_UNREAD:
                self._drop(reader)
                return
        except OSError:
            self._drop(reader)
            return
        if reader.connection.fileno() in self._readers:
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if reader.unsent else 0)
            self._selector.modify(reader.connection, wanted)

    def _drop(self, reader: "_Reader") -> None:
        if self._readers.pop(reader.connection.fileno(), None) is not None:
            self._selector.unregister(reader.connection)
            reader.connection.close()
            if reader is self._agent:
                self._agent = None


@dataclasses.dataclass
class _Reader:
    connection: socket.socket
    received: bytes = b""
    unsent: bytearray = dataclasses.field(default_factory=bytearray)
    follows: bool = False


def _line(content: dict[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":"), default=str).encode() + b"\n"


def publish_if_wanted(observed: Observed) -> Publication | None:
    """Publishes an open device if ``OPENMRC_OBSERVE`` is set and not 0, or if the host has an agent to tell.

    A device works without it too.
    """
    wanted = os.environ.get("OPENMRC_OBSERVE")
    if wanted == "0" or (wanted is None and not announce.is_wanted()):
        return None
    try:
        return Publication(observed)
    except (ArgumentError, OSError) as error:
        logging.getLogger("openmrc").info("%s is not published: %s", observed.name, error)
        return None


def publish(observed: Observed) -> Publication:
    """Publishes an open device until the publication or the device is closed.

    Raises:
        ArgumentError: if the directory is not the user's own.
        OSError: if there are no descriptors, or the directory cannot be written to.
    """
    return Publication(observed)
