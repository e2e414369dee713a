"""How two programs meet: the one handshake of ``openmrc.connect``, ``write-bw``, ``write-lat`` and ``put``.

Offers, accepts, deadlines and refusals live here and nowhere else; :class:`Protocol` shows the exchange.
Before the greetings have been exchanged, nothing may open a device, register memory or reveal a key.
"""

import contextlib
import errno
import secrets
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, JsonValue, TypeAdapter, ValidationError, field_validator

from openmrc import _core, channel
from openmrc.channel import (
    ANSWER_TIMEOUT,
    Channel,
    MalformedError,
    Message,
    Refused,
    messages,
    plain_address,
    problem,
)
from openmrc.closing import Closable
from openmrc.errors import ArgumentError, ClosedError, ConnectError, DeadlineError
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
from openmrc.wire import EvFormat

VERSION = 1
"""Version of the handshake itself, the same for every protocol. Raise it whenever a message below changes."""

TIMEOUT = ANSWER_TIMEOUT
"""Seconds for a whole handshake, from the first greeting on."""

GREETING_TIMEOUT = 5.0
"""Seconds for a greeting. A stranger that connects and stays silent costs a listener no more than this."""

GREETING_LIMIT = 1 << 10
"""Bytes of a greeting."""

LIMIT = 4 << 20
"""Bytes of any other message of the handshake: enough for 16,384 queue pairs."""

_REASON_LIMIT = 1000
_SRV6 = {EvFormat.SRV6, EvFormat.SRV6_SRH}
_PAUSE = 0.1
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

U24 = Annotated[int, Field(ge=0, lt=1 << 24)]
U32 = Annotated[int, Field(ge=0, lt=1 << 32)]
U64 = Annotated[int, Field(ge=0, lt=1 << 64)]
PathMtu = Annotated[int, Field(ge=256, le=8192)]
_UdpPort = Annotated[int, Field(gt=0, lt=1 << 16)]
_Mpr = Annotated[int, Field(ge=1, le=255)]
_Wimm = Annotated[int, Field(ge=1, le=16384)]


def _are_addresses(addresses: list[SocketAddress]) -> list[SocketAddress]:
    for address, _ in addresses:
        ip_address(address)
    return addresses


class GreetingError(ConnectError):
    """The other end is not a peer: it did not greet, or greeted in another protocol or version."""


class Greeting(Message):
    """The first message of both ends. It is the same in every version; unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    type: Literal["greeting"] = "greeting"
    handshake: int = VERSION
    protocol: str
    version: int


class QpEnd(Message):
    """What one queue pair needs to know of the other. Windows and capabilities as in :class:`QpAttr`."""

    qp_num: U24
    psn: U24
    mpr: _Mpr
    mpr_dest: _Mpr
    max_wimm: _Wimm
    max_wimm_dest: _Wimm
    caps: Annotated[int, Field(ge=0, le=int(Capabilities.ALL))]


class Buffer(Message):
    """Memory that the peer may write."""

    addr: U64
    length: U64
    rkey: U32


class _Located(Message):
    addresses: Annotated[list[tuple[str, _UdpPort]], Field(min_length=1, max_length=16)]
    """Address and UDP port of each port of the sender's device, by plane."""
    ev_format: EvFormat
    """Where the sender's device puts entropy values (:attr:`openmrc.verbs.Device.ev_format`)."""
    path_mtu: PathMtu
    """Most payload bytes per packet that the sender can use."""
    data: JsonValue = None
    """What the protocol adds."""

    @field_validator("addresses")
    @classmethod
    def _check_addresses(cls, addresses: list[SocketAddress]) -> list[SocketAddress]:
        return _are_addresses(addresses)


class Request(_Located):
    """What the caller wants."""

    type: Literal["request"] = "request"


class _Terms(_Located):
    device: Annotated[str, Field(max_length=256)]
    """Name of the sender's device."""
    qps: list[QpEnd]
    buffers: list[Buffer]


class Offer(_Terms):
    """The listener's queue pairs and buffers."""

    type: Literal["offer"] = "offer"


class Accept(_Terms):
    """The caller's queue pairs and buffers. With this, both ends know all they need."""

    type: Literal["accept"] = "accept"


class Ready(Message):
    """All queue pairs of this end are in RTS."""

    type: Literal["ready"] = "ready"


