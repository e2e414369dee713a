"""The sending end of a transfer, for ``openmrc put``."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import xxhash

from openmrc import handshake
from openmrc.closing import Closable
from openmrc.control import Message, Refused, Token, dial
from openmrc.control.tcp import wait_readable
from openmrc.errors import ConnectError, Error
from openmrc.handshake import AddressRule
from openmrc.planes import Planes
from openmrc.transfer import protocol as p
from openmrc.transfer.manifest import Source
from openmrc.transfer.ring import PEER_TIMEOUT, SendingRing
from openmrc.transfer.store import digest_of
from openmrc.verbs import Context, EvState

_UNANSWERED = 64
"""Most files that may wait for the receiver's answer while the next are sent."""
_TICK = 0.1

Status = Literal["stored", "unchanged", "failed"]


@dataclass(slots=True)
class FileResult:
    """The result for a file or empty directory."""

    path: str
    """Its path at the receiver."""
    bytes: int
    status: Status
    digest: str | None = None
    """XXH3-128 of its contents, as ``xxhsum -H2`` prints it; the receiver computed the same."""
    reason: str | None = None
    """Reason of a failure."""


@dataclass(slots=True)
class PlaneState:
    """State of a plane at the sender."""

    address: str
    tx_packets: int = 0
    tx_bytes: int = 0
    """UDP payload sent, with headers and retransmissions."""
    good: int = 0
    """Paths in rotation or in reserve."""
    bad: int = 0
    """Paths believed broken."""

    @property
    def alive(self) -> bool:
        """Whether a path is left."""
        return self.good > 0 or self.bad == 0


@dataclass(slots=True)
class Report:
    """The result of a transfer."""

    files: list[FileResult]
    bytes: int
    """Bytes of all files that were sent and stored."""
    seconds: float
    """From the first byte to the last answer, with the time for flushing to disk."""
    network_seconds: float
    """From the first byte until the receiver had the last byte."""
    planes: list[PlaneState] = field(default_factory=list)
    transport: dict[str, int] = field(default_factory=dict)
    """The queue pair's counters."""

    @property
    def complete(self) -> bool:
        """Whether the receiver has everything."""
        return all(file.status != "failed" for file in self.files)

    @property
    def goodput_gbps(self) -> float | None:
        """Payload, 10^9 bits per second, during :attr:`network_seconds`; ``None`` without data."""
        return self.bytes * 8 / self.network_seconds / 1e9 if self.bytes and self.network_seconds else None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "goodput_gbps": self.goodput_gbps, "complete": self.complete}


