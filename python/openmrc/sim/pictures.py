"""Results as pictures: goodput over time with the faults marked, completion times, queues, links, steps.

Each function draws one figure; :func:`available` says which ones the results of a run allow.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openmrc import colours, notebook
from openmrc.colours import FAILED, FAINT, INK, PAPER, SHADE
from openmrc.errors import ArgumentError, Error
from openmrc.extras import pip_install
from openmrc.files import replacing
from openmrc.sim.frames import rate
from openmrc.sim.results import IMPAIRED, REPAIRED, LogEvent, Results, Series
from openmrc.sim.text import rate_unit

try:
    import matplotlib
    import matplotlib.image
    import matplotlib.ticker
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure
except ImportError:  # The extra "plots" is not installed.
    matplotlib = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "font.family": "sans-serif",
    "svg.fonttype": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.facecolor": PAPER,
    "grid.color": FAINT,
    "hatch.color": PAPER,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
}
_MOST_MARKS = 40
"""More marks of faults would hide the curves."""
_MOST_NAMES = 3
"""The first faults are named in a picture, at most this many."""
_MOST_BINS = 200
"""Points of a curve of rates. Between two samples a port sends few packets or none, and a curve through all
samples would be a comb."""
_PACKETS_PER_BIN = 10
"""A point of a curve of rates covers at least the time in which a port sends this many packets."""
_HEADROOM = 1.3
"""How far an axis reaches above its curves where the names of faults stand."""
_LOAD = (SHADE, "#79bdee", colours.series(0), colours.series(2))
"""Colours of load, from none to all of a port's rate: none of them is black."""
_HEIGHT_OF_A_PLANE = 0.12
"""Inches of a heat map for each plane of a layer and direction, so that its name has room."""
_MOST_ROWS = 256
"""Rows of a heat map. If there are more links, a row shows the busiest of several neighbours."""


def are_possible() -> bool:
    """Whether matplotlib is installed."""
    return matplotlib is not None


def require(path: Path | None = None) -> None:
    """Checks that pictures can be made, and written in the format of a name's ending.

    Raises:
        Error: if matplotlib is not installed.
        ArgumentError: if matplotlib has no such format.
    """
    if matplotlib is None:
        raise Error(f"no pictures: matplotlib is not installed ({pip_install('plots')})")
    if path is not None:
        formats = FigureCanvasAgg.get_supported_filetypes()
        if path.suffix.removeprefix(".").lower() not in formats:
            raise ArgumentError(f"{path}: the name has to end in .png, or one of {', '.join(formats)}")


def time_scale(last_us: float) -> tuple[float, str]:
    """The unit for a time axis that ends at ``last_us``, and the factor from microseconds to it."""
    return (1e-6, "s") if last_us >= 2e6 else (1e-3, "ms") if last_us >= 2e3 else (1.0, "us")


def _picture(*arguments: Any, **named: Any) -> "Figure":
    """A figure that a notebook shows as it is, without pyplot."""

    class Picture(Figure):
        def _repr_png_(self) -> bytes:
            return notebook.png(self)

    return Picture(*arguments, **named)


def figure(draw: Callable[["Axes"], None], height: float = 3.2) -> "Figure":
    """A figure with one set of axes, in the style of all figures."""
    require()
    with matplotlib.rc_context(_STYLE):
        made = _picture(figsize=(8.6, height), dpi=130, facecolor=PAPER, layout="constrained")
        draw(made.subplots())
        made.canvas.draw()
    return made


def _bins(results: Results) -> Any:
    """Numbers of the samples at which the bins end that rates are averaged over."""
    series = _series(results)
    times = np.frombuffer(series.columns["time_ps"], dtype=np.uint64).astype(np.float64)
    packet_ps = results.scenario.network.mtu * 8e12 / results.scenario.topology.port_rate
    width = max(times[-1] / _MOST_BINS, _PACKETS_PER_BIN * packet_ps)
    edges = np.arange(1, max(2, int(times[-1] / width) + 1)) * width
    ends = np.unique(np.append(np.searchsorted(times, edges).clip(0, len(times) - 1), len(times) - 1))
    # The end of a run is rarely that of a bin: what is left belongs to the bin before.
    if len(ends) > 2 and times[ends[-1]] - times[ends[-2]] < 0.5 * width:
        ends = np.delete(ends, -2)
    return ends


def _rates(results: Results, name: str) -> tuple[Any, Any]:
    """The middles of the bins, microseconds, and the mean rates of a counter of bytes in them, bit/s."""
    series, ends = _series(results), _bins(results)
    times = np.frombuffer(series.columns["time_ps"], dtype=np.uint64)[ends] * 1e-6
    begins = np.concatenate([[0.0], times[:-1]])
    return (begins + times) / 2, rate(series.array(name)[ends], (times - begins) * 1e-6)


