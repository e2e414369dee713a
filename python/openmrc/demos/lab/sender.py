"""Offers traffic at a steady pace until stopped, in a thread of its own, and measures what arrives."""

import threading
import time
from abc import ABC, abstractmethod
from contextlib import ExitStack

from openmrc.closing import Closable
from openmrc.demos.lab.recording import Flow, Recording
from openmrc.errors import Error

TICK_S = 0.001
"""Time between two looks at all flows."""

_LONGEST_BACKLOG_S = 0.25


class Sender(Closable, ABC):
    """Sends from `start` to `stop`.

    Args:
        name: The thread's.
        flows: What it measures.
    """

    def __init__(self, name: str, flows: list[Flow]) -> None:
        self.recording = Recording(0, flows)
        self.error: str | None = None
        self._stack = ExitStack()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Starts to send."""
        self.recording.began_ns = time.monotonic_ns()
        self._thread.start()

    def check(self) -> None:
        """Raises what has gone wrong in the thread.

        Raises:
            Error: if a connection broke.
        """
        if self.error is not None:
            raise Error(self.error)

    def stop(self) -> Recording:
        """Ends when what was sent has arrived, or cannot any more; returns what was measured.

        Raises:
            Error: if a connection broke.
        """
        self.recording.ended_ns = time.monotonic_ns()
        self._stop.set()
        self._thread.join()
        self.check()
        return self.recording

    def close(self) -> None:
        """Ends everything at once. Closing twice is harmless."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._stack.close()

    # --- the thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._stagger(time.monotonic())
            while not self._stop.is_set():
                self._tick(posting=True)
                time.sleep(TICK_S)
            end = time.monotonic()
            while self._outstanding(time.monotonic() - end):
                self._tick(posting=False)
                time.sleep(TICK_S)
        except (Error, OSError) as error:
            self.error = str(error)

    @abstractmethod
    def _stagger(self, now: float) -> None:
        """Sets when the first piece of each flow is due."""

    @abstractmethod
    def _tick(self, *, posting: bool) -> None:
        """Posts what is due, takes what has arrived, and samples."""

    @abstractmethod
    def _outstanding(self, waited_s: float) -> bool:
        """Whether something may still arrive ``waited_s`` seconds after the last piece was posted."""


def catch_up(due: float, now: float) -> float:
    """When the next piece is due. A backlog of more than a quarter of a second is dropped."""
    return now if now - due > _LONGEST_BACKLOG_S else due
