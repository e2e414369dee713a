"""Messages between two programs over TCP: what they tell each other before, beside and after RDMA.

A message is a 4-byte big-endian length and a JSON object of that many bytes, ``{"type": ..., ...}``. The
other end is not trusted: lengths are limited before memory is asked for, and every message is checked
against its model.

:mod:`openmrc.connect` is for applications whose device is open before they meet. The commands choose their
device when they know who the peer is, and speak protocols of their own between typed messages; this is what
those share.
"""

import contextlib
import errno
import functools
import operator
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from openmrc.errors import ConnectError, DeviceError
from openmrc.verbs import QpAttr, QpState, QueuePair

MAX_MESSAGE = 64 << 20
"""Bytes of the longest message: a list of some 500,000 files."""

CONNECT_TIMEOUT = 10.0
"""Seconds that a peer may take to answer where nothing but being there is asked of it."""

_LENGTH = struct.Struct(">I")

U24 = Annotated[int, Field(ge=0, lt=1 << 24)]
U32 = Annotated[int, Field(ge=0, lt=1 << 32)]
U64 = Annotated[int, Field(ge=0, lt=1 << 64)]
UdpPort = Annotated[int, Field(gt=0, lt=1 << 16)]
PathMtu = Annotated[int, Field(ge=256, le=8192)]


class Message(BaseModel):
    """Base of the messages of every protocol; each has a field ``type`` with a value of its own."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True, strict=True)


class QueuePairEnd(Message):
    """What one end's queue pair needs to know of the other's."""

    qp_num: U24
    psn: U24
    addresses: Annotated[list[tuple[str, UdpPort]], Field(min_length=1, max_length=16)]


class Refused(Message):
    """The other end will not go on, for a reason that concerns everything."""

    type: Literal["refused"] = "refused"
    reason: str


M = TypeVar("M", bound=Message)
K = TypeVar("K", bound=Message)


class Channel(Generic[M]):
    """Messages over a connected TCP socket.

    Reading never blocks half-way into a message: :meth:`receive` waits for a whole one, :meth:`arrived`
    gives those that are complete already.
    """

    def __init__(self, connection: socket.socket, peer: str, messages: TypeAdapter[M]) -> None:
        """Takes over a connected socket.

        Args:
            connection: The socket; closed by :meth:`close`.
            peer: The other end's name in messages to the user.
            messages: What the other end may say: see :func:`messages`.
        """
        self._socket = connection
        self._messages = messages
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

    def send(self, message: M) -> None:
        """Sends a message; several threads may.

        Raises:
            ConnectError: if the connection is broken, or the message is too long.
        """
        body = message.model_dump_json(exclude_none=True).encode()
        if len(body) > MAX_MESSAGE:
            raise ConnectError(
                f"too much to say at a time: {len(body)} bytes of {MAX_MESSAGE} allowed; send less"
            )
        try:
            with self._sending:
                self._socket.sendall(_LENGTH.pack(len(body)) + body)
        except OSError as error:
            raise self._broken(error) from None

    def receive(self, timeout: float | None = None) -> M:
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

    def expect(self, kind: type[K], timeout: float | None = CONNECT_TIMEOUT) -> K:
        """Waits for a message of one kind.

        Raises:
            ConnectError: as :meth:`receive`; if the peer refuses, in its own words; or if another kind comes.
        """
        message = self.receive(timeout)
        if isinstance(message, kind):
            return message
        if isinstance(message, Refused):
            raise ConnectError(f"{self.peer} refuses: {message.reason}")
        raise self.unexpected(message)

    def unexpected(self, message: Message) -> ConnectError:
        """What to raise about a message that must not come now."""
        return ConnectError(f"{self.peer} sent {type(message).__name__} where that makes no sense")

    def check(self) -> None:
        """Notes what has arrived, for later.

        Raises:
            ConnectError: if the connection has ended.
        """
        while self._fill():
            pass

    def arrived(self) -> Iterator[M]:
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

    def _next(self) -> M | None:
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > MAX_MESSAGE:
            raise ConnectError(f"{self.peer} does not speak this protocol of openmrc's")
        if len(self._buffer) < _LENGTH.size + length:
            return None
        body = bytes(self._buffer[_LENGTH.size : _LENGTH.size + length])
        del self._buffer[: _LENGTH.size + length]
        try:
            return self._messages.validate_json(body)
        except ValidationError as error:
            raise ConnectError(f"{self.peer} sent a message without sense: {problem(error)}") from None


def problem(error: ValidationError) -> str:
    """The first thing that is wrong with a message: where, and what."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]


