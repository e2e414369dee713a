"""SRv6 mode from a fabric's specification: this host's ports, and the source routes to each peer."""

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

from openmrc.errors import ArgumentError
from openmrc.fabric import EvSet, Fabric
from openmrc.verbs import Device, Port, SocketAddress
from openmrc.wire import EvFormat

_IF_INET6 = Path("/proc/net/if_inet6")


@dataclass(frozen=True, slots=True)
class SourceRoutes:
    """The paths from one host of a fabric to the others."""

    fabric: Fabric
    host: str
    """Which host of the fabric this is: ``h3``."""
    peer: str | None = None
    """Which host every peer is; ``None``: found by the peer's address."""
    active: int | None = None
    """Paths in rotation over all planes; default the fabric's."""

    @classmethod
    def here(
        cls, fabric: Fabric, *, host: str | None = None, peer: str | None = None, active: int | None = None
    ) -> "SourceRoutes":
        """The routes of the host that has this machine's addresses, unless ``host`` names one.

        Raises:
            ArgumentError: if there is no such host, or this machine has the addresses of none or of several.
        """
        if host is None:
            found = {fabric.host_of_address(address) for address in own_addresses()} - {None}
            if len(found) != 1:
                owned = ", ".join(sorted(map(str, found))) or "no host"
                raise ArgumentError(
                    f"this machine has the addresses of {owned} of fabric {fabric.spec.name}:"
                    " name the host that it is (--this-host h0)"
                )
            [host] = found
        for name in (host, peer):
            if name is not None:
                fabric.host(name)
        return cls(fabric, str(host), peer, active)

    def paths_to(self, remote: Sequence[SocketAddress]) -> EvSet:
        """The paths to the host with these addresses, one per port.

        Raises:
            ArgumentError: if no host of the fabric has the address, or it is this one.
        """
        peer = self.peer or self.fabric.host_of_address(remote[0][0])
        if peer is None:
            raise ArgumentError(
                f"{remote[0][0]} is no host's address in fabric {self.fabric.spec.name}; name the peer's host"
                " (--peer-host h4)"
            )
        if peer == self.host:
            raise ArgumentError(f"{peer} is this host itself: SRv6 paths lead to another")
        return self.fabric.ev_set(self.host, peer, active=self.active)

    def siblings(self, address: str) -> list[str]:
        """All addresses of the fabric's host that has an address, or of the peer that was named."""
        host = self.peer
        if host is None and ":" in address:
            host = self.fabric.host_of_address(address)
        return [] if host is None else list(self.fabric.host_addresses(host))

    def device(self, ports: Sequence[Port] = (), **options: Any) -> Device:
        """A device that builds SRv6 frames and takes these routes.

        Args:
            ports: One per plane; default the host's own addresses.
            options: Other fields of the device.
        """
        options.setdefault("ev_format", EvFormat.SRV6)
        options.setdefault("paths_to", self.paths_to)
        own = [Port(address) for address in self.fabric.host_addresses(self.host)]
        return Device(ports=ports or own, **options)

    def first_hops(self, remote: Sequence[SocketAddress]) -> list[str]:
        """For each plane, the outer destination address of a path to a peer."""
        by_plane: dict[int, IPv6Address] = {}
        for entry in self.paths_to(remote).entries:
            by_plane.setdefault(entry.plane, entry.address)
        return [str(by_plane[plane]) for plane in sorted(by_plane)]


def own_addresses() -> list[str]:
    """The IPv6 addresses of this machine (of this network namespace)."""
    lines = _IF_INET6.read_text().splitlines() if _IF_INET6.exists() else []
    return [str(IPv6Address(bytes.fromhex(line.split()[0]))) for line in lines]
