"""Throughput over time as a picture: what each plane delivered, stacked, with the faults marked."""

from pathlib import Path
from typing import TYPE_CHECKING

from openmrc.demo.analysis import windows
from openmrc.demo.run import Outcome
from openmrc.errors import Error

try:
    import matplotlib
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch
except ImportError:  # The extra "plots" is not installed.
    matplotlib = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK = "#24292f"
_FAINT = "#8b949e"
_DEAD = "#d1495b"
_SHADES = ("#0b3954", "#bfd7ea")
"""The first and the last plane; the others lie between."""
_FAULT_COLOURS = {"plane_dead": _DEAD, "paths_lossy": "#e09f3e", "paths_congested": "#6a4c93"}


class PictureError(Error):
    """No picture can be made; the message says what is missing."""


def draw(outcome: Outcome, path: Path) -> None:
    """Writes the picture, in the format that the name's ending says (PNG, SVG, PDF).

    Raises:
        PictureError: if matplotlib is not installed, or the run was too short to show anything.
        OSError: if the file cannot be written.
        ValueError: for a format matplotlib does not know.
    """
    if matplotlib is None:
        raise PictureError("no picture: matplotlib is not installed (pip install 'openmrc[plots]')")
    middles, total, planes = windows(outcome.receiver.series)
    if len(middles) < 4:
        raise PictureError("no picture: the run was too short")
    seconds = [(middle - outcome.began_ns) / 1e9 for middle in middles]
    with matplotlib.rc_context({"font.size": 9, "font.family": "sans-serif", "svg.fonttype": "none"}):
        figure = Figure(figsize=(9, 5.4), dpi=160, facecolor="white", layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=[1, 0.32])
        _throughput(above, outcome, seconds, total, planes)
        _paths(below, outcome)
        _title(figure, outcome)
        above.set_xlim(0, max(seconds))
        figure.savefig(path)


def _throughput(
    axes: "Axes", outcome: Outcome, seconds: list[float], total: list[float], planes: list[list[float]]
) -> None:
    count = len(planes[0])
    dead = outcome.schedule.dead_plane
    # The plane that dies lies on top, where its absence is seen best.
    order = [plane for plane in range(count) if plane != dead] + [dead]
    colours = [_DEAD if plane == dead else _shade(i / max(1, count - 2)) for i, plane in enumerate(order)]
    stacked = axes.stackplot(
        seconds,
        [[window[plane] for window in planes] for plane in order],
        colors=colours,
        edgecolor="white",
        linewidth=0.15,
        zorder=2,
    )
    (verified,) = axes.plot(seconds, total, color=_INK, linewidth=0.8, zorder=3)
    most = max(max(map(sum, planes)), max(total))
    top = 1.36 * most
    axes.set_ylim(0, top)
    axes.set_ylabel("Gb/s")
    records = sorted(outcome.records, key=lambda record: record.began_ns)
    for i, record in enumerate(records):
        begin = (record.began_ns - outcome.began_ns) / 1e9
        end = ((record.ended_ns or outcome.finished_ns) - outcome.began_ns) / 1e9
        colour = _FAULT_COLOURS.get(record.fault.name, _FAINT)
        height = top * (0.97 - 0.085 * i)
        axes.axvspan(begin, end, color=colour, alpha=0.07, linewidth=0, zorder=0)
        axes.plot(
            [begin, end], [height, height], color=colour, linewidth=2.5, solid_capstyle="butt", zorder=4
        )
        axes.annotate(
            record.fault.title,
            (begin, height),
            (1, -3),
            textcoords="offset points",
            color=colour,
            va="top",
            fontsize=8,
        )
    axes.legend(
        [verified, *reversed(stacked)],
        ["goodput, verified", *(f"plane {plane}, received" for plane in reversed(order))],
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        frameon=False,
        fontsize=8,
        labelcolor=_INK,
    )
    _plain(axes)


def _paths(axes: "Axes", outcome: Outcome) -> None:
    """Share of each plane's paths that the sender believes broken."""
    states = outcome.states
    if len(states.time_ns) < 2:
        return
    edges = [(when - outcome.began_ns) / 1e9 for when in states.time_ns]
    edges.append(max(edges[-1] + 0.05, (outcome.finished_ns - outcome.began_ns) / 1e9))
    count = len(states.bad[0])
    colours = LinearSegmentedColormap.from_list("paths", ["#eef2f5", "#f4b8a6", _DEAD])
    axes.pcolormesh(
        edges,
        [plane - 0.5 for plane in range(count + 1)],
        [[moment[plane] for moment in states.bad] for plane in range(count)],
        cmap=colours,
        vmin=0,
        vmax=1,
        linewidth=0,
        rasterized=True,
    )
    axes.hlines([plane + 0.5 for plane in range(count - 1)], 0, edges[-1], color="white", linewidth=1)
    axes.set_ylim(count - 0.5, -0.5)
    axes.set_yticks(range(count), [str(plane) for plane in range(count)])
    axes.set_ylabel("plane")
    axes.set_xlabel("seconds since the first byte")
    axes.legend(
        [Patch(facecolor=colours(share), edgecolor=_FAINT, linewidth=0.4) for share in (0.0, 0.5, 1.0)],
        ["no path out of use", "half of them", "all of them"],
        loc="upper left",
        bbox_to_anchor=(1.0, 1.06),
        frameon=False,
        fontsize=8,
        labelcolor=_INK,
    )
    _plain(axes)
    axes.tick_params(axis="y", labelsize=7, length=0)


def _title(figure: "Figure", outcome: Outcome) -> None:
    seconds = (outcome.finished_ns - outcome.began_ns) / 1e9
    moved = outcome.sent_files * outcome.source_size
    verdict = "every byte verified" if outcome.verified else "NOT every byte arrived"
    figure.suptitle(
        f"{moved / 1e9:.1f} GB over {len(outcome.addresses)} planes in {seconds:.1f} s, {verdict}",
        x=0.01,
        ha="left",
        fontsize=11,
        fontweight="bold",
        color=_INK if outcome.verified else _DEAD,
    )


def _plain(axes: "Axes") -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_FAINT)
    axes.tick_params(colors=_INK, labelsize=8)


def _shade(share: float) -> str:
    first, last = (tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5)) for colour in _SHADES)
    mixed = (round(a + (b - a) * share) for a, b in zip(first, last, strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)
