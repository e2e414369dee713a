"""A picture of a fabric, SVG or PNG.

A small fabric is drawn completely: every plane, switch, host and cable. A larger one is drawn by example:
plane 0 in front of the others, and in every tier the first two switches and the last one, with the counts
beside them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from openmrc.colours import FAINT, INK, PAPER, SHADE
from openmrc.colours import plane as plane_colour
from openmrc.errors import ArgumentError
from openmrc.fabric.topology import Fabric, SwitchId
from openmrc.fabric.units import format_rate
from openmrc.files import replacing

WHOLE_HOSTS = 32
"""A fabric of at most this many hosts is drawn completely, if its planes are not too wide."""
WHOLE_ROW = 40
"""Most switches of one tier, over all planes, in a complete drawing."""


@dataclass(frozen=True)
class _Place:
    """Position of an element."""

    x: float
    y: float
    width: float
    height: float = 0.42


def save(
    fabric: Fabric,
    path: Path | str,
    *,
    dpi: int = 160,
    marks: Mapping[str, str] | None = None,
    legend: str = "",
) -> None:
    """Draws a fabric into a file.

    Args:
        fabric: The fabric.
        path: The file; its name ends in .svg or .png.
        dpi: Resolution of a PNG.
        marks: Colours of links and switches that differ from those of their planes, by name. Only a small
            fabric, which is drawn completely, shows them.
        legend: What the marks mean.

    Raises:
        ArgumentError: for another extension.
        OSError: if the file cannot be written.
    """
    path = Path(path)
    if path.suffix.lower() not in (".svg", ".png"):
        raise ArgumentError(f"{path}: the name of a drawing must end in .svg or .png")
    # Text stays text in an SVG, and the same fabric always gives the same bytes.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "openmrc", "font.family": "DejaVu Sans"}):
        figure = draw(fabric, marks, legend)
        metadata = {"Date": None} if path.suffix.lower() == ".svg" else {"Software": None}
        with replacing(path, "wb") as file:
            figure.savefig(file, format=path.suffix[1:].lower(), dpi=dpi, metadata=metadata)


def draw(fabric: Fabric, marks: Mapping[str, str] | None = None, legend: str = "") -> Figure:
    """The drawing as a matplotlib figure; see :func:`save`."""
    widest = max(fabric.core.switches_per_tier) * fabric.planes
    whole = fabric.hosts <= WHOLE_HOSTS and widest <= WHOLE_ROW
    return _Whole(fabric, marks or {}, legend).figure if whole else _Example(fabric).figure


class _Sheet:
    """The common part of both kinds of drawing: page, boxes, lines."""

    def __init__(self, fabric: Fabric, width: float, height: float) -> None:
        self.fabric = fabric
        self.figure = Figure(figsize=(width, height), facecolor=PAPER)
        FigureCanvasAgg(self.figure)
        self.axes: Axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set_xlim(0, width)
        self.axes.set_ylim(0, height)
        self.axes.axis("off")
        spec = fabric.spec
        port = format_rate(fabric.port_rate)
        title = (
            f"{spec.name}: {fabric.hosts:,} hosts, {fabric.planes} planes, {fabric.tiers} tiers, "
            f"{fabric.switch_count:,} switches of {fabric.radix} x {port}"
        )
        self.axes.text(0.35, height - 0.4, title, fontsize=13, weight="bold", color=INK, va="center")

    def box(
        self, place: _Place, text: str, edge: Any, fill: Any = PAPER, size: float = 8, **extra: Any
    ) -> None:
        x, y, width, height = place.x - place.width / 2, place.y - place.height / 2, place.width, place.height
        style = f"round,pad=0,rounding_size={min(0.06, width / 4):.3f}"
        patch = FancyBboxPatch(
            (x, y), width, height, boxstyle=style, ec=edge, fc=fill, lw=1.1, zorder=3, **extra
        )
        self.axes.add_patch(patch)
        self.axes.text(place.x, place.y, text, fontsize=size, ha="center", va="center", color=INK, zorder=4)

    def line(self, lower: _Place, upper: _Place, edge: Any, width: float = 0.8, **extra: Any) -> None:
        y0, y1 = lower.y + lower.height / 2, upper.y - upper.height / 2
        self.axes.plot(
            [lower.x, upper.x], [y0, y1], color=edge, lw=width, zorder=2, solid_capstyle="round", **extra
        )

    def note(self, x: float, y: float, text: str, size: float = 9, **extra: Any) -> None:
        self.axes.text(
            x, y, text, fontsize=size, color=extra.pop("color", INK), va=extra.pop("va", "center"), **extra
        )

    def peers_above(self, switch: SwitchId) -> list[SwitchId]:
        """The switches at a switch's uplinks, one per link."""
        return [self.fabric.switch(port.peer) for port in self.fabric.ports(switch) if port.is_uplink]


