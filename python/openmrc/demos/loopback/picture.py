"""Throughput over time: what each plane delivered, stacked, and the share of its paths out of use."""

from pathlib import Path
from typing import TYPE_CHECKING

from openmrc.colours import FAILED, FAINT, IMPAIRED, INK, PAPER, SHADE
from openmrc.demos.loopback.receiver import VERIFIED
from openmrc.demos.loopback.run import Outcome
from openmrc.demos.series import Window
from openmrc.pictures import PictureError, drawing, headline, legend, mark_fault, plain, stack_planes

try:
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.patches import Patch
except ImportError:  # Without matplotlib, `drawing` refuses.
    pass

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FAULT_COLOURS = {"plane_dead": FAILED, "paths_lossy": IMPAIRED, "paths_congested": IMPAIRED}
_HEADROOM = 1.36
"""Height of the upper part over the highest throughput: room for the faults' names."""


def draw(outcome: Outcome, path: Path) -> None:
    """Writes the picture, in the format that the file's extension says (PNG, SVG, PDF).

    Raises:
        PictureError: if matplotlib is not installed, or the run was too short to show anything.
        OSError: if the file cannot be written.
        ValueError: for a format matplotlib does not know.
    """
    windows = outcome.receiver.series.windows()
    with drawing(path, 9, 5.4) as figure:
        if len(windows) < 4:
            raise PictureError("no picture: the run was too short")
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=[1, 0.32])
        _throughput(above, outcome, windows)
        _paths(below, outcome)
        moved = outcome.sent_files * outcome.source_size
        seconds = _seconds(outcome, outcome.finished_ns)
        verdict = "every byte verified" if outcome.verified else "NOT every byte arrived"
        over = f"over {len(outcome.addresses)} planes in {seconds:.1f} s"
        headline(figure, f"{moved / 1e9:.1f} GB {over}, {verdict}", good=outcome.verified)
        above.set_xlim(0, _seconds(outcome, windows[-1].middle_ns))


def _seconds(outcome: Outcome, time_ns: int) -> float:
    return (time_ns - outcome.began_ns) / 1e9


def _throughput(axes: "Axes", outcome: Outcome, windows: list[Window]) -> None:
    count = len(windows[0].bps) - 1
    dead = outcome.schedule.dead_plane
    # The plane that fails lies on top, where its absence shows best.
    order = [plane for plane in range(count) if plane != dead] + [dead]
    seconds = [_seconds(outcome, window.middle_ns) for window in windows]
    received_on = {plane: [window.bps[VERIFIED + 1 + plane] / 1e9 for window in windows] for plane in order}
    stacked = stack_planes(axes, seconds, received_on, zorder=2)
    verified = [window.bps[VERIFIED] / 1e9 for window in windows]
    (line,) = axes.plot(seconds, verified, color=INK, linewidth=0.8, zorder=3)
    received = [sum(window.bps[VERIFIED + 1 :]) / 1e9 for window in windows]
    axes.set_ylim(0, _HEADROOM * max(*received, *verified))
    axes.set_ylabel("Gb/s")
    for row, record in enumerate(sorted(outcome.records, key=lambda record: record.began_ns)):
        mark_fault(
            axes,
            _seconds(outcome, record.began_ns),
            _seconds(outcome, record.ended_ns or outcome.finished_ns),
            record.fault.title,
            colour=_FAULT_COLOURS[record.fault.kind],
            row=row,
        )
    names = ["goodput, verified", *(f"plane {plane}, received" for plane in reversed(order))]
    legend(axes, [line, *reversed(stacked)], names)
    plain(axes)


def _paths(axes: "Axes", outcome: Outcome) -> None:
    """Share of each plane's paths that the sender believes broken."""
    states = outcome.states
    if len(states.time_ns) < 2:
        return
    edges = [_seconds(outcome, when) for when in states.time_ns]
    edges.append(max(edges[-1] + 0.05, _seconds(outcome, outcome.finished_ns)))
    count = len(states.bad[0])
    share_bad = LinearSegmentedColormap.from_list("paths", [SHADE, FAILED])
    axes.pcolormesh(
        edges,
        [plane - 0.5 for plane in range(count + 1)],
        [[moment[plane] for moment in states.bad] for plane in range(count)],
        cmap=share_bad,
        vmin=0,
        vmax=1,
        linewidth=0,
        rasterized=True,
    )
    axes.hlines([plane + 0.5 for plane in range(count - 1)], 0, edges[-1], color=PAPER, linewidth=1)
    axes.set_ylim(count - 0.5, -0.5)
    axes.set_yticks(range(count), [str(plane) for plane in range(count)])
    axes.set_ylabel("plane")
    axes.set_xlabel("seconds since the first byte")
    shades = [Patch(facecolor=share_bad(share), edgecolor=FAINT, linewidth=0.4) for share in (0.0, 0.5, 1.0)]
    legend(axes, shades, ["no path out of use", "half of them", "all of them"], rise=0.06)
    plain(axes)
    axes.tick_params(axis="y", labelsize=7, length=0)
