"""Connecting queue pairs out of band: both ends tell each other over TCP what RDMA needs to know.

    server                                         client
    with listen("0.0.0.0", 18515) as door:
        peer = door.accept(qp, buffers=[region])   peer = connect("server", 18515, qp)
                                                   qp.write(b"hello", peer.buffers[0])

One call takes the queue pairs from INIT (or RESET) to RTS at both ends and returns when both are there. What
is exchanged are queue pair numbers, first PSNs, the addresses of all ports, windows, capabilities, and
address, length and rkey of the buffers that the peer may write. Each end then uses what both can: the smaller
MTU and windows, the capabilities of both.

On the wire: messages of JSON in UTF-8, each behind its length in four bytes, most significant first. Whatever
comes is checked before it is used. Nothing is encrypted and nobody is authenticated, as with other RDMA
out-of-band exchanges (and an rkey is a secret): use it in a network you trust.
"""

import contextlib
import json
import secrets
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, IPvAnyAddress, JsonValue, ValidationError

from openmrc.errors import ArgumentError, ConnectError, DeadlineError
from openmrc.verbs import (
    Capabilities,
    Context,
    MemoryRegion,
    QpAttr,
    QpState,
    QueuePair,
    RemoteBuffer,
    SocketAddress,
)

DEFAULT_PORT = 18515
"""TCP port, that of perftest."""

PROTOCOL = "openmrc-connect"
VERSION = 1

MAX_MESSAGE = 1 << 24
"""Most bytes of a message; 10,000 queue pairs take about 5 MB."""

_LENGTH = struct.Struct(">I")


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=False)


class _PortAddress(_Message):
    addr: IPvAnyAddress
    udp_port: int = Field(ge=1, le=65535)


class _QpEnd(_Message):
    """One end's part of what two queue pairs agree on; fields as in :class:`QpAttr`."""

    qp_num: int = Field(ge=1, lt=1 << 24)
    psn: int = Field(ge=0, lt=1 << 24)
    path_mtu: int = Field(ge=256, le=8192)
    mpr: int = Field(ge=1, le=255)
    mpr_dest: int = Field(ge=1, le=255)
    max_wimm: int = Field(ge=1, le=16384)
    max_wimm_dest: int = Field(ge=1, le=16384)
    caps: int = Field(ge=0, le=int(Capabilities.ALL))


class _Buffer(_Message):
    addr: int = Field(ge=0, lt=1 << 64)
    length: int = Field(ge=0, lt=1 << 64)
    rkey: int = Field(ge=0, lt=1 << 32)


class _Greeting(_Message):
    """The part of the first message that every version has."""

    protocol: str
    version: int


class _Hello(_Greeting):
    device: str = Field(max_length=256)
    ports: list[_PortAddress] = Field(min_length=1, max_length=16)
    qps: list[_QpEnd]
    buffers: list[_Buffer]
    data: JsonValue = None


class _Envelope(_Message):
    """Every later message: its kind, and what it carries."""

    kind: Literal["hello", "ready", "data", "barrier", "error"]
    body: JsonValue = None


M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What one end offers; both ends use the smaller of two offers. Names and units as in :class:`QpAttr`."""

    path_mtu: int = 4096
    mpr: int = 8
    mpr_dest: int = 8
    max_wimm: int = 128
    max_wimm_dest: int = 128
    caps: Capabilities = Capabilities.ALL
    timeout: int | None = None
    linear_cnt: int | None = None
    exp_cnt: int | None = None
    ev_profile_id: int | None = None
    cc_profile_id: int | None = None
    seed: int | None = None


class Peer:
    """The other end of a connection, and the channel to it."""

    def __init__(self, channel: "_Channel", hello: _Hello) -> None:
        self._channel = channel
        self.device = hello.device
        """Name of its device."""
        self.addresses: list[SocketAddress] = _addresses(hello)
        """Address and UDP port of each of its ports."""
        self.qp_nums = [qp.qp_num for qp in hello.qps]
        """Numbers of its queue pairs, in the order of ours."""
        self.buffers = [RemoteBuffer(b.addr, b.length, b.rkey) for b in hello.buffers]
        """What it lets us write, in its order."""
        self.data: Any = hello.data
        """What it passed as ``data``."""

    def send(self, value: JsonValue) -> None:
        """Sends a value that JSON can carry, for :meth:`receive` at the other end.

        Raises:
            ConnectError: if the connection is gone.
        """
        self._channel.send("data", value)

    def receive(self, timeout: float | None = None) -> Any:
        """The next value that the other end sends.

        Raises:
            DeadlineError: if none comes within ``timeout`` seconds.
            ConnectError: if the connection is gone, or what comes makes no sense.
        """
        return self._channel.expect("data", timeout)

    def barrier(self, timeout: float | None = None) -> None:
        """Returns once both ends have called it.

        Raises:
            DeadlineError, ConnectError: as :meth:`receive`.
        """
        self._channel.send("barrier")
        self._channel.expect("barrier", timeout)

    def close(self) -> None:
        """Closes the channel; the queue pairs stay connected. Doing it twice is harmless."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Peer {self.device} at {self.addresses[0][0]}, {len(self.qp_nums)} queue pairs>"


