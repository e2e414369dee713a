"""Who connects to the first rank: a rank shows the secret of the job at once, anything else is a stranger."""

import hmac
import selectors
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from openmrc.control import tcp
from openmrc.control.budget import neighbourhood

HELLO = struct.Struct(">32sI")
"""From a rank: the secret, and its number."""
GREETING = 5.0
"""Seconds for the secret."""
STRANGERS = 128
"""Connections without the secret at a time, beyond those that all ranks may have under way."""
_PER_RANK = 3
_PAUSE = 0.1
"""Seconds without accepting while there are no descriptors."""


@dataclass(eq=False)
class _Caller:
    address: str
    deadline: float
    said: bytes = b""


class Callers:
    """The listening sockets of the first rank, and connections that have not shown the secret.

    Args:
        selector: Where they are registered, each with a function to call when it can be read.
        listeners: Listening sockets.
        secret: 32 bytes that all ranks know.
        ranks: Number of ranks.
        admit: Takes the connection of a rank, its number, and what it sent after the secret.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        listeners: Sequence[socket.socket],
        secret: bytes,
        ranks: int,
        admit: Callable[[socket.socket, int, bytes], None],
    ) -> None:
        self._selector, self._listeners = selector, list(listeners)
        self._secret, self._ranks, self._admit = secret, ranks, admit
        self._most = STRANGERS + _PER_RANK * ranks
        self._strangers: dict[socket.socket, _Caller] = {}  # The oldest first.
        self._paused_until: float | None = None
        self._register()

    def __iter__(self) -> Iterator[socket.socket]:
        """All sockets."""
        return iter((*self._listeners, *self._strangers))

    def deadlines(self) -> list[float]:
        """When :meth:`poll_timers` has something to do."""
        times = [caller.deadline for caller in self._strangers.values()]
        return times if self._paused_until is None else [*times, self._paused_until]

    def poll_timers(self) -> None:
        """Ends strangers whose time is over, and accepts again after a shortage of descriptors."""
        now = time.monotonic()
        for each in [each for each, caller in self._strangers.items() if caller.deadline <= now]:
            self._end(each)
        if self._paused_until is not None and self._paused_until <= now:
            self._paused_until = None
            self._register()

    def _register(self) -> None:
        for each in self._listeners:
            each.setblocking(False)
            self._selector.register(each, selectors.EVENT_READ, lambda each=each: self._accept(each))

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, (host, *_) = listener.accept()
        except OSError as error:
            if error.errno in tcp.EXHAUSTED:
                if self._strangers:
                    self._end(next(iter(self._strangers)))
                elif self._paused_until is None:
                    self._paused_until = time.monotonic() + _PAUSE
                    for each in self._listeners:
                        self._selector.unregister(each)
            return
        connection.setblocking(False)
        self._strangers[connection] = _Caller(neighbourhood(host), time.monotonic() + GREETING)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._hear(connection))
        self._hear(connection)
        if len(self._strangers) > self._most:
            (address, _), *_ = Counter(each.address for each in self._strangers.values()).most_common(1)
            self._end(next(each for each, caller in self._strangers.items() if caller.address == address))

    def _hear(self, connection: socket.socket) -> None:
        caller = self._strangers.get(connection)
        if caller is None:  # Ended by what was read just before.
            return
        try:
            data = connection.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        caller.said += data
        if len(caller.said) >= HELLO.size:
            secret, rank = HELLO.unpack_from(caller.said)
            if hmac.compare_digest(secret, self._secret) and 0 < rank < self._ranks:
                del self._strangers[connection]
                self._selector.modify(connection, selectors.EVENT_READ)
                self._admit(connection, rank, caller.said[HELLO.size :])
                return
        elif data:
            return
        self._end(connection)

    def _end(self, connection: socket.socket) -> None:
        del self._strangers[connection]
        self._selector.unregister(connection)
        connection.close()
