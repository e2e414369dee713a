"""The end that connects to a listener or server."""

from typing import Any

from openmrc.control import tcp
from openmrc.control.channel import ANSWER_TIMEOUT, Channel
from openmrc.control.deadline import Deadline
from openmrc.control.greeting import greet
from openmrc.control.messages import Protocol
from openmrc.control.token import Token

_LEAST = 0.1


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
        patience: Seconds in which the listener may still start.
        timeout: Seconds until it must have greeted; at least 0.1 for the greeting itself.

    Raises:
        ConnectError: if the listener cannot be reached.
        GreetingError: if the other end does not speak the protocol in this version, or has another token.
    """
    deadline = Deadline(timeout)
    connection = tcp.dial(host, port, hint, patience=patience, timeout=timeout)
    channel = Channel(connection, f"{host}:{port}", protocol.messages)
    left = deadline.left()
    try:
        greet(channel, protocol, token, Deadline(None if left is None else max(_LEAST, left)))
    except BaseException:
        channel.close()
        raise
    return channel
