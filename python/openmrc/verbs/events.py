"""Events that no work request asked for: ports, queue pairs and completion queues in error, paths."""

import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from openmrc.errors import ClosedError
from openmrc.verbs.enums import AsyncEventType, EvState
from openmrc.verbs.waiting import Waiter


@dataclass(frozen=True, slots=True)
class AsyncEvent:
    """Something happened to an object of the context (``ibv_async_event``)."""

    type: AsyncEventType
    port: int | None = None
    """The port, of PORT_ACTIVE and PORT_ERR."""
    qp_num: int | None = None
    """The queue pair, of QP_FATAL and PEER_PORTS."""
    cq: int | None = None
    """:attr:`CompletionQueue.handle`, of CQ_ERR."""
    ports_up: tuple[int, ...] | None = None
    """The peer's ports that are up, of PEER_PORTS."""
    reason: str | None = None
    """Why, of QP_FATAL, in words."""


@dataclass(frozen=True, slots=True)
class EvEvent:
    """A path was condemned or came back, as one queue pair saw it (spec: paths, EV events)."""

    time_ns: int
    """When: nanoseconds of the monotonic clock."""
    profile_id: int
    """The queue pair's EV profile."""
    qp_num: int
    """The queue pair."""
    ev: int
    """Entropy value."""
    port: int
    """Port (plane)."""
    state: EvState
    """ASSUMED_BAD or GOOD."""
    drop_count: int
    """Events lost between the previous one and this because nobody took them in time (mrc_ctl.h,
    drop_count)."""


E = TypeVar("E")


class EventQueue(Generic[E]):
    """A bounded queue of events: get the next one, wait for it, or iterate over them in asyncio."""

    def __init__(self, what: str, fd: int, take: Callable[[], E | None], dropped: Callable[[], int]) -> None:
        self._what = what
        self._fd = fd
        self._take = take
        self._dropped = dropped
        self._next: deque[E] = deque()
        self._lock = threading.Lock()
        self._closed = False
        # The descriptor is readable while the queue holds anything: nothing to arm, nothing to clear.
        self._waiter = Waiter(fd, self._ready, lambda: None, lambda: None)

    @property
    def dropped(self) -> int:
        """Events that did not fit the queue, since the beginning."""
        return self._dropped()

    def poll(self) -> E | None:
        """The oldest event, or ``None``.

        Raises:
            ClosedError: if the context is closed.
        """
        with self._lock:
            if self._next:
                return self._next.popleft()
            if self._closed:
                raise ClosedError(f"{self._what} belong to a context that is closed")
            return self._take()

    def get(self, timeout: float | None = None) -> E | None:
        """The next event, waited for at most ``timeout`` seconds (``None``: for ever); ``None`` after that.

        Raises:
            ClosedError: if the context is closed, now or meanwhile.
        """
        while self._waiter.wait(timeout):
            if (event := self.poll()) is not None:
                return event
        return None

    async def __aiter__(self) -> AsyncIterator[E]:
        """Every event as it comes, until the loop is left or the context is closed."""
        while True:
            try:
                await self._waiter.wait_async()
                event = self.poll()
            except ClosedError:
                return
            if event is not None:
                yield event

    def fileno(self) -> int:
        """A descriptor that is readable while the queue holds anything. It belongs to the queue."""
        return self._fd

    def close(self) -> None:
        """Who waits gets a ClosedError."""
        self._closed = True
        self._waiter.wake()

    def _ready(self) -> bool:
        with self._lock:
            if not self._next:
                if self._closed:
                    raise ClosedError(f"{self._what} belong to a context that is closed")
                if (event := self._take()) is not None:
                    self._next.append(event)
            return bool(self._next)
