"""The exchange of the handshake after the greeting: request, offer, accept, deadlines, refusals.

Before the greetings have been exchanged, nothing may open a device, register memory or reveal a key.
"""

import contextlib
import errno
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import JsonValue

from openmrc import _core
from openmrc.control.channel import ANSWER_TIMEOUT, Channel
from openmrc.control.deadline import Deadline
from openmrc.control.messages import MAX_MESSAGE
from openmrc.control.reception import NO_DESCRIPTORS
from openmrc.handshake.addresses import AddressRule
from openmrc.handshake.end import End, check_device
from openmrc.handshake.messages import Accept, Located, Offer, Ready, Request
from openmrc.verbs import Context

TIMEOUT = ANSWER_TIMEOUT
"""Seconds for a whole handshake, from the first message after the greeting on."""


class Calling:
    """The caller's side after the greetings: has the listener's offer, and accepts it."""

    def __init__(self, link: Channel[Any], offer: Offer, rule: AddressRule, deadline: Deadline) -> None:
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
        link: What :func:`openmrc.control.dial` returned.
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
    link.limit = MAX_MESSAGE


class Answering:
    """The listener's side after the greetings: has the caller's request, and makes an offer."""

    def __init__(self, link: Channel[Any], request: Request, rule: AddressRule, deadline: Deadline) -> None:
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
    *,
    addresses: AddressRule | None = None,
    admit: Callable[[], None] = lambda: None,
    timeout: float | None = TIMEOUT,
) -> Iterator[Answering]:
    """Yields the caller's request.

    An error that the block or ``admit`` raises is sent to the caller.

    Args:
        link: What :meth:`openmrc.control.Listener.accept` returned.
        addresses: Which addresses the caller may offer; default its own.
        admit: Called first; raises if the caller cannot be served.
        timeout: Seconds for all of it.

    Raises:
        ConnectError: if the caller refuses, does not answer in time or goes away, or offers addresses that
            are not its own.
    """
    deadline = Deadline(timeout)
    rule = addresses or AddressRule()
    with _reported_to_peer(link):
        admit()
        request = link.expect(Request, deadline.left())
        # Before anything is opened, and before an answer reveals where this host has routes to.
        _check_addresses(rule, link, request)
        yield Answering(link, request, rule, deadline)
    link.limit = MAX_MESSAGE


def _check_addresses(rule: AddressRule, link: Channel[Any], offered: Located) -> None:
    rule.check(
        offered.addresses,
        local=link.local_address(),
        remote=link.remote_address(),
        authenticated=link.authenticated,
    )


@contextlib.contextmanager
def _reported_to_peer(link: Channel[Any]) -> Iterator[None]:
    """Tells the other end why this end cannot go on."""
    try:
        yield
    except Exception as error:
        link.refuse(describe(error))
        raise


def describe(error: Exception) -> str:
    """What the other end learns about an error: its text, without names of files."""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return NO_DESCRIPTORS
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)
