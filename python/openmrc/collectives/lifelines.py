"""How ranks learn at once that a rank on another host has ended.

Every rank has TCP connections to the first one, over up to three planes. The kernel ends them with the
process, and the first rank tells the others. A process that is stopped keeps its connections. A host that has
lost its power, or its network, ends none; it leaves the pulses on all of them unanswered.
"""

import contextlib
import enum
import logging
import os
import selectors
import socket
import struct
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Protocol

from openmrc.closing import Closable
from openmrc.collectives.callers import HELLO, Callers
from openmrc.collectives.pulse import Pulse
from openmrc.control import tcp

_NEWS = struct.Struct(">IB")
"""From the first rank: the number of a rank and how it has ended, or a pulse."""
_PULSE = (b"p", _NEWS.pack(0, 255))
"""From a rank, and from the first rank."""
_GOODBYE = b"."
"""From a rank that closes its communicator."""
_CONNECT = 10.0
"""Seconds for the connections to the first rank."""
_PERIOD = 0.1
"""Seconds from one pulse to the next."""
_PULSES = 2000
"""Pulses a second that one rank sends at most: more connections have longer periods."""
SILENCE = 0.6
"""Seconds after which a host that leaves pulses unanswered on all connections is lost, beyond one period."""
_ROUTES = 3
"""Planes over which ranks of different hosts are connected: one that fails is no sign of a host's end."""


class Ending(enum.IntEnum):
    """How a rank has ended."""

    PROCESS = 0
    GOODBYE = 1
    HOST = 2


_REASONS = {
    Ending.PROCESS: "its process has ended",
    Ending.GOODBYE: "it has closed its communicator",
    Ending.HOST: "its host does not answer",
}
_WAIT = {Ending.PROCESS: 0.2, Ending.GOODBYE: 5.0, Ending.HOST: 0.0}
"""Seconds until a rank that has ended counts as lost: what its process sent before may still be on its
way, and one that has closed its communicator should be needed by nobody."""

_log = logging.getLogger("openmrc.collectives")


class Watcher(Protocol):
    """A communicator: it learns of ranks that have ended."""

    @property
    def members(self) -> tuple[int, ...]:
        """By rank: the number by which all communicators know it."""

    def peer_ended(self, rank: int, reason: str) -> None:
        """A rank has ended."""


_open: "weakref.WeakSet[Lifelines]" = weakref.WeakSet()


def _let_go() -> None:
    """The child of a fork has the connections too: they would outlive the process whose end they show."""
    for each in list(_open):
        each.closed = True
        each._close_sockets()


os.register_at_fork(after_in_child=_let_go)


