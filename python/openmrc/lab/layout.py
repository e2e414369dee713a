"""The namespaces and veth pairs of a fabric, and their names."""

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from openmrc.errors import ArgumentError
from openmrc.fabric import Fabric, SwitchId


class End(NamedTuple):
    """One end of a link."""

    node: str
    """``h3`` or ``p0/t1-2``."""
    port: str
    """Name of the interface: ``p0``, ``down3``, ``up1``."""
    address: str

    def __str__(self) -> str:
        return f"{self.node}:{self.port}"


class Link(NamedTuple):
    """A cable. The upper end is farther from the hosts."""

    name: str
    lower: End
    upper: End

    @property
    def ends(self) -> tuple[End, End]:
        """Both ends, the lower one first."""
        return (self.lower, self.upper)


class Layout:
    """The nodes and links of a lab, by name."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.switches: dict[str, SwitchId] = {str(switch): switch for switch in fabric.switches()}
        self.hosts: tuple[str, ...] = tuple(f"h{number}" for number in range(fabric.hosts))

    @property
    def nodes(self) -> tuple[str, ...]:
        """Every switch and host."""
        return (*self.switches, *self.hosts)

    @cached_property
    def links(self) -> dict[str, Link]:
        """Every link by name."""
        return {link.name: link for link in self._links()}

    def _links(self) -> Iterator[Link]:
        for name, switch in self.switches.items():
            for port in self.fabric.ports(switch):
                own = End(name, port.name, port.address)
                peer = End(port.peer, port.peer_port, port.peer_address)
                if port.is_uplink:
                    yield Link(port.link, own, peer)
                elif switch.tier == 0:
                    yield Link(port.link, peer, own)

    @cached_property
    def _by_end(self) -> dict[str, Link]:
        return {str(end): link for link in self.links.values() for end in link.ends}

    def links_of(self, node: str) -> list[Link]:
        """The links at a node."""
        return [link for link in self.links.values() if node in (link.lower.node, link.upper.node)]

    def link(self, name: str) -> Link:
        """The link with this name, or at the port with this name (``p0/t0-1:up2``, ``h3:p0``).

        Raises:
            ArgumentError: if there is none.
        """
        link = self.links.get(name) or self._by_end.get(name)
        if link is None:
            example = next(iter(self.links))
            raise ArgumentError(
                f"{name} is no link or port of this lab, nor a switch where one may be named; "
                f"write a link like {example} or one end of it"
            )
        return link

    def node(self, name: str) -> str:
        """Checks the name of a switch or host, and returns it.

        Raises:
            ArgumentError: if there is none.
        """
        if name in self.switches or name in self.hosts:
            return name
        raise ArgumentError(
            f"{name} is no node of this lab: hosts are h0 to {self.hosts[-1]}, a switch is p0/t0-0"
        )


def namespace(lab: str, node: str) -> str:
    """The name of a node's network namespace: ``openmrc-lab-p0-t1-2``."""
    return f"openmrc-{lab}-{node.replace('/', '-')}"