class Listener:
    """Waits for peers; made by :func:`listen`."""

    def __init__(self, host: str, port: int) -> None:
        try:
            self._socket = socket.create_server(
                (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=64
            )
        except OSError as error:
            raise ConnectError(
                error.errno, f"listening on {host} port {port}: {error.strerror or error}"
            ) from error

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens; tells the port where 0 was asked for."""
        host, port, *_ = self._socket.getsockname()
        return host, port

    def accept(
        self,
        qps: QueuePair | Sequence[QueuePair],
        *,
        buffers: Sequence[MemoryRegion | RemoteBuffer] = (),
        data: JsonValue = None,
        options: Options | None = None,
        timeout: float | None = None,
    ) -> Peer:
        """Takes the next peer and connects ``qps`` to its queue pairs, as many as there are, in their order.

        Args and Raises: as :func:`connect`. ``timeout`` counts from the call; ``None``: as long as it takes.
        """
        deadline = _deadline(timeout)
        self._socket.settimeout(_left(deadline))
        try:
            connection, _ = self._socket.accept()
        except TimeoutError as error:
            raise DeadlineError(
                f"nobody connected to {self.address[0]} port {self.address[1]} within {timeout} s"
            ) from error
        except OSError as error:
            raise ConnectError(error.errno, f"accepting a peer: {error.strerror or error}") from error
        return _exchange(connection, False, qps, buffers, data, options, deadline)

    def close(self) -> None:
        """Stops listening. Doing it twice is harmless."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def listen(host: str = "", port: int = DEFAULT_PORT) -> Listener:
    """Listens for peers on an address of this host (default: all IPv4) and a TCP port (0: one that is free).

    Raises:
        ConnectError: if that cannot be had.
    """
    return Listener(host, port)


def connect(
    host: str,
    port: int,
    qps: QueuePair | Sequence[QueuePair],
    *,
    buffers: Sequence[MemoryRegion | RemoteBuffer] = (),
    data: JsonValue = None,
    options: Options | None = None,
    timeout: float | None = 10.0,
) -> Peer:
    """Connects queue pairs to those of a peer that listens; both ends are in RTS when it returns.

    Args:
        host: Name or address of the peer, for TCP.
        port: Its TCP port.
        qps: One queue pair or several, in RESET or INIT, all of one context.
        buffers: What the peer may write, all of it or parts (:meth:`MemoryRegion.remote`).
        data: Anything that JSON can carry, for the peer.
        options: What this end offers.
        timeout: Seconds for all of it, tries to reach a peer that does not listen yet included; ``None``: for
            ever.

    Raises:
        DeadlineError: if the peer cannot be reached, or does not answer, in time.
        ConnectError: if the peer speaks another version or no such protocol, has another number of queue
            pairs, or refuses; the message says which.
        StateError, ArgumentError: if the queue pairs here cannot be connected so; the peer is told.
    """
    deadline = _deadline(timeout)
    pause = 0.01
    while True:
        try:
            connection = socket.create_connection((host, port), timeout=_left(deadline))
            break
        except (ConnectionRefusedError, TimeoutError) as error:
            left = _left(deadline)
            if left is not None and left <= pause:
                raise DeadlineError(
                    f"{host} port {port} was not reached within {timeout} s: {error}"
                ) from error
            time.sleep(pause)
            pause = min(2 * pause, 0.5)
        except OSError as error:
            raise ConnectError(
                error.errno, f"connecting to {host} port {port}: {error.strerror or error}"
            ) from error
    return _exchange(connection, True, qps, buffers, data, options, deadline)


def _exchange(
    connection: socket.socket,
    speaks_first: bool,
    qps: QueuePair | Sequence[QueuePair],
    buffers: Sequence[MemoryRegion | RemoteBuffer],
    data: JsonValue,
    options: Options | None,
    deadline: float | None,
) -> Peer:
    """What both ends do. One speaks while the other listens, or long messages would wait for each other."""
    channel = _Channel(connection)
    try:
        qps = [qps] if isinstance(qps, QueuePair) else list(qps)
        options = options or Options()
        try:
            mine = _hello(qps, buffers, data, options)
            if speaks_first:
                channel.send("hello", mine.model_dump(mode="json"), _left(deadline))
            theirs = channel.expect_hello(deadline)
            if not speaks_first:
                channel.send("hello", mine.model_dump(mode="json"), _left(deadline))
            _check(mine, theirs)
            for qp, own, other in zip(qps, mine.qps, theirs.qps, strict=True):
                _bring_up(qp, own, other, theirs, options)
        except (ConnectError, DeadlineError):
            raise
        except Exception as error:
            channel.send_error(str(error))
            raise
        # Nobody sends before both can receive.
        channel.send("ready", None, _left(deadline))
        channel.expect("ready", _left(deadline))
        return Peer(channel, theirs)
    except BaseException:
        channel.close()
        raise


def _hello(
    qps: Sequence[QueuePair],
    buffers: Sequence[MemoryRegion | RemoteBuffer],
    data: JsonValue,
    options: Options,
) -> _Hello:
    if not qps:
        raise ArgumentError("connecting needs at least one queue pair")
    context: Context = qps[0].context
    if any(qp.context is not context for qp in qps):
        raise ArgumentError("the queue pairs of one connection must belong to one context")
    parts = [buffer.remote() if isinstance(buffer, MemoryRegion) else buffer for buffer in buffers]

    def end(qp: QueuePair) -> _QpEnd:
        return _QpEnd(
            qp_num=qp.qp_num,
            psn=secrets.randbelow(1 << 24),
            path_mtu=options.path_mtu,
            mpr=options.mpr if qp.hint is None else qp.hint.mpr(context.receive_buffer, options.path_mtu),
            mpr_dest=options.mpr_dest,
            max_wimm=options.max_wimm,
            max_wimm_dest=options.max_wimm_dest,
            caps=int(options.caps),
        )

    try:
        return _Hello(
            protocol=PROTOCOL,
            version=VERSION,
            device=context.device.name,
            ports=[_PortAddress(addr=ip_address(addr), udp_port=port) for addr, port in context.addresses],
            qps=[end(qp) for qp in qps],
            buffers=[_Buffer(addr=b.addr, length=b.length, rkey=b.rkey) for b in parts],
            data=data,
        )
    except ValidationError as error:
        raise ArgumentError(f"what this end offers cannot be sent: {_first_problem(error)}") from error


def _check(mine: _Hello, theirs: _Hello) -> None:
    if len(mine.qps) != len(theirs.qps):
        raise ConnectError(
            f"{theirs.device} has {len(theirs.qps)} queue pairs, this end has {len(mine.qps)}:"
            " both must have as many"
        )
    if mine.ports[0].addr.version != theirs.ports[0].addr.version:
        raise ConnectError(
            f"{theirs.device} has IPv{theirs.ports[0].addr.version} ports, this end"
            f" IPv{mine.ports[0].addr.version}: both must have the same"
        )


def _bring_up(qp: QueuePair, own: _QpEnd, other: _QpEnd, theirs: _Hello, options: Options) -> None:
    """To RTS, with what both can."""
    if qp.state is QpState.RESET:
        qp.modify(QpState.INIT)
    qp.modify(
        QpState.RTR,
        QpAttr(
            dest_qp_num=other.qp_num,
            rq_psn=other.psn,
            remote=_addresses(theirs),
            path_mtu=min(own.path_mtu, other.path_mtu),
            mpr_dest=own.mpr_dest,
            max_wimm_dest=own.max_wimm_dest,
            caps=Capabilities(own.caps & other.caps),
            ev_profile_id=options.ev_profile_id,
            cc_profile_id=options.cc_profile_id,
            seed=options.seed,
        ),
    )
    qp.modify(
        QpState.RTS,
        QpAttr(
            sq_psn=own.psn,
            mpr=min(own.mpr, other.mpr_dest),
            max_wimm=min(own.max_wimm, other.max_wimm_dest),
            timeout=options.timeout,
            linear_cnt=options.linear_cnt,
            exp_cnt=options.exp_cnt,
        ),
    )


def _addresses(hello: _Hello) -> list[SocketAddress]:
    return [(str(port.addr), port.udp_port) for port in hello.ports]


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout


def _left(deadline: float | None) -> float | None:
    # A socket's timeout of 0 means something else.
    return None if deadline is None else max(1e-3, deadline - time.monotonic())


def _first_problem(error: ValidationError) -> str:
    problem = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in problem["loc"]) or "message"
    return f"{where}: {problem['msg']}"


