"""Typed messages over a TCP connection: framing, size limits, deadlines, and tags once two ends share a key.

The other end is not trusted: a length is checked before memory is allocated for it, and every message is
validated against its model before it is used. No message carries code or opaque binary data.
"""

import contextlib
import errno
import functools
import hashlib
import hmac
import operator
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, ClassVar, Generic, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError

from openmrc.closing import Closable
from openmrc.errors import ConnectError, DeviceError
from openmrc.printable import printable

MAX_MESSAGE = 64 << 20
"""Bytes of the longest message: a manifest of about 500,000 files."""

DIAL_TIMEOUT = 10.0
"""Seconds for one TCP connection attempt."""

ANSWER_TIMEOUT = 30.0
"""Seconds for an answer that needs no work at the other end, on a busy host."""

SEND_TIMEOUT = 30.0
"""Seconds in which the other end must take a message. An end that does not read is given up then."""

_LENGTH = struct.Struct(">I")
_COUNT = struct.Struct(">Q")
_TAG_BYTES = 32
_CHUNK = 1 << 16
_PROBLEM_LIMIT = 300


class Message(BaseModel):
    """Base of all messages. Each kind has a field ``type`` with a value of its own."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True, strict=True)


class Refused(Message):
    """The sender cannot go on, and says why."""

    type: Literal["refused"] = "refused"
    reason: Annotated[str, Field(max_length=4096)]


class LostError(ConnectError):
    """The other end has gone, or does nothing."""


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
    return _wait(sources, select.POLLIN, timeout)


def _wait(sources: Iterable[HasFileno], event: int, timeout: float | None) -> bool:
    # poll, not select: select cannot watch descriptors above 1,023.
    poller = select.poll()
    for source in sources:
        poller.register(source.fileno(), event)
    return bool(poller.poll(None if timeout is None else max(0.0, timeout) * 1000))


class _Seal:
    """Tags of the messages in one direction: HMAC-SHA256 over their number, length and body."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._count = 0

    def tag(self, body: bytes) -> bytes:
        """The tag of the next message."""
        head = _COUNT.pack(self._count) + _LENGTH.pack(len(body))
        self._count += 1
        return hmac.digest(self._key, head + body, "sha256")