def _rate_unit(results: Results) -> tuple[float, str]:
    """The unit of all rates of all hosts in the pictures of a run, and the factor from bit/s to it."""
    return rate_unit(float(_rates(results, "placed")[1].sum(axis=1).max(initial=0.0)))


def _mark_faults(axes: "Axes", results: Results, scale: float) -> None:
    faults = [event for event in results.log if event.kind in IMPAIRED]
    repairs = [event for event in results.log if event.kind == REPAIRED]
    last = axes.get_xlim()[1]
    kinds = ((faults, "fault", FAILED, "--"), (repairs, "repair", colours.REPAIRED, ":"))
    for events, kind, colour, style in kinds:
        for place, event in enumerate(events[:_MOST_MARKS]):
            label = kind if place == 0 else None
            axes.axvline(event.time_us * scale, color=colour, lw=0.9, ls=style, label=label)
    first: dict[str, LogEvent] = {}
    for event in faults:
        first.setdefault(f"{event.where} {event.kind}", event)
    more = len(first) - _MOST_NAMES
    for place, (name, event) in enumerate(list(first.items())[:_MOST_NAMES]):
        late = event.time_us * scale > 0.65 * last
        also = f" (and {more} more)" if more > 0 and place == _MOST_NAMES - 1 else ""
        axes.annotate(
            f" {name}{also} ",
            (event.time_us * scale, 1.0 - 0.07 * place),
            xycoords=("data", "axes fraction"),
            fontsize=7,
            color=FAILED,
            va="top",
            ha="right" if late else "left",
            bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.5},
            zorder=5,
        )


def _over_time(
    results: Results,
    title: str,
    unit: str,
    draw: Callable[["Axes", Series, float], None],
    stacked: int = 0,
) -> "Figure":
    """A figure over time, with the faults marked and the legend beside the curves."""
    series = _series(results)

    def whole(axes: "Axes") -> None:
        last = series.times_us[-1]
        scale, time_unit = time_scale(last)
        axes.set(title=title, ylabel=unit, xlabel=f"time, {time_unit}", xlim=(0, last * scale))
        draw(axes, series, scale)
        named = any(event.kind in IMPAIRED for event in results.log)
        axes.set_ylim(0, axes.get_ylim()[1] * (_HEADROOM if named else 1.0))
        _mark_faults(axes, results, scale)
        handles, labels = axes.get_legend_handles_labels()
        # What is stacked is listed from the top.
        order = [*reversed(range(stacked)), *range(stacked, len(handles))]
        if handles:
            axes.legend(
                [handles[i] for i in order],
                [labels[i] for i in order],
                frameon=False,
                fontsize=8,
                loc="upper left",
                bbox_to_anchor=(1.0, 1.0),
            )

    return figure(whole)


def goodput(results: Results) -> "Figure":
    """Payload in place over time, by pattern where there are several, with the faults marked."""
    factor, unit = _rate_unit(results)

    def draw(axes: "Axes", series: Series, scale: float) -> None:
        times, rates = _rates(results, "placed")
        times, rates = times * scale, rates * factor
        if series.patterns > 1:
            # Below the curves of the patterns, which it would hide while only one of them sends.
            axes.fill_between(times, rates.sum(axis=1), color=FAINT, alpha=0.3, lw=0, label="all")
            for pattern in range(series.patterns):
                label = f"{pattern}: {results.scenario.traffic[pattern].kind}"
                axes.plot(times, rates[:, pattern], lw=1.3, color=colours.series(pattern), label=label)
        else:
            axes.fill_between(times, rates[:, 0], color=colours.series(0), alpha=0.18, lw=0)
            axes.plot(times, rates[:, 0], lw=1.3, color=colours.series(0))

    return _over_time(results, "Goodput of all hosts", unit, draw)


def planes(results: Results) -> "Figure":
    """Payload in place over time, stacked by plane."""
    factor, unit = _rate_unit(results)

    def draw(axes: "Axes", series: Series, scale: float) -> None:
        times, rates = _rates(results, "placed_by_plane")
        shades = [colours.plane(i) for i in range(series.planes)]
        labels = [f"p{i}" for i in range(series.planes)]
        axes.stackplot(times * scale, rates.T * factor, colors=shades, lw=0, labels=labels)

    return _over_time(results, "Goodput by plane", unit, draw, stacked=_series(results).planes)


