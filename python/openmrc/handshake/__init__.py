"""How two programs meet: the one handshake of ``openmrc.connect``, ``write-bw``, ``write-lat`` and ``put``.

Offers, accepts, deadlines and refusals live here and nowhere else; :class:`Protocol` shows the exchange.
"""

from openmrc.channel import MalformedError, Refused
from openmrc.handshake.end import End, Options
from openmrc.handshake.exchange import (
    TIMEOUT,
    Answering,
    Calling,
    GreetingError,
    Listener,
    answering,
    calling,
    dial,
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

__all__ = [
    "TIMEOUT",
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
    "Protocol",
    "QpEnd",
    "Ready",
    "Refused",
    "Request",
    "answering",
    "calling",
    "dial",
]
