"""The end that connects to a listener or server."""

import random
import time
from typing import Any

from openmrc.control import tcp
from openmrc.control.channel import ANSWER_TIMEOUT, Channel
from openmrc.control.deadline import Deadline
from openmrc.control.errors import GreetingError, LostError
from openmrc.control.greeting import greet
from openmrc.control.messages import Protocol
from openmrc.control.token import Token

_LEAST = 0.1
_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Seconds before a listener that ended the connection is tried again."""


def dial(
    protocol: Protocol,
    host: str,
    port: int,
    hint: str,
    *,
    token: Token | None = None,
    patience: float = 0.0,
    timeout: float | None = ANSWER_TIMEOUT,
) -> Channel[Any]:
    """Connects to a listener and exchanges greetings and, with a token, proofs.

    Args:
        protocol: What both must speak.
        host: Name or address.
        port: TCP port.
        hint: What to do if nothing listens there.
        token: What both ends must have; ``None``: neither may have one.
        patience: Seconds in which the listener may still start, or have too many strangers to greet this one.
        timeout: Seconds until it must have greeted; at least 0.1 for the greeting itself.

    Raises:
        ConnectError: if the listener cannot be reached.
        GreetingError: if the other end does not speak the protocol in this version, or has another token.
    """
    deadline, patient = Deadline(timeout), Deadline(patience)
    for pause in _PAUSES:
        try:
            return _dialled(protocol, host, port, hint, token, patient, deadline)
        except GreetingError as error:
            # A listener with too many strangers ends the oldest: where many come at once, a peer may be one.
            if not isinstance(error.__cause__, LostError) or patient.over or deadline.over:
                raise
        time.sleep(pause * random.uniform(0.5, 1.5))
    return _dialled(protocol, host, port, hint, token, patient, deadline)


def _dialled(
    protocol: Protocol,
    host: str,
    port: int,
    hint: str,
    token: Token | None,
    patient: Deadline,
    deadline: Deadline,
) -> Channel[Any]:
    connection = tcp.dial(host, port, hint, patience=patient.left() or 0.0, timeout=deadline.left())
    channel = Channel(connection, f"{host}:{port}", protocol.messages)
    left = deadline.left()
    try:
        greet(channel, protocol, token, Deadline(None if left is None else max(_LEAST, left)))
    except BaseException:
        channel.close()
        raise
    return channel
