"""Completion of values in a shell: names in labs, interfaces, kinds. It must never fail and never print."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import typer

from openmrc.errors import Error

if TYPE_CHECKING:
    from openmrc.lab.layout import Layout

_MOST = 500
"""More candidates than this say nothing to a reader."""


def choices(*values: str) -> Callable[[str], list[str]]:
    """Completes one of some values."""
    return lambda incomplete: matching(values, incomplete)


def labs(incomplete: str) -> list[str]:
    """The labs that are up."""
    from openmrc.lab.state import names

    return matching(names(), incomplete)


def nodes(ctx: typer.Context, incomplete: str) -> list[str]:
    """Hosts and switches of the lab."""
    layout = _layout(ctx)
    return [] if layout is None else matching([*layout.hosts, *layout.switches], incomplete)


def switches(ctx: typer.Context, incomplete: str) -> list[str]:
    """Switches of the lab."""
    layout = _layout(ctx)
    return [] if layout is None else matching(layout.switches, incomplete)


def links(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ports of the lab, each of which names its link."""
    layout = _layout(ctx)
    return [] if layout is None else matching(_ports(layout), incomplete)


def links_and_switches(ctx: typer.Context, incomplete: str) -> list[str]:
    """What can fail."""
    layout = _layout(ctx)
    return [] if layout is None else matching([*layout.switches, *_ports(layout)], incomplete)


def hosts(incomplete: str) -> list[str]:
    """In a host of a lab, the lab's hosts."""
    from openmrc.planes import lab_host

    with suppress(Error, OSError):
        here = lab_host()
        if here is not None:
            return matching([f"h{number}" for number in range(here.fabric.hosts)], incomplete)
    return []


def interfaces(incomplete: str) -> list[str]:
    """Interfaces of this machine, also after others and a comma."""
    import socket

    before, comma, last = incomplete.rpartition(",")
    names = [name for _, name in socket.if_nameindex() if name not in before.split(",")]
    return [f"{before}{comma}{name}" for name in matching(names, last)]


def collectives(incomplete: str) -> list[str]:
    """Collective operations that can be measured."""
    from openmrc.collectives.bench.settings import OPERATIONS

    return matching(OPERATIONS, incomplete)


def examples(incomplete: str) -> list[str]:
    """Shipped examples."""
    from openmrc.examples import every

    return matching([each.name for each in every()], incomplete)


def rows(incomplete: str) -> list[str]:
    """Rows of published results."""
    from openmrc.sim.reproduce import rows as published

    with suppress(Error, OSError):
        return matching([row.row for row in published(())], incomplete)
    return []


def _ports(layout: "Layout") -> list[str]:
    return [str(end) for link in layout.links.values() for end in link.ends]


def _layout(ctx: typer.Context) -> "Layout | None":
    from openmrc.fabric import Fabric
    from openmrc.lab.layout import Layout
    from openmrc.lab.state import ROOT, SPECIFICATION, the_name

    name: Any = ctx.params.get("name")
    with suppress(Error, OSError):
        return Layout(Fabric.load(ROOT / the_name(name) / SPECIFICATION))
    return None


def matching(values: Iterable[str], incomplete: str) -> list[str]:
    return [value for value in values if value.startswith(incomplete)][:_MOST]
