"""One sender's connection at the receiver, in a thread of its own: handshake, manifest, blocks, answers."""

import contextlib
import errno
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from openmrc import handshake
from openmrc.control import Channel, ExhaustedError, Refused
from openmrc.control.budget import Hold
from openmrc.control.tcp import wait_readable
from openmrc.errors import ConnectError, Error
from openmrc.handshake import AddressRule
from openmrc.planes import Planes
from openmrc.transfer import protocol as p
from openmrc.transfer.descriptors import MOST_FILES, Descriptors
from openmrc.transfer.incoming import Incoming, StoreError
from openmrc.transfer.ring import LIST_ROOM, Block, ReceivingRing
from openmrc.transfer.store import Store, describe
from openmrc.verbs import Context

MANIFEST_LIMIT = 8 << 20
"""Bytes of the manifest of a sender that has not proven a token: at most 83,886 files."""

ENTRY_BYTES = 100
"""What an entry counts at least: the memory that it takes does not shrink with its name."""

ENTRY_MEMORY = 700
"""Bytes of memory that an entry takes here besides its path, measured."""

PART_LIMIT = 1 << 20
"""Bytes of a message of the sender: twice the largest part of a list that ours sends."""

TRUSTED_MANIFEST_LIMIT = 256 << 20
"""Bytes of the manifest of a sender that has the token. The receiver keeps it in memory."""

_MAX_FLUSHING = 4
"""Most files that wait for the disk."""

_TICK = 1.0
"""Seconds from one look to the next at whether the sender still answers."""

