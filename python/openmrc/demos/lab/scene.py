"""The demo's fabric, its ring of hosts, and its schedule of faults."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from openmrc.fabric import Fabric, Path
from openmrc.fabric.spec import Specification
from openmrc.lab.layout import Layout

NAME = "demo"
"""Name of the lab."""

RING = ("h0", "h2", "h4", "h6", "h1", "h3", "h5", "h7")
"""Each writes to the next, and the last to the first: neighbours are under different T0s."""


Kind = Literal["link", "silent", "switch", "port", "loss"]

_HEALED = 0.5
"""Share of a fault's time slot after which it is repaired."""


def fabric() -> Fabric:
    """Two planes of 4 T0 and 4 T1, two hosts under each T0: eight paths for each pair."""
    return Fabric(
        Specification.model_validate(
            {
                "name": NAME,
                "hosts": len(RING),
                "nic": {"rate": "200G"},
                "planes": 2,
                "switch": {"radix": 8},
                "tiers": 2,
                "hosts_per_t0": 2,
                "uplinks_per_t0": 4,
                "parallel_links": 1,
            }
        )
    )


@dataclass(frozen=True)
class Fault:
    """A fault and its repair; times in seconds from the beginning of the schedule."""

    kind: Kind
    what: str
    """The link, one of its ports, or the switch."""
    title: str
    begin: float
    end: float
    loss: float | None = None
    """Share of packets lost, without the ports noticing."""

    @property
    def dead(self) -> bool:
        """Whether nothing passes."""
        return self.kind != "loss"


def schedule(duration: float) -> list[Fault]:
    """The faults, one after the other; each lasts half of its time slot.

    Args:
        duration: Seconds of all slots together.
    """
    slot = duration / 5

    def fault(number: int, kind: Kind, what: str, title: str, loss: float | None = None) -> Fault:
        begin = number * slot + slot / 8
        return Fault(kind, what, title, begin, begin + _HEALED * slot, loss)

    return [
        fault(0, "link", "p0/t0-0:up1", "T0-T1 link cut"),
        fault(1, "silent", "p1/t0-1:up2", "T0-T1 link silently dead", 1.0),
        fault(2, "switch", "p0/t1-3", "T1 switch stopped"),
        fault(3, "port", "h2:p1", "NIC port lost"),
        fault(4, "loss", "p1/t0-2:up0", "T0-T1 link loses 1 %", 0.01),
    ]


def broken_links(layout: Layout, fault: Fault) -> set[str]:
    """Names of the links that the fault breaks."""
    if fault.kind == "switch":
        return {link.name for link in layout.links_of(fault.what)}
    return {layout.link(fault.what).name}


def paths_over(layout: Layout, src: str, dst: str, links: set[str]) -> Iterator[Path]:
    """Yields the paths of a pair that cross one of the links."""
    for path in layout.fabric.paths(src, dst):
        if links.intersection(path.links):
            yield path


def pairs(hosts: Sequence[str]) -> list[tuple[str, str]]:
    """Sender and receiver of each stream in a ring of these hosts."""
    return [(host, hosts[(at + 1) % len(hosts)]) for at, host in enumerate(hosts)]


def neighbours(host: str, hosts: Sequence[str]) -> set[str]:
    """The hosts to which a host of a ring sends data or feedback."""
    at = hosts.index(host)
    return {hosts[(at + 1) % len(hosts)], hosts[at - 1]}
