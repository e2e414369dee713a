"""Tensors on accelerators pass through page-locked main memory, in the order of their streams.

A copy to main memory is queued on the stream on which the operation is called, behind what computes the
tensor, and the caller goes on at once. The operation begins when the copy has ended, and behind those that
were called before it at this rank. Results are copied back on the stream on which it is waited for.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch

from openmrc.collectives import Work as CollectiveWork
from openmrc.errors import DeadlineError, DeviceError, Error

_GRACE = 1.0
"""Seconds for which a group that ends waits for an accelerator that does not answer."""


def room(shape: Any, like: torch.Tensor) -> torch.Tensor:
    """Main memory for a tensor of this type; page-locked if the tensor is on an accelerator."""
    return torch.empty(shape, dtype=like.dtype, pin_memory=not like.is_cpu)


def is_accelerator(device: torch.device) -> bool:
    """Whether it is the kind of accelerator that this torch drives."""
    found = torch.accelerator.current_accelerator()
    return found is not None and device.type == found.type


def in_main_memory(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, or a copy of one on an accelerator, which is there once :func:`mark` says so."""
    if tensor.is_cpu:
        return tensor
    host = room(tensor.shape, tensor)
    host.copy_(tensor, non_blocking=True)
    return host


def copy_back(target: torch.Tensor, host: torch.Tensor) -> None:
    """Queues the copy of a result on the current stream."""
    with torch.no_grad():
        target.copy_(host, non_blocking=True)
    if not target.is_cpu:
        # Its memory is not given away by the stream that it was made on before this one has written.
        target.record_stream(torch.accelerator.current_stream(target.device))


def devices_of(tensors: Iterable[torch.Tensor]) -> list[torch.device]:
    """The accelerators among the devices of tensors."""
    return sorted({tensor.device for tensor in tensors if not tensor.is_cpu}, key=str)


def mark(device: torch.device) -> torch.Event:
    """An event behind all that the current stream of an accelerator has been given."""
    event = torch.Event(device)
    event.record(torch.accelerator.current_stream(device))
    return event


def wait_here(marks: Iterable[torch.Event]) -> None:
    """What the current streams are given from now on waits for these events; the caller does not."""
    for event in marks:
        event.wait(torch.accelerator.current_stream(event.device))


class Staged:
    """An operation that begins once what it reads is in main memory; used as a work of a communicator."""

    def __init__(
        self, copied: torch.Event | None, call: Callable[[float], CollectiveWork | None], timeout: float
    ) -> None:
        self._copied = copied
        self._call: Callable[[float], CollectiveWork | None] | None = call
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._begun = threading.Event()
        self._work: CollectiveWork | None = None
        self._error: Exception | None = None

    def begin(self) -> None:
        """Waits for the accelerator and begins."""
        try:
            self._synchronize()
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise self._late()
            assert self._call is not None
            self._work = self._call(left)
        except Exception as error:
            self._error = error
        self._copied = self._call = None
        self._begun.set()

    def fail(self, error: Exception) -> None:
        """Ends it before it has begun."""
        if not self._begun.is_set():
            self._error = error
            self._begun.set()

    def _synchronize(self) -> None:
        if self._copied is None:
            return
        try:
            self._copied.synchronize()
        except RuntimeError as error:
            raise DeviceError(f"the accelerator has failed: {error}") from error

    def _late(self) -> DeadlineError:
        return DeadlineError(f"an accelerator has not computed what it sends within {self._timeout:g} s")

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._begun.is_set() and (self._work is None or self._work.done)

    @property
    def source(self) -> int | None:
        """Of a receive from any rank: who sent it."""
        return None if self._work is None else self._work.source

    def exception(self) -> Exception | None:
        """The error with which it has ended; ``None`` if it has none or has not ended."""
        if self._work is not None:
            return self._work.exception()
        return self._error

    def wait(self, timeout: float | None = None) -> None:
        """As that of a work. It ends at the operation's time limit also if the accelerator never ends."""
        called = time.monotonic()
        own = max(self._deadline - called, 0.0) + _GRACE
        if not self._begun.wait(own if timeout is None else min(timeout, own)):
            if timeout is not None and timeout < own:
                raise DeadlineError(f"the operation has not begun within {timeout:g} s and goes on")
            raise self._late()
        if self._error is not None:
            raise self._error
        if self._work is not None:
            self._work.wait(None if timeout is None else max(called + timeout - time.monotonic(), 0.0))


class Turns:
    """Begins operations in the order in which they are called."""

    def __init__(self) -> None:
        self._queue: deque[Staged] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed: Error | None = None

    def begin(
        self, copied: torch.Event | None, call: Callable[[float], CollectiveWork | None], timeout: float
    ) -> "CollectiveWork | Staged | None":
        """Begins an operation: at once, if it waits for no accelerator and for no other operation.

        Args:
            copied: When what it reads is in main memory; ``None`` if it is already.
            call: Begins it, with the seconds that are left.
            timeout: Seconds that it may take.
        """
        with self._changed:
            if copied is not None or self._queue:
                if self._closed is not None:
                    raise self._closed
                staged = Staged(copied, call, timeout)
                self._queue.append(staged)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="openmrc-turns", daemon=True)
                    self._thread.start()
                self._changed.notify_all()
                return staged
        return call(timeout)

    def settle(self, timeout: float) -> None:
        """Waits until all that were called have begun, for at most so many seconds.

        Raises:
            DeadlineError: if they have not.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: not self._queue, timeout):
                raise DeadlineError(f"operations that were called before have not begun within {timeout:g} s")

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closed is not None)
                if self._closed is not None:
                    return
                first = self._queue[0]
            first.begin()
            with self._changed:
                # Until it has begun it stands here, so that none overtakes it.
                if self._queue:
                    self._queue.popleft()
                self._changed.notify_all()

    def close(self, error: Error) -> None:
        """Ends what has not begun, with an error, and begins no more."""
        with self._changed:
            self._closed = error
            for staged in self._queue:
                staged.fail(error)
            self._queue.clear()
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_GRACE)


__all__ = [
    "Staged",
    "Turns",
    "copy_back",
    "devices_of",
    "in_main_memory",
    "is_accelerator",
    "mark",
    "room",
    "wait_here",
]
