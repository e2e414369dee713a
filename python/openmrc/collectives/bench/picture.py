"""Bus bandwidth over size as a picture, ours and gloo's."""

from collections.abc import Callable, Sequence
from pathlib import Path

from openmrc import colours
from openmrc.collectives.bench.settings import Line, Timing
from openmrc.colours import FAINT, INK
from openmrc.pictures import drawing, plain

_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))


def draw(lines: Sequence[Line], title: str, path: Path) -> None:
    """Writes the picture, in the format that the file's extension says (PNG, SVG, PDF).

    Raises:
        PictureError: if matplotlib is not installed.
        OSError: if the file cannot be written.
        ValueError: for a format matplotlib does not know.
    """
    curves: list[tuple[str, str, str, Callable[[Line], Timing | None]]] = [
        ("mrc, in place", colours.series(0), "-", lambda line: line.in_place),
        ("mrc, out of place", FAINT, "--", lambda line: line.out_of_place),
        ("gloo", colours.series(1), "-", lambda line: line.gloo),
    ]
    sizes = [line.size for line in lines]
    with drawing(path, 7.5, 4.2) as figure:
        axes = figure.subplots()
        highest = 0.0
        for label, colour, style, timing in curves:
            found = [(line.size, way.busbw / 1e9) for line in lines if (way := timing(line)) is not None]
            if not found:
                continue
            highest = max(highest, *(busbw for _, busbw in found))
            axes.plot(
                [size for size, _ in found],
                [busbw for _, busbw in found],
                color=colour,
                linestyle=style,
                linewidth=1.6,
                marker="o",
                markersize=3,
                label=label,
            )
        axes.set_xscale("log", base=2)
        step = max(1, -(-len(sizes) // 9))
        axes.set_xticks(sizes[::step], [size_text(size) for size in sizes[::step]])
        axes.minorticks_off()
        axes.set_ylim(0, 1.08 * highest)
        axes.set_xlabel("bytes of a rank's buffer")
        axes.set_ylabel("bus bandwidth, GB/s")
        axes.set_title(title, loc="left", fontsize=10, fontweight="bold", color=INK)
        axes.legend(frameon=False, fontsize=8, labelcolor=INK, loc="upper left")
        plain(axes)


def size_text(size: int) -> str:
    """Bytes in the largest unit that leaves a short number: ``8 B``, ``4 KiB``."""
    unit, name = next((unit, name) for unit, name in _UNITS if size >= unit or unit == 1)
    return f"{size / unit:.3g} {name}"