class Channel(Closable, Generic[M]):
    """Messages over a connected TCP socket.

    A message is a 4-byte big-endian length and a JSON object of that many bytes, ``{"type": ..., ...}``.
    After :meth:`seal`, a tag of 32 bytes follows the object and counts in the length. :meth:`receive` waits
    for a whole message; :meth:`arrived` yields the messages that are complete already.
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
        self._seal_sent: _Seal | None = None
        self._seal_received: _Seal | None = None
        self._hash_sent = hashlib.sha256()
        self._hash_received = hashlib.sha256()
        self.peer = peer
        self.limit = MAX_MESSAGE
        """Bytes of the longest message accepted from now on."""
        self.received_bytes = 0
        """Bytes of all messages that :meth:`receive` and :meth:`arrived` have returned."""
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
        """The IP address of the other end.

        Raises:
            ConnectError: if the connection has ended.
        """
        try:
            return plain_address(self._socket.getpeername()[0])
        except OSError as error:
            raise self._broken(error) from None

    @property
    def authenticated(self) -> bool:
        """Whether :meth:`seal` was called: the other end has the key, and so has every message after that."""
        return self._seal_received is not None

    def transcripts(self) -> tuple[bytes, bytes]:
        """SHA-256 of all messages before :meth:`seal`: of those sent, of those received."""
        return self._hash_sent.digest(), self._hash_received.digest()

    def seal(self, sent: bytes, received: bytes) -> None:
        """From now on every message has a tag, which is checked before the message is parsed.

        Args:
            sent: Key for the messages of this end.
            received: Key for those of the other end.
        """
        self._seal_sent, self._seal_received = _Seal(sent), _Seal(received)

    def send(self, message: M, timeout: float = SEND_TIMEOUT) -> None:
        """Sends a message. Several threads may call it.

        Args:
            message: What to send.
            timeout: Seconds in which the other end must take it; after that, the connection is shut down.

        Raises:
            ConnectError: if the connection is broken, the other end does not read, or the message is too
                long.
        """
        body = message.model_dump_json(exclude_none=True).encode()
        if len(body) > MAX_MESSAGE:
            raise ConnectError(
                f"a message of {len(body)} bytes is too long: at most {MAX_MESSAGE} are allowed"
            )
        with self._sending:
            if self._seal_sent is None:
                self._hash_sent.update(_LENGTH.pack(len(body)) + body)
            else:
                body += self._seal_sent.tag(body)
            self._send_all(_LENGTH.pack(len(body)) + body, timeout)

    def _send_all(self, data: bytes, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        left = memoryview(data)
        while left:
            try:
                left = left[self._socket.send(left, socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                if not _wait((self,), select.POLLOUT, deadline - time.monotonic()):
                    self.shutdown()  # Half a message has been sent: nothing can follow it.
                    raise LostError(f"{self.peer} did not read within {timeout:.3g} s") from None
            except OSError as error:
                raise self._broken(error) from None

    def receive(self, timeout: float | None = None) -> M:
        """Waits for the next message.

        Args:
            timeout: Seconds until it must have arrived as a whole; ``None``: no limit.

        Raises:
            ConnectError: if it does not arrive in time, the connection ends, or it is malformed.
        """
        while (message := self._next()) is None:
            if not self.wait(timeout):
                raise LostError(f"{self.peer} did not answer within {timeout:.3g} s")
        return message

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until :meth:`receive` would not have to; whether that is so.

        Args:
            timeout: Seconds; ``None``: no limit.

        Raises:
            ConnectError: if the connection ends.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._has_message():
            left = None if deadline is None else deadline - time.monotonic()
            if not wait_readable(self, timeout=left):
                return False
            self._fill()
        return True

    def expect(self, kind: type[K], timeout: float | None = ANSWER_TIMEOUT) -> K:
        """Waits for a message of one kind.

        Raises:
            ConnectError: as :meth:`receive`; if the peer refuses, with its reason; if another kind arrives.
        """
        message = self.receive(timeout)
        if isinstance(message, kind):
            return message
        if isinstance(message, Refused):
            raise ConnectError(f"{self.peer} refuses: {printable(message.reason)}")
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

    def finish(self, timeout: float) -> None:
        """Sends nothing more, and drops what still arrives until the other end closes or the time is over.

        A socket that is closed with unread data is reset, and then the last message may be lost.
        """
        deadline = time.monotonic() + timeout
        try:
            self._socket.shutdown(socket.SHUT_WR)
            while (left := deadline - time.monotonic()) > 0 and wait_readable(self, timeout=left):
                if not self._socket.recv(_CHUNK):
                    return
        except OSError:
            pass  # The other end has closed already.

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
            raise LostError(f"{self.peer} closed the connection")
        self._buffer += data
        if len(self._buffer) > self.limit + _LENGTH.size + _CHUNK:
            raise MalformedError(f"{self.peer} sent more than {self.limit} bytes that were not requested")
        return True

    def _broken(self, error: OSError) -> LostError:
        return LostError(f"the connection to {self.peer} broke: {error.strerror or error}")

    def _has_message(self) -> bool:
        if len(self._buffer) < _LENGTH.size:
            return False
        (length,) = _LENGTH.unpack_from(self._buffer)
        limit = self.limit + (0 if self._seal_received is None else _TAG_BYTES)
        if length > limit:
            raise MalformedError(
                f"{self.peer} does not speak this protocol of openmrc, or its message is too long:"
                f" it announced {length} bytes, at most {limit} are allowed"
            )
        return len(self._buffer) - _LENGTH.size >= int(length)

    def _next(self) -> M | None:
        if not self._has_message():
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        body = bytes(self._buffer[_LENGTH.size : _LENGTH.size + length])
        del self._buffer[: _LENGTH.size + length]
        self.received_bytes += len(body)
        if self._seal_received is None:
            self._hash_received.update(_LENGTH.pack(length) + body)
        else:
            body = self._unsealed(body, self._seal_received)
        try:
            return self._messages.validate_json(body)
        except ValidationError as error:
            raise MalformedError(f"{self.peer} sent a malformed message: {problem(error)}") from None

    def _unsealed(self, sealed: bytes, seal: _Seal) -> bytes:
        body, tag = sealed[:-_TAG_BYTES], sealed[-_TAG_BYTES:]
        if not hmac.compare_digest(tag, seal.tag(body)):
            raise MalformedError(
                f"a message on the connection to {self.peer} is not from the holder of the token"
            )
        return body


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
    # Both parts may quote what the other end sent.
    return printable(f"{where}: {first['msg']}" if where else first["msg"])[:_PROBLEM_LIMIT]


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
    """Listens on an address; if ``host`` is empty or ``::``, on all of both families. Port 0: a free one.

    Raises:
        DeviceError: names address and port.
    """
    try:
        if host not in ("", "::"):
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            return socket.create_server((host, port), family=family)
        if socket.has_dualstack_ipv6():
            with contextlib.suppress(OSError):  # IPv6 may be compiled in and switched off.
                return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        return socket.create_server(("", port))  # All of IPv4.
    except OSError as error:
        where = f"{host or 'port'}{':' if host else ' '}{port}"
        raise DeviceError(error.errno, f"cannot listen on {where}: {error.strerror}") from None
