"""Goodput over time for both runs, one above the other, and the first moments after each fault."""

from pathlib import Path
from typing import TYPE_CHECKING

from openmrc import colours
from openmrc.colours import INK
from openmrc.demos.lab.analysis import figures
from openmrc.demos.lab.recording import NAMES, FaultRecord, Recording, Transport
from openmrc.pictures import drawing, mark_fault, plain
from openmrc.units import duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS: dict[Transport, str] = {
    "mrc": colours.series(0),
    "tcp": colours.series(1),
    "udp": colours.series(2),
}
_HEADROOM = 1.9
"""Height over what is offered: room for the faults' names."""
_ZOOM_BEFORE_NS, _ZOOM_AFTER_NS = 100_000_000, 900_000_000


def draw(mrc: Recording | None, conventional: Recording | None, timers: str, path: Path) -> None:
    """Writes the picture, in the format that the file's extension says (PNG, SVG, PDF).

    Raises:
        PictureError: if matplotlib is not installed.
        OSError: if the file cannot be written.
        ValueError: for a format matplotlib does not know.
    """
    titled = [
        (mrc, "MRC over static SRv6 source routes"),
        (conventional, f"TCP and UDP behind FRR: {timers}"),
    ]
    runs = [(recording, title) for recording, title in titled if recording is not None]
    faults = runs[0][0].faults
    with drawing(path, 11, 3.0 * len(runs) + 2.6) as figure:
        grid = figure.add_gridspec(len(runs) + 1, len(faults), height_ratios=[1] * len(runs) + [0.9])
        longest = max((recording.ended_ns - recording.began_ns) / 1e9 for recording, _ in runs)
        for row, (recording, title) in enumerate(runs):
            axes = figure.add_subplot(grid[row, :])
            _over_time(axes, recording, title)
            axes.set_xlim(0, longest)
        for column, record in enumerate(faults):
            axes = figure.add_subplot(grid[len(runs), column])
            for recording, _ in runs:
                for transport in recording.transports:
                    _zoom(axes, recording, recording.faults[column], transport)
            _zoom_frame(axes, record, first=column == 0)


def _over_time(axes: "Axes", recording: Recording, title: str) -> None:
    windows = recording.windows()
    top = 0.0
    for transport in recording.transports:
        flows = recording.flows_of(transport)
        axes.plot(
            [(window.middle_ns - recording.began_ns) / 1e9 for window in windows],
            [sum(window.bps[flow] for flow in flows) / 1e9 for window in windows],
            color=_COLOURS[transport],
            linewidth=0.8,
            label=f"{NAMES[transport]}, {len(flows)} {'queue pairs' if transport == 'mrc' else 'flows'}",
            zorder=3,
        )
        offered = sum(recording.flows[flow].offered_bps for flow in flows) / 1e9
        top = max(top, _HEADROOM * offered)
    axes.set_ylim(0, top)
    for record in recording.faults:
        begin, end = ((moment - recording.began_ns) / 1e9 for moment in (record.began_ns, record.repaired_ns))
        lines = [record.fault.title]
        for transport in recording.transports:
            found = figures(recording, record, transport)
            outage = duration(found.outage_ms) if found.flows_hit else "none"
            lines.append(f"{NAMES[transport]} outage: {outage}")
        mark_fault(axes, begin, end, "\n".join(lines))
    axes.set_ylabel("goodput, Gb/s")
    axes.set_xlabel("seconds")
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold", color=INK)
    axes.legend(loc="lower left", fontsize=8, frameon=False, ncols=2, labelcolor=INK)
    plain(axes)


def _zoom(axes: "Axes", recording: Recording, record: FaultRecord, transport: Transport) -> None:
    """Goodput of the flow that is hit worst."""
    flow = worst(recording, record, transport)
    offered = recording.flows[flow].offered_bps
    began = record.began_ns
    points = list(recording.series.rates([flow], began - _ZOOM_BEFORE_NS, began + _ZOOM_AFTER_NS))
    axes.plot(
        [(now - began) / 1e6 for now, _ in points],
        [100 * rate / offered for _, rate in points],
        color=_COLOURS[transport],
        linewidth=0.9,
        zorder=4 if transport == "mrc" else 3,
    )


def worst(recording: Recording, record: FaultRecord, transport: Transport) -> int:
    """The flow that received least right after a fault."""
    until = record.began_ns + _ZOOM_AFTER_NS // 3

    def received(flow: int) -> float:
        return recording.series.bps([flow], record.began_ns, until) or 0.0

    return min(recording.flows_of(transport), key=received)


def _zoom_frame(axes: "Axes", record: FaultRecord, *, first: bool) -> None:
    axes.axvline(0, color=INK, linewidth=0.8, linestyle=":", zorder=2)
    axes.set_xlim(-_ZOOM_BEFORE_NS / 1e6, _ZOOM_AFTER_NS / 1e6)
    axes.set_ylim(0, 220)
    axes.set_title(record.fault.title, fontsize=8, color=INK)
    axes.set_xlabel("ms after the fault", fontsize=7)
    if first:
        axes.set_ylabel("worst flow, % of offered", fontsize=8)
    plain(axes, 7)
