"""Offering traffic at a steady pace until stopped, in a thread of its own, and measuring what arrives."""

import threading
import time
from abc import ABC, abstractmethod
from contextlib import ExitStack

from openmrc.errors import Error
from openmrc.lab.demo.trace import Flow, Half

TICK = 0.001
"""Seconds between looks at everything."""

_MOMENT = 0.25


class Sender(ABC):
    """Sends from `start` to `stop`.

    Args:
        name: The thread's.
        flows: What it measures.
    """

    def __init__(self, name: str, flows: list[Flow]) -> None:
        self.half = Half(0, flows)
        self.error: str | None = None
        self._stack = ExitStack()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begins to send."""
        self.half.began_ns = time.monotonic_ns()
        self._thread.start()

    def check(self) -> None:
        """Goes on only if all is well.

        Raises:
            Error: if a connection broke.
        """
        if self.error is not None:
            raise Error(self.error)

    def stop(self) -> Half:
        """Ends when what was sent has arrived, or will not, and returns what was measured.

        Raises:
            Error: if a connection broke.
        """
        self.half.ended_ns = time.monotonic_ns()
        self._stop.set()
        self._thread.join()
        self.check()
        return self.half

    def close(self) -> None:
        """Ends everything at once. Doing it twice is harmless."""
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
                time.sleep(TICK)
            end = time.monotonic()
            while self._awaits(time.monotonic() - end):
                self._tick(posting=False)
                time.sleep(TICK)
        except (Error, OSError) as error:
            self.error = str(error)

    @abstractmethod
    def _stagger(self, now: float) -> None:
        """Sets when each flow's first piece is due."""

    @abstractmethod
    def _tick(self, *, posting: bool) -> None:
        """Posts what is due, and takes what has arrived."""

    @abstractmethod
    def _awaits(self, waited_s: float) -> bool:
        """Whether something may still arrive, so long after the last was posted."""


def catch_up(due: float, now: float) -> float:
    """When the next piece is due: what was not offered for longer than a moment is not made up for."""
    return now if now - due > _MOMENT else due
