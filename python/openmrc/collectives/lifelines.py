"""How ranks learn at once that the process of a rank on another host has ended.

Every rank has a TCP connection to the first one. The kernel ends it with the process, and the first rank
tells the others. A process that is stopped keeps its connection, and so does one whose network is away for a
while: nothing is sent that could be missed. A host that loses its power ends no connection; its queue pairs
give up.
"""

import contextlib
import hmac
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

_HELLO = struct.Struct(">32sI")
"""From a rank: the secret, and its number."""
_ENDED = struct.Struct(">I?")
"""From the first rank: the number of a rank that has ended, and whether it said goodbye."""
_GOODBYE = b"."
"""From a rank that closes its communicator."""
_CONNECT = 10.0
"""Seconds for the connection to the first rank."""
_AFTER_DEATH = 0.2
"""Seconds until a process that has ended counts as lost: what it sent before may still be on its way."""
_AFTER_GOODBYE = 5.0
"""The same for a rank that has closed its communicator: nobody should need it any more."""
_REASONS = {False: "its process has ended", True: "it has closed its communicator"}

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
        connection: Of the first rank, the listening socket, else the connection to the first rank.
        secret: 32 bytes that all ranks know.
    """

    def __init__(self, rank: int, members: Sequence[int], connection: socket.socket, secret: bytes) -> None:
        self._rank, self._members, self._secret = rank, list(members), secret
        self._communicators: weakref.WeakSet[Watcher] = weakref.WeakSet()
        self._due: list[tuple[float, int, bool]] = []
        self._peers: dict[socket.socket, int] = {}
        """Of the first rank: connections, and whose they are."""
        self._said: dict[socket.socket, bytes] = {}
        """What came on each connection before it was complete."""
        self._main = connection
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        for each in (connection, self._woken):
            each.setblocking(False)
            self._selector.register(each, selectors.EVENT_READ)
        self.closed = False
        """Whether it is closed."""
        _open.add(self)
        self._thread = threading.Thread(target=self._run, name="openmrc-lifelines", daemon=True)
        self._thread.start()

    @classmethod
    def join(
        cls, rank: int, members: Sequence[int], address: tuple[str, int], secret: bytes
    ) -> "Lifelines | None":
        """Those of a rank that is not the first; ``None`` if the first one cannot be reached by TCP."""
        try:
            connection = socket.create_connection(address, _CONNECT)
            connection.sendall(_HELLO.pack(secret, rank))
        except OSError as error:
            _log.warning(
                "rank 0 cannot be reached at %s port %d (%s): a process that ends on another host is noticed"
                " only when its queue pairs give up",
                *address,
                error,
            )
            return None
        return cls(rank, members, connection, secret)

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
        while not self.closed:
            left = min((at for at, _, _ in self._due), default=None)
            events = self._selector.select(None if left is None else max(0.0, left - time.monotonic()))
            for key, _ in events:
                if key.fileobj is self._main and self._rank == 0:
                    self._accept()
                elif key.fileobj is self._woken:
                    self._woken.recv(16)
                elif isinstance(key.fileobj, socket.socket):
                    self._read(key.fileobj)
            self._tell_communicators()
        farewell = _ENDED.pack(0, True) if self._rank == 0 else _GOODBYE
        for each in self._peers if self._rank == 0 else (self._main,):
            with contextlib.suppress(OSError):
                each.send(farewell)
        self._close_sockets()
        self._selector.close()

    def _close_sockets(self) -> None:
        for each in (*self._said, *self._peers, self._main, self._wake, self._woken):
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._main.accept()
            if len(self._said) > 2 * len(self._members):  # Strangers.
                connection.close()
                return
            connection.setblocking(False)
            self._said[connection] = b""
            self._selector.register(connection, selectors.EVENT_READ)

    def _read(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(4096)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        except OSError:  # The network, and not the end of a process.
            self._drop(connection)
            return
        said = self._said.get(connection, b"") + data
        if self._rank != 0:
            while len(said) >= _ENDED.size:
                self._ended(*_ENDED.unpack_from(said))
                said = said[_ENDED.size :]
            self._said[connection] = said
            if not data:
                self._ended(0, False)
                self._drop(connection)
        elif connection in self._peers:
            self._said[connection] = said
            if not data:
                ended = (self._peers[connection], said.endswith(_GOODBYE))
                self._drop(connection)
                self._ended(*ended)
                for other in self._peers:
                    with contextlib.suppress(OSError):
                        other.send(_ENDED.pack(*ended))
        else:
            self._greet(connection, said, over=not data)

    def _greet(self, connection: socket.socket, said: bytes, *, over: bool) -> None:
        self._said[connection] = said
        if len(said) >= _HELLO.size:
            secret, rank = _HELLO.unpack_from(said)
            if hmac.compare_digest(secret, self._secret) and 0 < rank < len(self._members):
                self._peers[connection] = rank
                self._said[connection] = said[_HELLO.size :]
                return
        elif not over:
            return
        self._drop(connection)

    def _drop(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        self._said.pop(connection, None)
        self._peers.pop(connection, None)
        if connection is not self._main:
            connection.close()

    def _ended(self, rank: int, goodbye: bool) -> None:
        if all(rank != known for _, known, _ in self._due) and rank < len(self._members):
            wait = _AFTER_GOODBYE if goodbye else _AFTER_DEATH
            self._due.append((time.monotonic() + wait, rank, goodbye))

    def _tell_communicators(self) -> None:
        now = time.monotonic()
        for entry in [each for each in self._due if each[0] <= now]:
            self._due.remove(entry)
            member = self._members[entry[1]]
            for communicator in list(self._communicators):
                if member in communicator.members:
                    communicator.peer_ended(communicator.members.index(member), _REASONS[entry[2]])


def listen(address: str, ranks: int) -> socket.socket:
    """The listening socket of the first rank.

    Raises:
        OSError: if the address is not of this host.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, 0), family=family, backlog=min(max(ranks, 1), 1024))
