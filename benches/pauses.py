"""When this machine's processors did not run a process that wanted to.

On each processor a process sleeps for half a millisecond, again and again; where it wakes up late, the
processor was taken by others or stood still.
"""

import os
import struct
import subprocess
import sys
from tempfile import TemporaryFile
from typing import BinaryIO, Self

_SLEEP_NS = 500_000
_LATE_NS = 500_000
"""Wake-ups later than this count as pauses."""

_WATCH = f"""
import os, struct, sys, time
os.sched_setaffinity(0, [int(sys.argv[1])])
before = time.monotonic_ns()
while True:
    time.sleep({_SLEEP_NS} / 1e9)
    now = time.monotonic_ns()
    if now - before > {_SLEEP_NS + _LATE_NS}:
        os.write(1, struct.pack("qq", before + {_SLEEP_NS}, now))
    before = now
"""


class Pauses:
    """Watches every usable processor from entry to :meth:`stop`."""

    def __init__(self) -> None:
        self._watchers: list[tuple[subprocess.Popen[bytes], BinaryIO]] = []
        self._pauses: list[tuple[int, int]] = []

    def __enter__(self) -> Self:
        for cpu in sorted(os.sched_getaffinity(0)):
            seen = TemporaryFile()
            watcher = subprocess.Popen([sys.executable, "-c", _WATCH, str(cpu)], stdout=seen)
            self._watchers.append((watcher, seen))
        return self

    def stop(self) -> None:
        """Ends the watch and reads what was seen."""
        for watcher, seen in self._watchers:
            watcher.kill()
            watcher.wait()
            with seen:
                seen.seek(0)
                self._pauses += struct.iter_unpack("qq", seen.read())
        self._watchers.clear()
        self._pauses.sort()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def within_ns(self, begin: int, end: int) -> int:
        """How much of this interval of the monotonic clock any processor paused, nanoseconds."""
        paused, reached = 0, begin
        for start, stop in self._pauses:
            start, stop = max(start, reached), min(stop, end)
            if stop > start:
                paused += stop - start
                reached = stop
        return paused
