"""Completion queues: polling, waiting, asyncio."""

import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from openmrc import _core
from openmrc.closing import Closable
from openmrc.errors import ClosedError, DeadlineError
from openmrc.verbs.waiting import Waitable
from openmrc.verbs.work import Completion

if TYPE_CHECKING:
    from openmrc.verbs.comp_channel import CompletionChannel
    from openmrc.verbs.context import Context


class CompletionQueue(Waitable, Closable):
    """A bounded queue of completions (``ibv_cq``); made by :meth:`Context.create_cq`.

    There are four ways to get completions. :meth:`poll` returns those that are there. :meth:`wait` sleeps
    until there is one. :meth:`take` does both for a number of completions. ``await cq.wait_async()`` and
    ``async for wc in cq`` are for asyncio. They can be mixed, and several threads and tasks can use them at
    the same time.

    A queue that overruns loses completions. Its queue pairs go to ERROR, the context gets an asynchronous
    event, and :meth:`poll` raises :class:`openmrc.errors.OverrunError` after the completions that the queue
    still holds. A queue as large as the sum of its queue pairs' ``max_send_wr`` and ``max_recv_wr`` cannot
    overrun.
    """

    def __init__(
        self,
        context: "Context",
        core: _core.CompletionQueue,
        channel: "CompletionChannel | None" = None,
        cq_context: Any = None,
    ) -> None:
        super().__init__(core.fileno())
        self.context = context
        self.channel = channel
        self.cq_context = cq_context
        self._core = core
        self._closed = False

    @property
    def handle(self) -> int:
        """Its number in asynchronous events."""
        return self._core.handle

    @property
    def cqe(self) -> int:
        """Number of completions that it can hold."""
        return self._core.cqe

    def __len__(self) -> int:
        """Number of completions that are there now."""
        return len(self._core)

    def __bool__(self) -> bool:
        return True

    def poll(self, num_entries: int = 16) -> list[Completion]:
        """Takes up to ``num_entries`` completions, oldest first, and returns at once (``ibv_poll_cq``).

        Inside :meth:`Context.polling` it also drives the engine if the queue is empty.

        Raises:
            OverrunError: if the queue has overrun and is empty now.
            ClosedError: if it is closed.
        """
        self._check_open()
        return self._core.poll(num_entries)

    def wait(self, timeout: float | None = None) -> bool:
        """Sleeps until there is a completion; whether there is one.

        Args:
            timeout: Seconds at most; ``None``: no limit.

        Raises:
            ClosedError: if it is closed, before or during the call.
        """
        return self._wait(timeout)

    def take(self, num_entries: int = 1, timeout: float | None = None) -> list[Completion]:
        """Takes exactly ``num_entries`` completions; sleeps until they are there.

        Raises:
            DeadlineError: if there are fewer after ``timeout`` seconds; the exception's ``completions`` has
                those.
            OverrunError, ClosedError: as :meth:`poll`.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        taken = self.poll(num_entries)
        while len(taken) < num_entries:
            left = None if deadline is None else deadline - time.monotonic()
            if not self.wait(left):
                error = DeadlineError(
                    f"{len(taken)} of {num_entries} completions within {timeout} s"
                    f" on completion queue {self.handle}"
                )
                error.completions = tuple(taken)
                raise error
            taken += self.poll(num_entries - len(taken))
        return taken

    async def wait_async(self, timeout: float | None = None) -> None:
        """Waits, as a task of an event loop, until there is a completion.

        Raises:
            TimeoutError: after ``timeout`` seconds.
            ClosedError: if it is closed, before or during the call.
        """
        import asyncio

        async with asyncio.timeout(timeout):
            await self._wait_async()

    async def __aiter__(self) -> AsyncIterator[Completion]:
        """Yields every completion, until the loop is left or the queue is closed."""
        while not self._closed:
            try:
                await self._wait_async()
            except ClosedError:
                return
            # One at a time: a consumer that stops leaves the others in the queue.
            for completion in self._core.poll(1):
                yield completion

    def fileno(self) -> int:
        """The queue's descriptor, for poll or select: it becomes readable once per :meth:`arm`."""
        return self._core.fileno()

    def arm(self, *, solicited_only: bool = False) -> None:
        """Makes the descriptor readable at the next completion, or at once if there is one already.

        It is ``ibv_req_notify_cq`` without its race: the order of arming and polling does not matter. With a
        channel, the event comes there.

        Args:
            solicited_only: Only errors count, and receives of messages sent with ``SendFlags.SOLICITED``.
                Completions that are there already count in any case.
        """
        self._core.arm(solicited_only)

    def acknowledge(self) -> bool:
        """Clears the descriptor; whether it was readable (``ibv_get_cq_event``)."""
        with self._lock:
            return self._acknowledge()

    def close(self) -> None:
        """Closes it (``ibv_destroy_cq``); waiting threads and tasks get a ClosedError.

        Raises:
            StateError: if a queue pair still uses it.
        """
        if not self._closed:
            self._core.check_unused()
            self._closed = True
            self._wake()
            if self.channel is not None:
                self.channel._remove(self)
            self.context._cqs.discard(self)

    def _ready(self) -> bool:
        self._check_open()
        return self._core.ready

    def _arm(self) -> None:
        self._core.arm(False)

    def _clear(self) -> bool:
        return self._core.acknowledge()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"completion queue {self.handle} is closed")

    def __repr__(self) -> str:
        return f"<CompletionQueue {self.handle}: {len(self)} of {self.cqe}>"
