"""Asynchronous events (ports, errors of queue pairs and completion queues, silent peers) and EV events."""

import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import ClassVar, Generic, Self, TypeVar

from openmrc import _core
from openmrc.errors import ClosedError
from openmrc.verbs.enums import AsyncEventType, EvState
from openmrc.verbs.waiting import Waitable


@dataclass(frozen=True, slots=True)
class AsyncEvent:
    """An event about an object of the context (``ibv_async_event``)."""

    type: AsyncEventType
    port: int | None = None
    """The port, of PORT_ACTIVE and PORT_ERR."""
    qp_num: int | None = None
    """The queue pair, of QP_FATAL, PEER_PORTS, PEER_SILENT and PEER_HEARD."""
    cq: int | None = None
    """:attr:`CompletionQueue.handle`, of CQ_ERR."""
    ports_up: tuple[int, ...] | None = None
    """The peer's ports that are up, of PEER_PORTS."""
    reason: str | None = None
    """Why, of QP_FATAL, in words."""


@dataclass(frozen=True, slots=True)
class EvEvent:
    """A queue pair condemned a path or took it back (docs/spec/paths.md, "EV events")."""

    time_ns: int
    """Time by the monotonic clock, nanoseconds."""
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
    """Events lost between the previous one and this one, because the queue was full (mrc_ctl.h,
    drop_count)."""


E = TypeVar("E")


class EventQueue(Waitable, Generic[E]):
    """One reader's events, at most 4,096 unread: poll, wait, or iterate in asyncio.

    A context has one of each kind from the beginning. :meth:`subscribe` makes further ones; no reader takes
    events from another.
    """

    _what: ClassVar[str]

    def __init__(self, core: _core.Context, reader: _core.AsyncEventReader | _core.EvEventReader) -> None:
        # The descriptor is readable while the queue is not empty: there is nothing to arm or to clear.
        super().__init__(reader.fd())
        self._core = core
        self._reader = reader
        self._next: deque[E] = deque()
        self._subscribers: weakref.WeakSet[EventQueue[E]] = weakref.WeakSet()
        self._closed = False

    def _begin(self) -> None:
        super()._begin()
        self._taking = threading.Lock()

    def _take(self) -> E | None:
        """The oldest event in the core's queue, or ``None``."""
        raise NotImplementedError

    def subscribe(self) -> Self:
        """A reader of its own for the events from now on.

        Raises:
            ClosedError: if the context is closed, or in the child of a fork.
            DeviceError: if descriptors have run out.
        """
        if self._closed:
            raise ClosedError(f"{self._what} belong to a context that is closed")
        reader = self._subscribe()
        self._subscribers.add(reader)
        return reader

    def _subscribe(self) -> Self:
        raise NotImplementedError

    @property
    def dropped(self) -> int:
        """Number of events that were lost because too many were unread."""
        return self._reader.dropped()

    def poll(self) -> E | None:
        """The oldest event, or ``None``.

        Raises:
            ClosedError: if the context is closed.
        """
        with self._taking:
            if self._next:
                return self._next.popleft()
            if self._closed:
                raise ClosedError(f"{self._what} belong to a context that is closed")
            return self._take()

    def get(self, timeout: float | None = None) -> E | None:
        """Waits for the next event, at most ``timeout`` seconds (``None``: no limit).

        Raises:
            ClosedError: if the context is closed, before or during the call.
        """
        while self._wait(timeout):
            if (event := self.poll()) is not None:
                return event
        return None

    async def __aiter__(self) -> AsyncIterator[E]:
        """Yields every event, until the loop is left or the context is closed."""
        while True:
            try:
                await self._wait_async()
                event = self.poll()
            except ClosedError:
                return
            if event is not None:
                yield event

    def fileno(self) -> int:
        """A descriptor that is readable while the queue is not empty. It belongs to the queue."""
        return self._fd

    def close(self) -> None:
        """Closes it, with the readers that subscribed through it; who waits gets a ClosedError."""
        for reader in list(self._subscribers):
            reader.close()
        self._closed = True
        self._wake()

    def _ready(self) -> bool:
        with self._taking:
            if not self._next:
                if self._closed:
                    raise ClosedError(f"{self._what} belong to a context that is closed")
                if (event := self._take()) is not None:
                    self._next.append(event)
            return bool(self._next)


class AsyncEvents(EventQueue[AsyncEvent]):
    """Asynchronous events of a context."""

    _what = "asynchronous events"

    def __init__(self, core: _core.Context, reader: _core.AsyncEventReader | None = None) -> None:
        super().__init__(core, reader or core.async_events())

    def _subscribe(self) -> Self:
        return type(self)(self._core, self._core.subscribe_async_events())

    def _take(self) -> AsyncEvent | None:
        fields = self._reader.next()
        if fields is None:
            return None
        kind = AsyncEventType(fields.pop("type"))
        if "ports_up" in fields:
            fields["ports_up"] = tuple(fields["ports_up"])
        return AsyncEvent(kind, **fields)


class EvEvents(EventQueue[EvEvent]):
    """EV events of a context."""

    _what = "EV events"

    def __init__(self, core: _core.Context, reader: _core.EvEventReader | None = None) -> None:
        super().__init__(core, reader or core.ev_events())
        self._seen_drops = 0

    def _subscribe(self) -> Self:
        return type(self)(self._core, self._core.subscribe_ev_events())

    def _take(self) -> EvEvent | None:
        fields = self._reader.next()
        if fields is None:
            return None
        dropped = self.dropped
        lost, self._seen_drops = dropped - self._seen_drops, dropped
        return EvEvent(state=EvState(fields.pop("state")), drop_count=lost, **fields)
