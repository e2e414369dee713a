"""The receiving process: takes blocks out of the ring, hashes them, and reports what it saw."""

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import xxhash

from openmrc.control.tcp import wait_readable
from openmrc.demos.series import Sampler, Series
from openmrc.errors import Error
from openmrc.handshake import Accept, Offer
from openmrc.planes import Planes
from openmrc.testing import impair
from openmrc.transfer.ring import ReceivingRing

VERIFIED = 0
"""Column of the series with the bytes that went into the checksum; column 1 + p has UDP payload of plane
p."""

PERIOD_S = 0.01
"""Seconds between samples."""

_HERE = "127.0.0.1"
_START = 60.0


@dataclass
class Report:
    """What the receiver saw."""

    digests: list[str] = field(default_factory=list)
    """XXH3-128 of what arrived, one for each time the file was sent."""
    leftover: int = 0
    """Bytes after the last whole file."""
    series: Series = field(default_factory=Series)
    error: str | None = None


class Receiver:
    """The other process, as the sender's process sees it. One request at a time; each is answered."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def ask(self, request: str, *arguments: Any) -> Any:
        """Sends a request and waits for the answer.

        Raises:
            Error: what went wrong in the other process.
        """
        try:
            self._pipe.send((request, arguments))
            if not self._pipe.poll(_START):
                raise Error("the receiving process does not answer")
            answer = self._pipe.recv()
        except (EOFError, OSError):
            raise Error("the receiving process has ended") from None
        if isinstance(answer, Error):
            raise answer
        return answer


@contextlib.contextmanager
def receiving(planes: Planes, size: int, cpus: Collection[int]) -> Iterator[Receiver]:
    """Runs the other process.

    Args:
        planes: Number of planes and paths.
        size: Bytes of the file.
        cpus: Processors it runs on.
    """
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(
        target=_main, args=(planes, size, cpus, theirs), name="openmrc-demo-receiver", daemon=True
    )
    # Ctrl-C reaches all processes of the terminal. This one handles it; the other ends with its pipe.
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process.start()
    finally:
        signal.signal(signal.SIGINT, handler)
    theirs.close()
    try:
        yield Receiver(ours)
    finally:
        ours.close()
        process.join(5)
        process.terminate()
        process.join()


def _main(planes: Planes, size: int, cpus: Collection[int], pipe: Connection) -> None:
    os.sched_setaffinity(0, cpus)
    with contextlib.suppress(EOFError, OSError), contextlib.ExitStack() as stack:
        try:
            context = stack.enter_context(planes.open(_HERE, _HERE, network_trims=True))
            ring = stack.enter_context(ReceivingRing(context, "the sender"))
        except Error as error:
            pipe.recv()
            pipe.send(error)
            return
        loop = _Loop(pipe, ring, size)
        stack.callback(loop.close)
        loop.run()


class _Loop:
    def __init__(self, pipe: Connection, ring: ReceivingRing, size: int) -> None:
        self._pipe = pipe
        self._ring = ring
        self._end = ring.end()
        self._size = size
        self._hash = xxhash.xxh3_128()
        self._in_file = 0
        self._verified = 0
        self._report = Report()
        self._sampler = Sampler(self._counters, PERIOD_S)

    def run(self) -> None:
        ring = self._ring
        while True:
            ring.cq.arm()
            wait_readable(self._pipe, ring.cq)
            ring.cq.acknowledge()
            try:
                for block in ring.arrived():
                    self._take(block.data)
            except Error as error:
                self._report.error = self._report.error or str(error)
            if self._pipe.poll():
                request, arguments = self._pipe.recv()
                self._pipe.send(getattr(self, f"_on_{request}")(*arguments))

    def close(self) -> None:
        self._sampler.close()

    def _take(self, data: memoryview) -> None:
        self._hash.update(data)
        self._in_file += len(data)
        self._verified += len(data)
        if self._in_file == self._size:
            self._report.digests.append(self._hash.hexdigest())
            self._hash.reset()
            self._in_file = 0

    def _counters(self) -> list[int]:
        ports = self._ring.context.stats()["ports"]
        return [self._verified, *(port["rx_bytes"] for port in ports)]

    # --- requests -------------------------------------------------------------------------------------------

    def _on_offer(self) -> Offer:
        return self._end.offer()

    def _on_connect(self, accept: Accept) -> None:
        self._end.connect(accept)

    def _on_impair(self, rules: list[Any], seed: int) -> None:
        impair(self._ring.context, *rules, seed=seed)

    def _on_progress(self) -> tuple[int, list[int], int]:
        """Time, counters, files completed."""
        return time.monotonic_ns(), self._counters(), len(self._report.digests)

    def _on_report(self) -> Report:
        report = self._report
        report.leftover = self._in_file
        report.series = self._sampler.finish()
        return report