def plain_address(address: str) -> str:
    """An IPv4 address as itself, where a socket that listens for both families shows it as IPv6."""
    return address.removeprefix("::ffff:")


def messages(*kinds: type[Message]) -> TypeAdapter[Any]:
    """What a channel may carry: messages of these kinds, told apart by their ``type``."""
    union: Any = functools.reduce(operator.or_, kinds)
    return TypeAdapter(Annotated[union, Field(discriminator="type")])


def dial(host: str, port: int, hint: str, *, patience: float = 0.0) -> socket.socket:
    """Connects.

    Args:
        host: Name or address.
        port: TCP port.
        hint: What to do if nobody listens.
        patience: Seconds in which the peer may yet begin to listen.

    Raises:
        ConnectError: says why not.
    """
    to = f"{host}:{port}"
    deadline, pause = time.monotonic() + patience, 0.01
    try:
        while True:
            try:
                return socket.create_connection((host, port), timeout=CONNECT_TIMEOUT)
            except ConnectionRefusedError:
                if time.monotonic() + pause > deadline:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, 0.5)
    except socket.gaierror as error:
        raise ConnectError(f"{host}: {error.strerror}") from None
    except TimeoutError:
        raise ConnectError(f"{to} does not answer; is it up, and is the port open?") from None
    except OSError as error:
        advice = f"; {hint}" if error.errno == errno.ECONNREFUSED else ""
        raise ConnectError(f"cannot reach {to}: {error.strerror}{advice}") from None


def listen(host: str, port: int) -> socket.socket:
    """Listens on an address, or on all of both families if ``host`` is empty. Port 0 is any free one.

    Raises:
        OSError: names address and port.
    """
    try:
        if host:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            return socket.create_server((host, port), family=family)
        if socket.has_dualstack_ipv6():
            with contextlib.suppress(OSError):  # IPv6 may be compiled in and switched off.
                return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        return socket.create_server(("", port))
    except OSError as error:
        where = f"{host or 'port'}{':' if host else ' '}{port}"
        raise DeviceError(error.errno, f"cannot listen on {where}: {error.strerror}") from None


def own_end(qp: QueuePair, psn: int) -> QueuePairEnd:
    """What the peer needs to know of a queue pair that will send from ``psn`` on."""
    return QueuePairEnd(qp_num=qp.qp_num, psn=psn, addresses=list(qp.context.addresses))


def bring_up(
    qp: QueuePair,
    psn: int,
    theirs: QueuePairEnd,
    path_mtu: int,
    *,
    receives: int = 0,
    rtr: QpAttr | None = None,
    rts: QpAttr | None = None,
) -> None:
    """Takes a queue pair in RESET or INIT to RTS.

    Args:
        qp: The queue pair.
        psn: Its first PSN, which the peer has been told.
        theirs: The peer's end.
        path_mtu: Payload bytes per packet, the same at both ends.
        receives: How many receives to post on the way.
        rtr: More attributes of the step to RTR.
        rts: More attributes of the step to RTS.
    """
    if qp.state is not QpState.INIT:
        qp.modify(QpState.INIT)
    if receives:
        qp.post_recv(receives)
    qp.modify(
        QpState.RTR,
        rtr,
        remote=theirs.addresses,
        dest_qp_num=theirs.qp_num,
        rq_psn=theirs.psn,
        path_mtu=path_mtu,
    )
    qp.modify(QpState.RTS, rts, sq_psn=psn)
