"""Connections whose other end is still unknown: accepted, limited, and greeted side by side.

A stranger costs a descriptor and a few kilobytes, for a few seconds. How many there are at a time is limited,
together and for each address; one more ends the oldest of the address that has most, as an honest caller
greets within milliseconds and so is among the youngest.
"""

import contextlib
import os
import resource
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from openmrc.closing import Closable
from openmrc.control import tcp
from openmrc.control.budget import Budget, neighbourhood
from openmrc.control.channel import LINGER, Channel
from openmrc.control.errors import GreetingError
from openmrc.control.greeting import Answer
from openmrc.control.messages import Protocol, Refused, messages
from openmrc.control.token import Token
from openmrc.errors import ConnectError

NO_DESCRIPTORS = "no file descriptors are left for another connection; try again later"
"""Reason of a refusal."""

_TOO_MANY = "too many connections have not greeted"
"""Reason of a refusal."""

_PAUSE = 0.1
"""Seconds after which accept is tried again when nothing is left to accept with."""

_SHORTAGE = 1.0
"""Seconds without a free descriptor after which a caller is refused rather than left to wait."""

_PER_TURN = 32
"""Connections that are accepted before those that are there get their turn."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What strangers may take."""

    strangers: int = 128
    """Connections that have not greeted or not proven the token yet; at most a quarter of the descriptors."""
    per_address: int = 64
    """Those of one address."""
    greeting: float = 5.0
    """Seconds for greeting and proof."""
    first: float = 30.0
    """Seconds from then on for the first message, where a listener waits for it."""

    def together(self) -> int:
        """Most strangers at a time in this process."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return self.strangers if soft == resource.RLIM_INFINITY else max(1, min(self.strangers, soft // 4))


OnRefused = Callable[[str, str], None]
"""Called with the address of a stranger that was not admitted, and the reason."""

Deliver = Callable[[Channel[Any]], None]
"""Called with a connection whose other end is a peer."""


class _Stranger:
    """A connection in the reception."""

    def __init__(self, channel: Channel[Any], answer: Answer, address: str, deadline: float) -> None:
        self.channel = channel
        self.answer = answer
        self.address = address
        self.deadline = deadline
        self.limit = deadline - time.monotonic()
        self.greeted = False
        self.leaving = False
        """It was refused, and has a moment to read why."""

    @property
    def known(self) -> bool:
        """Whether it has proven a token, and so is no stranger any more."""
        return self.greeted and self.channel.authenticated


class Reception(Closable):
    """Accepts and greets, driven by the loop that owns the selector: each event's data is to be called.

    Args:
        selector: Where sockets are registered.
        listening: The listening socket.
        protocol: What callers must speak.
        token: What they must have; ``None``: they may have none.
        deliver: Gets each peer.
        limits: What strangers may take.
        budget: Where memory for the messages of callers is reserved.
        on_refused: Told about each stranger that is not admitted.
        first_message: Whether a peer is delivered only with its first message after the greeting.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        listening: socket.socket,
        protocol: Protocol,
        token: Token | None,
        deliver: Deliver,
        *,
        limits: Limits,
        budget: Budget,
        on_refused: OnRefused,
        first_message: bool,
    ) -> None:
        self._selector = selector
        self._listening = listening
        self._protocol = protocol
        self._token = token
        self._deliver = deliver
        self._limits = limits
        self._budget = budget
        self._on_refused = on_refused
        self._first_message = first_message
        self._strangers: dict[_Stranger, None] = {}  # The oldest first.
        self._spare = _Spare()
        self._paused_until: float | None = None
        self._shortage: float | None = None
        """Since when there has been nothing to accept with."""
        listening.setblocking(False)
        selector.register(listening, selectors.EVENT_READ, self._accept)

    def timeout(self) -> float | None:
        """Seconds until :meth:`poll_timers` has something to do; ``None``: nothing."""
        times = [stranger.deadline for stranger in self._strangers]
        if self._paused_until is not None:
            times.append(self._paused_until)
        return max(0.0, min(times) - time.monotonic()) if times else None

    def poll_timers(self) -> None:
        """Ends strangers whose time is over, and accepts again after a shortage."""
        now = time.monotonic()
        for stranger in [each for each in self._strangers if each.deadline <= now]:
            self._dismiss(stranger, f"{stranger.channel.peer} did not answer within {stranger.limit:.3g} s")
        if self._paused_until is not None and self._paused_until <= now:
            self._paused_until = None
            self._selector.register(self._listening, selectors.EVENT_READ, self._accept)

    def close(self) -> None:
        """Ends all strangers. The listening socket is its owner's."""
        for stranger in self._strangers:
            stranger.channel.close()
        self._strangers.clear()
        self._spare.close()

    # --- accepting ------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        for _ in range(_PER_TURN):
            try:
                connection, (host, port, *_) = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in tcp.OF_THE_CONNECTION:
                    continue
                if error.errno in tcp.EXHAUSTED and self._drop_oldest(reason=NO_DESCRIPTORS):
                    continue
                # Whatever it is, it is no reason to accept nobody any more: the callers wait in the backlog.
                self._pause()
                return
            self._shortage = None
            self._receive(connection, tcp.plain_address(host), port)

    def _receive(self, connection: socket.socket, host: str, port: int) -> None:
        account = self._budget.account(host)
        try:
            channel = Channel(connection, f"{host}:{port}", self._protocol.messages, account)
        except OSError:
            connection.close()  # It has gone already.
            return
        answer = Answer(channel, self._protocol, self._token)
        deadline = time.monotonic() + self._limits.greeting
        stranger = _Stranger(channel, answer, neighbourhood(host), deadline)
        self._strangers[stranger] = None
        self._selector.register(channel, selectors.EVENT_READ, lambda: self._hear(stranger))
        self._limit(stranger.address)

    def _limit(self, address: str) -> None:
        by_address = Counter(each.address for each in self._strangers if not each.known)
        if by_address[address] > self._limits.per_address:
            self._drop_oldest(address)
        elif by_address.total() > self._limits.together():
            self._drop_oldest(by_address.most_common(1)[0][0])

    def _drop_oldest(self, address: str | None = None, reason: str = _TOO_MANY) -> bool:
        """Ends the oldest stranger, of one address or of all, a silent one first; whether there was one."""
        of_address = [s for s in self._strangers if not s.known and address in (None, s.address)]
        silent = [stranger for stranger in of_address if not stranger.channel.received_bytes]
        if not of_address:
            return False
        stranger = [*silent, *of_address][0]
        self._forget(stranger)
        if stranger.greeted:
            stranger.channel.enqueue_refusal(reason)  # Others come again by themselves.
        stranger.channel.close()
        self._on_refused(stranger.channel.peer, reason)
        return True

    def _pause(self) -> None:
        now = time.monotonic()
        self._shortage = self._shortage or now
        if now - self._shortage >= _SHORTAGE:
            self._spare.refuse_one(self._listening)
        self._selector.unregister(self._listening)
        self._paused_until = now + _PAUSE

    # --- greeting -------------------------------------------------------------------------------------------

    def _hear(self, stranger: _Stranger) -> None:
        try:
            self._greet(stranger)
        except BaseException:
            # Whatever is wrong with it, it must not come again.
            if stranger in self._strangers:
                self._forget(stranger)
                stranger.channel.close()
            raise

    def _greet(self, stranger: _Stranger) -> None:
        channel = stranger.channel
        if stranger.leaving:
            if not channel.discard():
                self._forget(stranger)
                channel.close()
            return
        try:
            channel.fill()
            while not stranger.greeted and (message := channel.buffered()) is not None:
                if stranger.answer.take(message):
                    stranger.greeted = True
                    stranger.limit = self._limits.first
                    stranger.deadline = time.monotonic() + stranger.limit
            admitted = stranger.greeted and (not self._first_message or channel.has_message())
        except (ConnectError, OSError) as error:
            self._dismiss(stranger, str(error), tell=isinstance(error, GreetingError))
            return
        if admitted:
            self._forget(stranger)
            self._deliver(channel)

    def _dismiss(self, stranger: _Stranger, reason: str, *, tell: bool = False) -> None:
        """Ends a stranger. Only who speaks our protocol is told why."""
        channel = stranger.channel
        if tell:
            channel.enqueue_refusal(reason)
            stranger.leaving = True
            stranger.deadline = time.monotonic() + LINGER
        else:
            self._forget(stranger)
            channel.close()
        if tell or not stranger.leaving:
            self._on_refused(channel.peer, reason)

    def _forget(self, stranger: _Stranger) -> None:
        del self._strangers[stranger]
        self._selector.unregister(stranger.channel)


class _Spare:
    """A descriptor in reserve, so that a caller gets an error when there are none."""

    def __init__(self) -> None:
        self._fd = -1
        self._take()

    def refuse_one(self, listening: socket.socket) -> None:
        """Accepts a connection, says why it cannot be served, and ends it."""
        self.close()
        try:
            connection, (host, port, *_) = listening.accept()
            with Channel(connection, f"{host}:{port}", messages(Refused)) as channel:
                channel.enqueue_refusal(NO_DESCRIPTORS)
                channel.discard()
        except OSError:
            pass  # Another thread took the descriptor, or the caller has gone.
        finally:
            self._take()

    def close(self) -> None:
        """Gives the descriptor up."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def _take(self) -> None:
        with contextlib.suppress(OSError):
            self._fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
