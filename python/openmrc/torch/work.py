"""Operations under way as torch sees them: works, futures, and names for a profiler."""

import contextlib
import datetime
import functools
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.futures import Future

from openmrc.collectives import Work as CollectiveWork
from openmrc.errors import Error, UnsupportedError

try:
    from torch._C._distributed_c10d import Work as _Work
except ImportError as error:  # torch was built without distributed.
    raise UnsupportedError("this torch has no torch.distributed") from error

_LOOK = 0.0005
"""Seconds for which the oldest operation is waited for, until the others are looked at."""


def seconds_of(timeout: datetime.timedelta, default: float) -> float:
    """A timeout of torch, where 0 is the default."""
    seconds = timeout.total_seconds()
    return seconds if seconds > 0 else default


def profiled(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, which a profiler that runs sees as ``mrc:name``."""

    @functools.wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        if not torch.autograd._profiler_enabled():
            return method(*arguments, **options)
        with torch.profiler.record_function(f"mrc:{name}"):
            return method(*arguments, **options)

    return call


class MrcWork(_Work):
    """Operations under way. Torch 2.15 asks a work of Python's for two things: to wait, and for a future."""

    def __init__(self, waiter: "Waiter", pending: "Pending") -> None:
        super().__init__()
        self._waiter = waiter
        self._pending = pending
        self._future: Future[Any] | None = None

    def wait(self, timeout: datetime.timedelta = datetime.timedelta(0)) -> bool:
        """Waits until all have ended, and raises the error of one that has failed."""
        self._pending.wait(seconds_of(timeout, 0.0) or None)
        return True

    def get_future(self) -> Any:
        """A future of the tensors."""
        if self._future is None:
            self._future = self._waiter.future(self._pending)
        return self._future


MrcWork.wait = profiled("wait", MrcWork.wait)  # type: ignore[method-assign]


_finishing = threading.RLock()
"""Held while results are copied where they belong, by a wait or a future; twice for what is joined."""


class Pending:
    """Operations under way that end together."""

    __slots__ = ("_finish", "_keep", "tensors", "works")

    def __init__(
        self,
        works: list[CollectiveWork],
        tensors: list[torch.Tensor],
        finish: Callable[[], Any] | None,
        keep: Sequence[Any] = (),
    ) -> None:
        self.works = works
        self.tensors = tensors
        self._finish = finish
        self._keep = keep

    @property
    def done(self) -> bool:
        """Whether all have ended."""
        return all(work.done for work in self.works)

    def wait(self, timeout: float | None = None) -> None:
        """Waits until all have ended, and raises the error of one that has failed."""
        for work in self.works:
            work.wait(timeout)
        self.finish()

    def finish(self) -> None:
        """Copies results where they belong, once, after all has ended."""
        with _finishing:
            finish, self._finish = self._finish, None
            if finish is not None:
                finish()
            self._keep = ()


class Waiter:
    """A thread that drives operations for which nobody waits, and completes their futures in any order."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[Pending, Future[Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def future(self, pending: Pending) -> "Future[Any]":
        """A future of the tensors, which the thread completes.

        DDP's reducer does not survive a future with an exception. One that completes, and a callback behind
        it that raises, reaches the user as the exception.
        """
        base: Future[Any] = Future()

        def result(_: Any) -> list[torch.Tensor]:
            pending.wait()
            return pending.tensors

        future = base.then(result)
        if pending.done:
            base.set_result(None)
            return future
        self._queue.put((pending, base))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="openmrc-futures", daemon=True)
            self._thread.start()
        return future

    def _run(self) -> None:
        waiting: list[tuple[Pending, Future[Any]]] = []
        while True:
            try:
                entry = self._queue.get(block=not waiting)
            except queue.Empty:
                pass
            else:
                if entry is None:
                    return
                waiting.append(entry)
                continue
            first, _ = waiting[0]
            with contextlib.suppress(Error):  # The callback behind the future raises it.
                next(work for work in first.works if not work.done or work is first.works[-1]).wait(_LOOK)
            left = []
            for pending, future in waiting:
                if pending.done:
                    future.set_result(None)
                else:
                    left.append((pending, future))
            waiting = left

    def close(self) -> None:
        """Ends the thread."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None
