"""What control connections carry: typed JSON messages, their limits, and the two of the greeting.

The other end is not trusted: every message is validated against its model before it is used. No message
carries code.
"""

import functools
import operator
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError

from openmrc.control.errors import MalformedError
from openmrc.printable import printable

VERSION = 2
"""Version of the greeting, the same for every protocol. Raise it whenever a message below changes."""

NONCE_BYTES = 16
"""Random bytes in a greeting of an end that has a token."""

GREETING_LIMIT = 1 << 10
"""Bytes of a greeting and of a proof."""

FIRST_LIMIT = 4 << 20
"""Bytes of a message after the greeting, until the program says otherwise: enough for 16,384 queue pairs."""

MAX_MESSAGE = 64 << 20
"""Bytes of the longest message of any protocol."""

EXPANSION = 24
"""Bytes of memory that a byte of JSON can cost while it is parsed: ``[[],[],...`` becomes objects."""

_PROBLEM_LIMIT = 300


class Message(BaseModel):
    """Base of all messages. Each kind has a field ``type`` with a value of its own."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True, strict=True)


class Refused(Message):
    """The sender cannot go on, and says why."""

    type: Literal["refused"] = "refused"
    reason: Annotated[str, Field(max_length=4096)]


class Greeting(Message):
    """The first message of both ends. It is the same in every version; unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    type: Literal["greeting"] = "greeting"
    handshake: int = VERSION
    protocol: str
    version: int
    nonce: Annotated[str, Field(pattern=f"^[0-9a-f]{{{2 * NONCE_BYTES}}}$")] | None = None
    """Random, in hexadecimal, new for every connection. Present if the sender has a token."""


class Proof(Message):
    """Proves that the sender has the token (:meth:`openmrc.control.token.Token.proof`)."""

    type: Literal["proof"] = "proof"
    mac: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


K = TypeVar("K", bound=Message)


class Protocol:
    """What two programs speak over a control connection.

    ::

        caller                                              listener
        Greeting {protocol, version, nonce}         ->
                                                    <-      Greeting {protocol, version, nonce}
        Proof {HMAC}                                ->
                                                    <-      Proof {HMAC}

    Nonces and proofs are there if both ends have a token; if only one has, they part. After the proofs every
    message has a tag (:meth:`openmrc.control.channel.Channel.seal`).

    An end that cannot go on sends ``Refused`` with a reason instead, except to a stranger whose first bytes
    are no message at all.

    Args:
        name: What a greeting says; other names are refused.
        version: Of the messages of this protocol.
        kinds: The messages that follow the greeting.
    """

    def __init__(self, name: str, version: int, *kinds: type[Message]) -> None:
        self.name = name
        self.version = version
        self.messages: TypeAdapter[Any] = messages(Greeting, Proof, Refused, *kinds)


def messages(*kinds: type[Message]) -> TypeAdapter[Any]:
    """What a channel may carry: messages of these kinds, told apart by their ``type``."""
    union: Any = functools.reduce(operator.or_, kinds)
    return TypeAdapter(Annotated[union, Field(discriminator="type")])


def parse(model: type[K], data: JsonValue, peer: str) -> K:
    """The ``data`` of a message as a model.

    Raises:
        MalformedError: names the field that is wrong.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise MalformedError(f"{peer} sent a malformed message: {problem(error)}") from None


def problem(error: ValidationError) -> str:
    """The first thing that is wrong with a message: the field, and what is wrong with it."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    # Both parts may quote what the other end sent.
    return printable(f"{where}: {first['msg']}" if where else first["msg"])[:_PROBLEM_LIMIT]
