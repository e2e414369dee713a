"""Which addresses a peer may offer: its own, so that it cannot aim this end's packets at a third host."""

import errno
import socket
from collections.abc import Callable, Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from openmrc.errors import ArgumentError, ConnectError
from openmrc.verbs import SocketAddress

Address = IPv4Address | IPv6Address
_Network = IPv4Network | IPv6Network


class AddressRule:
    """Decides whether the addresses that a peer offers are its own.

    An address is the peer's own if it is the one from which the TCP connection comes, if both ends are on one
    machine and it is an address of this machine, or if ``siblings`` says so. Others have to be allowed.

    Args:
        allowed: Addresses and networks (``10.1.0.0/16``) that any peer may offer.
        siblings: All addresses of the host that has an address, where a plan of the network is known.
        trust_token: Whether an end that proved that it has the token may offer any address. Used only if
            ``allowed`` is empty: a list that was given is the rule for everybody.

    Raises:
        ArgumentError: if something in ``allowed`` is no address and no network.
    """

    def __init__(
        self,
        allowed: Iterable[str] = (),
        *,
        siblings: Callable[[str], Iterable[str]] | None = None,
        trust_token: bool = True,
    ) -> None:
        self._allowed = [_network(text) for text in allowed]
        self._siblings = siblings
        self._trust_token = trust_token and not self._allowed

    def check(
        self, offered: Sequence[SocketAddress], *, local: str, remote: str, authenticated: bool = False
    ) -> None:
        """Checks what a peer offers.

        Args:
            offered: Address and UDP port of each of its ports.
            local: This end's address of the TCP connection.
            remote: The peer's.
            authenticated: Whether the peer proved that it has the token.

        Raises:
            ConnectError: names the first address that is not the peer's.
        """
        if authenticated and self._trust_token:
            return
        here = local == remote or _parsed(remote).is_loopback
        own = {_parsed(remote)}
        if self._siblings is not None:
            own |= {_parsed(text) for text in self._siblings(remote)}
        for text, _ in offered:
            address = _parsed(text)
            if address in own or any(address in network for network in self._allowed):
                continue
            if not (here and _is_of_this_machine(address)):
                raise ConnectError(
                    f"the peer at {remote} offers the address {address}, which is not the one it connects"
                    f" from: allow it with --allow-address {address}, or use a token at both ends"
                )


def _network(text: str) -> _Network:
    try:
        return ip_network(text)
    except ValueError:
        raise ArgumentError(f"{text!r} is no address and no network such as 10.1.0.0/16") from None


def _parsed(text: str) -> Address:
    return ip_address(text.partition("%")[0])


def _is_of_this_machine(address: Address) -> bool:
    if address.is_unspecified or address.is_multicast:
        return False  # They can be bound, but are nobody's address.
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
            probe.connect(probe.getsockname())  # The address of a broadcast is refused here.
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            return False
    return True
