"""A listener whose callers are taken one by one, by threads that may wait."""

import collections
import contextlib
import os
import selectors
import socket
import threading
from collections.abc import Iterator
from typing import Any

from openmrc.closing import Closable
from openmrc.control import tcp
from openmrc.control.budget import Budget
from openmrc.control.channel import Channel
from openmrc.control.deadline import Deadline
from openmrc.control.messages import Protocol
from openmrc.control.reception import Limits, OnRefused, Reception
from openmrc.control.token import Token
from openmrc.errors import ClosedError, DeadlineError


class Listener(Closable):
    """Waits for callers. Strangers are greeted side by side, and a caller waits for none of them.

    Args:
        protocol: What it speaks.
        host: Address to listen on; empty: all.
        port: TCP port; 0: any free one.
        token: What callers must have; ``None``: they may have none.
        limits: What strangers may take.
        budget: Where memory for the messages of callers is reserved; default one of this listener.
        on_refused: Called with the address of each stranger that is dropped, and the reason.

    Raises:
        DeviceError: if it cannot listen there.
    """

    def __init__(
        self,
        protocol: Protocol,
        host: str,
        port: int,
        *,
        token: Token | None = None,
        limits: Limits | None = None,
        budget: Budget | None = None,
        on_refused: OnRefused = lambda peer, reason: None,
    ) -> None:
        self._socket = tcp.listen(host, port)
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        """Address and port it listens on."""
        self._process = os.getpid()
        self._closed = False
        self._lock = threading.Lock()
        self._greeted: collections.deque[Channel[Any]] = collections.deque()
        self._on_refused = on_refused
        self._last_refusal: str | None = None
        # It has no descriptor of its own, which the child of a fork would share.
        self._selector = selectors.PollSelector()
        self._reception = Reception(
            self._selector,
            self._socket,
            protocol,
            token,
            self._greeted.append,
            limits=limits or Limits(),
            budget=budget or Budget(),
            on_refused=self._refused,
            first_message=True,
        )

    def accept(self, timeout: float | None = None) -> Channel[Any]:
        """Waits for a caller that has greeted, has proven the token, and has sent its first message.

        Neither a stranger nor a lack of descriptors ends it. A caller for whom there has been no descriptor
        for a second is refused with that reason.

        Args:
            timeout: Seconds; ``None``: no limit.

        Raises:
            DeadlineError: if nobody comes in time; names the reason of the last refusal.
            ClosedError: if the listener is closed, now or meanwhile.
        """
        deadline = Deadline(timeout)
        with self._turn(deadline):
            while not self._greeted:
                if self._closed:
                    raise ClosedError("the listener is closed")
                left = deadline.left()
                waits = [each for each in (left, self._reception.timeout()) if each is not None]
                for key, _ in self._selector.select(min(waits, default=None)):
                    if self._selector.get_map().get(key.fd) is key:  # Not ended by an event before it.
                        key.data()
                self._reception.poll_timers()
                if left == 0.0 and not (self._greeted or self._closed):
                    raise self._nobody(timeout or 0.0)
            return self._greeted.popleft()

    def close(self) -> None:
        """Stops listening; a thread that waits in :meth:`accept` gets a ClosedError."""
        self._closed = True
        if os.getpid() != self._process:
            # In the child of a fork nobody waits, and shutdown would end the parent's listener.
            self._close()
            return
        # It wakes a thread that waits in accept; nothing to wake is fine.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._close()

    def _close(self) -> None:
        self._reception.close()
        for channel in self._greeted:
            channel.close()
        self._greeted.clear()
        self._selector.close()
        self._socket.close()

    @contextlib.contextmanager
    def _turn(self, deadline: Deadline) -> Iterator[None]:
        left = deadline.left()
        if not self._lock.acquire(timeout=-1 if left is None else left):
            raise self._nobody(left or 0.0)
        try:
            yield
        finally:
            self._lock.release()

    def _nobody(self, timeout: float) -> DeadlineError:
        host, port = self.address
        last = f"; the last one was refused: {self._last_refusal}" if self._last_refusal else ""
        return DeadlineError(f"nobody connected to {host} port {port} within {timeout:.3g} s{last}")

    def _refused(self, peer: str, reason: str) -> None:
        self._last_refusal = reason
        self._on_refused(peer, reason)
