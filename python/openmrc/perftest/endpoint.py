"""One end of a measurement: device, queue pairs, memory, and the loops that run on them."""

import collections
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from openmrc import _core
from openmrc.closing import Closable
from openmrc.control import Channel, LostError
from openmrc.control.messages import K
from openmrc.errors import ArgumentError, ConnectError, Error
from openmrc.handshake import Accept, End, Offer, Options
from openmrc.perftest import protocol as p
from openmrc.perftest.protocol import Measurement
from openmrc.testing import Impairment, impair
from openmrc.verbs import Context, QpCap, QueuePair, RemoteBuffer

INLINE = 220
"""Bytes that every queue pair can send inline."""

_WATCH = 0.05
"""Seconds between looks at the other end during a run."""
_PATIENCE = 1.0
_T = TypeVar("_T")


class Interval(NamedTuple):
    """A part of a run."""

    start: float
    """Seconds from the beginning of the run."""
    end: float
    bytes: int
    """Payload of messages that completed."""
    resent: int
    """Packets sent again."""

    @property
    def goodput_gbps(self) -> float:
        """Payload bits per second, 10^9."""
        return self.bytes * 8 / (self.end - self.start) / 1e9


class Endpoint(Closable):
    """Queue pairs and memory on an open device; closing it closes the device."""

    def __init__(
        self, context: Context, *, qps: int, depth: int, buffer: int, impairments: Sequence[Impairment]
    ) -> None:
        self.context = context
        self._impairments = impairments
        with contextlib.ExitStack() as undo:
            undo.enter_context(context)
            if impairments:  # Now, to fail early if one is impossible; their time starts with each run.
                impair(context, *impairments, seed=1)
            self._pd = context.alloc_pd()
            self._cq = context.create_cq(max(1024, 2 * qps * depth))
            cap = QpCap(max_send_wr=depth, max_recv_wr=0, max_inline_data=INLINE)
            self.qps: list[QueuePair] = [self._pd.create_qp(self._cq, cap=cap) for _ in range(qps)]
            # What is sent and what is written to are apart, so that the two directions do not meet.
            self._source = _core.PerfBuffer(self._pd._core, buffer)
            self._inbox = _core.PerfBuffer(self._pd._core, buffer)
            self._target: tuple[int, int, int] = (0, 0, 0)
            undo.pop_all()

    def end(self, path_mtu: int) -> End:
        """This end, for the handshake."""
        inbox = RemoteBuffer(self._inbox.addr, self._inbox.length, self._inbox.rkey)
        return End(self.qps, buffers=[inbox], options=Options(path_mtu=path_mtu))

    def aim(self, theirs: Offer | Accept) -> None:
        """Takes the peer's buffer as the target of all writes.

        Raises:
            ConnectError: if the peer has none.
        """
        if len(theirs.buffers) != 1:
            raise ConnectError(f"the other end offers {len(theirs.buffers)} buffers, not one")
        [target] = theirs.buffers
        self._target = (target.addr, target.length, target.rkey)

    def progress(self) -> int:
        """A number that changes with every new data packet that leaves or arrives."""
        counters = self.counters()
        return counters["data_packets"] - counters["retransmits"] + counters["data_packets_in"]

    def prepare(self) -> None:
        """Prepares the next run: clears the memory, restarts the impairments."""
        self._inbox.clear()
        if self._impairments:
            impair(self.context, *self._impairments, seed=1)

    def bandwidth(self, run: Measurement, watch: "Watch", ticker: "Ticker | None" = None) -> dict[str, Any]:
        """Writes as fast as possible; returns what the loop counted.

        Args:
            run: What to measure.
            watch: Ends the loop early.
            ticker: Told how far the run is.
        """
        return _watched(
            watch,
            lambda control: _core.write_bw(
                self.context._core,
                [qp._core for qp in self.qps],
                self._cq._core,
                self._source,
                self._target,
                control,
                size=run.size,
                # perftest counts per queue pair.
                iterations=None if run.iterations is None else run.iterations * len(self.qps),
                duration=run.duration,
                depth=self.qps[0].cap.max_send_wr,
                post_list=run.post_list,
                signal_every=run.cq_mod,
                inline=run.inline,
                polling=True,
                bucket=run.interval,
            ),
            ticker,
        )

    def latency(self, run: Measurement, watch: "Watch", *, client: bool) -> list[int]:
        """Writes to and fro; the client's half round trips in nanoseconds."""
        iterations = run.iterations
        if iterations is None:
            raise ArgumentError("write-lat counts iterations")
        return _watched(
            watch,
            lambda control: _core.write_lat(
                self.context._core,
                self.qps[0]._core,
                self._cq._core,
                self._source,
                self._inbox,
                self._target,
                control,
                client=client,
                size=run.size,
                iterations=iterations,
                warmup=run.warmup,
                inline=run.inline,
            ),
        )

    def counters(self) -> dict[str, int]:
        """The transport's counters, summed over the queue pairs."""
        total: dict[str, int] = {}
        for qp in self.qps:
            for name, value in qp.stats().items():
                total[name] = total.get(name, 0) + value
        return total

    def close(self) -> None:
        """Closes the device."""
        self.context.close()


