"""The receiving end of transfers, for ``openmrc serve``: listens, and limits the number of senders.

Nothing is opened, registered or revealed before a sender has greeted and, with a token, proven that it
has it (:mod:`openmrc.control`).
"""

import contextlib
import resource
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from openmrc.closing import Closable
from openmrc.control import Budget, Channel, Listener, Token
from openmrc.control import Limits as StrangerLimits
from openmrc.control.budget import PER_ADDRESS, TOGETHER
from openmrc.errors import ClosedError, ConnectError
from openmrc.handshake import AddressRule
from openmrc.planes import Planes, same_host
from openmrc.transfer import descriptors
from openmrc.transfer import protocol as p
from openmrc.transfer.descriptors import Descriptors
from openmrc.transfer.session import Event, Observer, Session
from openmrc.transfer.store import Store
from openmrc.verbs import Context

_DEVICE_DESCRIPTORS = 320
"""Descriptors kept free for a device: a socket for each entropy value, at most 256, and some more."""

_KEPT_DESCRIPTORS = 64
"""Descriptors, at most a sixteenth of all, that an address with senders leaves for other addresses."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How many are served at the same time."""

    senders: int = 256
    """In all."""
    per_address: int = 64
    """From one address: more than one machine can use."""
    memory: int = TOGETHER
    """Bytes for rings and lists of files of all senders."""
    memory_per_address: int = PER_ADDRESS
    """Bytes for those of one address that have not proven a token."""
    strangers: StrangerLimits = field(default_factory=StrangerLimits)
    """What connections may take that have not greeted yet."""