class _Channel:
    """Messages over a TCP connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A peer whose host is gone is noticed after some 30 s, whoever waits for it however long.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3)):
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        host, port, *_ = connection.getpeername()
        self._peer = f"{host} port {port}"
        self._broken = False

    def send(self, kind: str, body: JsonValue = None, timeout: float | None = None) -> None:
        message = json.dumps({"kind": kind, "body": body}, allow_nan=False, separators=(",", ":")).encode()
        if len(message) > MAX_MESSAGE:
            raise ArgumentError(f"a message of {len(message)} bytes: at most {MAX_MESSAGE} can be sent")
        try:
            self._connection.settimeout(timeout)
            self._connection.sendall(_LENGTH.pack(len(message)) + message)
        except TimeoutError as error:
            self._broken = True
            raise DeadlineError(f"{self._peer} did not take {len(message)} bytes in time") from error
        except OSError as error:
            # What the peer said before it went is a better reason than that it is gone.
            self._raise_pending_error()
            raise ConnectError(error.errno, f"sending to {self._peer}: {error.strerror or error}") from error

    def send_error(self, reason: str) -> None:
        # A peer that has gone says why itself.
        with contextlib.suppress(ConnectError, DeadlineError):
            self.send("error", reason[:1000], 1.0)

    def expect(self, kind: str, timeout: float | None) -> JsonValue:
        """The body of the next message, which must be of this kind."""
        envelope = self._parse(_Envelope, self._receive(_deadline(timeout)))
        if envelope.kind == "error":
            raise ConnectError(f"{self._peer} refuses: {envelope.body}")
        if envelope.kind != kind:
            raise ConnectError(f"{self._peer} sent {envelope.kind!r}, {kind!r} was expected")
        return envelope.body

    def expect_hello(self, deadline: float | None) -> _Hello:
        body = self.expect("hello", _left(deadline))
        greeting = self._validate(_Greeting, body)
        if greeting.protocol != PROTOCOL:
            raise ConnectError(f"{self._peer} speaks {greeting.protocol[:50]!r}, not {PROTOCOL}")
        if greeting.version != VERSION:
            reason = (
                f"version {greeting.version} of {PROTOCOL} meets version {VERSION}:"
                " both ends must have the same"
            )
            self.send_error(reason)
            raise ConnectError(f"{self._peer}: {reason}")
        return self._validate(_Hello, body)

    def _parse(self, model: type[M], message: bytes) -> M:
        try:
            value = json.loads(message)
        except ValueError as error:
            raise ConnectError(
                f"{self._peer} does not speak {PROTOCOL}: {message[:40]!r} is no JSON"
            ) from error
        return self._validate(model, value)

    def _validate(self, model: type[M], value: JsonValue) -> M:
        try:
            return model.model_validate(value)
        except ValidationError as error:
            raise ConnectError(
                f"{self._peer} sent a message that makes no sense: {_first_problem(error)}"
            ) from error

    def _receive(self, deadline: float | None) -> bytes:
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size, deadline, starting=True))
        if length > MAX_MESSAGE:
            raise self._break(
                f"{self._peer} does not speak {PROTOCOL}: a message of {length} bytes,"
                f" at most {MAX_MESSAGE} is allowed"
            )
        return self._read(length, deadline)

    def _read(self, length: int, deadline: float | None, *, starting: bool = False) -> bytes:
        if self._broken:
            raise ConnectError(f"the connection to {self._peer} is out of step after an earlier failure")
        data = bytearray()
        while len(data) < length:
            try:
                self._connection.settimeout(_left(deadline))
                if deadline is not None and time.monotonic() >= deadline:
                    raise TimeoutError
                part = self._connection.recv(min(length - len(data), 1 << 16))
            except TimeoutError as error:
                if data or not starting:
                    self._broken = True
                raise DeadlineError(f"{self._peer} did not answer in time") from error
            except OSError as error:
                raise ConnectError(
                    error.errno, f"receiving from {self._peer}: {error.strerror or error}"
                ) from error
            if not part:
                raise self._break(f"{self._peer} closed the connection")
            data += part
        return bytes(data)

    def _break(self, reason: str) -> ConnectError:
        self._broken = True
        return ConnectError(reason)

    def _raise_pending_error(self) -> None:
        try:
            envelope = self._parse(_Envelope, self._receive(_deadline(0.1)))
        except (ConnectError, DeadlineError):
            return
        if envelope.kind == "error":
            raise ConnectError(f"{self._peer} refuses: {envelope.body}")

    def close(self) -> None:
        self._connection.close()
