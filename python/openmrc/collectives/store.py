"""Where the ranks of a job find each other: a key-value store over TCP, served by one of them."""

import contextlib
import os
import socket
import struct
import threading
import time
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Protocol

from openmrc.closing import Closable
from openmrc.errors import ConnectError, DeadlineError, DeviceError

_MAX_MESSAGE = 64 << 20
_HEAD = struct.Struct(">BdI")
_SET, _GET = 1, 2
_RETRY = 0.1
_SLICE = 1.0
"""Longest time for which the server holds a question that it cannot answer yet."""
_SILENCE = 60.0
"""Seconds after which a server that does not answer counts as gone; a stopped one may go on before."""
_PROOF = 10.0
"""Seconds within which a new connection must prove that it has the token."""
_TIMEVAL = struct.Struct("@ll")


def _expect_within(tcp: socket.socket, seconds: float | None) -> None:
    """Reading from this socket, also as a :class:`Connection`, fails if nothing arrives for this time."""
    whole, part = divmod(seconds or 0.0, 1.0)
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL.pack(int(whole), int(part * 1e6)))


class Store(Protocol):
    """A store of the ranks of a job."""

    def set(self, key: str, value: bytes) -> None:
        """Stores a value."""

    def get(self, key: str, timeout: float) -> bytes:
        """The value of a key, once it is there.

        Raises:
            DeadlineError: if it is not there within ``timeout`` seconds.
        """


class TcpStore(Closable):
    """A store over TCP; one rank serves it, all use it.

    What ranks store are keys to their memory. With a token, both ends of a connection prove that they have it
    (HMAC over a challenge); without one, anyone who reaches the port can read and write.

    Args:
        host: Address of the rank that serves.
        port: Its TCP port; 0, with ``serve``: any free one.
        serve: Whether this rank serves.
        token: Secret of the job.
        timeout: Seconds for the connection.

    Raises:
        ConnectError: if the server cannot be reached, or does not know the token.
        DeviceError: if the port is taken, or the address is not of this host.
    """

    def __init__(
        self, host: str, port: int, *, serve: bool = False, token: str | None = None, timeout: float = 300.0
    ) -> None:
        self._key = token.encode() if token else None
        self._server = _Server(host, port, self._key) if serve else None
        self.address = (host, self._server.port if self._server else port)
        """Host and port of the server."""
        self._lock = threading.Lock()
        try:
            self._connection, self.local_address = self._connect(timeout)
        except BaseException:
            self.close()
            raise

    def _connect(self, timeout: float) -> tuple[Connection, str]:
        deadline = time.monotonic() + timeout
        host, port = self.address
        while True:
            left = deadline - time.monotonic()
            try:
                with socket.create_connection(self.address, timeout=max(left, 0.01)) as tcp:
                    tcp.settimeout(None)
                    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    _expect_within(tcp, _SILENCE)
                    local = str(tcp.getsockname()[0])
                    connection = Connection(tcp.detach())
                break
            except OSError as error:
                if time.monotonic() + _RETRY > deadline:
                    raise ConnectError(f"no rank serves the store at {host}:{port}: {error}") from error
                time.sleep(_RETRY)
        if self._key is not None:
            try:
                answer_challenge(connection, self._key)
                deliver_challenge(connection, self._key)
            except Exception as error:
                connection.close()
                raise ConnectError(f"the store at {host}:{port} has another token, or none") from error
        return connection, local

    def set(self, key: str, value: bytes) -> None:
        """Stores a value; see :class:`Store`."""
        self._ask(_SET, key, value, 0.0)

    def get(self, key: str, timeout: float) -> bytes:
        """The value of a key; see :class:`Store`."""
        deadline = time.monotonic() + timeout
        while True:
            left = max(deadline - time.monotonic(), 0.0)
            answer = self._ask(_GET, key, b"", min(left, _SLICE))
            if answer[:1] == b"\x01":
                return answer[1:]
            if time.monotonic() >= deadline:
                raise DeadlineError(f"no rank has stored {key!r} within {timeout:.0f} s")

    def _ask(self, what: int, key: str, value: bytes, wait: float) -> bytes:
        name = key.encode()
        with self._lock:
            try:
                self._connection.send_bytes(_HEAD.pack(what, wait, len(name)) + name + value)
                return self._connection.recv_bytes(_MAX_MESSAGE)
            except (EOFError, OSError) as error:
                host, port = self.address
                raise ConnectError(f"the rank that serves the store at {host}:{port} has gone") from error

    def close(self) -> None:
        """Ends the connection, and the server if it is here."""
        with contextlib.suppress(AttributeError):  # Not connected.
            self._connection.close()
        if self._server is not None:
            self._server.close()


class _Server:
    def __init__(self, host: str, port: int, key: bytes | None) -> None:
        self._key = key
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._closed = False
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            self._listener = socket.create_server((host, port), family=family, backlog=1024)
        except OSError as error:
            what = error.strerror or error
            raise DeviceError(error.errno, f"the store cannot be served at {host}:{port}: {what}") from error
        self.port: int = self._listener.getsockname()[1]
        self._sockets: set[socket.socket] = set()
        threading.Thread(target=self._accept, name="openmrc-store", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                tcp, _ = self._listener.accept()
            except OSError:
                return
            tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._changed:
                self._sockets.add(tcp)
            try:
                threading.Thread(target=self._serve, args=(tcp,), daemon=True).start()
            except RuntimeError:  # No thread can be started.
                self._forget(tcp)

    def _forget(self, tcp: socket.socket) -> None:
        with self._changed:
            self._sockets.discard(tcp)
        tcp.close()

    def _serve(self, tcp: socket.socket) -> None:
        # Strangers, broken messages and ends that leave all end the same way.
        with contextlib.suppress(Exception), Connection(os.dup(tcp.fileno())) as connection:
            if self._key is not None:
                _expect_within(tcp, _PROOF)
                deliver_challenge(connection, self._key)
                answer_challenge(connection, self._key)
                _expect_within(tcp, None)
            while not self._closed:
                message = connection.recv_bytes(_MAX_MESSAGE)
                what, wait, length = _HEAD.unpack_from(message)
                key = message[_HEAD.size : _HEAD.size + length].decode()
                if what == _SET:
                    with self._changed:
                        self._values[key] = message[_HEAD.size + length :]
                        self._changed.notify_all()
                    connection.send_bytes(b"\x01")
                else:
                    value = self._wait_for(key, min(wait, _SLICE))
                    connection.send_bytes(b"\x00" if value is None else b"\x01" + value)
        self._forget(tcp)

    def _wait_for(self, key: str, seconds: float) -> bytes | None:
        with self._changed:
            self._changed.wait_for(lambda: key in self._values or self._closed, seconds)
            return self._values.get(key)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            # Only the thread that reads a descriptor may close it: its number may be another's at once.
            for tcp in self._sockets:
                with contextlib.suppress(OSError):
                    tcp.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


__all__ = ["Store", "TcpStore"]
