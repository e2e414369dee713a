"""An operation under way, and the options of calls."""

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, TypedDict

from openmrc import _core
from openmrc.errors import DeadlineError, Error

SLOW_AFTER = 10.0
"""Seconds after which a waiting rank says what it waits for."""
SLICE = 0.1
"""Longest wait in one piece, seconds: signals are handled between."""

_log = logging.getLogger("openmrc.collectives")


class MessageOptions(TypedDict, total=False):
    """What every call takes."""

    async_op: bool
    """Return at once, with the work; default false."""
    timeout: float
    """Seconds; default that of the communicator, which ends with an operation that does not end in time."""


class CallOptions(MessageOptions, total=False):
    """What every collective operation takes."""

    algorithm: str | None
    """``ring``, ``halving``, ``doubling``, ``direct``, ``tree`` or ``chain``, as far as it has them; default
    by size."""


class ReduceOptions(CallOptions, total=False):
    """What operations take that reduce."""

    op: str
    """``sum`` (default), ``product`` or ``prod``, ``min``, ``max``, ``avg``, ``band``, ``bor``, ``bxor``."""
    factor: float | None
    """With ``sum``: every input is multiplied by it first (``premul_sum``)."""


class Work:
    """An operation under way. It goes on whether or not anybody waits for it."""

    def __init__(
        self,
        core: "_core.CollectiveWork",
        waits_for: Callable[[], str],
        finish: Callable[[], None] | None = None,
    ) -> None:
        self._core = core
        self._waits_for = waits_for
        self._finish = finish
        self._lock = threading.Lock()
        self._next_warning = SLOW_AFTER

    def __repr__(self) -> str:
        return f"<Work {'done' if self.done else f'under way, waits for {self._waits_for()}'}>"

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        if not self._core.done:
            return False
        self._finished()
        return True

    @property
    def source(self) -> int | None:
        """Of a receive from any rank: who sent it."""
        return self._core.source

    def wait(self, timeout: float | None = None) -> None:
        """Waits until it has ended, and raises its error if it has one. Releases the GIL.

        Raises:
            DeadlineError: if it has not ended within ``timeout`` seconds. It goes on.
            MismatchError: if ranks have called different operations.
            RankLostError: if a rank has ended or cannot be reached.
            AbortedError: if the communicator was aborted.
        """
        # The first slice without a look at the clock.
        if timeout is None and self._core.wait(SLICE):
            self._check()
            return
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            if self._core.wait(min(max(left, 0.0), SLICE)):
                break
            if left <= 0:
                raise DeadlineError(f"{self._core.name} has not ended within {timeout:g} s and goes on")
            self._warn()
        self._check()

    def _warn(self) -> None:
        """Says what an operation waits for that takes long, once in each period, whoever waits."""
        elapsed = self._core.elapsed
        with self._lock:
            if elapsed <= self._next_warning:
                return
            while self._next_warning < elapsed:
                self._next_warning *= 2
        _log.warning("%s takes %.0f s so far; it waits for %s", self._core.name, elapsed, self._waits_for())

    def _check(self) -> None:
        self._core.check()
        self._finished()

    def _finished(self) -> None:
        """Copies the result where it belongs, once, if it has ended without an error."""
        with self._lock:
            finish, self._finish = self._finish, None
            if finish is not None and self._succeeded():
                finish()

    def _succeeded(self) -> bool:
        try:
            self._core.check()
        except Error:
            return False
        return True

    def exception(self) -> Exception | None:
        """The error with which it has ended; ``None`` if it has none or has not ended."""
        try:
            if self._core.done:
                self._check()
        except Exception as error:
            return error
        return None

    def fileno(self) -> int:
        """A descriptor that is readable once it has ended; it belongs to the work."""
        return self._core.fd()

    def __await__(self) -> Generator[Any, None, None]:
        return self._wait_async().__await__()

    async def _wait_async(self) -> None:
        if not self._core.done:
            loop = asyncio.get_running_loop()
            ended = asyncio.Event()
            fd = self._core.fd()
            loop.add_reader(fd, ended.set)
            try:
                await ended.wait()
            finally:
                loop.remove_reader(fd)
        self._check()
