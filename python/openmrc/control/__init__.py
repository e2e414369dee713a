"""One framed and authenticated channel for everything that is not the data path.

The handshake of queue pairs, transfers, measurements, the store and the coordinator of collectives speak over
it. Framing, tokens, greetings, deadlines, refusals and the limits of strangers are here and nowhere else.
"""

from openmrc.control.budget import Account, Budget
from openmrc.control.channel import Channel
from openmrc.control.client import dial
from openmrc.control.deadline import Deadline
from openmrc.control.errors import ExhaustedError, GreetingError, LostError, MalformedError
from openmrc.control.listener import Listener
from openmrc.control.messages import Greeting, Message, Protocol, Refused
from openmrc.control.reception import Limits
from openmrc.control.server import Server, Service
from openmrc.control.token import Token

__all__ = [
    "Account",
    "Budget",
    "Channel",
    "Deadline",
    "ExhaustedError",
    "Greeting",
    "GreetingError",
    "Limits",
    "Listener",
    "LostError",
    "MalformedError",
    "Message",
    "Protocol",
    "Refused",
    "Server",
    "Service",
    "Token",
    "dial",
]
