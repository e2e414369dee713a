"""The exchange of the handshake: listener and caller, greetings, deadlines, refusals.

Before the greetings have been exchanged, nothing may open a device, register memory or reveal a key.
"""

import contextlib
import errno
import hmac
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import JsonValue

from openmrc import _core, channel
from openmrc.channel import ANSWER_TIMEOUT, Channel, Refused, messages, plain_address
from openmrc.closing import Closable
from openmrc.errors import ClosedError, ConnectError, DeadlineError
from openmrc.handshake.addresses import AddressRule
from openmrc.handshake.end import End, check_device
from openmrc.handshake.messages import (
    NONCE_BYTES,
    VERSION,
    Accept,
    Greeting,
    Located,
    Offer,
    Proof,
    Protocol,
    Ready,
    Request,
)
from openmrc.handshake.token import ENVIRONMENT, Token
from openmrc.verbs import Context

TIMEOUT = ANSWER_TIMEOUT
"""Seconds for a whole handshake, from the first greeting on."""

GREETING_TIMEOUT = 5.0
"""Seconds for a greeting and a proof. A silent stranger costs a listener no more than this."""

GREETING_LIMIT = 1 << 10
"""Bytes of a greeting."""

LIMIT = 4 << 20
"""Bytes of any other message of the handshake: enough for 16,384 queue pairs."""

NO_DESCRIPTORS = "no file descriptors are left for another connection; try again later"
"""Reason of a refusal."""

_REASON_LIMIT = 1000
_LINGER = 1.0
"""Seconds in which the other end must read a refusal and close."""
_PAUSE = 0.1
_SHORTAGE = 1.0
"""Seconds without a free descriptor after which a caller is refused rather than left to wait."""
_OF_THE_CONNECTION = (
    *(errno.ECONNABORTED, errno.EPROTO, errno.ENOPROTOOPT, errno.EOPNOTSUPP, errno.EPERM),
    *(errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENONET),
)
"""Errors of accept that concern one connection and not the listener (accept(2))."""

_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class GreetingError(ConnectError):
    """The other end is no peer: no greeting, another protocol or version, or another token."""


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
        self._spare = _Spare()

    @property
    def address(self) -> tuple[str, int]:
        """Address and port it listens on."""
        host, port, *_ = self._socket.getsockname()
        return host, port

    def accept(self, timeout: float | None = None) -> Channel[Any]:
        """Waits for a TCP connection. Neither a broken connection nor a lack of descriptors ends it.

        A caller for whom there has been no descriptor for a second is refused with that reason.

        Args:
            timeout: Seconds; ``None``: no limit.

        Raises:
            DeadlineError: if nobody connects in time.
            ClosedError: if the listener is closed, now or meanwhile.
        """
        deadline = Deadline(timeout)
        shortage: Deadline | None = None
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
                    shortage = shortage or Deadline(_SHORTAGE)
                    time.sleep(_PAUSE)  # The connection waits in the backlog.
                    if shortage.left() == 0:
                        self._spare.refuse_one(self._socket)
                elif error.errno not in _OF_THE_CONNECTION:
                    raise ConnectError(f"cannot accept a connection: {error.strerror or error}") from error
                continue
            return Channel(connection, f"{plain_address(host)}:{port}", self._protocol.messages)

    def close(self) -> None:
        """Stops listening; a thread that waits in :meth:`accept` gets a ClosedError."""
        self._closed = True
        # In the child of a fork, shutdown would end the parent's listener.
        if os.getpid() == self._process:
            # It wakes a thread that waits in accept; nothing to wake is fine.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._spare.close()


