"""What can fail: hosts, links, one direction of a link, switches, and groups of links that share a part."""

import enum
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from openmrc.fabric import Path


class Kind(enum.StrEnum):
    """Kinds of components."""

    HOST = "host"
    """A host: scheduled away, rebooting, or a NIC that fails on all planes."""
    LINK = "link"
    """A link in both directions: a cable, or the port at either end."""
    UPWARD = "upward"
    """A link in the direction away from the hosts."""
    DOWNWARD = "downward"
    """A link in the direction towards the hosts."""
    SWITCH = "switch"
    """A switch: it forwards nothing, or loses on all of its ports."""
    GROUP = "group"
    """Links that share a part, such as the four ports of an optic."""


class Component(NamedTuple):
    """A part of the fabric that can fail."""

    kind: Kind
    name: str
    """The fabric's name of the host, link or switch, or the name of the group."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"

    @property
    def part(self) -> tuple[str, str]:
        """What a technician replaces: a link and its directions are one part."""
        directed = self.kind in (Kind.UPWARD, Kind.DOWNWARD)
        return (Kind.LINK if directed else self.kind, self.name)


@lru_cache(1 << 18)
def _component(kind: Kind, name: str) -> Component:
    """One object for each: a fabric has far fewer components than paths that need them."""
    return Component(kind, name)


def crossing(link: str, *, upward: bool) -> tuple[Component, Component]:
    """The components that a packet needs which crosses a link in one direction."""
    return _component(Kind.LINK, link), _component(Kind.UPWARD if upward else Kind.DOWNWARD, link)


def grouped(links: Iterable[str], groups: Mapping[str, str]) -> Iterable[Component]:
    """The groups that these links belong to.

    Args:
        links: Names of links.
        groups: The group of each link that is in one.
    """
    return {_component(Kind.GROUP, groups[link]) for link in links if link in groups}


def components_of_path(path: Path, groups: Mapping[str, str] | None = None) -> frozenset[Component]:
    """Everything that a packet on this path needs.

    Args:
        path: A path of the fabric, from one host to another.
        groups: The group of each link that shares a part with others, by the link's name.
    """
    return components_of(path.src, path.dst, [hop.switch for hop in path.hops], path.links, groups)


def components_of(
    src: str,
    dst: str,
    switches: Sequence[str],
    links: Sequence[str],
    groups: Mapping[str, str] | None = None,
) -> frozenset[Component]:
    """The same of a path's hosts, switches and links."""
    top = (len(switches) - 1) // 2
    found = {_component(Kind.HOST, src), _component(Kind.HOST, dst)}
    found.update(_component(Kind.SWITCH, switch) for switch in switches)
    for number, link in enumerate(links):
        found.update(crossing(link, upward=number <= top))
    if groups:
        found.update(grouped(links, groups))
    return frozenset(found)
