"""The style of measured curves as pictures: size of type, frames, legends, how a fault is marked."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openmrc import colours
from openmrc.colours import FAILED, FAINT, INK, PAPER
from openmrc.errors import Error
from openmrc.extras import pip_install
from openmrc.files import replacing

try:
    import matplotlib
    from matplotlib.figure import Figure
except ImportError:  # The extra "plots" is not installed.
    matplotlib = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class PictureError(Error):
    """No picture can be made; the message says what is missing."""


def require_matplotlib() -> None:
    """Checks whether pictures can be drawn.

    Raises:
        PictureError: if matplotlib is not installed.
    """
    if matplotlib is None:
        raise PictureError(f"no picture: matplotlib is not installed ({pip_install('plots')})")


@contextmanager
def drawing(path: Path, width: float, height: float) -> Iterator["Figure"]:
    """Yields an empty figure; saves it in the format that the file's extension says (PNG, SVG, PDF).

    Args:
        path: The file.
        width: Inches.
        height: Inches.

    Raises:
        PictureError: if matplotlib is not installed.
        OSError: if the file cannot be written.
        ValueError: for a format matplotlib does not know.
    """
    require_matplotlib()
    with matplotlib.rc_context({"font.size": 9, "font.family": "sans-serif", "svg.fonttype": "none"}):
        figure = Figure(figsize=(width, height), dpi=150, facecolor=PAPER, layout="constrained")
        yield figure
        with replacing(path, "wb") as file:
            figure.savefig(file, format=path.suffix[1:])


def plain(axes: "Axes", size: int = 8) -> None:
    """Draws only the left and the lower spine, with small ticks."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)
    axes.tick_params(colors=INK, labelsize=size)


def headline(figure: "Figure", text: str, *, good: bool) -> None:
    """Writes the title of the whole picture, in the colour of failures unless the run was good."""
    colour = INK if good else FAILED
    figure.suptitle(text, x=0.01, ha="left", fontsize=11, fontweight="bold", color=colour)


def legend(axes: "Axes", *entries: Sequence[Any], rise: float = 0.0, **options: Any) -> None:
    """Draws the legend to the right of the frame.

    Args:
        axes: Whose legend it is.
        entries: Handles and their labels; without them, what has a label.
        rise: How far it stands above the upper edge, as a share of the height.
        options: Of matplotlib's legend.
    """
    options |= {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0 + rise)}
    axes.legend(*entries, frameon=False, fontsize=8, labelcolor=INK, **options)


def stack_planes(
    axes: "Axes", x: Sequence[float], planes: Mapping[int, Sequence[float]], **options: Any
) -> list[Any]:
    """Stacks one curve for each plane, in its colour and the given order from below; returns their handles.

    Args:
        axes: Where.
        x: Positions of the values.
        planes: Values of each plane.
        options: Of matplotlib's stackplot.
    """
    return axes.stackplot(
        x,
        list(planes.values()),
        colors=[colours.plane(plane) for plane in planes],
        edgecolor=PAPER,
        linewidth=0.15,
        **options,
    )


def shade_fault(axes: "Axes", begin: float, end: float, colour: str = FAILED, zorder: int = 0) -> None:
    """Draws a faint band over the time of a fault."""
    axes.axvspan(begin, end, color=colour, alpha=0.09, linewidth=0, zorder=zorder)


def mark_fault(
    axes: "Axes", begin: float, end: float, text: str, *, colour: str = FAILED, row: int = 0
) -> None:
    """Marks a fault: a faint band over its time, a bar near the top, and its name below the bar.

    Args:
        axes: Where time is the horizontal axis.
        begin: When it began.
        end: When it ended.
        text: Its name; further lines may follow.
        colour: Of bar and name.
        row: 0 is the topmost bar; faults that overlap need rows of their own.
    """
    across = axes.get_xaxis_transform()
    height = 0.97 - 0.085 * row
    shade_fault(axes, begin, end, colour)
    axes.plot(
        [begin, end],
        [height, height],
        color=colour,
        linewidth=2.5,
        solid_capstyle="butt",
        transform=across,
        zorder=4,
    )
    axes.annotate(
        text,
        (begin, height),
        (1, -3),
        xycoords=across,
        textcoords="offset points",
        color=colour,
        va="top",
        fontsize=8 if "\n" not in text else 7,
        bbox={"facecolor": PAPER, "alpha": 0.7, "linewidth": 0, "pad": 1},
        zorder=5,
    )