class Server(Closable):
    """Listens, and gives each sender a thread, a queue pair and a ring.

    Senders without named planes share a device for each address by which they reach this host.

    Args:
        store: Stores the files.
        host: Address to listen on; empty: all.
        port: TCP port; 0: any free one.
        planes: The addresses to receive data on.
        token: What senders must have.
        addresses: Which addresses a sender may offer; default its own.
        limits: How many are served at the same time.
        idle_timeout: Seconds without data after which a sender is given up.
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
        token: Token | None = None,
        addresses: AddressRule | None = None,
        limits: Limits | None = None,
        idle_timeout: float = p.IDLE_TIMEOUT,
        observer: Observer | None = None,
    ) -> None:
        self._store = store
        self.planes = planes or Planes()
        self.addresses = addresses or AddressRule()
        self.idle_timeout = idle_timeout
        self._limits = limits or Limits()
        self._observe = observer or (lambda event: None)
        self._sessions: dict[Session, None] = {}
        self._received = 0
        """Bytes of the senders that have gone."""
        self._lock = threading.Lock()
        self._devices = _Devices(self.planes)
        try:
            self._listener = Listener(
                p.PROTOCOL,
                host,
                port,
                token=token,
                limits=self._limits.strangers,
                budget=Budget(self._limits.memory, self._limits.memory_per_address),
                on_refused=lambda peer, reason: self._observe(Event("broken", peer, reason=reason)),
            )
        except BaseException:
            self._devices.close()
            raise
        self.port: int = self._listener.address[1]
        """TCP port it listens on."""

    def serve(self, *, once: bool = False) -> bool:
        """Serves until closed or interrupted; with ``once``, one sender. Who is no sender does not count.

        Returns:
            With ``once``, whether every file of the sender was stored.
        """
        while True:
            try:
                session = self._accept()
            except ClosedError:
                return True
            if session is None:
                continue
            if once:
                session.thread.join()
                if session.admitted:
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
        self._devices.close()

    def progress(self) -> tuple[int, int]:
        """Bytes of files that have arrived since the beginning, and the number of senders there are now."""
        with self._lock:
            received = self._received + sum(session.received for session in self._sessions)
            return received, sum(session.admitted for session in self._sessions)

    def _accept(self) -> Session | None:
        channel = self._listener.accept()
        try:
            session = Session(self, self._store, channel, self._observe)
        except OSError:
            channel.close()  # It has gone already.
            return None
        with self._lock:
            crowded = len(self._sessions) >= self._limits.senders + self._limits.strangers.strangers
            if not crowded:
                self._sessions[session] = None
        if crowded:  # As many are being refused, each in a thread that lets it read why.
            channel.close()
            return None
        try:
            session.thread.start()
        except RuntimeError:  # No thread can be started.
            channel.close()
            self.ended(session)
            return None
        return session

    # --- what sessions ask for ------------------------------------------------------------------------------

    def admit(self, session: Session) -> int:
        """Counts a sender that has greeted; see :class:`openmrc.transfer.session.Host`."""
        with self._lock:
            senders = [each for each in self._sessions if each.admitted]
            if len(senders) >= self._limits.senders:
                raise ConnectError(
                    f"{len(senders)} transfers are running, which is the limit; try again later"
                )
            of_address = sum(each.address == session.address for each in senders)
            if of_address >= self._limits.per_address:
                raise ConnectError(
                    f"{self._limits.per_address} transfers from {session.address} are running,"
                    " which is the limit for one address; try again later"
                )
            session.descriptors = self._descriptors(len(senders), others=of_address > 0)
            session.admitted = True
            return len(senders) + 1

    def context(self, channel: Channel[Any], planes: int) -> Context:
        """The device for a sender."""
        return self._devices.get(channel.local_address(), channel.remote_address(), planes, self._has_room)

    def ended(self, session: Session) -> None:
        """Forgets a session."""
        with self._lock:
            if session in self._sessions:
                self._received += session.received
                del self._sessions[session]

    def _descriptors(self, senders: int, *, others: bool) -> Descriptors:
        """What a sender gets; one is refused rather than that those that are served run out.

        Args:
            senders: How many are served.
            others: Whether one of them has the same address: then some are left for other addresses.
        """
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        left = descriptors.free() - (0 if self._devices.opened() else _DEVICE_DESCRIPTORS)
        kept = min(_KEPT_DESCRIPTORS, limit // 16) if others and limit != resource.RLIM_INFINITY else 0
        try:
            if left - kept >= descriptors.least():
                return Descriptors(descriptors.share(left - kept, senders))
        except OSError:
            pass  # Somebody was faster.
        raise ConnectError("no file descriptors are left for another transfer; try again later")

    def _has_room(self) -> bool:
        """Whether there are descriptors for one more device."""
        return descriptors.free() >= _DEVICE_DESCRIPTORS


class _Devices(Closable):
    """The devices on which senders write: one if the planes are named, else one for each local address."""

    def __init__(self, planes: Planes) -> None:
        self._planes = planes
        self._named = planes.open_named()
        self._opened: dict[tuple[str, int], Context] = {}
        self._lock = threading.Lock()

    def get(self, local: str, remote: str, planes: int, has_room: Callable[[], bool]) -> Context:
        """The device for a sender; opened if there is none yet.

        Args:
            local: This end's address of the connection.
            remote: The sender's.
            planes: How many the sender has. Counts only if both ends are on this machine.
            has_room: Whether another device may be opened. If not, one with other planes serves as well:
                both ends use the first planes that both have.
        """
        if self._named is not None:
            return self._named
        key = ("::1" if ":" in local else "127.0.0.1", planes) if same_host(local, remote) else (local, 1)
        with self._lock:
            if key in self._opened:
                return self._opened[key]
            like = [context for (address, _), context in self._opened.items() if address == key[0]]
            if like and not has_room():
                return like[0]
            context = self._opened[key] = self._planes.open(local, remote, count=planes)
            return context

    def opened(self) -> bool:
        """Whether there is a device already."""
        return self._named is not None or bool(self._opened)

    def close(self) -> None:
        """Closes all devices."""
        with contextlib.ExitStack() as stack:
            for context in (self._named, *self._opened.values()):
                if context is not None:
                    stack.callback(context.close)
