"""How often the paths of a host were condemned or taken back: an agent counts, a controller sums up."""

import itertools
from collections.abc import Iterable

from openmrc.operate.model import MOST_CHANGES, MOST_PATHS

MOST_DEVICES = 1024
"""Devices of a host whose counts are known: those that answered last."""


class Changes:
    """What an agent counts for a host, of which the controller is told what is new."""

    def __init__(self) -> None:
        """Nothing has changed yet."""
        self._devices: dict[str, dict[tuple[int, int, int], int]] = {}
        """What each device has counted by queue pair, peer and entropy value."""
        self._counts: dict[tuple[int, int], int] = {}
        self._new: dict[tuple[int, int], None] = {}

    def see(self, counts: dict[str, Iterable[tuple[tuple[int, int, int], int]]]) -> None:
        """Takes what devices have counted; what a device that has gone counted last is lost.

        What a device has counted when it is seen first may have been told by an agent before this one. A
        device that does not answer for a while goes on where it was.

        Args:
            counts: By device: queue pair, peer and entropy value, and how often that has changed.
        """
        for device, rows in counts.items():
            now = dict(rows)
            known = self._devices.pop(device, now)
            self._devices[device] = now
            for key, times in now.items():
                # A queue pair of the same number may be another, which has counted from 0.
                last = known.get(key, 0)
                more = times - last if times >= last else times
                if more:
                    path = key[1:]
                    self._counts[path] = self._counts.pop(path, 0) + more
                    self._new[path] = None
        while len(self._devices) > max(MOST_DEVICES, len(counts)):
            del self._devices[next(iter(self._devices))]
        while len(self._counts) > MOST_CHANGES:
            del self._counts[next(iter(self._counts))]

    def due(self) -> list[tuple[int, int, int]]:
        """Peer, entropy value and count of what the controller does not know."""
        new = itertools.islice(self._new, MOST_PATHS)
        return [(*path, self._counts[path]) for path in new if path in self._counts]

    def told(self, rows: Iterable[tuple[int, int, int]]) -> None:
        """The controller has these."""
        for peer, ev, times in rows:
            if self._counts.get((peer, ev)) == times:
                self._new.pop((peer, ev), None)