_DESCRIPTORS_TIMEOUT = 30.0
_PAUSE = 0.1
_REASON_LIMIT = 1000

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that the receiver reports."""

    kind: str
    """``connected``, ``stored``, ``failed``, ``broken`` (the connection, with all unfinished files),
    ``done``, or ``interval`` (what has arrived from all senders in a time)."""
    peer: str
    path: str | None = None
    bytes: int = 0
    seconds: float = 0.0
    digest: str | None = None
    reason: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON, without unset fields."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in fields.items() if value is not None}


Observer = Callable[[Event], None]


class Host(Protocol):
    """What a session needs of its server."""

    planes: Planes
    addresses: AddressRule
    idle_timeout: float

    def admit(self, session: "Session") -> int:
        """Counts a sender that has greeted, and has the token; how many there are now.

        Raises:
            ConnectError: if there are too many.
        """

    def context(self, channel: Channel[Any], planes: int) -> Context:
        """The device for a sender with this number of planes."""

    def ended(self, session: "Session") -> None:
        """The session has ended."""


class Session:
    """One sender's connection.

    Args:
        host: The server.
        store: Stores the files.
        channel: The connection; closed at the end.
        observer: Called with every event.
    """

    def __init__(self, host: Host, store: Store, channel: Channel[Any], observer: Observer) -> None:
        self._host = host
        self._store = store
        self._observe = observer
        self._channel = channel
        self._peer = channel.peer
        self.address = channel.remote_address()
        """Where the sender is."""
        self.received = 0
        """Bytes of files that have arrived so far."""
        self.admitted = False
        """Whether the sender is known to be one, and counts."""
        self.interrupted = False
        """Whether it is ending because it was interrupted."""
        self.descriptors: Descriptors | None = None
        """For its files; set when it is admitted."""
        self._entries: list[p.Entry] = []
        self._if_exists: p.IfExists = "refuse"
        self._open: dict[int, Incoming] = {}
        self._digests: dict[int, str] = {}
        self._settled: set[int] = set()
        self._begun: dict[int, float] = {}
        # Flushing to disk takes long; meanwhile blocks of the next file are received.
        self._flusher = ThreadPoolExecutor(1, thread_name_prefix="openmrc-flush")
        self._flushing = threading.Semaphore(_MAX_FLUSHING)
        self._pending: set[Future[None]] = set()
        self._last_sign = time.monotonic()
        self._last_progress = self._last_sign
        self._tick = min(_TICK, host.idle_timeout / 2)
        self._next_check = 0.0
        self.thread = threading.Thread(target=self._run, name=f"openmrc-serve {self._peer}", daemon=True)
        self._failed = False
        self._finished = False

    @property
    def complete(self) -> bool:
        """Whether the sender has finished and every file was stored."""
        return self._finished and not self._failed

    def interrupt(self) -> None:
        """Ends the connection while the session's thread may be waiting on it."""
        self.interrupted = True
        self._channel.shutdown()

    def _run(self) -> None:
        try:
            with contextlib.ExitStack() as stack:
                stack.callback(self._host.ended, self)
                stack.callback(self._give_descriptors_back)
                stack.callback(self._channel.close)
                stack.callback(self._discard_all)
                stack.callback(self._flusher.shutdown)
                self._converse(stack)
        except (Error, OSError) as error:
            # If there are two causes, this is the first; the sender may not be there any more.
            self._observe(Event("broken", self._peer, reason=handshake.describe(error)))

    def _converse(self, stack: contextlib.ExitStack) -> None:
        ring = self._connect(stack)
        self._observe(Event("connected", self._peer))
        try:
            self._plan()
        except ExhaustedError as error:
            self._channel.refuse(handshake.describe(error))
            raise
        except ConnectError:
            raise
        except (Error, OSError) as error:
            self._channel.refuse(handshake.describe(error))
            raise
        self._receive(ring)

    def _connect(self, stack: contextlib.ExitStack) -> ReceivingRing:
        host, channel = self._host, self._channel
        running = 0

        def admit() -> None:
            nonlocal running
            running = host.admit(self)

        with handshake.answering(channel, addresses=host.addresses, admit=admit) as answering:
            request = answering.request
            context = host.context(channel, len(request.addresses))
            answering.check(context)
            ring = stack.enter_context(
                ReceivingRing.for_sender(context, self._peer, running, channel.account)
            )
            largest = host.planes.path_mtu(context.addresses, request.addresses, largest=request.path_mtu)
            answering.offer(ring.end(largest))
        channel.limit = PART_LIMIT
        return ring

    # --- the manifest ---------------------------------------------------------------------------------------

    def _plan(self) -> None:
        before = self._channel.received_bytes
        limit = TRUSTED_MANIFEST_LIMIT if self._channel.authenticated else MANIFEST_LIMIT
        review = None
        memory, listed = Hold(self._channel.account), 0
        while True:
            part: p.Manifest = self._channel.expect(p.Manifest, self._host.idle_timeout)
            size = max(
                self._channel.received_bytes - before,
                ENTRY_BYTES * (len(self._entries) + len(part.entries)),
            )
            if size > limit:
                hint = "" if self._channel.authenticated else " without a token"
                raise StoreError(
                    f"the list of files has more than {limit >> 20} MiB, or {limit // ENTRY_BYTES} files,"
                    f" which is the limit{hint}"
                )
            listed += sum(ENTRY_MEMORY + sys.getsizeof(entry.path) for entry in part.entries)
            count = len(self._entries) + len(part.entries)
            memory.set(max(0, listed - LIST_ROOM), f"a list of {count} files")
            if review is None:
                self._if_exists = part.if_exists
                review = self._store.review(part.if_exists)
            # Files that exist are read for their digests, which may take long.
            verdicts = self._wait_for(self._flusher.submit(review.judge, part.entries))
            self._settled.update(
                len(self._entries) + i for i, verdict in enumerate(verdicts) if verdict.error is not None
            )
            self._entries.extend(part.entries)
            self._channel.send(p.Plan(verdicts=verdicts))
            if part.last:
                break
        self._failed = bool(self._settled)

    def _wait_for(self, future: Future[_T]) -> _T:
        """The result of work that takes long, while the sender gets messages that it goes on."""
        while True:
            try:
                return future.result(p.BUSY_INTERVAL)
            except TimeoutError:
                if future.done():
                    raise  # The work itself ran into it.
                self._channel.send(p.Busy())

    # --- the files ------------------------------------------------------------------------------------------

    def _receive(self, ring: ReceivingRing) -> None:
        self._last_sign = self._last_progress = time.monotonic()
        while not self._finished:
            ring.cq.arm()
            wait_readable(self._channel, ring.cq, timeout=self._tick)
            ring.cq.acknowledge()
            self._check_idle()
            for block in ring.arrived():
                self._last_sign = self._last_progress = time.monotonic()
                self._take(block)
            self._hear()
        self._finished = not self._open and not self._digests
        self._observe(Event("done", self._peer))

    def _check_idle(self) -> None:
        """Gives up a sender that does nothing; sends a message to one that waits for the disk.

        Raises:
            ConnectError: if the sender is given up.
        """
        now = time.monotonic()
        if now < self._next_check:
            return
        self._next_check = now + self._tick
        self._pending = {future for future in self._pending if not future.done()}
        if self._pending:
            self._last_sign = self._last_progress = now
            self._channel.send(p.Busy())
        elif now - self._last_sign > self._host.idle_timeout or now - self._last_progress > p.BUSY_LIMIT:
            reason = f"no data came for {now - self._last_progress:.3g} s"
            with contextlib.suppress(ConnectError):
                self._channel.send(Refused(reason=reason), 1.0)
            raise ConnectError(f"{self._peer} was given up: {reason}")

    def _hear(self) -> None:
        for message in self._channel.arrived():
            self._last_sign = time.monotonic()
            self._check_idle()
            match message:
                case p.End():
                    self._end(message)
                case p.Busy():
                    pass
                case p.Bye():
                    self._finished = True
                    return
                case _:
                    raise self._channel.unexpected(message)

    def _take(self, block: Block) -> None:
        index = block.tag
        if index >= len(self._entries):
            raise ConnectError(
                f"{self._peer} sent a block of file {index}, but announced {len(self._entries)} files"
            )
        self.received += len(block.data)
        if index not in self._open and len(self._open) >= self._most_open:
            self._wait_for_ends()
        if index in self._settled:
            return  # It has failed; this block was already on its way.
        try:
            incoming = self._incoming(index)
            incoming.write(block.data)
        except (StoreError, OSError) as error:
            self._fail(index, error)
            return
        self._maybe_commit(index)

    def _incoming(self, index: int) -> Incoming:
        if (incoming := self._open.get(index)) is not None:
            return incoming
        if self.descriptors is not None:
            self.descriptors.lend(self._files())
        try:
            incoming = self._created(self._entries[index])
        finally:
            if self.descriptors is not None:
                self.descriptors.take_back(self._files() + 1)
        self._open[index] = incoming
        self._begun[index] = time.monotonic()
        return incoming

    def _created(self, entry: p.Entry) -> Incoming:
        deadline = time.monotonic() + _DESCRIPTORS_TIMEOUT
        while True:
            try:
                return self._store.create(entry, self._if_exists)
            except OSError as error:
                # Its own files before this one are on their way to the disk, and give theirs back.
                if error.errno not in (errno.EMFILE, errno.ENFILE) or time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE)

    @property
    def _most_open(self) -> int:
        return MOST_FILES if self.descriptors is None else self.descriptors.files

    def _files(self) -> int:
        """Files that are open: those that arrive, and those on their way to the disk."""
        return len(self._open) + sum(not future.done() for future in self._pending)

    def _give_descriptors_back(self) -> None:
        if self.descriptors is not None:
            self.descriptors.close()

    def _wait_for_ends(self) -> None:
        """Lets the announcements catch up with the data.

        Raises:
            ConnectError: if they do not: the sender keeps many files open on purpose.
        """
        deadline = time.monotonic() + min(self._host.idle_timeout, _DESCRIPTORS_TIMEOUT)
        while len(self._open) >= self._most_open:
            left = deadline - time.monotonic()
            if left <= 0 or not wait_readable(self._channel, timeout=left):
                raise ConnectError(f"{self._peer} began {self._most_open} files without ending any")
            self._hear()

    def _end(self, end: p.End) -> None:
        index = end.index
        if index >= len(self._entries):
            raise ConnectError(f"{self._peer} ended file {index}, but announced {len(self._entries)} files")
        if index in self._settled or index in self._digests:
            return
        self._last_progress = time.monotonic()
        entry = self._entries[index]
        if end.digest is None:
            self._fail(index, StoreError("the sender could not read all of it"))
            return
        try:
            if entry.directory:
                self._store.make_directory(entry)
                self._settled.add(index)
                self._channel.send(p.Stored(index=index, digest=""))
                return
            if entry.size == 0:
                self._incoming(index)
        except (StoreError, OSError) as error:
            self._fail(index, error)
            return
        self._digests[index] = end.digest
        self._maybe_commit(index)

    def _maybe_commit(self, index: int) -> None:
        incoming = self._open.get(index)
        if incoming is None or not incoming.complete or index not in self._digests:
            return
        del self._open[index]
        self._settled.add(index)
        digest = self._digests.pop(index)
        while not self._flushing.acquire(timeout=p.BUSY_INTERVAL):
            self._channel.send(p.Busy())
        self._pending = {future for future in self._pending if not future.done()}
        self._pending.add(self._flusher.submit(self._commit, index, incoming, digest))

    def _commit(self, index: int, incoming: Incoming, digest: str) -> None:
        entry = incoming.entry
        try:
            incoming.commit(digest)
        except (StoreError, OSError) as error:
            self._report_failure(index, error)
            return
        finally:
            self._flushing.release()
        seconds = time.monotonic() - self._begun.pop(index)
        self._observe(Event("stored", self._peer, entry.path, entry.size, seconds, digest))
        with contextlib.suppress(ConnectError):  # The session's thread notices too.
            self._channel.send(p.Stored(index=index, digest=digest))

    def _fail(self, index: int, error: Exception) -> None:
        self._settled.add(index)
        self._digests.pop(index, None)
        self._begun.pop(index, None)
        if (incoming := self._open.pop(index, None)) is not None:
            incoming.discard()
        self._report_failure(index, error)

    def _report_failure(self, index: int, error: Exception) -> None:
        reason = (describe(error) if isinstance(error, OSError) else str(error))[:_REASON_LIMIT]
        self._failed = True
        self._observe(Event("failed", self._peer, self._entries[index].path, reason=reason))
        with contextlib.suppress(ConnectError):
            self._channel.send(p.Failed(index=index, reason=reason))

    def _discard_all(self) -> None:
        for index, incoming in self._open.items():
            incoming.discard()
            self._observe(
                Event(
                    "failed",
                    self._peer,
                    self._entries[index].path,
                    reason="the connection broke; the file was discarded",
                )
            )
        self._open.clear()
