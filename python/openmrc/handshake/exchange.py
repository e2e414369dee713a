"""The exchange of the handshake: listener and caller, greetings, deadlines, refusals.

Before the greetings have been exchanged, nothing may open a device, register memory or reveal a key.
"""

import contextlib
import errno
import os
import socket
import time
from collections.abc import Iterator
from typing import Any

from pydantic import JsonValue

from openmrc import _core, channel
from openmrc.channel import ANSWER_TIMEOUT, Channel, Refused, plain_address
from openmrc.closing import Closable
from openmrc.errors import ClosedError, ConnectError, DeadlineError
from openmrc.handshake.end import End, check_device
from openmrc.handshake.messages import VERSION, Accept, Greeting, Offer, Protocol, Ready, Request
from openmrc.verbs import Context

TIMEOUT = ANSWER_TIMEOUT
"""Seconds for a whole handshake, from the first greeting on."""

GREETING_TIMEOUT = 5.0
"""Seconds for a greeting. A stranger that connects and stays silent costs a listener no more than this."""

GREETING_LIMIT = 1 << 10
"""Bytes of a greeting."""

LIMIT = 4 << 20
"""Bytes of any other message of the handshake: enough for 16,384 queue pairs."""

_REASON_LIMIT = 1000
_PAUSE = 0.1
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class GreetingError(ConnectError):
    """The other end is not a peer: it did not greet, or greeted in another protocol or version."""


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
        self._process = os.getpid()
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
        """Stops listening; a thread that waits in :meth:`accept` gets a ClosedError."""
        self._closed = True
        # In the child of a fork, shutdown would end the parent's listener.
        if os.getpid() == self._process:
            with contextlib.suppress(
                OSError
            ):  # Wakes a thread that waits in accept; nothing to wake is fine.
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
        end.prove_path_mtu()
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
        check_device(context, offer)
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
        check_device(end.context, self.request)
        self._link.send(end.offer())
        accept = self._link.expect(Accept, self._deadline.left())
        end.connect(accept)
        self._link.send(Ready())
        self._link.expect(Ready, self._deadline.left())
        end.prove_path_mtu()
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
    """Tells the other end why this end cannot go on."""
    try:
        yield
    except Exception as error:
        _refuse(link, str(error))
        raise


def _refuse(link: Channel[Any], reason: str) -> None:
    # If the other end has gone already, the first cause is the one to raise.
    with contextlib.suppress(ConnectError):
        link.send(Refused(reason=reason[:_REASON_LIMIT]))
