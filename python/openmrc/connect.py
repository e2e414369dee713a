"""Connecting queue pairs out of band: both ends tell each other over TCP what RDMA needs to know.

    server                                         client
    with listen("0.0.0.0", 18515) as door:
        peer = door.accept(qp, buffers=[region])   peer = connect("server", 18515, qp)
                                                   qp.write(b"hello", peer.buffers[0])

One call takes the queue pairs from INIT (or RESET) to RTS at both ends and returns when both are there. What
is exchanged are queue pair numbers, first PSNs, the addresses of all ports, windows, capabilities, and
address, length and rkey of the buffers that the peer may write. Each end then uses what both can: the smaller
MTU and windows, the capabilities of both.

Messages are those of :mod:`openmrc.outofband`; whatever comes is checked before it is used. Nothing is
encrypted and nobody is authenticated, as with other RDMA out-of-band exchanges (and an rkey is a secret): use
it in a network you trust.
"""

import contextlib
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from types import TracebackType
from typing import Annotated, Any, Literal, Self

from pydantic import Field, JsonValue, ValidationError, field_validator

from openmrc.errors import ArgumentError, ConnectError, DeadlineError
from openmrc.outofband import (
    U32,
    U64,
    Channel,
    Message,
    PathMtu,
    QueuePairEnd,
    Refused,
    bring_up,
    dial,
    messages,
    own_end,
    plain_address,
    problem,
)
from openmrc.outofband import listen as _listen
from openmrc.verbs import Capabilities, MemoryRegion, QpAttr, QueuePair, RemoteBuffer, SocketAddress

DEFAULT_PORT = 18515
"""TCP port, that of perftest."""

PROTOCOL = "openmrc-connect"
VERSION = 1

_Mpr = Annotated[int, Field(ge=1, le=255)]
_Wimm = Annotated[int, Field(ge=1, le=16384)]


class _Greeting(Message):
    """The first message, the same in every version: anything that follows depends on it."""

    type: Literal["greeting"] = "greeting"
    protocol: str
    version: int


class _QpEnd(QueuePairEnd):
    """One end's part of what two queue pairs agree on; fields as in :class:`QpAttr`."""

    path_mtu: PathMtu
    mpr: _Mpr
    mpr_dest: _Mpr
    max_wimm: _Wimm
    max_wimm_dest: _Wimm
    caps: Annotated[int, Field(ge=0, le=int(Capabilities.ALL))]

    @field_validator("addresses")
    @classmethod
    def _are_addresses(cls, addresses: list[SocketAddress]) -> list[SocketAddress]:
        for addr, _ in addresses:
            ip_address(addr)
        return addresses


class _Buffer(Message):
    addr: U64
    length: U64
    rkey: U32


class _Hello(Message):
    type: Literal["hello"] = "hello"
    device: Annotated[str, Field(max_length=256)]
    qps: list[_QpEnd]
    buffers: list[_Buffer]
    data: JsonValue = None


class _Ready(Message):
    """All queue pairs of this end can receive."""

    type: Literal["ready"] = "ready"


class _Data(Message):
    type: Literal["data"] = "data"
    value: JsonValue = None


class _Barrier(Message):
    type: Literal["barrier"] = "barrier"


