"""Waiting for a descriptor from threads and from asyncio, without lost wake-ups.

The condition is a level: "the queue is not empty". The descriptor only says when to check again. Threads and
tasks of any event loop may wait at the same time. The first to wake clears the descriptor and arms it for the
others.
"""

import contextlib
import os
import select
import threading
import time
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

_all: "weakref.WeakSet[Waitable]" = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for waitable in list(_all):
        waitable._begin()


os.register_at_fork(after_in_child=_after_fork_in_child)


class Waitable:
    """An object that can be waited for by a descriptor, which becomes readable when the condition may hold.

    It is a base class and not a member, to avoid a reference cycle: the object and its descriptor are freed
    with the last reference.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        """Nobody waits. So it is in the child of a fork, where another thread may have held the lock."""
        self._lock = threading.Lock()
        self._sleepers = 0
        self._loops: dict[asyncio.AbstractEventLoop, set[asyncio.Future[None]]] = {}

    def _ready(self) -> bool:
        """Whether the condition holds; raises what a sleeper should raise instead."""
        raise NotImplementedError

    def _arm(self) -> None:
        """Makes the descriptor readable once the condition holds, at once if it does already."""

    def _clear(self) -> bool:
        """Clears the descriptor; whether it was readable."""
        return False

    def _acknowledge(self) -> bool:
        """Clears the descriptor and arms it again if others still sleep. Needs the lock."""
        readable = self._clear()
        if self._sleepers:
            self._arm()
        return readable

    def _wake(self) -> None:
        """Makes every sleeper check again."""
        with self._lock:
            loops = list(self._loops)
            if self._sleepers:
                os.eventfd_write(self._fd, 1)
        for loop in loops:
            with contextlib.suppress(RuntimeError):  # The loop was closed while tasks waited.
                loop.call_soon_threadsafe(self._wake_tasks, loop)

    @contextlib.contextmanager
    def _sleeping(self) -> Iterator[None]:
        with self._lock:
            self._sleepers += 1
        try:
            yield
        finally:
            with self._lock:
                self._sleepers -= 1
                self._acknowledge()

    def _wait(self, timeout: float | None) -> bool:
        """Sleeps until the condition holds, at most ``timeout`` seconds (``None``: no limit).

        A signal handler that raises, such as Ctrl-C's, ends it.
        """
        if self._ready():
            return True
        if timeout is not None and timeout <= 0:
            return False
        deadline = None if timeout is None else time.monotonic() + timeout
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        with self._sleeping():
            while True:
                # Arm, then check: an event after the check is signalled.
                self._arm()
                if self._ready():
                    return True
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                if poll.poll(None if left is None else left * 1000):
                    with self._lock:
                        self._acknowledge()

    async def _wait_async(self) -> None:
        """As :meth:`_wait`, for a task: the event loop keeps running."""
        # A program without tasks does not pay for it: 1.3 MiB.
        import asyncio

        loop = asyncio.get_running_loop()
        while not self._ready():
            future = loop.create_future()
            self._add_task(loop, future)
            try:
                self._arm()
                if not self._ready():
                    await future
            finally:
                self._remove_task(loop, future)

    def _add_task(self, loop: "asyncio.AbstractEventLoop", future: "asyncio.Future[None]") -> None:
        with self._lock:
            tasks = self._loops.setdefault(loop, set())
            first = not tasks
            tasks.add(future)
            self._sleepers += 1
        if first:
            loop.add_reader(self._fd, self._readable, loop)

    def _remove_task(self, loop: "asyncio.AbstractEventLoop", future: "asyncio.Future[None]") -> None:
        with self._lock:
            tasks = self._loops[loop]
            tasks.discard(future)
            self._sleepers -= 1
            last = not tasks
            if last:
                del self._loops[loop]
            self._acknowledge()
        if last:
            loop.remove_reader(self._fd)

    def _readable(self, loop: "asyncio.AbstractEventLoop") -> None:
        with self._lock:
            self._acknowledge()
        self._wake_tasks(loop)

    def _wake_tasks(self, loop: "asyncio.AbstractEventLoop") -> None:
        with self._lock:
            tasks = list(self._loops.get(loop, ()))
        for future in tasks:
            if not future.done():
                future.set_result(None)
