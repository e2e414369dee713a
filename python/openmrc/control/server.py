"""A server of many peers in one thread that waits for none of them, and that nothing a peer sends can end."""

import contextlib
import resource
import selectors
import socket
import sys
import threading
import time
from collections import deque
from typing import Any, Protocol

from openmrc.closing import Closable
from openmrc.control.budget import Budget
from openmrc.control.channel import SEND_TIMEOUT, Channel
from openmrc.control.errors import LostError
from openmrc.control.messages import Message
from openmrc.control.messages import Protocol as Spoken
from openmrc.control.reception import NO_DESCRIPTORS, Limits, OnRefused, Reception
from openmrc.control.token import Token
from openmrc.errors import ConnectError

_PER_TURN = 16
"""Messages of one peer that are handled before the others get their turn."""

_UNREAD = 1 << 20
"""Bytes of answers that a peer has not read yet, above which no more of its messages are taken."""


class Service(Protocol):
    """What a server does with its peers. All is called by the server's thread and must not wait."""

    def bound(self, server: "Server") -> None:
        """The server that will call it, before anything else is called."""

    def joined(self, peer: Channel[Any]) -> None:
        """A peer has greeted and, with a token, proven it."""

    def arrived(self, peer: Channel[Any], message: Message) -> None:
        """A message of a peer. A ConnectError or an OSError of it ends the peer."""

    def left(self, peer: Channel[Any]) -> None:
        """A peer's connection has ended."""

    def timeout(self) -> float | None:
        """Seconds until :meth:`poll_timers` has something to do; ``None``: nothing."""

    def poll_timers(self) -> None:
        """Does what is due."""


class Server(Closable):
    """Serves peers until it is closed.

    Args:
        protocol: What they speak.
        service: What is done with them.
        listening: The listening socket; closed with the server.
        token: What they must have; ``None``: they may have none.
        limits: What strangers may take.
        budget: Where memory for messages is reserved; default one of this server.
        on_refused: Told about each stranger that is not admitted.
        name: Of the thread.
    """

    def __init__(
        self,
        protocol: Spoken,
        service: Service,
        listening: socket.socket,
        *,
        token: Token | None = None,
        limits: Limits | None = None,
        budget: Budget | None = None,
        on_refused: OnRefused = lambda peer, reason: None,
        name: str,
    ) -> None:
        self.address: tuple[str, int] = listening.getsockname()[:2]
        """Address and port it listens on."""
        self._service = service
        self._listening = listening
        self._peers: dict[Channel[Any], float | None] = {}
        """Since when each has not read what was sent to it."""
        self._waiting: deque[Channel[Any]] = deque()
        """Peers with messages that have been read and not been handled."""
        self._selector = selectors.PollSelector()
        self._reception = Reception(
            self._selector,
            listening,
            protocol,
            token,
            self._join,
            limits=limits or Limits(),
            budget=budget or Budget(),
            on_refused=on_refused,
            first_message=False,
        )
        self._closed = False
        service.bound(self)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether it serves."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Ends all connections and stops listening. Closing twice is harmless."""
        self._closed = True
        with contextlib.suppress(OSError):  # It wakes the thread.
            self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    # --- for the service, in the server's thread ------------------------------------------------------------

    def send(self, peer: Channel[Any], message: Message) -> None:
        """Sends a message to a peer; one that has gone, or does not read, is lost."""
        if peer not in self._peers:
            return
        try:
            peer.enqueue(message)
        except ConnectError:
            self.lose(peer)
            return
        self._watch(peer)

    def lose(self, peer: Channel[Any]) -> None:
        """Ends a peer's connection."""
        if peer in self._peers:
            del self._peers[peer]
            self._selector.unregister(peer)
            peer.close()
            self._service.left(peer)

    # --- the loop -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closed:
            for key, _ in self._selector.select(self._timeout()):
                if self._selector.get_map().get(key.fd) is key:  # Not ended by an event before it.
                    self._guarded(key.data)
            for _ in range(len(self._waiting)):
                self._guarded(self._handle, self._waiting.popleft())
            self._guarded(self._reception.poll_timers)
            self._guarded(self._service.poll_timers)
            self._guarded(self._lose_deaf)
        self._reception.close()
        for peer in self._peers:
            peer.close()
        self._selector.close()
        self._listening.close()

    def _guarded(self, call: Any, *arguments: Any) -> None:
        """A mistake in our own code is reported as that of a thread, and ends neither thread nor server."""
        try:
            call(*arguments)
        except Exception:
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), self._thread)))

    def _timeout(self) -> float | None:
        if self._waiting:
            return 0.0
        stalled = [since for since in self._peers.values() if since is not None]
        waits = [self._reception.timeout(), self._service.timeout()]
        if stalled:
            waits.append(max(0.0, min(stalled) + SEND_TIMEOUT - time.monotonic()))
        return min((wait for wait in waits if wait is not None), default=None)

    def _join(self, peer: Channel[Any]) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        unproven = sum(not each.authenticated for each in self._peers)
        if soft != resource.RLIM_INFINITY and not peer.authenticated and unproven >= soft // 2:
            peer.enqueue_refusal(NO_DESCRIPTORS)
            peer.close()
            return
        self._peers[peer] = None
        self._selector.register(peer, selectors.EVENT_READ, lambda: self._ready(peer))
        try:
            self._service.joined(peer)
        except BaseException:
            self.lose(peer)
            raise
        self._handle(peer)  # What came with the greeting.

    def _ready(self, peer: Channel[Any]) -> None:
        try:
            peer.flush()
            if peer.unsent <= _UNREAD:
                peer.fill()
        except (ConnectError, OSError) as error:
            if isinstance(error, LostError):
                self._handle(peer)  # What it said before it left.
            self.lose(peer)
            return
        self._handle(peer)

    def _handle(self, peer: Channel[Any]) -> None:
        if peer not in self._peers:
            return
        try:
            for _ in range(_PER_TURN):
                if peer.unsent > _UNREAD or (message := peer.buffered()) is None:
                    break
                self._service.arrived(peer, message)
                if peer not in self._peers:
                    return
            else:
                self._waiting.append(peer)
        except (ConnectError, OSError):
            self.lose(peer)
            return
        except Exception:
            self.lose(peer)
            raise
        self._watch(peer)

    def _watch(self, peer: Channel[Any]) -> None:
        """Waits for what a peer can do next: read what is sent to it, or say something."""
        since = self._peers[peer]
        self._peers[peer] = (since or time.monotonic()) if peer.unsent else None
        events = selectors.EVENT_WRITE if peer.unsent else 0
        if peer.unsent <= _UNREAD:
            events |= selectors.EVENT_READ
        key = self._selector.get_key(peer)
        if key.events != events:
            self._selector.modify(peer, events, key.data)

    def _lose_deaf(self) -> None:
        now = time.monotonic()
        for peer in [p for p, since in self._peers.items() if since and now - since > SEND_TIMEOUT]:
            self.lose(peer)
