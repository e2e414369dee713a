"""Goodput over time for both ways, one above the other, and the first moments after each fault."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from openmrc.demo.picture import PictureError
from openmrc.lab.demo.analysis import figures, rates
from openmrc.lab.demo.report import duration
from openmrc.lab.demo.trace import Broken, Half, Transport

try:
    import matplotlib
    from matplotlib.figure import Figure
except ImportError:  # The extra "plots" is not installed.
    matplotlib = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK, _FAINT = "#24292f", "#8b949e"
_COLOURS: dict[Transport, str] = {"mrc": "#0b3954", "tcp": "#d1495b", "udp": "#e09f3e"}
_NAMES: dict[Transport, str] = {"mrc": "MRC", "tcp": "TCP", "udp": "UDP"}
_FAULT = "#8b949e"
_ZOOM_BEFORE_NS, _ZOOM_AFTER_NS = 100_000_000, 900_000_000
_POINTS = 4000


def draw(mrc: Half | None, conventional: Half | None, timers: str, path: Path) -> None:
    """Writes the picture, in the format that the name's ending says (PNG, SVG, PDF).

    Raises:
        PictureError: if matplotlib is not installed.
        OSError: if the file cannot be written.
        ValueError: for a format matplotlib does not know.
    """
    if matplotlib is None:
        raise PictureError("no picture: matplotlib is not installed (pip install 'openmrc[plots]')")
    halves: list[tuple[Half, Sequence[Transport], str]] = []
    if mrc is not None:
        halves.append((mrc, ("mrc",), "MRC over static SRv6 source routes"))
    if conventional is not None:
        halves.append((conventional, ("tcp", "udp"), f"TCP and UDP behind FRR: {timers}"))
    with matplotlib.rc_context({"font.size": 9, "font.family": "sans-serif", "svg.fonttype": "none"}):
        figure = Figure(
            figsize=(11, 3.0 * len(halves) + 2.6), dpi=150, facecolor="white", layout="constrained"
        )
        grid = figure.add_gridspec(
            len(halves) + 1, len(halves[0][0].faults), height_ratios=[1] * len(halves) + [0.9]
        )
        longest = max((half.ended_ns - half.began_ns) / 1e9 for half, _, _ in halves)
        for row, (half, transports, title) in enumerate(halves):
            axes = figure.add_subplot(grid[row, :])
            _over_time(axes, half, transports, title)
            axes.set_xlim(0, longest)
        for column in range(len(halves[0][0].faults)):
            axes = figure.add_subplot(grid[len(halves), column])
            for half, transports, _ in halves:
                for transport in transports:
                    _zoom(axes, half, half.faults[column], transport)
            _zoom_frame(axes, halves[0][0].faults[column], first=column == 0)
        figure.savefig(path)


def _over_time(axes: "Axes", half: Half, transports: Sequence[Transport], title: str) -> None:
    top = 0.0
    for transport in transports:
        flows = half.flows_of(transport)
        offered = sum(half.flows[flow].offered_bps for flow in flows) / 1e9
        points = list(rates(half, flows, half.began_ns + 200_000_000, half.ended_ns))
        points = points[:: max(1, len(points) // _POINTS)]
        axes.plot(
            [(now - half.began_ns) / 1e9 for now, _ in points],
            [rate / 1e9 for _, rate in points],
            color=_COLOURS[transport],
            linewidth=0.8,
            label=f"{_NAMES[transport]}, {len(flows)} {'queue pairs' if transport == 'mrc' else 'flows'}",
            zorder=3,
        )
        top = max(top, 1.9 * offered)
    axes.set_ylim(0, top)
    for broken in half.faults:
        begin, end = ((moment - half.began_ns) / 1e9 for moment in (broken.began_ns, broken.repaired_ns))
        axes.axvspan(begin, end, color=_FAULT, alpha=0.13, linewidth=0, zorder=0)
        lines = [broken.fault.title]
        for transport in transports:
            found = figures(half, broken, transport)
            outage = duration(found.outage_ms) if found.flows_hit else "none"
            lines.append(f"{_NAMES[transport]} outage: {outage}")
        box = {"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 1}
        axes.text(begin, top * 0.98, "\n".join(lines), fontsize=7, va="top", color=_INK, bbox=box, zorder=5)
    axes.set_ylabel("goodput, Gb/s")
    axes.set_xlabel("seconds")
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold", color=_INK)
    axes.legend(loc="lower left", fontsize=8, frameon=False, ncols=2, labelcolor=_INK)
    _plain(axes)


def _zoom(axes: "Axes", half: Half, broken: Broken, transport: Transport) -> None:
    """Goodput of the flow that is hit worst."""
    flow = worst(half, broken, transport)
    offered = half.flows[flow].offered_bps
    points = list(rates(half, [flow], broken.began_ns - _ZOOM_BEFORE_NS, broken.began_ns + _ZOOM_AFTER_NS))
    axes.plot(
        [(now - broken.began_ns) / 1e6 for now, _ in points],
        [100 * rate / offered for _, rate in points],
        color=_COLOURS[transport],
        linewidth=0.9,
        zorder=4 if transport == "mrc" else 3,
    )


def worst(half: Half, broken: Broken, transport: Transport) -> int:
    """The flow that got least in the time shown after a fault."""

    def arrived(flow: int) -> int:
        points = [
            row[flow]
            for now, row in zip(half.time_ns, half.received, strict=True)
            if broken.began_ns <= now <= broken.began_ns + _ZOOM_AFTER_NS // 3
        ]
        return points[-1] - points[0] if points else 0

    return min(half.flows_of(transport), key=arrived)


def _zoom_frame(axes: "Axes", broken: Broken, *, first: bool) -> None:
    axes.axvline(0, color=_INK, linewidth=0.8, linestyle=":", zorder=2)
    axes.set_xlim(-_ZOOM_BEFORE_NS / 1e6, _ZOOM_AFTER_NS / 1e6)
    axes.set_ylim(0, 220)
    axes.set_title(broken.fault.title, fontsize=8, color=_INK)
    axes.set_xlabel("ms after the fault", fontsize=7)
    if first:
        axes.set_ylabel("worst flow, % of offered", fontsize=8)
    _plain(axes)
    axes.tick_params(labelsize=7)


def _plain(axes: "Axes") -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_FAINT)
    axes.tick_params(colors=_INK, labelsize=8)
