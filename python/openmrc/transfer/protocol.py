"""What the two ends of a file transfer say to each other over TCP.

A message is a 4-byte big-endian length and a JSON object of that many bytes, ``{"type": ..., ...}``. The
sender is not
trusted: every message is checked against its model, lengths are limited before memory is asked for, and
paths are checked again where they are used (:mod:`openmrc.transfer.store`).

    sender                                  receiver
    Hello {version, planes}     ->
                                <-          Offer {queue pair, ring}          or Refused
    Accept {queue pair}         ->
                                <-          Connected {path MTU}              or Refused
    Manifest {files, if_exists} ->
                                <-          Plan {a verdict for each file}    or Refused
    RDMA writes of file 0       =>
                                <=          credit: so many blocks of the ring consumed
    End {0, digest}             ->
                                <-          Stored {0} or Failed {0, reason}
    ... further files, without waiting for the answers
    Bye                         ->

Every RDMA write carries the file's number as its immediate value. A ``Failed`` may come at any time; the
sender then leaves the rest of that file out, and the receiver ignores what was on its way. A connection
that ends before ``Bye`` undoes every file that was not answered with ``Stored``.
"""

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from openmrc.errors import ConnectError

VERSION = 1

MAX_MESSAGE = 64 << 20
"""Bytes of the longest message: a manifest of some 500,000 files."""

DEFAULT_PORT = 18516
"""TCP port of ``openmrc serve``: the one after perftest's."""

_LENGTH = struct.Struct(">I")
_U24 = Annotated[int, Field(ge=0, lt=1 << 24)]
_U32 = Annotated[int, Field(ge=0, lt=1 << 32)]
_U64 = Annotated[int, Field(ge=0, lt=1 << 64)]
_UdpPort = Annotated[int, Field(gt=0, lt=1 << 16)]

IfExists = Literal["refuse", "replace", "update"]
"""What to do about a name that is taken: refuse it, replace it, or leave it if its contents are the same
already."""


class _Message(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True, strict=True)


class QueuePairEnd(_Message):
    """What one end's queue pair needs to know of the other's."""

    qp_num: _U24
    psn: _U24
    addresses: Annotated[list[tuple[str, _UdpPort]], Field(min_length=1, max_length=16)]


class Hello(_Message):
    """The sender introduces itself."""

    type: Literal["hello"] = "hello"
    version: int
    planes: Annotated[int, Field(ge=1, le=16)]


class Offer(_Message):
    """The receiver's queue pair and the ring its peer may write to."""

    type: Literal["offer"] = "offer"
    end: QueuePairEnd
    addr: _U64
    rkey: _U32
    blocks: Annotated[int, Field(ge=1, le=1 << 16)]
    block_bytes: Annotated[int, Field(ge=4096, le=1 << 30)]


class Accept(_Message):
    """The sender's queue pair."""

    type: Literal["accept"] = "accept"
    end: QueuePairEnd
    path_mtu: Annotated[int, Field(ge=256, le=8192)]
    """The most its routes to the receiver's addresses carry."""


class Connected(_Message):
    """The receiver is ready for writes."""

    type: Literal["connected"] = "connected"
    path_mtu: Annotated[int, Field(ge=256, le=8192)]
    """What both ends use: the smaller of what the routes of the two carry."""


class Refused(_Message):
    """The receiver will not go on, for a reason that concerns everything."""

    type: Literal["refused"] = "refused"
    reason: str


class Entry(_Message):
    """A file or an empty directory to be made."""

    path: Annotated[str, Field(min_length=1, max_length=4096)]
    """Where, relative to the receiver's directory, with ``/`` between names."""
    size: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    mode: Annotated[int, Field(ge=0, le=0o777)] = 0o644
    directory: bool = False


class Manifest(_Message):
    """All that the sender has, before any of it is sent."""

    type: Literal["manifest"] = "manifest"
    entries: list[Entry]
    if_exists: IfExists = "refuse"


class Verdict(_Message):
    """What the receiver thinks of an entry: neither field set means "send it"."""

    error: str | None = None
    digest: str | None = None
    """With ``update``: XXH3-128 of a file of the same size that is there already."""


class Plan(_Message):
    """The receiver's verdicts, in the order of the manifest."""

    type: Literal["plan"] = "plan"
    verdicts: list[Verdict]


class End(_Message):
    """All bytes of a file have been written; or, without a digest, they never will be."""

    type: Literal["end"] = "end"
    index: _U32
    digest: str | None = None


