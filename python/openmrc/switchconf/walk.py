"""Walks packets through parsed configurations, hop by hop, as the switches would forward them.

Only the senders' path addresses come from the fabric's arithmetic. The neighbour at a port follows from the
addresses of the link ends; the action of a switch follows from its own entries and routes.
"""

from dataclasses import dataclass, field
from ipaddress import IPv6Address

from openmrc.switchconf.parse import Parsed, Route

_LIST = (1 << 96) - 1
_MOST_HOPS = 16


@dataclass
class Tables:
    """The forwarding table of one switch, by the 16 bits after the block."""

    own: set[int]
    routes: dict[int, Route]
    egress: dict[int, str]
    """uSID -> interface."""
    used: set[int] = field(default_factory=set)


@dataclass
class World:
    """All switches, and the neighbour at every link."""

    tables: dict[str, Tables]
    neighbours: dict[tuple[str, str], tuple[str, str]]
    """(switch, interface) -> (switch, interface)"""
    hosts: dict[tuple[str, str], str]
    """(switch, interface) -> host"""

    def deliver(self, switch: str, address: IPv6Address) -> tuple[str | None, str, str, Route | None]:
        """Sends one packet into a switch.

        Returns:
            The host that it reaches and "", or ``None`` and the reason; then the last switch with a route for
            it, and that route.
        """
        value = int(address)
        block, rest = value >> 96, value & _LIST
        last: tuple[str, Route | None] = (switch, None)
        for _ in range(_MOST_HOPS):
            tables = self.tables[switch]
            active = rest >> 80
            if active in tables.own:
                tables.used.add(active)
                rest = rest << 16 & _LIST
                active = rest >> 80
            route = tables.routes.get(active)
            if route is None:
                at = IPv6Address(block << 96 | rest)
                return None, f"{switch} has no route for {at}", *last
            tables.used.add(active)
            last = (switch, route)
            port = (switch, tables.egress[active])
            if port in self.hosts:
                return self.hosts[port], "", *last
            if port not in self.neighbours:
                return None, f"nothing is connected to {port[1]} of {switch}", *last
            switch = self.neighbours[port][0]
        return None, "it goes round in a loop", *last


def connect(addresses: dict[str, dict[str, int]]) -> dict[tuple[str, str], tuple[str, str]]:
    """Connects interfaces whose addresses share a /127.

    Args:
        addresses: Switch -> interface -> address.
    """
    ends: dict[int, list[tuple[str, str]]] = {}
    for switch, interfaces in addresses.items():
        for interface, address in interfaces.items():
            ends.setdefault(address >> 1, []).append((switch, interface))
    joined = {}
    for pair in ends.values():
        if len(pair) == 2:
            joined[pair[0]], joined[pair[1]] = pair[1], pair[0]
    return joined


def usid_of(prefix: str, block: int) -> int | None:
    """The uSID of a ``block:usid::/48``; None for any other prefix."""
    head, slash, length = prefix.partition("/")
    if not slash or length != "48":
        return None
    try:
        value = int(IPv6Address(head))
    except ValueError:
        return None
    if value >> 96 != block or value & (1 << 80) - 1:
        return None
    return value >> 80 & 0xFFFF


def tables_of(parsed: Parsed, block: int) -> Tables:
    """The forwarding table of a parsed configuration."""
    addresses = {_address(a): interface for interface, (a, _) in parsed.addresses.items()}
    own = {u for prefix, _ in parsed.own if (u := usid_of(prefix, block)) is not None}
    routes: dict[int, Route] = {}
    egress: dict[int, str] = {}
    for route in parsed.routes:
        usid = usid_of(route.prefix, block)
        if usid is None:
            continue
        routes.setdefault(usid, route)
        interface = route.interface or addresses.get(_other_end(route.next_hop), "")
        egress.setdefault(usid, interface)
    return Tables(own, routes, egress)


def _address(text: str) -> int:
    try:
        return int(IPv6Address(text.partition("/")[0]))
    except ValueError:
        return -1


def _other_end(text: str) -> int:
    return _address(text) ^ 1
