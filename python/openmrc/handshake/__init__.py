"""How two programs connect queue pairs: the one handshake of ``openmrc.connect``, ``write-bw`` and ``put``.

Requests, offers and accepts live here and nowhere else; :class:`Protocol` shows the exchange.
"""

from openmrc.handshake.addresses import AddressRule
from openmrc.handshake.end import End, Options
from openmrc.handshake.exchange import TIMEOUT, Answering, Calling, answering, calling, describe
from openmrc.handshake.messages import U32, U64, Accept, Buffer, Offer, Protocol, QpEnd, Ready, Request

__all__ = [
    "TIMEOUT",
    "U32",
    "U64",
    "Accept",
    "AddressRule",
    "Answering",
    "Buffer",
    "Calling",
    "End",
    "Offer",
    "Options",
    "Protocol",
    "QpEnd",
    "Ready",
    "Request",
    "answering",
    "calling",
    "describe",
]