class _Spare:
    """A descriptor in reserve, so that a caller gets an error when there are none."""

    def __init__(self) -> None:
        self._fd = -1
        self._take()

    def refuse_one(self, listening: socket.socket) -> None:
        """Accepts a connection, says why it cannot be served, and ends it."""
        self.close()
        try:
            listening.settimeout(0.001)
            connection, (host, port, *_) = listening.accept()
            with Channel(connection, f"{host}:{port}", messages(Refused)) as link:
                refuse(link, NO_DESCRIPTORS)
        except OSError:
            pass  # Another thread took the descriptor, or the caller has gone.
        finally:
            self._take()

    def close(self) -> None:
        """Gives the descriptor up."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def _take(self) -> None:
        with contextlib.suppress(OSError):
            self._fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def dial(
    protocol: Protocol,
    host: str,
    port: int,
    hint: str,
    *,
    token: Token | None = None,
    patience: float = 0.0,
    timeout: float | None = TIMEOUT,
) -> Channel[Any]:
    """Connects to a listener and exchanges greetings and, with a token, proofs.

    Args:
        protocol: What both must speak.
        host: Name or address.
        port: TCP port.
        hint: What to do if nothing listens there.
        token: What both ends must have; ``None``: neither may have one.
        patience: Seconds in which the listener may still start.
        timeout: Seconds until it must have greeted; at least 0.1 for the greeting itself.

    Raises:
        ConnectError: if the listener cannot be reached.
        GreetingError: if the other end does not speak the protocol in this version, or has another token.
    """
    deadline = Deadline(timeout)
    link = Channel(channel.dial(host, port, hint, patience=patience), f"{host}:{port}", protocol.messages)
    left = deadline.left()
    with _closed_on_error(link):
        _greet(link, protocol, Deadline(None if left is None else max(0.1, left)), token, first=True)
    return link


class Calling:
    """The caller's side after the greetings: has the listener's offer, and accepts it."""

    def __init__(self, link: Channel[Any], offer: Offer, rule: AddressRule, deadline: "Deadline") -> None:
        self._link = link
        self._rule = rule
        self._deadline = deadline
        self.offer = offer

    def accept(self, end: End) -> None:
        """Connects this end's queue pairs to those offered; on return both ends are in RTS.

        After an error this end's are in RESET.

        Raises:
            ConnectError: if the listener refuses, does not answer in time or goes away.
            StateError, ArgumentError: if a queue pair here cannot be connected.
        """
        _check_addresses(self._rule, self._link, self.offer)
        end.limit_path_mtu(self.offer)
        self._link.send(end.accept())
        self._link.expect(Ready, self._deadline.left())
        end.connect(self.offer)
        with end.reset_on_error():
            end.prove_path_mtu()
            self._link.send(Ready())


@contextlib.contextmanager
def calling(
    link: Channel[Any],
    context: Context,
    *,
    path_mtu: int | None = None,
    data: JsonValue = None,
    addresses: AddressRule | None = None,
    timeout: float | None = TIMEOUT,
) -> Iterator[Calling]:
    """Sends a request; yields the listener's offer. An error that the block raises is sent to the listener.

    Args:
        link: What :func:`dial` returned.
        context: This end's device.
        path_mtu: Most payload bytes per packet; default the NIC's.
        data: The protocol's part of the request.
        addresses: Which addresses the listener may offer; default its own.
        timeout: Seconds for all of it.

    Raises:
        ConnectError: if the listener refuses, does not answer in time or goes away, or offers addresses that
            are not its own.
    """
    deadline = Deadline(timeout)
    rule = addresses or AddressRule()
    with _reported_to_peer(link):
        mtu = _core.QP_DEFAULTS["path_mtu"] if path_mtu is None else path_mtu
        request = Request(
            addresses=list(context.addresses), ev_format=context.device.ev_format, path_mtu=mtu, data=data
        )
        link.send(request)
        offer = link.expect(Offer, deadline.left())
        check_device(context, offer)
        yield Calling(link, offer, rule, deadline)
    link.limit = channel.MAX_MESSAGE


class Answering:
    """The listener's side after the greetings: has the caller's request, and makes an offer."""

    def __init__(self, link: Channel[Any], request: Request, rule: AddressRule, deadline: "Deadline") -> None:
        self._link = link
        self._rule = rule
        self._deadline = deadline
        self.request = request

    def check(self, context: Context) -> None:
        """Refuses a caller whose packets a device would not understand.

        Raises:
            ConnectError: says what differs.
        """
        check_device(context, self.request)

    def offer(self, end: End) -> Accept:
        """Offers this end's queue pairs and connects them; on return both ends are in RTS.

        After an error this end's are in RESET.

        Raises:
            ConnectError: if the caller refuses, does not answer in time or goes away.
            StateError, ArgumentError: if a queue pair here cannot be connected.
        """
        self.check(end.context)
        end.limit_path_mtu(self.request)
        self._link.send(end.offer())
        accept = self._link.expect(Accept, self._deadline.left())
        _check_addresses(self._rule, self._link, accept)
        end.connect(accept)
        with end.reset_on_error():
            self._link.send(Ready())
            self._link.expect(Ready, self._deadline.left())
            end.prove_path_mtu()
        return accept


@contextlib.contextmanager
def answering(
    link: Channel[Any],
    protocol: Protocol,
    *,
    token: Token | None = None,
    addresses: AddressRule | None = None,
    admit: Callable[[], None] = lambda: None,
    timeout: float | None = TIMEOUT,
) -> Iterator[Answering]:
    """Exchanges greetings and, with a token, proofs; yields the caller's request.

    An error that the block or ``admit`` raises is sent to the caller.

    Args:
        link: What :meth:`Listener.accept` returned.
        protocol: What both must speak.
        token: What both ends must have; ``None``: neither may have one.
        addresses: Which addresses the caller may offer; default its own.
        admit: Called once the caller is known to be one; raises if it cannot be served.
        timeout: Seconds for all of it.

    Raises:
        GreetingError: if the other end does not speak the protocol in this version, or has another token.
        ConnectError: if it refuses, does not answer in time or goes away, or offers addresses that are not
            its own.
    """
    deadline = Deadline(timeout)
    greeting = Deadline(GREETING_TIMEOUT if timeout is None else min(GREETING_TIMEOUT, timeout))
    _greet(link, protocol, greeting, token, first=False)
    rule = addresses or AddressRule()
    with _reported_to_peer(link):
        admit()
        request = link.expect(Request, deadline.left())
        # Before anything is opened, and before an answer reveals where this host has routes to.
        _check_addresses(rule, link, request)
        yield Answering(link, request, rule, deadline)
    link.limit = channel.MAX_MESSAGE


class Deadline:
    """When something must be over."""

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds

    def left(self) -> float | None:
        """Seconds until then, at least 0; ``None``: no limit."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())


