"""Messages over a TCP connection: framing, size limits, deadlines, and tags once two ends share a key.

The other end is not trusted: a length is checked, and its memory reserved, before memory is allocated for it.
"""

import contextlib
import hashlib
import hmac
import os
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from openmrc.closing import Closable
from openmrc.control import tcp
from openmrc.control.budget import Account, Hold
from openmrc.control.deadline import Deadline
from openmrc.control.errors import LostError, MalformedError
from openmrc.control.messages import EXPANSION, MAX_MESSAGE, K, Message, Refused, problem
from openmrc.errors import ArgumentError, ConnectError
from openmrc.printable import printable

ANSWER_TIMEOUT = 30.0
"""Seconds for an answer that needs no work at the other end, on a busy host."""

SEND_TIMEOUT = 30.0
"""Seconds in which the other end must take a message. An end that does not read is given up then."""

LINGER = 1.0
"""Seconds in which the other end must read a refusal and close."""

_LENGTH = struct.Struct(">I")
_COUNT = struct.Struct(">Q")
_TAG_BYTES = 32
_CHUNK = 1 << 16
_FREE = 1 << 12
"""Bytes of a message up to which no memory is reserved for it: the number of connections bounds these."""
_REASON_LIMIT = 1000

M = TypeVar("M", bound=Message)


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
    After :meth:`seal`, a tag of 32 bytes follows the object and counts in the length.

    Threads that may wait use :meth:`send` and :meth:`receive`. A loop that serves many connections uses
    :meth:`fill`, :meth:`buffered`, :meth:`enqueue` and :meth:`flush`, which do not wait.
    """

    def __init__(
        self,
        connection: socket.socket,
        peer: str,
        messages: TypeAdapter[M],
        account: Account | None = None,
    ) -> None:
        """Takes over a connected socket.

        Args:
            connection: The socket; :meth:`close` closes it.
            peer: Name of the other end in error messages.
            messages: What the other end may send; see :func:`openmrc.control.messages.messages`.
            account: Where memory for messages is reserved; closed with the channel. ``None``: nowhere, for a
                peer that this end has chosen.
        """
        self._socket = connection
        self._process = os.getpid()
        self._messages = messages
        self._buffer = bytearray()
        self._unsent = bytearray()
        self._sending = threading.Lock()
        self._seal_sent: _Seal | None = None
        self._seal_received: _Seal | None = None
        self._hash_sent = hashlib.sha256()
        self._hash_received = hashlib.sha256()
        self._incoming = Hold(account)
        self._outgoing = Hold(account)
        self.account = account
        """What the other end makes this one reserve."""
        self.peer = peer
        self.limit = MAX_MESSAGE
        """Bytes of the longest message accepted from now on."""
        self.received_bytes = 0
        """Bytes of all messages that have been taken."""
        tcp.configure(connection)

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._socket.fileno()

    def local_address(self) -> str:
        """The IP address of this end."""
        return tcp.plain_address(self._socket.getsockname()[0])

    def remote_address(self) -> str:
        """The IP address of the other end.

        Raises:
            ConnectError: if the connection has ended.
        """
        try:
            return tcp.plain_address(self._socket.getpeername()[0])
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
        if self.account is not None:
            self.account.trusted = True

    # --- sending --------------------------------------------------------------------------------------------

    def send(self, message: M, timeout: float = SEND_TIMEOUT) -> None:
        """Sends a message. Several threads may call it.

        Args:
            message: What to send.
            timeout: Seconds in which the other end must take it; after that, the connection is shut down.

        Raises:
            ArgumentError: if the message has what JSON cannot carry.
            ConnectError: if the connection is broken, the other end does not read, or the message is too
                long.
        """
        with self._sending:
            self._encode(message)
            deadline = Deadline(timeout)
            while not self.flush():
                if not tcp.wait_writable(self, deadline.left() or 0.0):
                    self.shutdown()  # Half a message has been sent: nothing can follow it.
                    raise LostError(f"{self.peer} did not read within {timeout:.3g} s")

    def enqueue(self, message: M) -> None:
        """Sends as much of a message as the socket takes now; :meth:`flush` sends the rest.

        Raises:
            ConnectError: as :meth:`send`; if what is not sent yet takes too much memory.
        """
        self._encode(message)
        if not self.flush() and len(self._unsent) > _FREE:
            self._outgoing.set(len(self._unsent), "an answer that is not read")

    def flush(self) -> bool:
        """Sends what :meth:`enqueue` has left, without waiting; whether all of it is sent now.

        Raises:
            ConnectError: if the connection is broken.
        """
        try:
            while self._unsent:
                with memoryview(self._unsent) as left:
                    sent = self._socket.send(left, socket.MSG_DONTWAIT)
                del self._unsent[:sent]
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._refusal_before_the_end() or self._broken(error) from None
        self._outgoing.set(0)
        return True

    @property
    def unsent(self) -> int:
        """Bytes that :meth:`flush` has to send."""
        return len(self._unsent)

    def _encode(self, message: M) -> None:
        try:
            body = message.model_dump_json(exclude_none=True).encode()
        except (PydanticSerializationError, UnicodeError, ValueError) as error:
            kind = type(message).__name__
            raise ArgumentError(f"a {kind} has what JSON cannot carry: {printable(str(error))}") from None
        if len(body) > MAX_MESSAGE:
            raise ConnectError(
                f"a message of {len(body)} bytes is too long: at most {MAX_MESSAGE} are allowed"
            )
        if self._seal_sent is None:
            self._hash_sent.update(_LENGTH.pack(len(body)) + body)
        else:
            body += self._seal_sent.tag(body)
        self._unsent += _LENGTH.pack(len(body)) + body

    def refuse(self, reason: str) -> None:
        """Says why this end cannot go on, and lets the other end read it before the connection is closed."""
        # If the other end has gone already, the first cause is the one to raise.
        with contextlib.suppress(ConnectError, OSError):
            self.send(_refusal(reason), LINGER)
            self.finish(LINGER)

    def enqueue_refusal(self, reason: str) -> None:
        """Says why this end cannot go on, and that it sends nothing more, without waiting."""
        with contextlib.suppress(ConnectError, OSError):
            self.enqueue(_refusal(reason))
            self._socket.shutdown(socket.SHUT_WR)

    # --- receiving ------------------------------------------------------------------------------------------

    def receive(self, timeout: float | None = None) -> M:
        """Waits for the next message.

        Args:
            timeout: Seconds until it must have arrived as a whole; ``None``: no limit.

        Raises:
            ConnectError: if it does not arrive in time, the connection ends, it is malformed, or there is no
                memory for it.
        """
        while (message := self.buffered()) is None:
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
        deadline = Deadline(timeout)
        while not self.has_message():
            if not tcp.wait_readable(self, timeout=deadline.left()):
                return False
            self.fill()
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
            raise self.refused(message)
        raise self.unexpected(message)

    def unexpected(self, message: Message) -> ConnectError:
        """What to raise about a message that must not arrive now."""
        return MalformedError(f"{self.peer} sent {type(message).__name__}, which is not allowed here")

    def refused(self, message: Refused) -> ConnectError:
        """What to raise when the other end refuses."""
        return ConnectError(f"{self.peer} refuses: {printable(message.reason)}")

    def check(self) -> None:
        """Reads what has arrived, without interpreting it.

        Raises:
            ConnectError: if the connection has ended.
        """
        while self.fill():
            pass

    def arrived(self) -> Iterator[M]:
        """Yields the messages that have arrived, without waiting.

        Raises:
            ConnectError: if the connection has ended, or a message is malformed.
        """
        while True:
            while (message := self.buffered()) is not None:
                yield message
            if not self.fill():
                return

    def fill(self) -> bool:
        """Reads a part of what has arrived, without waiting; whether there was anything.

        Raises:
            ConnectError: if the connection has ended, or more arrives than one message that is allowed.
        """
        announced = self._announced() or 0
        if len(self._buffer) > _LENGTH.size + announced + _CHUNK:
            raise MalformedError(f"{self.peer} sent more than {announced} bytes that were not requested")
        try:
            data = self._socket.recv(_CHUNK, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._broken(error) from None
        if not data:
            raise LostError(f"{self.peer} closed the connection")
        self._buffer += data
        return True

    def has_message(self) -> bool:
        """Whether a whole message has been read.

        Raises:
            ConnectError: if it is longer than allowed, or there is no memory for it.
        """
        announced = self._announced()
        return announced is not None and len(self._buffer) - _LENGTH.size >= announced

    def buffered(self) -> M | None:
        """The next message that has been read as a whole.

        Raises:
            ConnectError: if it is longer than allowed, malformed, or there is no memory for it.
        """
        if not self.has_message():
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

    def _announced(self) -> int | None:
        """The length of the message whose first bytes have been read; memory for it is reserved."""
        if len(self._buffer) < _LENGTH.size:
            self._incoming.set(0)
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        limit = self.limit + (0 if self._seal_received is None else _TAG_BYTES)
        if length > limit:
            raise MalformedError(
                f"{self.peer} does not speak this protocol of openmrc, or its message is too long:"
                f" it announced {length} bytes, at most {limit} are allowed"
            )
        self._incoming.set(0 if length <= _FREE else length * EXPANSION, f"a message of {length} bytes")
        return int(length)

    def _unsealed(self, sealed: bytes, seal: _Seal) -> bytes:
        body, tag = sealed[:-_TAG_BYTES], sealed[-_TAG_BYTES:]
        if not hmac.compare_digest(tag, seal.tag(body)):
            raise MalformedError(
                f"a message on the connection to {self.peer} is not from the holder of the token"
            )
        return body

    # --- the end --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes the connection, and gives back what is reserved for it."""
        self._socket.close()
        if self.account is not None:
            self.account.close()

    def finish(self, timeout: float) -> None:
        """Sends nothing more, and drops what still arrives until the other end closes or the time is over.

        A socket that is closed with unread data is reset, and then the last message may be lost.
        """
        deadline = Deadline(timeout)
        try:
            self._socket.shutdown(socket.SHUT_WR)
            while not deadline.over and tcp.wait_readable(self, timeout=deadline.left()):
                if not self._socket.recv(_CHUNK):
                    return
        except OSError:
            pass  # The other end has closed already.

    def discard(self) -> bool:
        """Drops what has arrived, without waiting; whether the other end may still send."""
        try:
            return bool(self._socket.recv(_CHUNK, socket.MSG_DONTWAIT))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def shutdown(self) -> None:
        """Ends the connection while another thread may be waiting on it.

        In the child of a fork it does nothing: the connection is the parent's.
        """
        if os.getpid() != self._process:
            return
        with contextlib.suppress(OSError):  # It may have ended already.
            self._socket.shutdown(socket.SHUT_RDWR)

    def _refusal_before_the_end(self) -> ConnectError | None:
        """The refusal that waits to be read on a connection that the other end has reset.

        It is only looked at: another thread may be receiving.
        """
        if self._seal_received is not None or self._buffer:
            return None
        with contextlib.suppress(OSError, ValidationError):
            data = self._socket.recv(_CHUNK, socket.MSG_DONTWAIT | socket.MSG_PEEK)
            if len(data) >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(data)
                message = self._messages.validate_json(data[_LENGTH.size : _LENGTH.size + length])
                return self.refused(message) if isinstance(message, Refused) else None
        return None

    def _broken(self, error: OSError) -> LostError:
        return LostError(f"the connection to {self.peer} broke: {error.strerror or error}")


def _refusal(reason: str) -> Any:
    # A reason may quote a file's name, which need not be Unicode.
    return Refused(reason=printable(reason)[:_REASON_LIMIT])
