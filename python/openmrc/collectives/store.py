"""Where the ranks of a job find each other: a key-value store over TCP, served by one of them."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal
from typing import Protocol as TypingProtocol

from pydantic import ConfigDict, Field

from openmrc.closing import Closable
from openmrc.control import (
    Account,
    Budget,
    Channel,
    Deadline,
    Limits,
    LostError,
    Message,
    Protocol,
    Server,
    Token,
    dial,
    tcp,
)
from openmrc.control.budget import neighbourhood
from openmrc.control.messages import MAX_MESSAGE
from openmrc.errors import ArgumentError, ClosedError, ConnectError, DeadlineError, DeviceError
from openmrc.printable import printable

_SLICE = 1.0
"""Longest time for which the server holds a question that it cannot answer yet."""
_SILENCE = 60.0
"""Seconds after which a server that does not answer counts as gone; a stopped one may go on before."""
_MAX_VALUE = MAX_MESSAGE // 4 * 3 - (1 << 16)
"""Bytes of the longest value: as base64 it fits into a message with its key."""
_MOST_ASKED = 16
"""Questions of a rank that may wait: it asks one after the other, and gives some up."""
_KEY_BYTES = 300
"""What a key costs besides its own length and that of its value."""
_Key = Annotated[str, Field(max_length=4096)]


class _Numbered(Message):
    # Values are bytes, in JSON base64.
    model_config: ClassVar[ConfigDict] = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    number: Annotated[int, Field(ge=0, lt=1 << 63)]
    """Of the question, and of its answer."""


class _Set(_Numbered):
    type: Literal["set"] = "set"
    key: _Key
    value: bytes


class _Get(_Numbered):
    type: Literal["get"] = "get"
    key: _Key
    wait: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)]
    """Seconds for which the answer may wait for the key."""


class _Answer(_Numbered):
    type: Literal["answer"] = "answer"
    value: bytes | None = None
    """``None``: it is stored; there is no value."""


PROTOCOL = Protocol("openmrc-store", 1, _Set, _Get, _Answer)
"""A rank asks ``Set`` or ``Get``; the server answers each with ``Answer``."""


class Store(TypingProtocol):
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

    What ranks store are keys to their memory. With a token, both ends of a connection prove that they have
    it, and no message can be changed on the way; without one, anyone who reaches the port can read and write.

    Args:
        host: Address of the rank that serves.
        port: Its TCP port; 0, with ``serve``: any free one.
        serve: Whether this rank serves.
        token: Secret of the job.
        timeout: Seconds for the connection.
        limits: With ``serve``: what strangers may take.
        budget: With ``serve``: memory that the ranks' messages and values may take.

    Raises:
        ConnectError: if the server cannot be reached, does not answer in time, or has another token.
        DeviceError: if the port is taken, or the address is not of this host.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        serve: bool = False,
        token: Token | None = None,
        timeout: float = 300.0,
        limits: Limits | None = None,
        budget: Budget | None = None,
    ) -> None:
        self._channel: Channel[Any] | None = None
        self._server = _Server(host, port, token, limits or Limits(), budget or Budget()) if serve else None
        self.address = (host, self._server.port if self._server else port)
        """Host and port of the server."""
        self._lock = threading.Lock()
        self._number = 0
        try:
            self._channel = dial(
                PROTOCOL,
                *self.address,
                "no rank serves the store",
                token=token,
                patience=timeout,
                timeout=timeout,
            )
            self._channel.limit = MAX_MESSAGE
            self.local_address = self._channel.local_address()
            """The address of this rank by which it reaches the server."""
        except BaseException as error:
            self.close()
            if isinstance(error, ConnectError):
                raise type(error)(f"the store of the job: {error}") from error
            raise

    def set(self, key: str, value: bytes) -> None:
        """Stores a value; see :class:`Store`.

        Raises:
            ArgumentError: if it has more than 48 MiB.
            ConnectError: if the server has gone.
        """
        if len(value) > _MAX_VALUE:
            raise ArgumentError(f"a value of {len(value)} bytes is too long: at most {_MAX_VALUE} are stored")
        self._ask(lambda number: _Set(number=number, key=key, value=bytes(value)), None)

    def get(self, key: str, timeout: float) -> bytes:
        """The value of a key; see :class:`Store`."""
        deadline = Deadline(timeout)
        while True:
            left = deadline.left() or 0.0
            wait = min(left, _SLICE)
            # An end of the connection is told in time; a server that is silent may only be stopped.
            answer = self._ask(lambda number: _Get(number=number, key=key, wait=wait), deadline)  # noqa: B023
            if answer is not None and answer.value is not None:
                return answer.value
            if answer is None or deadline.over:
                raise DeadlineError(f"no rank has stored {key!r} within {timeout:.0f} s")

    def _ask(self, question: Any, deadline: Deadline | None) -> _Answer | None:
        """The answer to a question; ``None`` if it does not come in the time of the caller."""
        with self._lock:
            if self._channel is None:
                raise ClosedError("the store is closed")
            self._number += 1
            try:
                self._channel.send(question(self._number))
                patience = Deadline(_SILENCE)
                while True:
                    left = patience.left() or 0.0
                    if deadline is not None:
                        left = min(left, (deadline.left() or 0.0) + _SLICE)
                    if not self._channel.wait(left):
                        if patience.over:
                            raise LostError(f"it did not answer within {_SILENCE:.0f} s")
                        return None
                    answer = self._channel.expect(_Answer)
                    if answer.number == self._number:  # Others are late: nobody waits for them any more.
                        return answer
            except ConnectError as error:
                host, port = self.address
                raise ConnectError(
                    f"the rank that serves the store at {host}:{port} has gone: {error}"
                ) from error

    def close(self) -> None:
        """Ends the connection, and the server if it is here. Closing twice is harmless."""
        if (channel := self._channel) is not None:
            channel.shutdown()  # A thread may wait for an answer. In the child of a fork there is none.
            alone = self._lock.acquire(timeout=_SLICE)
            self._channel = None
            channel.close()
            if alone:
                self._lock.release()
        if self._server is not None:
            self._server.close()


class _Server(Closable):
    """Answers questions; those about keys that are not there yet wait for them."""

    def __init__(self, host: str, port: int, token: Token | None, limits: Limits, budget: Budget) -> None:
        self._values: dict[str, bytes] = {}
        self._asked: dict[str, list[tuple[Channel[Any], int, float]]] = {}
        """By key: who waits for it, the number of the question, and until when."""
        self._waiting: Counter[Channel[Any]] = Counter()
        """Questions of each rank that wait."""
        self._owned: dict[str, tuple[Account, int]] = {}
        """By key: for whose address its bytes are reserved."""
        self._accounts: dict[str, Account] = {}
        self._budget = budget
        try:
            listening = tcp.listen(host, port)
        except DeviceError as error:
            where = f"{host}:{port}"
            raise DeviceError(
                error.errno, f"the store cannot be served at {where}: {error.strerror}"
            ) from error
        server = Server(
            PROTOCOL, self, listening, token=token, limits=limits, budget=budget, name="openmrc-store"
        )
        self.port = server.address[1]

    def close(self) -> None:
        self._server.close()

    def bound(self, server: Server) -> None:
        self._server = server

    def joined(self, peer: Channel[Any]) -> None:
        peer.limit = MAX_MESSAGE

    def arrived(self, peer: Channel[Any], message: Message) -> None:
        match message:
            case _Set():
                self._set(peer, message)
            case _Get(key=key) if key in self._values or message.wait == 0:
                self._answer(peer, message.number, self._values.get(key))
            case _Get(key=key):
                if self._waiting[peer] >= _MOST_ASKED:
                    raise peer.unexpected(message)
                self._waiting[peer] += 1
                until = time.monotonic() + min(message.wait, _SLICE)
                self._asked.setdefault(key, []).append((peer, message.number, until))
            case _:
                raise peer.unexpected(message)

    def left(self, peer: Channel[Any]) -> None:
        self._keep(lambda who, until: who is not peer)
        del self._waiting[peer]

    def timeout(self) -> float | None:
        times = [until for waiting in self._asked.values() for _, _, until in waiting]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def poll_timers(self) -> None:
        now = time.monotonic()
        for peer, number in self._keep(lambda who, until: until > now):
            self._answer(peer, number, None)

    def _set(self, peer: Channel[Any], message: _Set) -> None:
        key, value = message.key, message.value
        address = neighbourhood(peer.remote_address())
        account = self._accounts.setdefault(address, self._budget.account(address.partition("/")[0]))
        account.trusted = peer.authenticated
        # It stays when its rank has gone, so it counts for the rank's address and not for its connection.
        size = len(key) + len(value) + _KEY_BYTES
        account.reserve(size, f"the value of {printable(key)}")
        if (old := self._owned.get(key)) is not None:
            old[0].release(old[1])
        self._owned[key] = (account, size)
        self._values[key] = value
        self._answer(peer, message.number, None)
        for other, number, _ in self._asked.pop(key, []):
            self._waiting[other] -= 1
            self._answer(other, number, value)

    def _answer(self, peer: Channel[Any], number: int, value: bytes | None) -> None:
        self._server.send(peer, _Answer(number=number, value=value))

    def _keep(self, wanted: Callable[[Channel[Any], float], bool]) -> list[tuple[Channel[Any], int]]:
        """Forgets the questions of which a condition does not hold; returns who asked them."""
        dropped: list[tuple[Channel[Any], int]] = []
        for key, waiting in list(self._asked.items()):
            kept = [each for each in waiting if wanted(each[0], each[2])]
            if len(kept) < len(waiting):
                for peer, number, until in waiting:
                    if not wanted(peer, until):
                        self._waiting[peer] -= 1
                        dropped.append((peer, number))
                if kept:
                    self._asked[key] = kept
                else:
                    del self._asked[key]
        return dropped


__all__ = ["Store", "TcpStore"]
