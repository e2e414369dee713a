"""Typed messages over a TCP connection: framing, size limits, deadlines.

The other end is not trusted: a length is checked before memory is allocated for it, and every message is
validated against its model before it is used. No message carries code or opaque binary data.
"""

import contextlib
import errno
import functools
import operator
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Generic, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError

from openmrc.closing import Closable
from openmrc.errors import ConnectError, DeviceError

MAX_MESSAGE = 64 << 20
"""Bytes of the longest message: a manifest of about 500,000 files."""

DIAL_TIMEOUT = 10.0
"""Seconds for one TCP connection attempt."""

ANSWER_TIMEOUT = 30.0
"""Seconds for an answer that needs no work at the other end, on a busy host."""

_LENGTH = struct.Struct(">I")
_CHUNK = 1 << 16


class Message(BaseModel):
    """Base of all messages. Each kind has a field ``type`` with a value of its own."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True, strict=True)


class Refused(Message):
    """The sender cannot go on, and says why."""

    type: Literal["refused"] = "refused"
    reason: Annotated[str, Field(max_length=4096)]


class MalformedError(ConnectError):
    """What the other end sent is no message of this protocol."""


M = TypeVar("M", bound=Message)
K = TypeVar("K", bound=Message)


class HasFileno(Protocol):
    """A descriptor, or an object that has one."""

    def fileno(self) -> int:
        """The descriptor."""


def wait_readable(*sources: HasFileno, timeout: float | None = None) -> bool:
    """Waits until one of the sources is readable; whether one is.

    Args:
        sources: Sockets, channels, completion queues, pipes.
        timeout: Seconds; ``None``: no limit.
    """
    # poll, not select: select cannot watch descriptors above 1,023.
    poller = select.poll()
    for source in sources:
        poller.register(source.fileno(), select.POLLIN)
    return bool(poller.poll(None if timeout is None else max(0.0, timeout) * 1000))


class Channel(Closable, Generic[M]):
    """Messages over a connected TCP socket.

    A message is a 4-byte big-endian length and a JSON object of that many bytes, ``{"type": ..., ...}``.
    :meth:`receive` waits for a whole message; :meth:`arrived` yields the messages that are complete already.
    """

    def __init__(self, connection: socket.socket, peer: str, messages: TypeAdapter[M]) -> None:
        """Takes over a connected socket.

        Args:
            connection: The socket; :meth:`close` closes it.
            peer: Name of the other end in error messages.
            messages: What the other end may send; see :func:`messages`.
        """
        self._socket = connection
        self._process = os.getpid()
        self._messages = messages
        self._buffer = bytearray()
        self._sending = threading.Lock()
        self.peer = peer
        self.limit = MAX_MESSAGE
        """Bytes of the longest message accepted from now on."""
        connection.setblocking(True)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A peer that vanished (power, cable) is noticed after 30 seconds rather than after hours.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000)

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._socket.fileno()

    def local_address(self) -> str:
        """The IP address of this end."""
        return plain_address(self._socket.getsockname()[0])

    def remote_address(self) -> str:
        """The IP address of the other end."""
        return plain_address(self._socket.getpeername()[0])

    def send(self, message: M) -> None:
        """Sends a message. Several threads may call it.

        Raises:
            ConnectError: if the connection is broken, or the message is too long.
        """
        body = message.model_dump_json(exclude_none=True).encode()
        if len(body) > MAX_MESSAGE:
            raise ConnectError(
                f"a message of {len(body)} bytes is too long: at most {MAX_MESSAGE} are allowed"
            )
        try:
            with self._sending:
                self._socket.sendall(_LENGTH.pack(len(body)) + body)
        except OSError as error:
            raise self._broken(error) from None

    def receive(self, timeout: float | None = None) -> M:
        """Waits for the next message.

        Args:
            timeout: Seconds until it must have arrived as a whole; ``None``: no limit.

        Raises:
            ConnectError: if it does not arrive in time, the connection ends, or it is malformed.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (message := self._next()) is None:
            left = None if deadline is None else deadline - time.monotonic()
            if not wait_readable(self, timeout=left):
                raise ConnectError(f"{self.peer} did not answer within {timeout:.3g} s")
            self._fill()
        return message

    def expect(self, kind: type[K], timeout: float | None = ANSWER_TIMEOUT) -> K:
        """Waits for a message of one kind.

        Raises:
            ConnectError: as :meth:`receive`; if the peer refuses, with its reason; if another kind arrives.
        """
        message = self.receive(timeout)
        if isinstance(message, kind):
            return message
        if isinstance(message, Refused):
            raise ConnectError(f"{self.peer} refuses: {message.reason}")
        raise self.unexpected(message)

    def unexpected(self, message: Message) -> ConnectError:
        """What to raise about a message that must not arrive now."""
        return MalformedError(f"{self.peer} sent {type(message).__name__}, which is not allowed here")

    def check(self) -> None:
        """Reads what has arrived, without interpreting it.

        Raises:
            ConnectError: if the connection has ended.
        """
        while self._fill():
            pass

    def arrived(self) -> Iterator[M]:
        """Yields the messages that have arrived, without waiting.

        Raises:
            ConnectError: if the connection has ended, or a message is malformed.
        """
        while True:
            while (message := self._next()) is not None:
                yield message
            if not self._fill():
                return

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()

    def shutdown(self) -> None:
        """Ends the connection while another thread may be waiting on it.

        In the child of a fork it does nothing: the connection is the parent's.
        """
        if os.getpid() != self._process:
            return
        with contextlib.suppress(OSError):  # It may have ended already.
            self._socket.shutdown(socket.SHUT_RDWR)

    def _fill(self) -> bool:
        try:
            data = self._socket.recv(_CHUNK, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._broken(error) from None
        if not data:
            raise ConnectError(f"{self.peer} closed the connection")
        self._buffer += data
        if len(self._buffer) > self.limit + _LENGTH.size + _CHUNK:
            raise MalformedError(f"{self.peer} sent more than {self.limit} bytes that were not requested")
        return True

    def _broken(self, error: OSError) -> ConnectError:
        return ConnectError(f"the connection to {self.peer} broke: {error.strerror or error}")

    def _next(self) -> M | None:
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > self.limit:
            raise MalformedError(
                f"{self.peer} does not speak this protocol of openmrc, or its message is too long:"
                f" it announced {length} bytes, at most {self.limit} are allowed"
            )
        if len(self._buffer) < _LENGTH.size + length:
            return None
        body = bytes(self._buffer[_LENGTH.size : _LENGTH.size + length])
        del self._buffer[: _LENGTH.size + length]
        try:
            return self._messages.validate_json(body)
        except ValidationError as error:
            raise MalformedError(f"{self.peer} sent a malformed message: {problem(error)}") from None


def messages(*kinds: type[Message]) -> TypeAdapter[Any]:
    """What a channel may carry: messages of these kinds, told apart by their ``type``."""
    union: Any = functools.reduce(operator.or_, kinds)
    return TypeAdapter(Annotated[union, Field(discriminator="type")])


def parse(model: type[K], data: JsonValue, peer: str) -> K:
    """The ``data`` of a message as a model.

    Raises:
        MalformedError: names the field that is wrong.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise MalformedError(f"{peer} sent a malformed message: {problem(error)}") from None


def problem(error: ValidationError) -> str:
    """The first thing that is wrong with a message: the field, and what is wrong with it."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]


def plain_address(address: str) -> str:
    """An IPv4 address as itself, where a dual-stack socket shows it as IPv6."""
    return address.removeprefix("::ffff:")


def dial(host: str, port: int, hint: str, *, patience: float = 0.0) -> socket.socket:
    """Connects over TCP.

    Args:
        host: Name or address.
        port: TCP port.
        hint: What to do if nothing listens there.
        patience: Seconds in which the peer may still start to listen.

    Raises:
        ConnectError: says why it failed.
    """
    to = f"{host}:{port}"
    deadline, pause = time.monotonic() + patience, 0.01
    try:
        while True:
            try:
                return socket.create_connection((host, port), timeout=DIAL_TIMEOUT)
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
    """Listens on an address, or on all addresses of both families if ``host`` is empty. Port 0: any free one.

    Raises:
        DeviceError: names address and port.
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
