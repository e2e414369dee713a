"""The demo's fabric, its ring of hosts, and its schedule of faults."""

from collections.abc import Iterator, Sequence

from openmrc.demos.director import Fault
from openmrc.fabric import Fabric, Path
from openmrc.fabric.spec import Specification
from openmrc.lab.layout import Layout

NAME = "demo"
"""Name of the lab."""

RING = ("h0", "h2", "h4", "h6", "h1", "h3", "h5", "h7")
"""Each writes to the next, and the last to the first: neighbours are under different T0s."""

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


def schedule(duration: float) -> list[Fault]:
    """The faults, one after the other; each lasts half of its time slot.

    Args:
        duration: Seconds of all slots together.
    """
    faults = [
        ("link", "T0-T1 link cut", "p0/t0-0:up1", None),
        ("silent", "T0-T1 link silently dead", "p1/t0-1:up2", 1.0),
        ("switch", "T1 switch stopped", "p0/t1-3", None),
        ("port", "NIC port lost", "h2:p1", None),
        ("loss", "T0-T1 link loses 1 %", "p1/t0-2:up0", 0.01),
    ]
    slot = duration / len(faults)
    return [
        Fault(kind, title, begin, begin + _HEALED * slot, what=what, loss=loss)
        for number, (kind, title, what, loss) in enumerate(faults)
        for begin in [(number + 1 / 8) * slot]
    ]


def dead(fault: Fault) -> bool:
    """Whether nothing passes."""
    return fault.loss in (None, 1.0)


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