_MESSAGES = messages(_Greeting, _Hello, _Ready, _Data, _Barrier, Refused)


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

    def __init__(self, channel: Channel[Any], hello: _Hello) -> None:
        self._channel = channel
        self.device = hello.device
        """Name of its device."""
        self.addresses: list[SocketAddress] = hello.qps[0].addresses
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
        self._channel.send(_Data(value=value))

    def receive(self, timeout: float | None = None) -> Any:
        """The next value that the other end sends.

        Raises:
            ConnectError: if none comes within ``timeout`` seconds, the connection is gone, or what comes
                makes no sense.
        """
        return self._channel.expect(_Data, timeout).value

    def barrier(self, timeout: float | None = None) -> None:
        """Returns once both ends have called it.

        Raises:
            ConnectError: as :meth:`receive`.
        """
        self._channel.send(_Barrier())
        self._channel.expect(_Barrier, timeout)

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
        self._socket = _listen(host, port)

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
        receives: int = 0,
        timeout: float | None = None,
    ) -> Peer:
        """Takes the next peer and connects ``qps`` to its queue pairs, as many as there are, in their order.

        Args:
            qps: As :func:`connect`, and so are the others.
            buffers: What the peer may write.
            data: For the peer.
            options: What this end offers.
            receives: Receives to post on each queue pair before the peer can send.
            timeout: Seconds until a peer comes, and seconds that it may be silent; ``None``: as long as it
                takes.

        Raises:
            DeadlineError: if nobody comes in time.
            ConnectError, StateError, ArgumentError: as :func:`connect`.
        """
        self._socket.settimeout(timeout)
        try:
            connection, (host, port, *_) = self._socket.accept()
        except TimeoutError:
            where, at = self.address
            raise DeadlineError(f"nobody connected to {where} port {at} within {timeout} s") from None
        except OSError as error:
            raise ConnectError(f"accepting a peer: {error.strerror or error}") from error
        channel = Channel(connection, f"{plain_address(host)}:{port}", _MESSAGES)
        return _exchange(channel, False, qps, buffers, data, options or Options(), receives, timeout)

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
    """Listens for peers on an address of this host (default: all) and a TCP port (0: one that is free).

    Raises:
        DeviceError: if that cannot be had.
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
    receives: int = 0,
    timeout: float = 10.0,
) -> Peer:
    """Connects queue pairs to those of a peer that listens; both ends are in RTS when it returns.

    Args:
        host: Name or address of the peer, for TCP.
        port: Its TCP port.
        qps: One queue pair or several, in RESET or INIT, all of one context.
        buffers: What the peer may write, all of it or parts (:meth:`MemoryRegion.remote`).
        data: Anything that JSON can carry, for the peer.
        options: What this end offers.
        receives: Receives to post on each queue pair before the peer can send; an immediate that finds none
            is an error in MRC.
        timeout: Seconds in which the peer may yet begin to listen, and seconds that it may be silent.

    Raises:
        ConnectError: if the peer cannot be reached or does not answer in time, speaks another version or no
            such protocol, has another number of queue pairs, or refuses; the message says which.
        StateError, ArgumentError: if the queue pairs here cannot be connected so; the peer is told.
    """
    started = time.monotonic()
    connection = dial(host, port, "is the other end listening?", patience=timeout)
    left = max(0.1, timeout - (time.monotonic() - started))
    channel = Channel(connection, f"{host}:{port}", _MESSAGES)
    return _exchange(channel, True, qps, buffers, data, options or Options(), receives, left)


def _exchange(
    channel: Channel[Any],
    speaks_first: bool,
    qps: QueuePair | Sequence[QueuePair],
    buffers: Sequence[MemoryRegion | RemoteBuffer],
    data: JsonValue,
    options: Options,
    receives: int,
    timeout: float | None,
) -> Peer:
    """What both ends do. One speaks while the other listens, or long messages would wait for each other."""
    qps = [qps] if isinstance(qps, QueuePair) else list(qps)
    try:
        try:
            mine = _hello(qps, buffers, data, options)
            channel.send(_Greeting(protocol=PROTOCOL, version=VERSION))
            _check_version(channel.expect(_Greeting, timeout))
            if speaks_first:
                channel.send(mine)
            theirs = channel.expect(_Hello, timeout)
            if not speaks_first:
                channel.send(mine)
            _check(mine, theirs)
            for qp, own, other in zip(qps, mine.qps, theirs.qps, strict=True):
                _bring_up(qp, own, other, options, receives)
            # Nobody sends before both can receive.
            channel.send(_Ready())
        except Exception as error:
            _refuse(channel, str(error))
            raise
        channel.expect(_Ready, timeout)
    except BaseException:
        channel.close()
        raise
    return Peer(channel, theirs)


def _refuse(channel: Channel[Any], reason: str) -> None:
    # If the other end has gone, why is being raised already.
    with contextlib.suppress(ConnectError):
        channel.send(Refused(reason=reason[:1000]))


def _hello(
    qps: Sequence[QueuePair],
    buffers: Sequence[MemoryRegion | RemoteBuffer],
    data: JsonValue,
    options: Options,
) -> _Hello:
    if not qps:
        raise ArgumentError("connecting needs at least one queue pair")
    context = qps[0].context
    if any(qp.context is not context for qp in qps):
        raise ArgumentError("the queue pairs of one connection must belong to one context")
    parts = [buffer.remote() if isinstance(buffer, MemoryRegion) else buffer for buffer in buffers]

    def end(qp: QueuePair) -> _QpEnd:
        return _QpEnd(
            **own_end(qp, secrets.randbits(24)).model_dump(),
            path_mtu=options.path_mtu,
            mpr=options.mpr if qp.hint is None else qp.hint.mpr(context.receive_buffer, options.path_mtu),
            mpr_dest=options.mpr_dest,
            max_wimm=options.max_wimm,
            max_wimm_dest=options.max_wimm_dest,
            caps=int(options.caps),
        )

    try:
        return _Hello(
            device=context.device.name,
            qps=[end(qp) for qp in qps],
            buffers=[_Buffer(addr=b.addr, length=b.length, rkey=b.rkey) for b in parts],
            data=data,
        )
    except ValidationError as error:
        raise ArgumentError(f"what this end offers cannot be sent: {problem(error)}") from error


def _check_version(greeting: _Greeting) -> None:
    if greeting.protocol != PROTOCOL:
        raise ConnectError(f"the other end speaks {greeting.protocol[:50]!r}, this one {PROTOCOL}")
    if greeting.version != VERSION:
        raise ConnectError(
            f"version {greeting.version} of {PROTOCOL} meets version {VERSION}: both ends must have the same"
        )


def _check(mine: _Hello, theirs: _Hello) -> None:
    if len(mine.qps) != len(theirs.qps):
        raise ConnectError(
            f"{theirs.device} has {len(theirs.qps)} queue pairs, this end has {len(mine.qps)}:"
            " both must have as many"
        )
    ours, others = (ip_address(end.qps[0].addresses[0][0]).version for end in (mine, theirs))
    if ours != others:
        raise ConnectError(
            f"{theirs.device} has IPv{others} ports, this end IPv{ours}: both must have the same"
        )


def _bring_up(qp: QueuePair, own: _QpEnd, other: _QpEnd, options: Options, receives: int) -> None:
    """To RTS, with what both can."""
    bring_up(
        qp,
        own.psn,
        other,
        min(own.path_mtu, other.path_mtu),
        receives=receives,
        rtr=QpAttr(
            mpr_dest=own.mpr_dest,
            max_wimm_dest=own.max_wimm_dest,
            caps=Capabilities(own.caps & other.caps),
            ev_profile_id=options.ev_profile_id,
            cc_profile_id=options.cc_profile_id,
            seed=options.seed,
        ),
        rts=QpAttr(
            mpr=min(own.mpr, other.mpr_dest),
            max_wimm=min(own.max_wimm, other.max_wimm_dest),
            timeout=options.timeout,
            linear_cnt=options.linear_cnt,
            exp_cnt=options.exp_cnt,
        ),
    )
