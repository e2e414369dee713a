"""Memory that peers may make this end use: an amount together, and a smaller one for each address.

Memory is reserved before it is allocated; a peer that asks for more is refused.
"""

import threading
from collections import Counter
from ipaddress import ip_address, ip_network

from openmrc.closing import Closable
from openmrc.control.errors import ExhaustedError

TOGETHER = 2 << 30
"""Bytes for all peers of a server."""

PER_ADDRESS = 1 << 30
"""Bytes for the peers of one address that have not proven a token."""

_IPV6_SITE = 64


def neighbourhood(address: str) -> str:
    """What counts as one address: an IPv4 address, or the /64 of an IPv6 address, which one host may have."""
    parsed = ip_address(address.partition("%")[0])
    if parsed.version == 4:
        return str(parsed)
    return str(ip_network((parsed, _IPV6_SITE), strict=False))


class Budget:
    """Bytes that peers may use.

    Args:
        together: All peers.
        per_address: The peers of one address that have not proven a token.
    """

    def __init__(self, together: int = TOGETHER, per_address: int = PER_ADDRESS) -> None:
        self.together = together
        self.per_address = per_address
        self._lock = threading.Lock()
        self._used = 0
        self._by_address: Counter[str] = Counter()

    @property
    def used(self) -> int:
        """Bytes that are reserved now."""
        return self._used

    def account(self, address: str) -> "Account":
        """What one peer reserves; its address shares a limit with others."""
        return Account(self, neighbourhood(address))

    def _change(self, address: str, amount: int, limit: int) -> int:
        """Adds to what is used; returns by how many bytes that is too much, and then changes nothing."""
        with self._lock:
            excess = max(self._used + amount - self.together, self._by_address[address] + amount - limit, 0)
            if amount < 0 or not excess:
                excess = 0
                self._used += amount
                self._by_address[address] += amount
            if not self._by_address[address]:
                del self._by_address[address]
            return excess


class Account(Closable):
    """What one peer has reserved. Closing gives all of it back."""

    def __init__(self, budget: Budget, address: str) -> None:
        self._budget = budget
        self._address = address
        self._lock = threading.Lock()
        self._closed = False
        self.trusted = False
        """Whether the peer has proven a token: then only the limit for all binds it."""
        self.reserved = 0
        """Bytes."""

    def reserve(self, amount: int, what: str) -> None:
        """Reserves memory that is about to be allocated.

        Args:
            amount: Bytes.
            what: For the error: what needs them.

        Raises:
            ExhaustedError: if too much is in use, or the account is closed.
        """
        budget = self._budget
        with self._lock:
            limit = budget.together if self.trusted else min(budget.per_address, budget.together)
            if self._closed:
                raise ExhaustedError(f"{what} needs {amount} bytes of memory, and the connection has ended")
            if budget._change(self._address, amount, limit):
                raise ExhaustedError(
                    f"{what} needs {amount} bytes of memory, of {limit} that"
                    f" {'all peers' if self.trusted else 'peers of this address'} may use here"
                )
            self.reserved += amount

    def release(self, amount: int) -> None:
        """Gives bytes back."""
        with self._lock:
            if not self._closed:
                self.reserved -= amount
                self._budget._change(self._address, -amount, 0)

    def close(self) -> None:
        """Gives everything back. Closing twice is harmless."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._budget._change(self._address, -self.reserved, 0)
                self.reserved = 0


class Hold:
    """A part of an account that grows and shrinks.

    Args:
        account: ``None``: nothing is counted.
    """

    def __init__(self, account: Account | None) -> None:
        self._account = account
        self._amount = 0

    def set(self, amount: int, what: str = "") -> None:
        """Reserves or gives back what the amount differs from the one before.

        Args:
            amount: Bytes.
            what: For the error, as of :meth:`Account.reserve`.

        Raises:
            ExhaustedError: as :meth:`Account.reserve`.
        """
        if self._account is None or amount == self._amount:
            return
        if amount > self._amount:
            self._account.reserve(amount - self._amount, what)
        else:
            self._account.release(self._amount - amount)
        self._amount = amount