def _greet(
    link: Channel[Any], protocol: Protocol, deadline: Deadline, token: Token | None, *, first: bool
) -> None:
    """Exchanges greetings and proofs. Nothing has been opened or revealed before."""
    nonce = None if token is None else secrets.token_hex(NONCE_BYTES)
    mine = Greeting(protocol=protocol.name, version=protocol.version, nonce=nonce)
    link.limit = GREETING_LIMIT
    try:
        if first:
            link.send(mine)
        theirs = link.expect(Greeting, deadline.left())
        if reason := _mismatch(theirs, protocol) or _one_token(theirs, token):
            refuse(link, reason)
            raise GreetingError(reason)
        if not first:
            link.send(mine)
        if token is not None:
            _authenticate(link, token, deadline, first=first)
    except GreetingError:
        raise
    except ConnectError as error:
        raise GreetingError(str(error)) from None
    link.limit = LIMIT


def _one_token(theirs: Greeting, token: Token | None) -> str | None:
    if (theirs.nonce is None) == (token is None):
        return None
    have, lack = ("this", "the other") if token is not None else ("the other", "this")
    return f"{have} end asks for a token and {lack} end has none: --token-file or {ENVIRONMENT} at both ends"


def _authenticate(link: Channel[Any], token: Token, deadline: Deadline, *, first: bool) -> None:
    """Proves that this end has the token, and has the other prove it.

    The caller proves first: a listener gives a stranger nothing on which guesses could be tried.
    """
    own, other = ("caller", "listener") if first else ("listener", "caller")
    sent, received = link.transcripts()
    transcript = sent + received if first else received + sent
    mine = Proof(mac=token.proof(own, transcript).hex())
    if first:
        link.send(mine)
    theirs: Proof = link.expect(Proof, deadline.left())
    if not hmac.compare_digest(theirs.mac, token.proof(other, transcript).hex()):
        reason = "the two ends have different tokens"
        refuse(link, reason)
        raise GreetingError(reason)
    if not first:
        link.send(mine)
    link.seal(sent=token.key(own, transcript), received=token.key(other, transcript))


def _check_addresses(rule: AddressRule, link: Channel[Any], offered: Located) -> None:
    rule.check(
        offered.addresses,
        local=link.local_address(),
        remote=link.remote_address(),
        authenticated=link.authenticated,
    )


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
def _reported_to_peer(link: Channel[Any]) -> Iterator[None]:
    """Tells the other end why this end cannot go on."""
    try:
        yield
    except Exception as error:
        refuse(link, describe(error))
        raise


def describe(error: Exception) -> str:
    """What the other end learns about an error: its text, without names of files."""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return NO_DESCRIPTORS
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)


def refuse(link: Channel[Any], reason: str) -> None:
    """Says why this end cannot go on, and lets the other end read it before the connection is closed."""
    # If the other end has gone already, the first cause is the one to raise.
    with contextlib.suppress(ConnectError, OSError):
        link.send(Refused(reason=reason[:_REASON_LIMIT]), _LINGER)
        link.finish(_LINGER)