class Watch:
    """Gives up a peer that has gone, makes no progress, or takes too long.

    Args:
        endpoint: Whose packets show progress.
        channel: The connection to the peer.
        limit: Seconds from now on in which all must be over.
        keep: Whether Ctrl-C ends the loop with its results, and not the command.
    """

    def __init__(
        self, endpoint: Endpoint, channel: Channel[Any], limit: float, *, keep: bool = False
    ) -> None:
        self.keep = keep
        self.channel = channel
        self.interrupted = False
        """Whether Ctrl-C ended the loop, here or at the client."""
        self._messages: collections.deque[Any] = collections.deque()
        self._endpoint = endpoint
        self._limit = limit
        self._end = time.monotonic() + limit
        self._seen = -1
        self._since = self._next = time.monotonic()

    def check(self) -> None:
        """Looks whether there is still hope.

        Raises:
            LostError: if there is none.
        """
        for message in self.channel.arrived():
            if isinstance(message, p.Stop):
                self.interrupted = True
            elif self._messages:
                raise self.channel.unexpected(message)  # There is never more than one.
            else:
                self._messages.append(message)
        now = time.monotonic()
        if now > self._end:
            raise LostError(f"{self.channel.peer} was given up after {self._limit:.0f} s (see --max-time)")
        if now < self._next:
            return
        # Counting asks every queue pair, so it is done seldom.
        self._next = now + p.IDLE_TIMEOUT / 6
        if (seen := self._endpoint.progress()) != self._seen:
            self._seen, self._since = seen, now
        elif now - self._since > p.IDLE_TIMEOUT:
            raise LostError(f"{self.channel.peer} was given up: no new data for {now - self._since:.0f} s")

    def expect(self, kind: type[K]) -> K:
        """Waits for a message that may take long.

        Raises:
            ConnectError: as :meth:`check` and :meth:`openmrc.control.Channel.expect`.
        """
        while not self._messages:
            self.channel.wait(_PATIENCE)
            self.check()
        message = self._messages.popleft()
        if isinstance(message, kind):
            return message
        raise self.channel.unexpected(message)


class Ticker:
    """Reports the goodput of a run at regular times, while it runs.

    Args:
        every: Seconds.
        report: Called with each interval.
        resent: Counts packets that were sent again.
    """

    def __init__(self, every: float, report: Callable[[Interval], None], resent: Callable[[], int]) -> None:
        self._every = every
        self._report = report
        self._resent = resent
        self._begun = time.monotonic()
        self._last = (self._begun, 0, resent())
        self._due = self._begun + every

    def wait(self) -> float:
        """Seconds until the end of the interval."""
        return max(0.0, self._due - time.monotonic())

    def tick(self, completed: int, *, last: bool = False) -> None:
        """Reports the interval if it has ended; with ``last``, what there is of it.

        Args:
            completed: Bytes since the beginning of the run.
            last: The run has ended.
        """
        now = time.monotonic()
        if now < self._due and not last:
            return
        since, before, resent_before = self._last
        resent = self._resent()
        if completed > before or not last:
            start, end = since - self._begun, now - self._begun
            self._report(Interval(start, end, completed - before, resent - resent_before))
        self._last = (now, completed, resent)
        while self._due <= now:
            self._due += self._every


def _watched(watch: Watch, loop: Callable[[_core.PerfControl], _T], ticker: Ticker | None = None) -> _T:
    """Runs a loop in its own thread. Ctrl-C ends it with what it has counted."""
    control = _core.PerfControl()
    outcome: list[_T] = []
    failure: list[Error] = []

    def body() -> None:
        try:
            outcome.append(loop(control))
        except Error as error:
            failure.append(error)
        finally:
            ended.set()

    # Not Thread.join: interrupted by a signal, Python 3.11 takes the thread for ended (bpo-45274).
    ended = threading.Event()
    threading.Thread(target=body, name="openmrc-perftest").start()
    try:
        while not watch.interrupted:
            if ended.wait(_WATCH if ticker is None else min(_WATCH, ticker.wait())):
                break
            watch.check()
            if ticker is not None:
                ticker.tick(control.bytes)
    except KeyboardInterrupt:
        if not watch.keep:
            raise
        watch.interrupted = True
    finally:
        control.stop()
        ended.wait()
    if failure:
        raise failure[0]
    if ticker is not None:
        ticker.tick(control.bytes, last=True)
    return outcome[0]
