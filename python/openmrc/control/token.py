"""The token that two ends share, and how each proves that it has it. The token itself is never sent."""

import hmac
import os
import stat
from pathlib import Path

from openmrc.errors import ArgumentError

ENVIRONMENT = "OPENMRC_TOKEN"
"""Variable from which the commands take the token if no file is named."""

MIN_BYTES = 16
"""Shorter tokens are refused: an attacker who has recorded a handshake has unlimited time for guesses."""

_MAX_BYTES = 4096
_LABEL = b"openmrc handshake 2 "


class Token:
    """A shared secret.

    Args:
        secret: 16 to 4096 bytes that cannot be guessed, such as the output of ``openssl rand -hex 32``.

    Raises:
        ArgumentError: if it is too short or too long.
    """

    def __init__(self, secret: str | bytes) -> None:
        self._secret = secret.encode("utf-8", "surrogateescape") if isinstance(secret, str) else secret
        if not MIN_BYTES <= len(self._secret) <= _MAX_BYTES:
            raise ArgumentError(
                f"a token has {MIN_BYTES} to {_MAX_BYTES} bytes, not {len(self._secret)};"
                " `openssl rand -hex 32` makes one"
            )

    @classmethod
    def from_file(cls, path: Path) -> "Token":
        """The contents of a file, without white space at both ends.

        Raises:
            OSError: if it cannot be read.
            ArgumentError: if every user of the machine may read or write it, or it is no token.
        """
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if stat.S_ISREG(status.st_mode) and status.st_mode & 0o007:
                raise ArgumentError(f"every user may open {path}, which holds a token: chmod o= {path}")
            secret = file.read(_MAX_BYTES + 64).strip()
        try:
            return cls(secret)
        except ArgumentError as error:
            raise ArgumentError(f"{path}: {error}") from None

    @classmethod
    def from_environment(cls) -> "Token | None":
        """The value of ``OPENMRC_TOKEN``; ``None`` if it is not set or empty.

        Raises:
            ArgumentError: if it is no token.
        """
        secret = os.environ.get(ENVIRONMENT, "").strip()
        try:
            return cls(secret) if secret else None
        except ArgumentError as error:
            raise ArgumentError(f"{ENVIRONMENT}: {error}") from None

    def matches(self, given: str) -> bool:
        """Whether a text is this token; takes a time that does not tell how much of it is right."""
        return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._secret)

    def in_clear(self) -> str:
        """The token itself, for an HTTP header over TLS or loopback.

        Raises:
            ArgumentError: if it has other characters than a header may have.
        """
        text = self._secret.decode("ascii", "replace")
        if not all("!" <= character <= "~" for character in text):
            raise ArgumentError("a token that goes into an HTTP header has visible ASCII characters only")
        return text

    def proof(self, role: str, transcript: bytes) -> bytes:
        """What only an end with this token can compute.

        Args:
            role: Which end proves it, ``caller`` or ``listener``: a proof cannot be sent back as the other's.
            transcript: Both greetings, each with a nonce: a proof is good for one connection.
        """
        return self._derive(f"proof of {role}", transcript)

    def key(self, role: str, transcript: bytes) -> bytes:
        """The key for the tags of the messages that this end sends after the proofs."""
        return self._derive(f"key of {role}", transcript)

    def _derive(self, purpose: str, transcript: bytes) -> bytes:
        return hmac.digest(self._secret, _LABEL + purpose.encode() + b"\0" + transcript, "sha256")

    def __repr__(self) -> str:
        return f"<Token of {len(self._secret)} bytes>"