def completion(results: Results, others: Mapping[str, Results] | None = None) -> "Figure":
    """The cumulative distribution of completion times: by pattern, or of several runs."""

    def draw(axes: "Axes") -> None:
        if others:
            curves = {name: other.completion_times_us() for name, other in others.items()}
        elif len(results.scenario.traffic) > 1:
            curves = {
                f"{i}: {pattern.kind}": results.completion_times_us(i)
                for i, pattern in enumerate(results.scenario.traffic)
            }
        else:
            curves = {"": results.completion_times_us()}
        longest = max((times[-1] for times in curves.values() if times), default=1.0)
        shortest = min((times[0] for times in curves.values() if times), default=1.0)
        scale, unit = time_scale(longest)
        for place, (name, times) in enumerate(curves.items()):
            if times:
                share = np.arange(len(times) + 1) / len(times)
                at = np.asarray([times[0], *times]) * scale
                line = ("-", "--", "-.", ":")[place % 4]
                axes.step(at, share, where="post", lw=1.4, ls=line, label=name, color=colours.series(place))
        if longest > 30 * max(shortest, 1e-6):
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter("")
        axes.set(title="Completion times of messages", ylabel="share of messages", ylim=(0, 1.02))
        axes.set_xlabel(f"from posting to the last byte in place, {unit}")
        if len(curves) > 1:
            axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        axes.grid(alpha=0.25)

    return figure(draw)


def queues(results: Results) -> "Figure":
    """The longest queue over time, by layer of the fabric and direction."""

    def draw(axes: "Axes", series: Series, scale: float) -> None:
        times = np.asarray(series.times_us) * scale
        longest = series.array("groups")[..., 2].max(axis=1) / 1e3
        for layer in range(series.layers):
            for direction, ls in ((0, "-"), (1, "--")):
                if layer == 0 and direction == 0:
                    continue  # A NIC keeps at most two packets in its port's queue.
                name = _hop(layer, direction)
                axes.plot(
                    times,
                    longest[:, layer, direction],
                    lw=1.1,
                    ls=ls,
                    color=colours.series(layer),
                    label=name,
                )

    return _over_time(results, "Longest queue", "kB", draw)


def _hop(layer: int, direction: int) -> str:
    low, high = ("host" if layer == 0 else f"T{layer - 1}"), f"T{layer}"
    return f"{low} to {high}" if direction == 0 else f"{high} to {low}"


def link_load(results: Results) -> "Figure":
    """A heat map of load over time: one row for each link and direction, hosts' cables first."""
    series = _series(results)
    if not series.links:
        raise Error("no link was recorded one by one: record.links")

    def draw(axes: "Axes") -> None:
        scale, unit = time_scale(series.times_us[-1])
        port_rate = results.scenario.topology.port_rate
        load = _rates(results, "sent")[1] / port_rate
        numbers = np.asarray(series.links)
        layer = np.frombuffer(results.links["layer"], dtype=np.uint64)[2 * numbers]
        plane = np.frombuffer(results.links["plane"], dtype=np.uint64)[2 * numbers]
        order, labels, ticks, edges, at = [], [], [], [], 0
        names: dict[float, str] = {}
        for which in sorted(set(layer.tolist())):
            for direction in (0, 1):
                rows = np.flatnonzero(layer == which)
                rows = rows[np.argsort(plane[rows], kind="stable")]
                order.append(load[:, rows, direction])
                labels.append(_hop(int(which), direction))
                ticks.append(at + len(rows) / 2)
                found, counts = np.unique(plane[rows], return_counts=True)
                middles = at + np.cumsum(counts) - counts / 2
                names |= {float(y): f"p{number}" for y, number in zip(middles, found, strict=True)}
                at += len(rows)
                edges.append(at)
        image = np.concatenate(order, axis=1).T
        merge = max(1, -(-image.shape[0] // _MOST_ROWS))
        if merge > 1:
            missing = -image.shape[0] % merge
            image = np.pad(image, ((0, missing), (0, 0))).reshape(-1, merge, image.shape[1]).max(axis=1)
        times = series.times_us
        shown = axes.imshow(
            image,
            aspect="auto",
            interpolation="nearest",
            cmap=LinearSegmentedColormap.from_list("load", _LOAD),
            vmin=0,
            vmax=1,
            extent=(0, times[-1] * scale, at, 0),
        )
        for edge in edges[:-1]:
            axes.axhline(edge, color=FAINT, lw=0.8)
        axes.set_yticks(ticks, labels)
        axes.tick_params(axis="y", which="major", length=0, pad=22)
        axes.set_yticks(list(names), list(names.values()), minor=True)
        axes.tick_params(axis="y", which="minor", length=2, labelsize=6)
        axes.set(title=f"Load of {at // 2:,} links, by layer and plane", xlabel=f"time, {unit}")
        axes.figure.colorbar(shown, ax=axes, label="share of the port's rate", fraction=0.03)

    layers = np.frombuffer(results.links["layer"], dtype=np.uint64)[2 * np.asarray(series.links)]
    names_of_planes = 2 * len(set(layers.tolist())) * series.planes
    return figure(draw, height=max(4.4, _HEIGHT_OF_A_PLANE * names_of_planes))


def steps(results: Results) -> "Figure":
    """The time of each training step; steps during which something was broken are hatched."""

    def draw(axes: "Axes") -> None:
        taken = [step for step in results.steps if step.took_us is not None and step.end_us is not None]
        scale, unit = time_scale(max((step.took_us or 0.0 for step in taken), default=1.0))
        broken = _broken(results.log)
        patterns = sorted({step.pattern for step in taken})
        width = 0.8 / max(1, len(patterns))
        for step in taken:
            end, took = step.end_us or 0.0, step.took_us or 0.0
            hit = any(begin < end and repaired > end - took for begin, repaired in broken)
            place = patterns.index(step.pattern) - (len(patterns) - 1) / 2
            axes.bar(
                step.number + place * width,
                took * scale,
                width=width,
                color=colours.series(step.pattern),
                edgecolor=PAPER,
                hatch="///" if hit else None,
            )
        title = "Step times" + (" (hatched: something was broken)" if broken else "")
        axes.set(title=title, xlabel="step", ylabel=unit)
        axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))

    return figure(draw)


