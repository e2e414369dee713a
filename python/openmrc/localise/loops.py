"""Probes of a host to itself: over its own T0, and over each T1 of its share, and back.

No other host takes part in a loop, and T0 loops that succeed where a T1 loop fails name the link between the
two.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from openmrc.fabric import Fabric, SwitchId
from openmrc.fabric.topology import SwitchPort
from openmrc.localise.components import Component, Kind, crossing, grouped

PROBERS = 2
"""Hosts that probe each uplink of their T0."""


class Loop(NamedTuple):
    """A probe's way."""

    host: str
    plane: int
    uplink: int | None
    """Uplink of the T0; ``None``: the loop turns at the T0."""
    components: frozenset[Component]
    """Everything that the probe needs."""


def loops_of_host(
    fabric: Fabric, host: int | str, *, probers: int = PROBERS, groups: Mapping[str, str] | None = None
) -> Iterator[Loop]:
    """The loops that a host probes: its T0 on every plane, and its share of that T0's uplinks.

    Args:
        fabric: The fabric.
        host: Number or name.
        probers: Hosts that probe each uplink; all of the T0's hosts if it has fewer.
        groups: The group of each link that shares a part with others, by the link's name.
    """
    number = fabric.host(host)
    name, per_t0 = f"h{number}", fabric.core.hosts_per_t0
    t0, place = divmod(number, per_t0)
    neighbours = min(per_t0, fabric.hosts - t0 * per_t0)
    for plane in range(fabric.planes):
        switch = SwitchId(plane, 0, t0)
        ports = _ports(fabric, switch)
        cable = next(port.link for port in ports if port.peer == name)
        yield Loop(name, plane, None, _components(name, switch, cable, None, groups or {}))
        uplinks = [port for port in ports if port.is_uplink]
        for index, uplink in enumerate(uplinks):
            if (place - index) % neighbours < probers:
                yield Loop(name, plane, index, _components(name, switch, cable, uplink, groups or {}))


@lru_cache(maxsize=64)
def _ports(fabric: Fabric, switch: SwitchId) -> list[SwitchPort]:
    """The ports of a switch: neighbours have the same T0s."""
    return fabric.ports(switch)


def _components(
    host: str, t0: SwitchId, cable: str, uplink: SwitchPort | None, groups: Mapping[str, str]
) -> frozenset[Component]:
    links = [cable] if uplink is None else [cable, uplink.link]
    found = {Component(Kind.HOST, host), Component(Kind.SWITCH, str(t0))}
    if uplink is not None:
        found.add(Component(Kind.SWITCH, uplink.peer))
    for link in links:
        found.update(crossing(link, upward=True))
        found.update(crossing(link, upward=False))
    found.update(grouped(links, groups))
    return frozenset(found)