class Lifelines(Closable):
    """The connections of one rank.

    Args:
        rank: This rank.
        members: By rank: the number by which communicators know it.
        sockets: Of the first rank, its listening sockets, else its connections to the first rank.
        secret: 32 bytes that all ranks know.
        hosts: By rank: its host. Only other hosts can be lost.
    """

    def __init__(
        self,
        rank: int,
        members: Sequence[int],
        sockets: Sequence[socket.socket],
        secret: bytes,
        hosts: Sequence[str],
    ) -> None:
        self._rank, self._members, self._hosts = rank, list(members), list(hosts)
        self._communicators: weakref.WeakSet[Watcher] = weakref.WeakSet()
        self._ended: set[int] = set()
        self._due: list[tuple[float, int, Ending]] = []
        self._said: dict[socket.socket, bytes] = {}
        """What came on each connection and is not complete."""
        self._peers: dict[socket.socket, int] = {}
        """Connections, and whose they are."""
        self._pulses: dict[socket.socket, Pulse] = {}
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        ours = [] if rank == 0 else sockets
        for each in (*ours, self._woken):
            each.setblocking(False)
            self._selector.register(each, selectors.EVENT_READ)
        for each in ours:
            self._know(each, 0, b"")
        listeners = sockets if rank == 0 else []
        self._callers = Callers(self._selector, listeners, secret, len(members), self._know)
        self.closed = False
        """Whether it is closed."""
        _open.add(self)
        self._thread = threading.Thread(target=self._run, name="openmrc-lifelines", daemon=True)
        self._thread.start()

    @classmethod
    def join(
        cls,
        rank: int,
        members: Sequence[int],
        addresses: Sequence[tuple[str, int]],
        secret: bytes,
        hosts: Sequence[str],
    ) -> "Lifelines | None":
        """Those of a rank that is not the first; ``None`` if the first one cannot be reached by TCP."""
        connections: list[socket.socket] = []
        failed: OSError | None = None
        for address in addresses:
            try:
                connection = socket.create_connection(address, _CONNECT if not connections else _CONNECT / 10)
                connections.append(connection)
                connection.sendall(HELLO.pack(secret, rank))
            except OSError as error:
                failed = error
        if not connections:
            _log.warning(
                "rank 0 cannot be reached at %s port %d (%s): a process that ends on another host is noticed"
                " only when its queue pairs give up",
                *addresses[0],
                failed,
            )
            return None
        return cls(rank, members, connections, secret, hosts)

    def watch(self, communicator: Watcher) -> None:
        """From now on a communicator learns of ranks that have ended."""
        self._communicators.add(communicator)

    def close(self) -> None:
        """Says goodbye and ends the connections."""
        if self.closed:
            return
        self.closed = True
        with contextlib.suppress(OSError):
            self._wake.send(b"x")
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # --- the thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        looked = time.monotonic()
        while not self.closed:
            now = time.monotonic()
            at = [*(at for at, _, _ in self._due), *self._callers.deadlines()]
            if self._pulses:
                at.append(looked + self._period)
            for key, _ in self._selector.select(max(0.0, min(at) - now) if at else None):
                if key.data is not None:
                    key.data()
                elif key.fileobj is self._woken:
                    self._woken.recv(16)
                elif isinstance(key.fileobj, socket.socket):
                    self._read(key.fileobj)
            self._callers.poll_timers()
            now = time.monotonic()
            if now >= looked + self._period:
                self._look(late=now > looked + self._period + SILENCE / 2)
                looked = now
            self._tell_communicators()
        farewell = _NEWS.pack(0, Ending.GOODBYE) if self._rank == 0 else _GOODBYE
        for each in self._peers:
            with contextlib.suppress(OSError):
                each.send(farewell)
        self._close_sockets()
        self._selector.close()

    def _close_sockets(self) -> None:
        for each in (*self._said, *self._callers, self._wake, self._woken):
            each.close()

    @property
    def _period(self) -> float:
        return max(_PERIOD, len(self._pulses) / _PULSES)

    def _look(self, *, late: bool) -> None:
        """Sends pulses, and finds ranks whose hosts leave all of theirs unanswered."""
        silent: dict[int, float] = {}
        for connection, pulse in list(self._pulses.items()):
            if late:
                pulse.forgive()
            rank = self._peers[connection]
            try:
                silent[rank] = min(silent.get(rank, float("inf")), pulse.beat())
            except OSError:
                self._drop(connection)
        for rank, seconds in silent.items():
            if seconds > SILENCE:
                # Its other ranks too: those of the first rank's host have connections to nobody else.
                for other, host in enumerate(self._hosts):
                    if host == self._hosts[rank]:
                        self._end(other, Ending.HOST)

    def _read(self, connection: socket.socket) -> None:
        if connection not in self._said:  # Dropped by what was read just before.
            return
        try:
            data = connection.recv(4096)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        except OSError:  # The network, and not the end of a process.
            self._drop(connection)
            return
        said = self._said[connection] + data
        if self._rank == 0:
            self._said[connection] = said[-1:]
            if not data:
                goodbye = said.endswith(_GOODBYE)
                self._end(self._peers[connection], Ending.GOODBYE if goodbye else Ending.PROCESS)
        else:
            while len(said) >= _NEWS.size:
                rank, ending = _NEWS.unpack_from(said)
                said = said[_NEWS.size :]
                if ending in _REASONS and rank < len(self._members):
                    self._end(rank, Ending(ending))
            if connection in self._said:
                self._said[connection] = said
                if not data:
                    self._end(0, Ending.PROCESS)

    def _know(self, connection: socket.socket, rank: int, said: bytes) -> None:
        self._said[connection] = said[-1:]
        self._peers[connection] = rank
        if self._hosts[rank] != self._hosts[self._rank]:
            self._pulses[connection] = Pulse(connection, _PULSE[self._rank == 0])

    def _drop(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        for known in (self._said, self._peers, self._pulses):
            known.pop(connection, None)
        connection.close()

    def _end(self, rank: int, ending: Ending) -> None:
        for connection in [each for each, whose in self._peers.items() if whose == rank]:
            self._drop(connection)
        if rank in self._ended:
            return
        self._ended.add(rank)
        self._due.append((time.monotonic() + _WAIT[ending], rank, ending))
        if self._rank == 0:
            for connection in self._peers:
                with contextlib.suppress(OSError):
                    connection.send(_NEWS.pack(rank, ending))

    def _tell_communicators(self) -> None:
        now = time.monotonic()
        for entry in [each for each in self._due if each[0] <= now]:
            self._due.remove(entry)
            member = self._members[entry[1]]
            for communicator in list(self._communicators):
                if member in communicator.members:
                    communicator.peer_ended(communicator.members.index(member), _REASONS[entry[2]])


def listen(address: str, planes: Sequence[str]) -> list[socket.socket]:
    """The listening sockets of the first rank: at the address by which other hosts reach it, and on planes.

    Raises:
        OSError: if the address is not of this host.
    """
    found: list[socket.socket] = []
    for each in dict.fromkeys((address, *planes)):
        family = socket.AF_INET6 if ":" in each else socket.AF_INET
        try:
            found.append(socket.create_server((each, 0), family=family, backlog=tcp.BACKLOG))
        except OSError:
            if not found:
                raise
        if len(found) == _ROUTES:
            break
    return found
