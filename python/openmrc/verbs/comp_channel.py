"""Completion channels: one descriptor for the notifications of several completion queues."""

import select
import time
from typing import TYPE_CHECKING

from openmrc.closing import Closable
from openmrc.errors import ClosedError, StateError

if TYPE_CHECKING:
    from openmrc.verbs.context import Context
    from openmrc.verbs.cq import CompletionQueue


class CompletionChannel(Closable):
    """Where completion queues raise their events (``ibv_comp_channel``).

    Made by :meth:`Context.create_comp_channel`; given to :meth:`Context.create_cq`.
    :meth:`CompletionQueue.arm` asks for one event. Unlike ``ibv_get_cq_event``, an event needs no
    acknowledgement: no object is freed under it. A queue is waited for by its channel or by its own methods,
    not by both at a time.
    """

    def __init__(self, context: "Context") -> None:
        self.context = context
        # An epoll set of the queues' descriptors is a descriptor itself.
        self._epoll = select.epoll()
        self._cqs: dict[int, CompletionQueue] = {}

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self._epoll.closed

    def _add(self, cq: "CompletionQueue") -> None:
        self._check_open()
        self._cqs[cq.fileno()] = cq
        self._epoll.register(cq.fileno(), select.EPOLLIN)

    def _remove(self, cq: "CompletionQueue") -> None:
        if self._cqs.pop(cq.fileno(), None) is not None:
            self._epoll.unregister(cq.fileno())

    def get_event(self, timeout: float | None = None) -> "CompletionQueue | None":
        """Waits for an event: the queue that raised it, or ``None`` after ``timeout`` seconds.

        ``None`` as ``timeout``: no limit. 0: returns at once (``ibv_get_cq_event``).

        Raises:
            ClosedError: if it is closed.
        """
        self._check_open()
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            for fd, _ in self._epoll.poll(left, maxevents=1):
                cq = self._cqs.get(fd)
                # Another thread may have got it.
                if cq is not None and cq.acknowledge():
                    return cq
            if deadline is not None and time.monotonic() >= deadline:
                return None

    def fileno(self) -> int:
        """A descriptor that is readable while there is an event, for poll, select or asyncio."""
        self._check_open()
        return self._epoll.fileno()

    def close(self) -> None:
        """Closes it (``ibv_destroy_comp_channel``). Closing twice is harmless.

        Raises:
            StateError: if a completion queue uses it.
        """
        if self._cqs:
            users = ", ".join(str(cq.handle) for cq in self._cqs.values())
            raise StateError(
                f"the completion channel is in use by completion queue {users}: close that first"
            )
        self._epoll.close()
        self.context._channels.discard(self)

    def _check_open(self) -> None:
        if self._epoll.closed:
            raise ClosedError("the completion channel is closed")

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"of {len(self._cqs)} queues"
        return f"<CompletionChannel {state}>"
