"""The greeting of two ends and, with a token, the proof of each that it has it.

Nothing is opened, registered or revealed before. The listener's part does not wait, so that one thread greets
many strangers side by side.
"""

import hmac
import secrets
from typing import Any

from openmrc.control.channel import Channel
from openmrc.control.deadline import Deadline
from openmrc.control.errors import GreetingError
from openmrc.control.messages import (
    FIRST_LIMIT,
    GREETING_LIMIT,
    NONCE_BYTES,
    VERSION,
    Greeting,
    Message,
    Proof,
    Protocol,
    Refused,
)
from openmrc.control.token import ENVIRONMENT, Token
from openmrc.errors import ConnectError
from openmrc.printable import printable

_NAME_LIMIT = 50
_OTHER_TOKEN = "the two ends have different tokens"


def greet(channel: Channel[Any], protocol: Protocol, token: Token | None, deadline: Deadline) -> None:
    """The caller's part: exchanges greetings and, with a token, proofs.

    Raises:
        GreetingError: if the other end does not speak the protocol in this version, has another token, or
            does not answer in time.
    """
    channel.limit = GREETING_LIMIT
    try:
        channel.send(_own(protocol, token))
        theirs = channel.expect(Greeting, deadline.left())
        if reason := _mismatch(theirs, protocol, token):
            channel.refuse(reason)
            raise GreetingError(reason)
        if token is not None:
            # The caller proves first: a listener gives a stranger nothing on which guesses could be tried.
            sent, received = channel.transcripts()
            transcript = sent + received
            channel.send(_proof(token, "caller", transcript))
            if not _proves(channel.expect(Proof, deadline.left()), token, "listener", transcript):
                channel.refuse(_OTHER_TOKEN)
                raise GreetingError(_OTHER_TOKEN)
            channel.seal(sent=token.key("caller", transcript), received=token.key("listener", transcript))
    except GreetingError:
        raise
    except ConnectError as error:
        raise GreetingError(str(error)) from error
    channel.limit = FIRST_LIMIT


class Answer:
    """The listener's part of a greeting.

    Args:
        channel: The connection; answers are queued on it.
        protocol: What both must speak.
        token: What both must have; ``None``: neither may have one.
    """

    def __init__(self, channel: Channel[Any], protocol: Protocol, token: Token | None) -> None:
        self._channel = channel
        self._protocol = protocol
        self._token = token
        self._transcript: bytes | None = None
        channel.limit = GREETING_LIMIT

    def take(self, message: Message) -> bool:
        """Takes the next message of the caller; whether the greeting is complete.

        Raises:
            GreetingError: if the caller is no peer; the reason is for it to read.
            MalformedError: if the message must not come now.
        """
        channel = self._channel
        if isinstance(message, Refused):
            raise channel.refused(message)
        if self._transcript is None:
            if not isinstance(message, Greeting):
                raise channel.unexpected(message)
            if reason := _mismatch(message, self._protocol, self._token):
                raise GreetingError(reason)
            channel.enqueue(_own(self._protocol, self._token))
            sent, received = channel.transcripts()
            self._transcript = received + sent
            if self._token is not None:
                return False
        else:
            if not isinstance(message, Proof) or self._token is None:
                raise channel.unexpected(message)
            token, transcript = self._token, self._transcript
            if not _proves(message, token, "caller", transcript):
                raise GreetingError(_OTHER_TOKEN)
            channel.enqueue(_proof(token, "listener", transcript))
            channel.seal(sent=token.key("listener", transcript), received=token.key("caller", transcript))
        channel.limit = FIRST_LIMIT
        return True


def _own(protocol: Protocol, token: Token | None) -> Greeting:
    nonce = None if token is None else secrets.token_hex(NONCE_BYTES)
    return Greeting(protocol=protocol.name, version=protocol.version, nonce=nonce)


def _proof(token: Token, role: str, transcript: bytes) -> Proof:
    return Proof(mac=token.proof(role, transcript).hex())


def _proves(proof: Proof, token: Token, role: str, transcript: bytes) -> bool:
    return hmac.compare_digest(proof.mac, token.proof(role, transcript).hex())


def _mismatch(theirs: Greeting, protocol: Protocol, token: Token | None) -> str | None:
    both = "both ends must have the same"
    if theirs.handshake != VERSION:
        return f"version {theirs.handshake} of the handshake meets version {VERSION}: {both}"
    if theirs.protocol != protocol.name:
        name = printable(theirs.protocol[:_NAME_LIMIT])
        return f"the other end speaks {name!r}, this one {protocol.name}"
    if theirs.version != protocol.version:
        return f"version {theirs.version} of {protocol.name} meets version {protocol.version}: {both}"
    if (theirs.nonce is None) != (token is None):
        have, lack = ("this", "the other") if token is not None else ("the other", "this")
        return (
            f"{have} end asks for a token and {lack} end has none: --token-file or {ENVIRONMENT} at both ends"
        )
    return None
