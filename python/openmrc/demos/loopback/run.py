"""One run of the demo, in the sending process: data, faults and observation have a thread each."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from openmrc.control.tcp import wait_readable
from openmrc.demos.director import Director, Fault
from openmrc.demos.loopback.network import BadNetwork, FaultRecord, PathStates
from openmrc.demos.loopback.receiver import VERIFIED, Receiver, Report, receiving
from openmrc.demos.loopback.schedule import Schedule
from openmrc.demos.loopback.source import SourceFile
from openmrc.errors import Error
from openmrc.handshake import Offer
from openmrc.planes import Planes, path_mtu
from openmrc.transfer.ring import SendingRing
from openmrc.verbs import AccessFlags, Context

_HERE = "127.0.0.1"
_TICK = 0.1


@dataclass(frozen=True)
class Progress:
    """The state of a run, for a display."""

    seconds: float
    """Since the first byte."""
    verified: int
    """Bytes the receiver has put into its checksum."""
    files: int
    """How often it has received the whole file."""
    gbps: float
    """Goodput since the last report."""
    plane_gbps: list[float]
    """What the receiver got on each plane since the last report, headers included."""
    paths: list[tuple[int, int]]
    """For each plane: paths believed broken, and all paths."""
    events: list[str]
    """Faults that began or ended since the last report."""


@dataclass
class Outcome:
    """Everything that a run yielded."""

    schedule: Schedule
    source_size: int
    source_digest: str
    began_ns: int
    """First write posted, monotonic clock."""
    finished_ns: int
    """Last byte verified."""
    sent_files: int
    receiver: Report
    records: list[FaultRecord]
    states: PathStates
    transport: dict[str, int]
    addresses: list[str]
    error: str | None

    @property
    def verified(self) -> bool:
        """Whether every byte of every pass arrived."""
        digests = self.receiver.digests
        return (
            self.error is None
            and self.receiver.error is None
            and self.sent_files > 0
            and len(digests) == self.sent_files
            and self.receiver.leftover == 0
            and all(digest == self.source_digest for digest in digests)
        )


def run(
    source: SourceFile, schedule: Schedule, planes: Planes, on_progress: Callable[[Progress], None]
) -> Outcome:
    """Sends the file, again and again until the schedule is over, through all faults.

    Raises:
        Error: if the two ends cannot connect. What goes wrong later is in the outcome.
    """
    with contextlib.ExitStack() as stack:
        theirs = stack.enter_context(_half_of_the_processors())
        receiver = stack.enter_context(receiving(planes, source.size, theirs))
        context = stack.enter_context(planes.open(_HERE, _HERE, network_trims=True))
        ring = stack.enter_context(_connect(context, receiver))
        network = BadNetwork(ring.qp, receiver, len(context.addresses))
        stack.callback(network.close)
        pump = _Pump(ring, source, schedule.duration)
        stack.callback(pump.stop)
        director = _Director(pump, network, receiver, on_progress)
        director.direct(schedule.faults)
        director.wait()
        pump.stop()
        network.close()
        return Outcome(
            schedule=schedule,
            source_size=source.size,
            source_digest=source.digest,
            began_ns=pump.began_ns,
            finished_ns=pump.finished_ns,
            sent_files=pump.files,
            receiver=receiver.ask("report"),
            records=network.records,
            states=network.states,
            transport=ring.qp.stats(),
            addresses=[address for address, _ in context.addresses],
            error=pump.error,
        )


@contextlib.contextmanager
def _half_of_the_processors() -> Iterator[set[int]]:
    """Leaves half of the processors to the other end, and yields that half.

    Two machines would have their own processors. Two processes that share all of them reach half the goodput.
    """
    allowed = sorted(os.sched_getaffinity(0))
    half = len(allowed) // 2
    os.sched_setaffinity(0, allowed[half:])
    try:
        yield set(allowed[:half] or allowed)
    finally:
        os.sched_setaffinity(0, allowed)


def _connect(context: Context, receiver: Receiver) -> SendingRing:
    offer: Offer = receiver.ask("offer")
    ring = SendingRing(context, "the receiver", offer)
    end = ring.end(path_mtu(context.addresses, offer.addresses, largest=offer.path_mtu))
    receiver.ask("connect", end.accept())
    end.connect(offer)
    return ring


class _Pump:
    """The thread that keeps the ring full."""

    def __init__(self, ring: SendingRing, source: SourceFile, duration: float) -> None:
        self._ring = ring
        self._source = source
        self._duration = duration
        self._stop = threading.Event()
        # Not Thread.join with a time: interrupted by Ctrl-C, it takes the thread for ended (CPython 3.11).
        self._ended = threading.Event()
        self.began_ns = time.monotonic_ns()
        self.finished_ns = self.began_ns
        self.files = 0
        """How often the whole file was sent."""
        self.error: str | None = None
        self._region = ring.pd.register(source.data, AccessFlags.NONE)
        self._thread = threading.Thread(target=self._run, name="openmrc-demo-pump", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return not self._ended.is_set()

    def wait(self, timeout: float) -> None:
        self._ended.wait(timeout)

    def stop(self) -> None:
        self._stop.set()
        self._ended.wait()
        self._thread.join()
        self._region.close()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._send_file()
                if time.monotonic_ns() - self.began_ns >= self._duration * 1e9:
                    break
            while not self._ring.drained and not self._stop.is_set():
                self._wait()
            self.finished_ns = time.monotonic_ns()
        except Error as error:
            self.error = str(error)
        finally:
            self._ended.set()

    def _send_file(self) -> None:
        size, block = self._source.size, self._ring.block_bytes
        for offset in range(0, size, block):
            length = min(block, size - offset)
            while self._ring.free() is None:
                if self._stop.is_set():
                    return
                self._wait()
            self._ring.post(length, self.files & 0xFFFFFFFF, self._region.sge(offset, length))
        self.files += 1

    def _wait(self) -> None:
        self._ring.cq.arm()
        wait_readable(self._ring.cq, timeout=_TICK)
        self._ring.cq.acknowledge()
        self._ring.poll()


class _Director(Director):
    """Changes the network on schedule and reports, until all is sent."""

    def __init__(
        self, pump: _Pump, network: BadNetwork, receiver: Receiver, on_progress: Callable[[Progress], None]
    ) -> None:
        super().__init__()
        self._pump = pump
        self._network = network
        self._receiver = receiver
        self._on_progress = on_progress
        self._last_ns, self._last, _ = receiver.ask("progress")
        self._next = 0.0
        self._events: list[str] = []

    @property
    def now(self) -> float:
        return (time.monotonic_ns() - self._pump.began_ns) / 1e9

    @property
    def running(self) -> bool:
        return self._pump.running

    def look(self, left: float) -> None:
        seconds = self.now
        if seconds >= self._next:
            self._next = seconds + 2 * _TICK
            self._report(seconds)
        self._pump.wait(max(0.001, min(left, self._next - self.now)))

    def begin(self, fault: Fault) -> None:
        self._network.begin(fault)
        self._events.append(fault.title)

    def end(self, fault: Fault) -> None:
        self._network.end(fault)
        self._events.append(f"{fault.title}: over")

    def _report(self, seconds: float) -> None:
        now_ns, counters, files = self._receiver.ask("progress")
        elapsed = max(1, now_ns - self._last_ns)
        rates = [(b - a) * 8 / elapsed for a, b in zip(self._last, counters, strict=True)]
        self._on_progress(
            Progress(
                seconds=seconds,
                verified=counters[VERIFIED],
                files=files,
                gbps=rates[VERIFIED],
                plane_gbps=rates[VERIFIED + 1 :],
                paths=self._network.bad_paths(),
                events=self._events,
            )
        )
        self._last_ns, self._last, self._events = now_ns, counters, []
