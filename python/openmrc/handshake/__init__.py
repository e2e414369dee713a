"""How two programs meet: the one handshake of ``openmrc.connect``, ``write-bw``, ``write-lat`` and ``put``.

Tokens, offers, accepts, deadlines and refusals live here and nowhere else; :class:`Protocol` shows the
exchange.
"""

from openmrc.channel import LostError, MalformedError, Refused
from openmrc.handshake.addresses import AddressRule
from openmrc.handshake.end import End, Options
from openmrc.handshake.exchange import (
    TIMEOUT,
    Answering,
    Calling,
    Deadline,
    GreetingError,
    Listener,
    answering,
    calling,
    describe,
    dial,
    refuse,
)
from openmrc.handshake.messages import (
    U32,
    U64,
    VERSION,
    Accept,
    Buffer,
    Greeting,
    Offer,
    Protocol,
    QpEnd,
    Ready,
    Request,
)
from openmrc.handshake.token import Token

__all__ = [
    "TIMEOUT",
    "U32",
    "U64",
    "VERSION",
    "Accept",
    "AddressRule",
    "Answering",
    "Buffer",
    "Calling",
    "Deadline",
    "End",
    "Greeting",
    "GreetingError",
    "Listener",
    "LostError",
    "MalformedError",
    "Offer",
    "Options",
    "Protocol",
    "QpEnd",
    "Ready",
    "Refused",
    "Request",
    "Token",
    "answering",
    "calling",
    "describe",
    "dial",
    "refuse",
]
