"""The style of the demos' pictures: size of type, frames, how a fault is marked."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

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
    axes.axvspan(begin, end, color=colour, alpha=0.09, linewidth=0, zorder=0)
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