class _Whole(_Sheet):
    """A complete drawing: planes side by side above one row of hosts."""

    def __init__(self, fabric: Fabric, marks: Mapping[str, str], legend: str) -> None:
        self.marks = marks
        self.legend = legend
        counts = fabric.core.switches_per_tier
        columns = max(max(counts) * fabric.planes, fabric.hosts)
        width = max(9.0, 1.2 + columns * 0.74)
        super().__init__(fabric, width, 2.4 + 1.55 * fabric.tiers)
        self.gap = 0.25
        self.panel = (width - 0.7 - self.gap * (fabric.planes - 1)) / fabric.planes
        for plane in range(fabric.planes):
            self._panel(plane)
        self._hosts()

    def _switch(self, switch: SwitchId) -> _Place:
        count = self.fabric.core.switches_per_tier[switch.tier]
        left = 0.35 + switch.plane * (self.panel + self.gap)
        pitch = (self.panel - 0.2) / count
        return _Place(
            left + 0.1 + pitch * (switch.index + 0.5), 2.3 + 1.55 * switch.tier, min(0.8, pitch * 0.86)
        )

    def _host(self, host: int) -> _Place:
        pitch = (self.figure.get_figwidth() - 0.7) / self.fabric.hosts
        return _Place(0.35 + pitch * (host + 0.5), 0.65, min(0.7, pitch * 0.82))

    def _panel(self, plane: int) -> None:
        edge = plane_colour(plane)
        left, top = 0.35 + plane * (self.panel + self.gap), self.fabric.tiers * 1.55
        self.axes.add_patch(
            Rectangle((left, 1.9), self.panel, top - 0.35, fc=edge, alpha=0.07, ec="none", zorder=0)
        )
        self.note(left + 0.1, top + 1.37, f"plane {plane}", weight="bold", size=9)
        for switch in self.fabric.switches(plane):
            place = self._switch(switch)
            name = str(switch).partition("/")[2]
            own = self.marks.get(str(switch), edge)
            self.box(place, name, own, size=8 if place.width > 0.42 else 6)
            for port in self.fabric.ports(switch):
                if port.is_uplink:
                    self._link(place, self._switch(self.fabric.switch(port.peer)), port.link, edge)

    def _link(self, lower: _Place, upper: _Place, name: str, edge: Any, width: float = 0.8) -> None:
        if name in self.marks:
            self.line(lower, upper, self.marks[name], 1.8, ls=(0, (2, 1.5)))
        else:
            self.line(lower, upper, edge, width, alpha=0.75 if width < 0.8 else 1.0)

    def _hosts(self) -> None:
        links = {
            (port.peer, port.peer_port): port.link
            for switch in self.fabric.switches()
            if switch.tier == 0
            for port in self.fabric.ports(switch)
            if not port.is_uplink
        }
        for host in range(self.fabric.hosts):
            place = self._host(host)
            self.box(place, f"h{host}", INK, SHADE, size=8 if place.width > 0.35 else 6)
            for plane in range(self.fabric.planes):
                t0 = SwitchId(plane, 0, host // self.fabric.core.hosts_per_t0)
                # The ports of a NIC side by side, to show the plane of each.
                offset = ((plane + 0.5) / self.fabric.planes - 0.5) * place.width * 0.8
                socket = _Place(place.x + offset, place.y, 0)
                link = links.get((f"h{host}", f"p{plane}"), "")
                self._link(socket, self._switch(t0), link, plane_colour(plane), 0.6)
        nic, port = format_rate(self.fabric.spec.nic.rate), format_rate(self.fabric.port_rate)
        text = f"port p of each {nic} NIC: {port} to plane p"
        self.note(0.35, 0.22, text, color=FAINT, size=8.5)
        right = self.figure.get_figwidth() - 0.35
        self.note(right, 0.22, self.legend, color=INK, size=8.5, ha="right")


class _Example(_Sheet):
    """A drawing by example: plane 0 in front of the others, three switches of every tier, counts."""

    STEP = 1.75
    LEFT, RIGHT = 0.8, 8.2

    def __init__(self, fabric: Fabric) -> None:
        behind = min(fabric.planes - 1, 7)
        super().__init__(fabric, 13.0, 4.5 + self.STEP * (fabric.tiers - 1) + 0.11 * behind)
        self.base = 2.85
        self._planes()
        self._pods()
        self._links()
        for tier in range(fabric.tiers):
            self._tier(tier)
        self._hosts()

    # --- places ---------------------------------------------------------------------------------------------

    def _samples(self, count: int) -> list[int]:
        return list(range(count)) if count <= 4 else [0, 1, count - 1]

    def _places(self, tier: int) -> dict[int, _Place]:
        """Index and position of each example of a tier."""
        samples = self._samples(self.fabric.core.switches_per_tier[tier])
        return dict(zip(samples, self._row(len(samples), self.base + self.STEP * tier, 1.15), strict=True))

    def _row(self, count: int, y: float, width: float) -> list[_Place]:
        span = self.RIGHT - self.LEFT - 1.6
        # The last of the three examples stands apart.
        at = [0.0, 0.3, 1.0] if count == 3 else [i / max(1, count - 1) for i in range(count)]
        if count == 1:
            at = [0.5]
        return [_Place(self.LEFT + 0.8 + span * a, y, width, 0.5) for a in at]

    # --- parts ----------------------------------------------------------------------------------------------

    def _planes(self) -> None:
        """One sheet per plane, one behind the other."""
        height = self.STEP * (self.fabric.tiers - 1) + 1.25
        behind = min(self.fabric.planes - 1, 7)
        for i in range(behind, -1, -1):
            plane = i if behind == self.fabric.planes - 1 else (self.fabric.planes - 1 if i == behind else i)
            x, y = self.LEFT + 0.14 * i, self.base - 0.55 + 0.11 * i
            sheet = Rectangle(
                (x, y),
                self.RIGHT - self.LEFT,
                height,
                fc=PAPER,
                ec=plane_colour(plane),
                lw=1.2,
                zorder=1 - i / 20,
            )
            self.axes.add_patch(sheet)
        front = Rectangle(
            (self.LEFT, self.base - 0.55),
            self.RIGHT - self.LEFT,
            height,
            fc=plane_colour(0),
            alpha=0.05,
            ec="none",
            zorder=1.01,
        )
        self.axes.add_patch(front)
        last = self.fabric.planes - 1
        others = {0: "", 1: ", in front of plane 1"}.get(last, f", in front of planes 1 to {last}")
        top = self.base - 0.55 + height
        self.note(self.LEFT + 0.12, top - 0.17, f"plane 0{others}", weight="bold", size=8.5)

    def _pods(self) -> None:
        """Shades the pods of the examples, to show which switches belong together."""
        core = self.fabric.core
        if self.fabric.tiers < 3:
            return
        members: dict[int, list[_Place]] = {}
        for tier, group in ((0, core.group[0]), (1, core.uplinks(0))):
            for index, place in self._places(tier).items():
                members.setdefault(index // group, []).append(place)
        for pod, places in members.items():
            left, right = min(p.x for p in places) - 0.72, max(p.x for p in places) + 0.72
            low, high = self.base - 0.32, self.base + self.STEP + 0.42
            self.axes.add_patch(
                Rectangle((left, low), right - left, high - low, fc=FAINT, alpha=0.12, ec="none", zorder=1.5)
            )
            self.note(left + 0.06, high - 0.09, f"pod {pod}", color=FAINT, size=7.5)

    def _tier(self, tier: int) -> None:
        places = self._places(tier)
        core = self.fabric.core
        for index, place in places.items():
            self.box(place, f"t{tier}-{index:,}".replace(",", ""), plane_colour(0), size=9)
        y = self.base + self.STEP * tier
        self._dots(list(places.values()), y, core.switches_per_tier[tier] > len(places))
        ports = f"{core.downlinks(tier)} down" + (f", {core.uplinks(tier)} up" if core.uplinks(tier) else "")
        count = core.switches_per_tier[tier]
        self._aside(
            y, f"T{tier}: {count:,} per plane, {count * self.fabric.planes:,} in all", f"each {ports}"
        )

    def _links(self) -> None:
        for tier in range(self.fabric.tiers - 1):
            above = self._places(tier + 1)
            for index, place in self._places(tier).items():
                peers = self.peers_above(SwitchId(0, tier, index))
                for peer in {p.index for p in peers} & above.keys():
                    self.line(place, above[peer], plane_colour(0), 1.1)
                self._stubs(place, +1)
            for place in above.values():
                self._stubs(place, -1)
            count = self.fabric.core.links_per_layer[tier + 1]
            total = count * self.fabric.planes
            y = self.base + self.STEP * (tier + 0.5)
            rate = format_rate(self.fabric.port_rate)
            length = f"{self.fabric.spec.cables.of_layer(tier + 1):g} m"
            more = f"{rate}, {length}"
            if self.fabric.core.parallel > 1 and tier + 2 == self.fabric.tiers:
                more += f", {self.fabric.core.parallel} in parallel to each T{tier + 1}"
            self._aside(y, f"{count:,} links per plane, {total:,} in all", more, faint=True)

    def _hosts(self) -> None:
        core, fabric = self.fabric.core, self.fabric
        y = 0.95
        t0s = self._places(0)
        for (index, t0), place in zip(t0s.items(), self._row(len(t0s), y, 1.5), strict=True):
            first = index * core.hosts_per_t0
            last = min(first + core.hosts_per_t0, fabric.hosts) - 1
            self.box(place, f"h{first}" if first == last else f"h{first} ... h{last}", INK, SHADE, size=8.5)
            for plane in range(fabric.planes):
                # The cables of all planes leave the hosts; only those of plane 0 are drawn to their end.
                offset = ((plane + 0.5) / fabric.planes - 0.5) * place.width * 0.7
                end = 0.45 if plane else t0.y - t0.height / 2 - (y + place.height / 2)
                x = [place.x + offset, place.x + offset * (1.25 if plane else 0)]
                low = y + place.height / 2
                self.axes.plot(x, [low, low + end], color=plane_colour(plane), lw=1.1, zorder=2.2)
        self._dots(self._row(len(t0s), y, 1.5), y, core.switches_per_tier[0] > len(t0s))
        total = core.links_per_layer[0] * fabric.planes
        self._aside(y, f"{fabric.hosts:,} hosts, {core.hosts_per_t0} under each T0", self._nic())
        rate = f"{format_rate(fabric.port_rate)}, {fabric.spec.cables.of_layer(0):g} m"
        self._aside(
            (y + self.base) / 2,
            f"{core.links_per_layer[0]:,} cables per plane, {total:,} in all",
            rate,
            faint=True,
        )
        example = "Each row shows the first two and the last." if core.switches_per_tier[0] > 4 else ""
        self.note(self.LEFT, 0.3, example, color=FAINT, size=8.5)

    def _nic(self) -> str:
        nic, port = format_rate(self.fabric.spec.nic.rate), format_rate(self.fabric.port_rate)
        return f"NIC of {nic}: {self.fabric.planes} ports of {port}, port p to plane p"

    # --- helpers --------------------------------------------------------------------------------------------

    def _stubs(self, place: _Place, direction: int) -> None:
        """Short ends of links to switches that are not drawn."""
        y = place.y + direction * place.height / 2
        for dx in (-0.3, -0.15, 0.15, 0.3):
            ends = [place.x + dx * 0.8, place.x + dx * 1.25], [y, y + direction * 0.14]
            self.axes.plot(*ends, color=plane_colour(0), lw=0.8, alpha=0.45, zorder=2)

    def _dots(self, places: list[_Place], y: float, more: bool) -> None:
        if more and len(places) > 2:
            x = (places[-2].x + places[-1].x) / 2
            self.axes.text(x, y, "· · ·", fontsize=15, ha="center", va="center", color=FAINT, zorder=4)

    def _aside(self, y: float, text: str, more: str, faint: bool = False) -> None:
        x = self.RIGHT + 0.14 * min(self.fabric.planes - 1, 7) + 0.3
        self.note(
            x, y + 0.12, text, color=FAINT if faint else INK, size=9, weight="normal" if faint else "bold"
        )
        self.note(x, y - 0.14, more, color=FAINT, size=8.5)
