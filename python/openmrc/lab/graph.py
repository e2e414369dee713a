"""The graph of a lab as text: every plane with its switches and their cables, and what has failed."""

from collections.abc import Iterator
from typing import Any

from openmrc.lab.layout import Layout, Link
from openmrc.lab.state import State
from openmrc.units import duration

WIDTH = 80
"""Columns of a list of cables where nothing else is asked for."""


def lines(layout: Layout, state: State, width: int = WIDTH) -> Iterator[str]:
    """Yields the lines, of ``width`` columns: from the top tier down, each switch with what is below it."""
    fabric = layout.fabric
    for plane in range(fabric.planes):
        yield f"plane {plane}"
        switches = sorted((s for s in fabric.switches(plane)), key=lambda s: (-s.tier, s.index))
        for switch in switches:
            name = str(switch)
            yield f"  {name}{_marks(name, state)}"
            links = layout.links_of(name)
            above = [_end(link, name, state) for link in links if link.lower.node == name]
            below = [_end(link, name, state) for link in links if link.upper.node == name]
            yield from _wrapped("    up    ", above, width)
            yield from _wrapped("    down  ", below, width)


def _end(link: Link, node: str, state: State) -> str:
    own, peer = (link.lower, link.upper) if link.lower.node == node else (link.upper, link.lower)
    return f"{own.port} {peer.node}{link_marks(link, state)}"


def _marks(switch: str, state: State) -> str:
    marks = [word for word, found in (("stopped", state.stopped), ("soft", state.soft)) if switch in found]
    return f" ({', '.join(marks)})" if marks else ""


def link_marks(link: Link, state: State) -> str:
    """What has been done to a link, in brackets; empty if nothing."""
    marks = ["cut"] if link.name in state.cut else []
    marks += described(state, link.name)
    return f" ({', '.join(marks)})" if marks else ""


def described(state: State, link: str) -> list[str]:
    """The impairments of a link, in words."""
    words = []
    if (loss := state.loss.get(link)) is not None:
        where = {"up": " upwards", "down": " downwards"}.get(state.direction.get(link, ""), "")
        words.append(f"loses {100 * loss:g} %{where}")
    if (delay := state.delay.get(link)) is not None:
        words.append(f"delays by {duration(delay * 1e3)}")
    if (rate := state.rate.get(link)) is not None:
        words.append(f"carries {rate / 1e6:g} Mb/s")
    return words


def _wrapped(head: str, items: list[str], width: int) -> Iterator[str]:
    if not items:
        return
    line = head
    for place, item in enumerate(items):
        text = item + ("," if place + 1 < len(items) else "")
        if len(line) > len(head) and len(line) + len(text) + 1 > width:
            yield line.rstrip()
            line = " " * len(head)
        line += text + " "
    yield line.rstrip()


def as_dict(layout: Layout, state: State) -> dict[str, Any]:
    """Nodes and links, for JSON."""
    return {
        "switches": [
            {
                "name": name,
                "plane": s.plane,
                "tier": s.tier,
                "stopped": name in state.stopped,
                "soft": name in state.soft,
            }
            for name, s in layout.switches.items()
        ],
        "hosts": list(layout.hosts),
        "links": [
            {
                "name": link.name,
                "lower": str(link.lower),
                "upper": str(link.upper),
                "cut": link.name in state.cut,
                "loss": state.loss.get(link.name, 0.0),
                "direction": state.direction.get(link.name, "both"),
                "delay_s": state.delay.get(link.name, 0.0),
                "rate_bps": state.rate.get(link.name),
            }
            for link in layout.links.values()
        ],
    }
