"""What the ranks of a communicator exchange through a store while they meet.

Every rank stores one value of each kind. A rank that fails stores its error instead of the values that are
missing, so that the ranks that wait for them end with that error and not at their time limit.
"""

import contextlib
import hashlib
import hmac
import time
from collections.abc import Sequence

from openmrc.collectives.store import Store
from openmrc.control import Token
from openmrc.errors import ConnectError, DeadlineError, Error
from openmrc.printable import printable

_VALUE, _FAILURE = b"+", b"!"
"""First byte of what is stored."""
_TAG = 32
"""Bytes of a tag: HMAC-SHA256."""
_LONGEST_REASON = 1000
_FAREWELL = 2.0
"""Seconds for which a rank that has failed waits for the others to learn of it: it may serve the store."""


class _JoinError(ConnectError):
    """Another rank has failed."""

    reason = ""
    """Who, and why, for those that wait for this rank."""


class Exchange:
    """The values of all ranks.

    Args:
        store: Where they are.
        prefix: Begin of their keys, the same at all ranks and used once.
        rank: This rank.
        size: Number of ranks.
        kinds: Kinds of values, in the order in which they are stored.
        timeout: Seconds for all ranks to come.
        token: The job's secret, for stores that do not ask for it themselves.
    """

    def __init__(
        self,
        store: Store,
        prefix: str,
        rank: int,
        size: int,
        kinds: Sequence[str],
        *,
        timeout: float,
        token: Token | None,
    ) -> None:
        self._store, self._prefix, self._rank, self._size = store, prefix, rank, size
        self._kinds, self._timeout, self._token = kinds, timeout, token
        self._deadline = time.monotonic() + timeout
        self._stored: set[str] = set()
        self._transcript: bytes | None = None

    def put(self, kind: str, value: bytes) -> None:
        """Stores this rank's value of a kind."""
        self._store.set(self._key(kind, self._rank), _VALUE + self._tag(kind, self._rank, value) + value)
        self._stored.add(kind)

    def get(self, kind: str, other: int) -> bytes:
        """A rank's value of a kind.

        Raises:
            DeadlineError: if the rank does not come.
            ConnectError: if it has failed, or has another token.
        """
        try:
            found = self._store.get(self._key(kind, other), max(self._deadline - time.monotonic(), 0.0))
        except DeadlineError:
            raise DeadlineError(
                f"rank {other} of {self._size} did not come within {self._timeout:.0f} s"
            ) from None
        if found[:1] == _FAILURE:
            reason = printable(found[1:].decode("utf-8", "replace"))
            error = _JoinError(f"the ranks cannot meet: {reason}")
            error.reason = reason
            raise error
        value = found[1:]
        if self._transcript is None:
            return value
        tag, value = value[:_TAG], value[_TAG:]
        if not hmac.compare_digest(tag, self._tag(kind, other, value)):
            raise ConnectError(
                f"rank {other} has another OPENMRC_TOKEN than rank {self._rank}: all ranks need the same"
            )
        return value

    def all(self, kind: str) -> list[bytes]:
        """The values of a kind, by rank."""
        return [self.get(kind, other) for other in range(self._size)]

    def seal(self, greetings: Sequence[bytes]) -> None:
        """From here on each value has a tag, which only ranks with the token can make.

        Args:
            greetings: What each rank has stored first, with a number used once: no tag can be used again.
        """
        if self._token is not None:
            self._transcript = hashlib.sha256(
                b"".join(len(each).to_bytes(8, "big") + each for each in greetings)
            ).digest()

    def secret(self, nonce: bytes) -> bytes:
        """32 bytes that only the ranks know; without a token whoever reads the store.

        Args:
            nonce: A number that was used once, the same at all ranks.
        """
        if self._token is None or self._transcript is None:
            return hashlib.sha256(nonce).digest()
        return self._token.key("lifelines", self._transcript + nonce)

    def fail(self, error: Exception) -> None:
        """Tells the ranks that wait for this one why it does not come, and waits until they know."""
        reason = error.reason if isinstance(error, _JoinError) else f"rank {self._rank}: {error}"
        with contextlib.suppress(Error, RuntimeError, OSError):  # The store may be what has failed.
            for kind in self._kinds:
                if kind not in self._stored:
                    value = _FAILURE + reason.encode("utf-8", "replace")[:_LONGEST_REASON]
                    self._store.set(self._key(kind, self._rank), value)
            self._store.set(self._key("left", self._rank), b"")
            until = time.monotonic() + _FAREWELL
            for other in () if isinstance(error, DeadlineError) else range(self._size):
                self._store.get(self._key("left", other), max(until - time.monotonic(), 0.0))

    def _key(self, kind: str, rank: int) -> str:
        return f"{self._prefix}/{kind}/{rank}"

    def _tag(self, kind: str, rank: int, value: bytes) -> bytes:
        if self._token is None or self._transcript is None:
            return b""
        return hmac.digest(self._token.key(f"rank {rank}, {kind}", self._transcript), value, "sha256")