def _broken(log: Sequence[LogEvent]) -> list[tuple[float, float]]:
    """Begin and end of each fault, microseconds."""
    since: dict[str, float] = {}
    spans = []
    for event in log:
        if event.kind in IMPAIRED:
            since.setdefault(event.where, event.time_us)
        elif event.kind == REPAIRED and event.where in since:
            spans.append((since.pop(event.where), event.time_us))
    return [*spans, *((begin, math.inf) for begin in since.values())]


def _series(results: Results) -> Series:
    if results.series is None:
        raise Error("no time series was recorded: record.series")
    return results.series


def available(results: Results) -> dict[str, Callable[[Results], "Figure"]]:
    """The pictures that these results allow, by name."""
    chosen: dict[str, Callable[[Results], Figure]] = {}
    if results.series is not None:
        chosen["goodput"] = goodput
        if results.series.planes > 1:
            chosen["planes"] = planes
    if results.completion_times_us():
        chosen["completion"] = completion
    if results.steps:
        chosen["steps"] = steps
    if results.series is not None:
        chosen["queues"] = queues
        if results.series.links:
            chosen["link-load"] = link_load
    return chosen


def save(results: Results, directory: Path | str) -> list[Path]:
    """Writes every picture as ``DIR/NAME.png``; returns the paths.

    Raises:
        Error: if matplotlib is not installed.
        OSError: if they cannot be written.
    """
    require()
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, draw in available(results).items():
        paths.append(directory / f"{name}.png")
        with replacing(paths[-1], "wb") as file:
            draw(results).savefig(file, format="png")
    return paths


def side_by_side(
    rows: Sequence[tuple[str, float | None]], title: str, unit: str, shown: Callable[[float | None], str]
) -> "Figure":
    """Horizontal bars, one for each run.

    Args:
        rows: Names and values; ``None`` if a run has none.
        title: The title.
        unit: The unit of the axis.
        shown: A value as text, with its unit.
    """

    def draw(axes: "Axes") -> None:
        names = [name for name, _ in rows]
        values = [value or 0.0 for _, value in rows]
        bars = axes.barh(names, values, color=[colours.series(i) for i in range(len(rows))], height=0.6)
        axes.bar_label(bars, labels=[shown(value) for _, value in rows], padding=3)
        axes.invert_yaxis()
        axes.set(title=title, xlabel=unit)
        axes.xaxis.set_major_formatter("{x:,g}")
        axes.margins(x=0.15)

    return figure(draw, height=0.9 + 0.4 * max(len(rows), 2))


def stack(figures: "Sequence[Figure]", path: Path | str) -> None:
    """Writes figures below each other as one picture.

    Raises:
        OSError: if it cannot be written.
    """
    import io

    images = []
    for each in figures:
        buffer = io.BytesIO()
        each.savefig(buffer, format="png", dpi=130)
        buffer.seek(0)
        images.append(matplotlib.image.imread(buffer))
    width = max(image.shape[1] for image in images)
    whole = np.ones((sum(image.shape[0] for image in images), width, 4), dtype=np.float32)
    at = 0
    for image in images:
        whole[at : at + image.shape[0], : image.shape[1], : image.shape[2]] = image
        at += image.shape[0]
    made = Figure(figsize=(width / 130, whole.shape[0] / 130), dpi=130)
    made.figimage(whole)
    with replacing(path, "wb") as file:
        made.savefig(file, format=Path(path).suffix[1:] or None)