class Sender(Closable):
    """A connection to a receiver.

    Args:
        host: The receiver.
        port: Its TCP port.
        planes: The addresses to send from.
        mtu: Payload bytes per packet; default what the routes carry, at most 4096.
        peer_timeout: Seconds without an answer on any plane after which the receiver is given up.
        token: What the receiver must have.
        addresses: Which addresses the receiver may offer; default its own.
        timeout: Seconds without a sign of the receiver after which it is given up.
        configure: Called with the open device before anything is sent; for tests.

    Raises:
        ConnectError: if there is no receiver, or it refuses.
        DeviceError: if an address is not of this host.
    """

    def __init__(
        self,
        host: str,
        port: int = p.DEFAULT_PORT,
        *,
        planes: Planes | None = None,
        mtu: int | None = None,
        peer_timeout: float = PEER_TIMEOUT,
        token: Token | None = None,
        addresses: AddressRule | None = None,
        timeout: float = p.IDLE_TIMEOUT,
        configure: Callable[[Context], None] | None = None,
    ) -> None:
        self.receiver = f"{host}:{port}"
        self.total_bytes = 0
        """Bytes to send; known once the receiver has answered which files it wants."""
        self._sources: Sequence[Source] = ()
        self._results: dict[int, FileResult] = {}
        self._unanswered: set[int] = set()
        self._on_tick: Callable[[Sender], None] = lambda sender: None
        self._next_tick = 0.0
        self._timeout = timeout
        self._last_sign = self._last_progress = time.monotonic()
        self._stack = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            undo.enter_context(self._stack)
            at = "" if port == p.DEFAULT_PORT else f" -p {port}"
            hint = f"start `openmrc serve DIR{at}` there, with --bind if it is another machine"
            self._channel = self._stack.enter_context(dial(p.PROTOCOL, host, port, hint, token=token))
            self.context = self._stack.enter_context(
                (planes or Planes()).open(self._channel.local_address(), self._channel.remote_address())
            )
            if configure:
                configure(self.context)
            self._planes = planes or Planes()
            self._ring = self._connect(mtu, addresses, peer_timeout)
            undo.pop_all()

    def send(
        self,
        sources: Sequence[Source],
        if_exists: p.IfExists = "refuse",
        on_tick: "Callable[[Sender], None] | None" = None,
    ) -> Report:
        """Sends files; returns when the receiver has answered for every file.

        Args:
            sources: What to send.
            if_exists: What the receiver does if a name is taken.
            on_tick: Called with this object several times a second, for a progress display.

        Raises:
            ConnectError: if the connection or every plane broke. Files that were answered are stored; nothing
                is left of all others at the receiver.
        """
        if on_tick:
            self._on_tick = on_tick
        self._results.clear()
        self._sources = sources
        wanted = self._plan(sources, if_exists)
        begun = self._last_sign = self._last_progress = time.monotonic()
        for index in wanted:
            self._send_file(index)
            self._wait_until(lambda: len(self._unanswered) < _UNANSWERED)
        self._wait_until(lambda: self._ring.drained)
        network_seconds = time.monotonic() - begun
        self._wait_until(lambda: len(self._results) == len(sources))
        seconds = time.monotonic() - begun
        self._on_tick(self)
        files = [self._results[index] for index in range(len(sources))]
        report = Report(
            files=files,
            bytes=sum(file.bytes for file in files if file.status == "stored"),
            seconds=seconds,
            network_seconds=network_seconds,
            planes=self.plane_states(),
            transport=self._ring.qp.stats(),
        )
        self._channel.send(p.Bye())
        return report

    @property
    def bytes_placed(self) -> int:
        """Bytes that the receiver has consumed so far."""
        return self._ring.bytes_consumed

    @property
    def results(self) -> list[FileResult]:
        """Results of the files that have been answered so far."""
        return [self._results[index] for index in sorted(self._results)]

    def plane_states(self) -> list[PlaneState]:
        """The state of every plane."""
        states = [
            PlaneState(address, port["tx_packets"], port["tx_bytes"])
            for (address, _), port in zip(self.context.addresses, self.context.stats()["ports"], strict=True)
        ]
        for port, _, state in self._ring.qp.ev_states():
            if state is EvState.ASSUMED_BAD:
                states[port].bad += 1
            elif state is not EvState.DENIED:
                states[port].good += 1
        return states

    def close(self) -> None:
        """Closes the connection; the receiver discards incomplete files. Closing twice is harmless."""
        self._stack.close()

    # --- connecting -----------------------------------------------------------------------------------------

    def _connect(self, mtu: int | None, rule: AddressRule | None, peer_timeout: float) -> SendingRing:
        addresses = self.context.addresses
        with handshake.calling(self._channel, self.context, path_mtu=mtu, addresses=rule) as calling:
            offer = calling.offer
            self.peer_planes = len(offer.addresses)
            """How many planes the receiver has; the first planes of both ends are used."""
            ring = self._stack.enter_context(SendingRing(self.context, self.receiver, offer))
            ring.peer_timeout = peer_timeout
            largest = self._planes.path_mtu(addresses, offer.addresses, largest=offer.path_mtu)
            calling.accept(ring.end(largest))
        self._channel.limit = p.MAX_MESSAGE
        return ring

    def _plan(self, sources: Sequence[Source], if_exists: p.IfExists) -> list[int]:
        """Asks which files the receiver wants; settles the others."""
        wanted: list[int] = []
        index = 0
        for part in _parts(sources):
            last = index + len(part) == len(sources)
            entries = [source.entry for source in part]
            self._channel.send(p.Manifest(entries=entries, if_exists=if_exists, last=last))
            verdicts = self._verdicts()
            if len(verdicts) != len(part):
                raise ConnectError(f"{self.receiver} answered for {len(verdicts)} files of {len(part)}")
            for source, verdict in zip(part, verdicts, strict=True):
                if self._is_wanted(index, source, verdict):
                    wanted.append(index)
                index += 1
        self.total_bytes = sum(sources[index].entry.size for index in wanted)
        return wanted

    def _verdicts(self) -> list[p.Verdict]:
        """Waits for the receiver's answer to a part. It may have to read files to compare them."""
        begun = time.monotonic()
        while True:
            message = self._channel.receive(self._timeout)
            if not isinstance(message, p.Busy):
                break
            if time.monotonic() - begun > p.BUSY_LIMIT:
                raise ConnectError(f"{self.receiver} did not answer within {p.BUSY_LIMIT:.0f} s")
        match message:
            case p.Plan():
                return message.verdicts
            case Refused():
                raise self._channel.refused(message)
        raise self._channel.unexpected(message)

    def _is_wanted(self, index: int, source: Source, verdict: p.Verdict) -> bool:
        if verdict.error is not None:
            self._settle(index, "failed", reason=verdict.error)
        elif verdict.digest is None:
            return True
        elif verdict.digest == self._digest_of(source):
            self._settle(index, "unchanged", digest=verdict.digest)
        elif verdict.keep:
            reason = "exists already and differs, and the receiver lets nothing be replaced"
            self._settle(index, "failed", reason=reason)
        else:
            return True
        return False

    def _digest_of(self, source: Source) -> str | None:
        reported = time.monotonic()

        def report() -> None:
            nonlocal reported
            if time.monotonic() - reported > p.BUSY_INTERVAL:
                reported = time.monotonic()
                self._channel.send(p.Busy())

        try:
            with source.local.open("rb", buffering=0) as file:
                return digest_of(file, report)
        except OSError as error:
            if isinstance(error, Error):
                raise
            return None  # Sending the file will fail too, with the reason.

    # --- sending --------------------------------------------------------------------------------------------

    def _send_file(self, index: int) -> None:
        source = self._sources[index]
        digest = None
        try:
            digest = "" if source.entry.directory else self._send_contents(index, source)
        except OSError as error:
            if isinstance(error, Error):
                raise
            self._settle(index, "failed", reason=error.strerror or str(error))
        if index not in self._results:
            self._unanswered.add(index)
        self._channel.send(p.End(index=index, digest=digest))

    def _send_contents(self, index: int, source: Source) -> str | None:
        digest = xxhash.xxh3_128()
        left = source.entry.size
        with source.local.open("rb", buffering=0) as file:
            before = os.fstat(file.fileno())
            while left and index not in self._results:
                block = self._wait_for_block()[:left]
                length = file.readinto(block) or 0
                if length == 0:
                    break
                digest.update(block[:length])
                self._ring.post(length, index)
                left -= length
            after = os.fstat(file.fileno())
        if index in self._results:
            return None
        if left or (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            self._settle(index, "failed", reason="changed while it was being sent")
            return None
        return str(digest.hexdigest())

    def _wait_for_block(self) -> memoryview:
        self._progress()
        while (block := self._ring.free()) is None:
            self._sleep()
            self._progress()
        return block

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        self._progress()
        while not condition():
            self._sleep()
            self._progress()

    def _sleep(self) -> None:
        self._ring.cq.arm()
        wait_readable(self._channel, self._ring.cq, timeout=_TICK)
        self._ring.cq.acknowledge()
        self._check_alive()

    def _check_alive(self) -> None:
        now = time.monotonic()
        if now - self._last_sign > self._timeout or now - self._last_progress > p.BUSY_LIMIT:
            raise ConnectError(
                f"{self.receiver} was given up: it did nothing for {now - self._last_progress:.3g} s"
            )

    def _progress(self) -> None:
        if self._ring.poll():
            self._last_sign = self._last_progress = time.monotonic()
        for message in self._channel.arrived():
            self._last_sign = time.monotonic()
            self._check_alive()
            self._handle(message)
        if (now := time.monotonic()) >= self._next_tick:
            self._next_tick = now + _TICK
            self._on_tick(self)

    def _handle(self, message: Message) -> None:
        match message:
            case p.Stored() if message.index < len(self._sources):
                self._settle(message.index, "stored", digest=message.digest or None)
            case p.Failed() if message.index < len(self._sources):
                self._settle(message.index, "failed", reason=message.reason)
            case p.Busy():
                return
            case Refused():
                raise self._channel.refused(message)
            case _:
                raise self._channel.unexpected(message)

    def _settle(
        self, index: int, status: Status, *, digest: str | None = None, reason: str | None = None
    ) -> None:
        entry = self._sources[index].entry
        # The first result counts: the receiver also reports a file as failed that was given up here.
        if index not in self._results:
            self._results[index] = FileResult(entry.path, entry.size, status, digest, reason)
            self._last_progress = time.monotonic()
        self._unanswered.discard(index)


def _parts(sources: Sequence[Source]) -> Iterator[list[Source]]:
    """The manifest in parts that a receiver takes; one part if there is nothing to send."""
    part: list[Source] = []
    room = p.PART_BYTES
    for source in sources:
        size = len(source.entry.model_dump_json())
        if part and (len(part) == p.PART_ENTRIES or size > room):
            yield part
            part, room = [], p.PART_BYTES
        part.append(source)
        room -= size
    yield part
