"""File descriptors that one sender is sure to get, whatever others open.

They are kept open on /dev/null and closed right before they are needed, so that neither strangers nor other
senders can take them.
"""

import contextlib
import math
import os
import resource
from pathlib import Path

from openmrc.closing import Closable

PER_FILE = 2
"""Descriptors of a file that is being received: the file and its directory."""

OPENING = 1
"""One more while a file is being made, for the directory above."""

MOST_FILES = 16
"""Most files whose data has begun and whose end has not been announced; both travel separately."""

LEAST_FILES = 2
"""Files that every sender may have open."""

SENDERS = 64
"""Senders for whom enough is left when the first ones get more than the least."""

_SHARE = 8


def least() -> int:
    """Descriptors that a sender needs at least."""
    return LEAST_FILES * PER_FILE + OPENING


def free() -> float:
    """Descriptors that this process can still open."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return math.inf
    return limit - sum(1 for _ in Path("/proc/self/fd").iterdir())


def share(left: float, senders: int) -> int:
    """Files that the next sender may have open: fewer if others would get less than the least.

    Args:
        left: Descriptors that are free.
        senders: How many have theirs already.
    """
    spare = left - max(0, SENDERS - senders) * (least() + 1)
    files = MOST_FILES if spare == math.inf else int(spare / _SHARE) // PER_FILE
    return max(LEAST_FILES, min(MOST_FILES, files))


class Descriptors(Closable):
    """The descriptors of one sender.

    Args:
        files: Files that it may have open.

    Raises:
        OSError: if there are not enough.
    """

    def __init__(self, files: int) -> None:
        self.files = files
        """Files that it may have open."""
        self._kept: list[int] = []
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            self._keep(files * PER_FILE + OPENING)
            undo.pop_all()

    def lend(self, files: int) -> None:
        """Gives up what it takes to open one more file.

        Args:
            files: Files that are open already.
        """
        wanted = max(0, (self.files - files - 1) * PER_FILE)
        while len(self._kept) > wanted:
            os.close(self._kept.pop())

    def take_back(self, files: int) -> None:
        """Keeps again what the open files leave.

        Args:
            files: Files that are open.
        """
        with contextlib.suppress(OSError):  # Somebody was faster; the next time there may be one.
            self._keep(max(0, self.files - files) * PER_FILE + OPENING)

    def close(self) -> None:
        """Gives all of them up. Closing twice is harmless."""
        while self._kept:
            os.close(self._kept.pop())

    def _keep(self, wanted: int) -> None:
        while len(self._kept) < wanted:
            self._kept.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