class Protocol:
    """What two programs speak after they have met.

    ::

        caller                                              listener
        Greeting {protocol, version}                ->
                                                    <-      Greeting {protocol, version}
        Request {addresses, path MTU, data}         ->
                                                    <-      Offer {queue pairs, buffers, path MTU, data}
        Accept {queue pairs, buffers, path MTU, data} ->
                                                    <-      Ready
        Ready                                       ->

    An end that cannot go on sends ``Refused`` with a reason instead, except to a stranger whose first bytes
    are no message at all. Both ends use the smaller path MTU and windows, and the capabilities that both
    have.

    Args:
        name: What a greeting says; other names are refused.
        version: Of the messages of this protocol.
        kinds: The messages that follow the handshake.
    """

    def __init__(self, name: str, version: int, *kinds: type[Message]) -> None:
        self.name = name
        self.version = version
        self.messages: TypeAdapter[Any] = messages(Greeting, Request, Offer, Accept, Ready, Refused, *kinds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What one end offers; names and units as in :class:`QpAttr`. ``None``: the NIC's default.

    Both ends use the smaller of two offered values. The others concern this end only.
    """

    path_mtu: int | None = None
    mpr: int | None = None
    mpr_dest: int | None = None
    max_wimm: int | None = None
    max_wimm_dest: int | None = None
    caps: Capabilities = Capabilities.ALL
    timeout: int | None = None
    linear_cnt: int | None = None
    exp_cnt: int | None = None
    ev_profile_id: int | None = None
    cc_profile_id: int | None = None
    seed: int | None = None

    def offered(self, name: str) -> int:
        """What is offered for a field: its value, or the NIC's default."""
        value = getattr(self, name)
        return _core.QP_DEFAULTS[name] if value is None else value


class End:
    """This end of a connection that is being made: its queue pairs, and what the peer may know of them.

    Args:
        qps: Queue pairs in RESET or INIT, all of one context.
        buffers: What the peer may write.
        data: What the protocol adds.
        options: What this end offers.
        receives: Receives to post on each queue pair before the peer can send.

    Raises:
        ArgumentError: if there is no queue pair, they are of several contexts, or an option is out of range.
    """

    def __init__(
        self,
        qps: Sequence[QueuePair],
        *,
        buffers: Sequence[MemoryRegion | RemoteBuffer] = (),
        data: JsonValue = None,
        options: Options | None = None,
        receives: int = 0,
    ) -> None:
        if not qps:
            raise ArgumentError("connecting needs at least one queue pair")
        self.context = qps[0].context
        if any(qp.context is not self.context for qp in qps):
            raise ArgumentError("the queue pairs of one connection must belong to one context")
        self.qps = list(qps)
        self.options = options or Options()
        self._receives = receives
        regions = [buffer.remote() if isinstance(buffer, MemoryRegion) else buffer for buffer in buffers]
        try:
            self._offer = Offer(
                addresses=list(self.context.addresses),
                ev_format=self.context.device.ev_format,
                path_mtu=self.options.offered("path_mtu"),
                device=self.context.device.name,
                qps=[self._describe(qp) for qp in self.qps],
                buffers=[Buffer(addr=b.addr, length=b.length, rkey=b.rkey) for b in regions],
                data=data,
            )
        except ValidationError as error:
            raise ArgumentError(f"this end cannot offer that: {problem(error)}") from error

    def offer(self) -> Offer:
        """What the listener sends."""
        return self._offer

    def accept(self) -> Accept:
        """What the caller sends."""
        return Accept.model_validate(self._offer.model_dump(exclude={"type"}))

    def connect(self, theirs: Offer | Accept) -> None:
        """Takes every queue pair to RTS.

        Raises:
            ConnectError: if the peer has another number of queue pairs, or a device of another kind.
            StateError, ArgumentError: if a queue pair cannot be connected.
        """
        mine = self._offer
        if len(mine.qps) != len(theirs.qps):
            raise ConnectError(
                f"{theirs.device} has {len(theirs.qps)} queue pairs, this end has {len(mine.qps)}:"
                " both must have the same number"
            )
        _check_device(self.context, theirs)
        for qp, own, other in zip(self.qps, mine.qps, theirs.qps, strict=True):
            self._bring_up(qp, own, other, theirs)

    def _describe(self, qp: QueuePair) -> QpEnd:
        offered = self.options.offered
        mpr = offered("mpr")
        if qp.hint is not None:
            mpr = qp.hint.mpr(self.context.receive_buffer, offered("path_mtu"))
        return QpEnd(
            qp_num=qp.qp_num,
            psn=secrets.randbits(24),
            mpr=mpr,
            mpr_dest=offered("mpr_dest"),
            max_wimm=offered("max_wimm"),
            max_wimm_dest=offered("max_wimm_dest"),
            caps=int(self.options.caps),
        )

    def _bring_up(self, qp: QueuePair, own: QpEnd, other: QpEnd, theirs: Offer | Accept) -> None:
        options = self.options
        if qp.state is not QpState.INIT:
            qp.modify(QpState.INIT)
        if self._receives:
            qp.post_recv(self._receives)
        qp.modify(
            QpState.RTR,
            QpAttr(
                remote=theirs.addresses,
                dest_qp_num=other.qp_num,
                rq_psn=other.psn,
                path_mtu=min(options.offered("path_mtu"), theirs.path_mtu),
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


def _check_device(context: Context, theirs: _Located) -> None:
    """Refuses a peer whose packets this device would not understand."""
    ours, others = (ip_address(end[0][0]).version for end in (context.addresses, theirs.addresses))
    if ours != others:
        raise ConnectError(
            f"the other end has IPv{others} ports, this end IPv{ours}: both must have the same"
        )
    own = context.device.ev_format
    if own is not theirs.ev_format and not {own, theirs.ev_format} <= _SRV6:
        raise ConnectError(
            f"the other end has entropy values of format {theirs.ev_format.value}, this end {own.value}:"
            " both must have the same"
        )


class Listener(Closable):
    """Waits for callers.

    Args:
        protocol: What it speaks.
        host: Address to listen on; empty: all.
        port: TCP port; 0: any free one.

    Raises:
        DeviceError: if it cannot listen there.
    """

    def __init__(self, protocol: Protocol, host: str, port: int) -> None:
        self._protocol = protocol
        self._socket = channel.listen(host, port)
        self._closed = False

    @property
    def address(self) -> tuple[str, int]:
        """Address and port it listens on."""
        host, port, *_ = self._socket.getsockname()
        return host, port

    def accept(self, timeout: float | None = None) -> Channel[Any]:
        """Waits for a TCP connection. A broken connection or a lack of descriptors does not end it.

        Args:
            timeout: Seconds; ``None``: no limit.

        Raises:
            DeadlineError: if nobody connects in time.
            ClosedError: if the listener is closed, now or meanwhile.
        """
        deadline = _Deadline(timeout)
        while True:
            left = deadline.left()
            try:
                self._socket.settimeout(None if left is None else max(0.001, left))
                connection, (host, port, *_) = self._socket.accept()
            except OSError as error:
                if self._closed:
                    raise ClosedError("the listener is closed") from None
                if isinstance(error, TimeoutError) or deadline.left() == 0:
                    where, at = self.address
                    raise DeadlineError(f"nobody connected to {where} port {at} within {timeout} s") from None
                if error.errno in _EXHAUSTED:
                    time.sleep(_PAUSE)  # The connection waits in the backlog.
                elif error.errno != errno.ECONNABORTED:
                    raise ConnectError(f"cannot accept a connection: {error.strerror or error}") from error
                continue
            # Limits per address belong here: for this peer nothing has been read or allocated yet.
            return Channel(connection, f"{plain_address(host)}:{port}", self._protocol.messages)

    def close(self) -> None:
        """Stops listening; who waits in :meth:`accept` gets a ClosedError."""
        self._closed = True
        with contextlib.suppress(OSError):  # Wakes a thread that waits in accept; nothing to wake is fine.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def dial(
    protocol: Protocol,
    host: str,
    port: int,
    hint: str,
    *,
    patience: float = 0.0,
    timeout: float | None = TIMEOUT,
) -> Channel[Any]:
    """Connects to a listener and exchanges greetings.

    Args:
        protocol: What both must speak.
        host: Name or address.
        port: TCP port.
        hint: What to do if nothing listens there.
        patience: Seconds in which the listener may still start.
        timeout: Seconds until it must have greeted; at least 0.1 for the greeting itself.

    Raises:
        ConnectError: if the listener cannot be reached.
        GreetingError: if the other end does not speak the protocol in this version.
    """
    deadline = _Deadline(timeout)
    link = Channel(channel.dial(host, port, hint, patience=patience), f"{host}:{port}", protocol.messages)
    left = deadline.left()
    with _closed_on_error(link):
        _greet(link, protocol, None if left is None else max(0.1, left), first=True)
    return link


class Calling:
    """The caller's side after the greetings: has the listener's offer, and accepts it."""

    def __init__(self, link: Channel[Any], offer: Offer, deadline: "_Deadline") -> None:
        self._link = link
        self._deadline = deadline
        self.offer = offer

    def accept(self, end: End) -> None:
        """Connects this end's queue pairs to those offered; on return both ends are in RTS.

        Raises:
            ConnectError: if the listener refuses, does not answer in time or goes away.
            StateError, ArgumentError: if a queue pair here cannot be connected.
        """
        self._link.send(end.accept())
        self._link.expect(Ready, self._deadline.left())
        end.connect(self.offer)
        self._link.send(Ready())


@contextlib.contextmanager
def calling(
    link: Channel[Any],
    context: Context,
    *,
    path_mtu: int | None = None,
    data: JsonValue = None,
    timeout: float | None = TIMEOUT,
) -> Iterator[Calling]:
    """Sends a request; yields the listener's offer. What the block raises is told to the listener.

    Args:
        link: What :func:`dial` returned.
        context: This end's device.
        path_mtu: Most payload bytes per packet; default the NIC's.
        data: The protocol's part of the request.
        timeout: Seconds for all of it.

    Raises:
        ConnectError: if the listener refuses, does not answer in time or goes away.
    """
    deadline = _Deadline(timeout)
    with _told(link):
        mtu = _core.QP_DEFAULTS["path_mtu"] if path_mtu is None else path_mtu
        request = Request(
            addresses=list(context.addresses), ev_format=context.device.ev_format, path_mtu=mtu, data=data
        )
        link.send(request)
        offer = link.expect(Offer, deadline.left())
        _check_device(context, offer)
        yield Calling(link, offer, deadline)
    link.limit = channel.MAX_MESSAGE


class Answering:
    """The listener's side after the greetings: has the caller's request, and makes an offer."""

    def __init__(self, link: Channel[Any], request: Request, deadline: "_Deadline") -> None:
        self._link = link
        self._deadline = deadline
        self.request = request

    def offer(self, end: End) -> Accept:
        """Offers this end's queue pairs and connects them; on return both ends are in RTS.

        Raises:
            ConnectError: if the caller refuses, does not answer in time or goes away.
            StateError, ArgumentError: if a queue pair here cannot be connected.
        """
        _check_device(end.context, self.request)
        self._link.send(end.offer())
        accept = self._link.expect(Accept, self._deadline.left())
        end.connect(accept)
        self._link.send(Ready())
        self._link.expect(Ready, self._deadline.left())
        return accept


@contextlib.contextmanager
def answering(
    link: Channel[Any], protocol: Protocol, *, timeout: float | None = TIMEOUT
) -> Iterator[Answering]:
    """Exchanges greetings; yields the caller's request. What the block raises is told to the caller.

    Args:
        link: What :meth:`Listener.accept` returned.
        protocol: What both must speak.
        timeout: Seconds for all of it.

    Raises:
        GreetingError: if the other end does not speak the protocol in this version.
        ConnectError: if it refuses, does not answer in time or goes away.
    """
    deadline = _Deadline(timeout)
    _greet(link, protocol, min(GREETING_TIMEOUT, timeout or GREETING_TIMEOUT), first=False)
    with _told(link):
        yield Answering(link, link.expect(Request, deadline.left()), deadline)
    link.limit = channel.MAX_MESSAGE


class _Deadline:
    """When a handshake must be over."""

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds

    def left(self) -> float | None:
        return None if self._end is None else max(0.0, self._end - time.monotonic())


def _greet(link: Channel[Any], protocol: Protocol, timeout: float | None, *, first: bool) -> None:
    """Exchanges greetings. Authentication belongs here: nothing has been opened or revealed yet."""
    mine = Greeting(protocol=protocol.name, version=protocol.version)
    link.limit = GREETING_LIMIT
    try:
        if first:
            link.send(mine)
        theirs = link.expect(Greeting, timeout)
    except ConnectError as error:
        raise GreetingError(str(error)) from None
    if reason := _mismatch(theirs, protocol):
        _refuse(link, reason)
        raise GreetingError(reason)
    if not first:
        link.send(mine)
    link.limit = LIMIT


def _mismatch(theirs: Greeting, protocol: Protocol) -> str | None:
    if theirs.handshake != VERSION:
        versions = f"version {theirs.handshake} of the handshake meets version {VERSION}"
        return f"{versions}: both ends must have the same"
    if theirs.protocol != protocol.name:
        return f"the other end speaks {theirs.protocol[:50]!r}, this one {protocol.name}"
    if theirs.version != protocol.version:
        return (
            f"version {theirs.version} of {protocol.name} meets version {protocol.version}:"
            " both ends must have the same"
        )
    return None


@contextlib.contextmanager
def _closed_on_error(link: Channel[Any]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        link.close()
        raise


@contextlib.contextmanager
def _told(link: Channel[Any]) -> Iterator[None]:
    """Tells the other end why this one gives up."""
    try:
        yield
    except Exception as error:
        _refuse(link, str(error))
        raise


def _refuse(link: Channel[Any], reason: str) -> None:
    # If the other end has gone already, the first cause is the one to raise.
    with contextlib.suppress(ConnectError):
        link.send(Refused(reason=reason[:_REASON_LIMIT]))


__all__ = [
    "TIMEOUT",
    "U24",
    "U32",
    "U64",
    "VERSION",
    "Accept",
    "Answering",
    "Buffer",
    "Calling",
    "End",
    "Greeting",
    "GreetingError",
    "Listener",
    "MalformedError",
    "Offer",
    "Options",
    "PathMtu",
    "Protocol",
    "QpEnd",
    "Ready",
    "Refused",
    "Request",
    "answering",
    "calling",
    "dial",
]
