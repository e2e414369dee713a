"""Changes for whoever listens: a page, ``openmrc fabric events --follow``. A slow listener starts anew."""

import asyncio
import base64
import itertools
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from openmrc.errors import StateError

MOST_LISTENERS = 256
MOST_UNREAD = 1000
MOST_CHANGED = 100_000
"""Cells of the map in an event; of more, the whole map is read again."""


class Event(NamedTuple):
    """Something that has changed."""

    id: int
    kind: str
    """``map``, ``fault``, ``decision``, ``drain``; ``resync``: events were lost, read everything again."""
    content: dict[str, Any]


def packed(cells: Iterable[tuple[int, int]]) -> str:
    """Numbers and bytes of cells of the map as an event has them: base64 of 32-bit words, little-endian."""
    words = [number << 8 | byte for number, byte in cells]
    return base64.b64encode(struct.pack(f"<{len(words)}I", *words)).decode()


def unpacked(text: str) -> list[tuple[int, int]]:
    """The numbers and bytes of :func:`packed`.

    Raises:
        ValueError: if it is something else.
    """
    words = base64.b64decode(text, validate=True)
    if len(words) % 4:
        raise ValueError(f"{len(words)} bytes are no words of four")
    return [(word >> 8, word & 0xFF) for (word,) in struct.iter_unpack("<I", words)]


class Events:
    """Publishes once, for any number of listeners."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._listeners: set[asyncio.Queue[Event]] = set()

    def __len__(self) -> int:
        return len(self._listeners)

    def publish(self, kind: str, content: dict[str, Any]) -> None:
        """Gives an event to every listener; ``resync`` takes the place of what one has left unread."""
        number = next(self._ids)
        for queue in self._listeners:
            if queue.full():
                while not queue.empty():
                    queue.get_nowait()
                queue.put_nowait(Event(number, "resync", {}))
            else:
                queue.put_nowait(Event(number, kind, content))

    @contextmanager
    def listening(self) -> Iterator["asyncio.Queue[Event]"]:
        """A queue of all events from now on.

        Raises:
            StateError: if there are too many listeners.
        """
        if len(self._listeners) >= MOST_LISTENERS:
            raise StateError(f"{MOST_LISTENERS} listeners are connected already")
        queue: asyncio.Queue[Event] = asyncio.Queue(MOST_UNREAD)
        self._listeners.add(queue)
        try:
            yield queue
        finally:
            self._listeners.discard(queue)
