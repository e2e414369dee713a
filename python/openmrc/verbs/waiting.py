"""Waiting for a descriptor from threads and from asyncio, without lost wake-ups and without looking twice.

What is waited for is a level: "the queue holds something". The descriptor only says when to look again. Many
may wait at a time, threads and tasks of any event loop; whoever wakes clears the descriptor for all, so it
asks for the next signal on behalf of those who still sleep.
"""

import asyncio
import contextlib
import os
import select
import threading
import time
from collections.abc import Iterator


class Waitable:
    """Something that is waited for by a descriptor, which becomes readable when there may be something.

    A base class rather than a part, so that an object and what waits for it are no cycle of references:
    whatever holds a descriptor goes when the last reference does.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()
        self._sleepers = 0
        self._loops: dict[asyncio.AbstractEventLoop, set[asyncio.Future[None]]] = {}

    def _ready(self) -> bool:
        """Whether there is something; raises what a sleeper should see instead."""
        raise NotImplementedError

    def _arm(self) -> None:
        """Asks for the descriptor to become readable, at once if there is something already."""

    def _clear(self) -> bool:
        """Makes the descriptor unreadable; whether it was readable."""
        return False

    def _acknowledge(self) -> bool:
        """Clears the descriptor and asks for the next signal if others still sleep. With the lock held."""
        readable = self._clear()
        if self._sleepers:
            self._arm()
        return readable

    def _wake(self) -> None:
        """Lets every sleeper look again."""
        with self._lock:
            loops = list(self._loops)
            if self._sleepers:
                os.eventfd_write(self._fd, 1)
        for loop in loops:
            with contextlib.suppress(RuntimeError):  # The loop was closed under its tasks.
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
        """Sleeps until there is something, at most ``timeout`` seconds (``None``: as long as it takes).

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
                # Armed before looking: what comes after the look is signalled.
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
        """As :meth:`_wait`, for a task: the event loop goes on meanwhile."""
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

    def _add_task(self, loop: asyncio.AbstractEventLoop, future: "asyncio.Future[None]") -> None:
        with self._lock:
            tasks = self._loops.setdefault(loop, set())
            first = not tasks
            tasks.add(future)
            self._sleepers += 1
        if first:
            loop.add_reader(self._fd, self._readable, loop)

    def _remove_task(self, loop: asyncio.AbstractEventLoop, future: "asyncio.Future[None]") -> None:
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

    def _readable(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            self._acknowledge()
        self._wake_tasks(loop)

    def _wake_tasks(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            tasks = list(self._loops.get(loop, ()))
        for future in tasks:
            if not future.done():
                future.set_result(None)
