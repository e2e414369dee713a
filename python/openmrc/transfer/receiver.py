"""The receiving end of transfers, for ``openmrc serve``: one thread per connection."""

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from openmrc import handshake
from openmrc.channel import Channel, Refused, wait_readable
from openmrc.closing import Closable
from openmrc.errors import ClosedError, ConnectError, Error
from openmrc.handshake import Listener
from openmrc.planes import Planes
from openmrc.transfer import protocol as p
from openmrc.transfer.ring import Block, ReceivingRing
from openmrc.transfer.store import Incoming, Store, StoreError, describe

MAX_CLIENTS = 64

_TICK = 1.0
"""Seconds from one look to the next at whether the sender still answers."""

_MANIFEST_TIMEOUT = 120.0
"""Seconds for the manifest, which may have 64 MiB."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that the receiver reports."""

    kind: str
    """``connected``, ``stored``, ``failed``, ``broken`` (the connection, with all unfinished files) or
    ``done``."""
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


class Server(Closable):
    """Listens, and gives each sender a thread, a queue pair and a ring.

    Args:
        store: Stores the files.
        host: Address to listen on; empty: all.
        port: TCP port; 0: any free one.
        planes: The addresses to receive data on.
        observer: Called with every event, from any thread.

    Raises:
        OSError: if it cannot listen on the address and port, or bind the address of a plane.
    """

    def __init__(
        self,
        store: Store,
        *,
        host: str = "",
        port: int = p.DEFAULT_PORT,
        planes: Planes | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._store = store
        self._planes = planes or Planes()
        self._observe = observer or (lambda event: None)
        self._sessions: set[Session] = set()
        self._lock = threading.Lock()
        self._context = self._planes.open_named()
        try:
            self._listener = Listener(p.PROTOCOL, host, port)
        except BaseException:
            if self._context is not None:
                self._context.close()
            raise
        self.port: int = self._listener.address[1]
        """TCP port it listens on."""

    def serve(self, *, once: bool = False) -> bool:
        """Serves until closed or interrupted; with ``once``, one connection.

        Returns:
            With ``once``, whether every file of the connection was stored.
        """
        while True:
            try:
                session = Session(self, self._listener.accept())
            except ClosedError:
                return True
            with self._lock:
                full = len(self._sessions) >= MAX_CLIENTS
                if not full:
                    self._sessions.add(session)
            if full:
                session.refuse(f"{MAX_CLIENTS} transfers are running, which is the limit; try again later")
                continue
            session.thread.start()
            if once:
                session.thread.join()
                return session.complete

    def close(self) -> None:
        """Breaks off all transfers, discards their files and stops listening; :meth:`serve` returns."""
        self._listener.close()
        with self._lock:
            sessions = list(self._sessions)
        for session in sessions:
            session.interrupt()
        for session in sessions:
            session.thread.join()
        if self._context is not None:
            self._context.close()

    def _ended(self, session: "Session") -> None:
        with self._lock:
            self._sessions.discard(session)


class Session:
    """One sender's connection."""

    def __init__(self, server: Server, channel: Channel[Any]) -> None:
        self._server = server
        self._store = server._store
        self._observe = server._observe
        self._channel = channel
        self._peer = channel.peer
        self._entries: list[p.Entry] = []
        self._if_exists: p.IfExists = "refuse"
        self._open: dict[int, Incoming] = {}
        self._digests: dict[int, str] = {}
        self._settled: set[int] = set()
        self._begun: dict[int, float] = {}
        # Flushing to disk takes long; meanwhile blocks of the next file are received.
        self._flusher = ThreadPoolExecutor(1, thread_name_prefix="openmrc-flush")
        self.thread = threading.Thread(target=self._run, name=f"openmrc-serve {self._peer}", daemon=True)
        self._failed = False
        self._finished = False

    @property
    def complete(self) -> bool:
        """Whether the sender has finished and every file was stored."""
        return self._finished and not self._failed

    def refuse(self, reason: str) -> None:
        """Refuses the sender and closes the connection."""
        with contextlib.suppress(ConnectError):
            self._channel.send(Refused(reason=reason))
        self._channel.close()

    def interrupt(self) -> None:
        """Ends the connection while the session's thread may be waiting on it."""
        self._channel.shutdown()

    def _run(self) -> None:
        try:
            with contextlib.ExitStack() as stack:
                stack.callback(self._server._ended, self)
                stack.callback(self._channel.close)
                stack.callback(self._discard_all)
                stack.callback(self._flusher.shutdown)
                self._converse(stack)
        except (Error, OSError) as error:
            # If there are two causes, this is the first; the sender may not be there any more.
            self._observe(Event("broken", self._peer, reason=str(error)))

    def _converse(self, stack: contextlib.ExitStack) -> None:
        ring = self._connect(stack)
        self._observe(Event("connected", self._peer))
        try:
            self._plan()
        except ConnectError:
            raise
        except (Error, OSError) as error:
            self._channel.send(Refused(reason=str(error)))
            raise
        self._receive(ring)

    def _connect(self, stack: contextlib.ExitStack) -> ReceivingRing:
        planes, channel = self._server._planes, self._channel
        with handshake.answering(channel, p.PROTOCOL) as answering:
            request = answering.request
            context = self._server._context
            if context is None:
                local, remote = channel.local_address(), channel.remote_address()
                context = stack.enter_context(planes.open(local, remote, count=len(request.addresses)))
            ring = stack.enter_context(ReceivingRing(context, self._peer))
            largest = planes.path_mtu(context.addresses, request.addresses, largest=request.path_mtu)
            answering.offer(ring.end(largest))
        return ring

    def _plan(self) -> None:
        manifest = self._channel.expect(p.Manifest, _MANIFEST_TIMEOUT)
        self._entries, self._if_exists = manifest.entries, manifest.if_exists
        verdicts = self._store.judge(self._entries, self._if_exists)
        self._settled = {i for i, verdict in enumerate(verdicts) if verdict.error is not None}
        self._failed = bool(self._settled)
        self._channel.send(p.Plan(verdicts=verdicts))

    def _receive(self, ring: ReceivingRing) -> None:
        while True:
            ring.cq.arm()
            wait_readable(self._channel, ring.cq, timeout=_TICK)
            ring.cq.acknowledge()
            for block in ring.arrived():
                self._take(block)
            for message in self._channel.arrived():
                match message:
                    case p.End():
                        self._end(message)
                    case p.Bye():
                        self._finished = not self._open
                        self._observe(Event("done", self._peer))
                        return
                    case _:
                        raise self._channel.unexpected(message)

    def _take(self, block: Block) -> None:
        index = block.tag
        if index >= len(self._entries):
            raise ConnectError(
                f"{self._peer} sent a block of file {index}, but announced {len(self._entries)} files"
            )
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
        incoming = self._open.get(index)
        if incoming is None:
            incoming = self._open[index] = self._store.create(self._entries[index], self._if_exists)
            self._begun[index] = time.monotonic()
        return incoming

    def _end(self, end: p.End) -> None:
        index = end.index
        if index >= len(self._entries):
            raise ConnectError(f"{self._peer} ended file {index}, but announced {len(self._entries)} files")
        if index in self._settled:
            return
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
            self._incoming(index)
        except (StoreError, OSError) as error:
            self._fail(index, error)
            return
        self._digests[index] = end.digest
        self._maybe_commit(index)

    def _maybe_commit(self, index: int) -> None:
        incoming = self._open[index]
        if incoming.complete and index in self._digests:
            del self._open[index]
            self._settled.add(index)
            self._flusher.submit(self._commit, index, incoming, self._digests.pop(index))

    def _commit(self, index: int, incoming: Incoming, digest: str) -> None:
        entry = incoming.entry
        try:
            incoming.commit(digest)
        except (StoreError, OSError) as error:
            self._report_failure(index, error)
            return
        seconds = time.monotonic() - self._begun[index]
        self._observe(Event("stored", self._peer, entry.path, entry.size, seconds, digest))
        with contextlib.suppress(ConnectError):  # The session's thread notices too.
            self._channel.send(p.Stored(index=index, digest=digest))

    def _fail(self, index: int, error: Exception) -> None:
        self._settled.add(index)
        self._digests.pop(index, None)
        if (incoming := self._open.pop(index, None)) is not None:
            incoming.discard()
        self._report_failure(index, error)

    def _report_failure(self, index: int, error: Exception) -> None:
        reason = describe(error) if isinstance(error, OSError) else str(error)
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