class Stored(_Message):
    """A file arrived, its digest is right, and it has its name."""

    type: Literal["stored"] = "stored"
    index: _U32
    digest: str


class Failed(_Message):
    """A file could not be stored, and nothing of it is left."""

    type: Literal["failed"] = "failed"
    index: _U32
    reason: str


class Bye(_Message):
    """The sender has had all answers."""

    type: Literal["bye"] = "bye"


Message = Hello | Offer | Accept | Connected | Refused | Manifest | Plan | End | Stored | Failed | Bye
_ADAPTER: TypeAdapter[Message] = TypeAdapter(Annotated[Message, Field(discriminator="type")])


class Channel:
    """Messages over a connected TCP socket.

    Reading never blocks half-way into a message: :meth:`receive` waits for a whole one, :meth:`arrived`
    gives those that are complete already.
    """

    def __init__(self, connection: socket.socket, peer: str) -> None:
        """Takes over a connected socket.

        Args:
            connection: The socket; closed by :meth:`close`.
            peer: The other end's name in messages to the user.
        """
        self._socket = connection
        self._buffer = bytearray()
        self._sending = threading.Lock()
        self.peer = peer
        connection.setblocking(True)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A peer that vanished (power, cable) is noticed after this many seconds rather than after hours.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000)

    def fileno(self) -> int:
        """The socket's descriptor, for select."""
        return self._socket.fileno()

    def local_address(self) -> str:
        """The IP address of this end."""
        return plain_address(self._socket.getsockname()[0])

    def remote_address(self) -> str:
        """The IP address of the other end."""
        return plain_address(self._socket.getpeername()[0])

    def send(self, message: Message) -> None:
        """Sends a message; several threads may.

        Raises:
            ConnectError: if the connection is broken, or the message is too long.
        """
        body = message.model_dump_json(exclude_none=True).encode()
        if len(body) > MAX_MESSAGE:
            raise ConnectError(
                f"the list of files has {len(body)} bytes and may have {MAX_MESSAGE}; send fewer at a time"
            )
        try:
            with self._sending:
                self._socket.sendall(_LENGTH.pack(len(body)) + body)
        except OSError as error:
            raise self._broken(error) from None

    def receive(self, timeout: float | None = None) -> Message:
        """Waits for the next message.

        Args:
            timeout: Seconds without a byte after which the peer is given up; ``None``: for ever.

        Raises:
            ConnectError: if it does not come in time, the connection ends, or it makes no sense.
        """
        while (message := self._next()) is None:
            readable, _, _ = select.select([self._socket], [], [], timeout)
            if not readable:
                raise ConnectError(f"{self.peer} did not answer within {timeout:g} s")
            self._fill()
        return message

    def arrived(self) -> Iterator[Message]:
        """Messages that can be had without waiting.

        Raises:
            ConnectError: if the connection has ended, or what came makes no sense.
        """
        while True:
            while (message := self._next()) is not None:
                yield message
            if not self._fill():
                return

    def close(self) -> None:
        """Ends the connection. Doing it twice is harmless."""
        self._socket.close()

    def shutdown(self) -> None:
        """Ends the connection under a thread that may be waiting for it."""
        with contextlib.suppress(OSError):  # It may have ended already.
            self._socket.shutdown(socket.SHUT_RDWR)

    def _fill(self) -> bool:
        try:
            data = self._socket.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._broken(error) from None
        if not data:
            raise ConnectError(f"{self.peer} closed the connection")
        self._buffer += data
        return True

    def _broken(self, error: OSError) -> ConnectError:
        return ConnectError(f"the connection to {self.peer} broke: {error.strerror or error}")

    def _next(self) -> Message | None:
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > MAX_MESSAGE:
            raise ConnectError(f"{self.peer} does not speak openmrc's transfer protocol")
        if len(self._buffer) < _LENGTH.size + length:
            return None
        body = bytes(self._buffer[_LENGTH.size : _LENGTH.size + length])
        del self._buffer[: _LENGTH.size + length]
        try:
            return _ADAPTER.validate_json(body)
        except ValidationError as error:
            detail = error.errors()[0]["msg"]
            raise ConnectError(f"{self.peer} sent a message without sense: {detail}") from None


def plain_address(address: str) -> str:
    """An IPv4 address as itself, where a socket that listens for both families shows it as IPv6."""
    return address.removeprefix("::ffff:")
