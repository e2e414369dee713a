"""Operations under way as torch sees them: works, futures, and names for a profiler."""

import contextlib
import datetime
import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.futures import Future

from openmrc.collectives import Work as CollectiveWork
from openmrc.errors import Error, UnsupportedError
from openmrc.torch.errors import as_torch_raises, of_torch
from openmrc.torch.staging import Staged, devices_of, mark, wait_here

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
    """Operations under way."""

    def __init__(self, waiter: "Waiter", pending: "Pending") -> None:
        super().__init__()
        self._waiter = waiter
        self._pending = pending
        self._future: Future[Any] | None = None

    def wait(self, timeout: datetime.timedelta = datetime.timedelta(0)) -> bool:
        """Waits until all have ended, and raises the error of one that has failed."""
        self._pending.wait(seconds_of(timeout, 0.0) or None)
        return True

    @property
    def done(self) -> bool:
        """Whether all have ended."""
        return self._pending.done

    @property
    def error(self) -> Exception | None:
        """The error of one that has failed, once all have ended."""
        return self._pending.error if self._pending.done else None

    @property
    def source(self) -> int | None:
        """Of a receive from any rank that has ended: who sent it."""
        return next((work.source for work in self._pending.works), None)

    @property
    def tensors(self) -> Sequence[torch.Tensor]:
        """What the operations write."""
        return self._pending.tensors

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

    __slots__ = ("_copied", "_finish", "_keep", "tensors", "works")

    def __init__(
        self,
        works: "list[CollectiveWork | Staged]",
        tensors: list[torch.Tensor],
        finish: Callable[[], Any] | None,
        keep: Sequence[Any] = (),
    ) -> None:
        self.works = works
        self.tensors = tensors
        self._finish = finish
        self._keep = keep
        self._copied: list[torch.Event] = []

    @property
    def done(self) -> bool:
        """Whether all have ended."""
        return all(work.done for work in self.works)

    @property
    def error(self) -> Exception | None:
        """The first error of operations that have ended."""
        errors = (work.exception() for work in self.works)
        found = next((error for error in errors if error is not None), None)
        return of_torch(found) if isinstance(found, Error) else found

    @as_torch_raises
    def wait(self, timeout: float | None = None) -> None:
        """Waits until all have ended, and raises the error of one that has failed.

        The current streams of accelerators wait until the results have been copied; the caller does not.
        """
        called = time.monotonic()
        for work in self.works:
            work.wait(None if timeout is None else max(called + timeout - time.monotonic(), 0.0))
        self.finish()
        wait_here(self._copied)

    def finish(self) -> None:
        """Copies results where they belong, once, after all has ended."""
        with _finishing:
            finish, self._finish = self._finish, None
            if finish is not None:
                finish()
                self._copied = [mark(device) for device in devices_of(self.tensors)]
            self._keep = ()


class Waiter:
    """Threads that drive operations for which nobody waits, and complete their futures in any order.

    One thread at a time waits. When it completes a future, whose callbacks may wait for other futures,
    another one takes its place.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[Pending, Future[Any]]] = []
        self._changed = threading.Condition()
        self._led = False
        self._idle = 0
        self._closed = False
        self._threads: list[threading.Thread] = []

    def future(self, pending: Pending) -> "Future[Any]":
        """A future of the tensors, which a thread completes.

        DDP's reducer does not survive a future with an exception. One that completes, and a callback behind
        it that raises, reaches the user as the exception.
        """
        # On accelerators callbacks have streams of their own, and the future lets others wait for them.
        base: Future[Any] = Future(devices=devices_of(pending.tensors))

        def result(_: Any) -> list[torch.Tensor]:
            pending.wait()
            return pending.tensors

        future = base.then(result)
        if pending.done:
            base.set_result(None)
            return future
        with self._changed:
            self._entries.append((pending, base))
            self._find_leader()
        return future

    def _find_leader(self) -> None:
        """Wakes or starts a thread if none waits for the entries."""
        if self._led or not self._entries or self._closed:
            return
        if self._idle:
            self._changed.notify()
            return
        thread = threading.Thread(target=self._run, name="openmrc-futures", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                while not self._closed and (self._led or not self._entries):
                    self._changed.wait()
                self._idle -= 1
                if self._closed:
                    return
                self._led = True
            ended = self._next_ended()
            with self._changed:
                self._led = False
                if ended is not None:
                    self._entries.remove(ended)
                self._find_leader()
            if ended is not None:
                ended[1].set_result(None)

    def _next_ended(self) -> "tuple[Pending, Future[Any]] | None":
        """Waits until an entry has ended; ``None`` if the waiter is closed."""
        while not self._closed:
            with self._changed:
                entries = list(self._entries)
            for entry in entries:
                if entry[0].done:
                    return entry
            works = entries[0][0].works
            with contextlib.suppress(Error):  # The callback behind the future raises it.
                next(work for work in works if not work.done or work is works[-1]).wait(_LOOK)
        return None

    def close(self) -> None:
        """Ends the threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        self._threads.clear()
