"""The figures of arXiv 2605.04333 from our own runs, in the paper's axes: ``openmrc reproduce --figure``.

Curves over time are of the runs of a row; bandwidths by size are of a row with other sizes of messages.
Both have the row's scaled form.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from openmrc import colours
from openmrc.errors import ArgumentError
from openmrc.sim import pictures
from openmrc.sim.measures import measures
from openmrc.sim.reproduce import Row, rows
from openmrc.sim.results import Results
from openmrc.sim.run import Progress, run
from openmrc.sim.scenario import Loss, Record, Scenario

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LIMIT_US = 2e6
"""A collective that has not ended by then counts as none: less than half a gigabit a second for 64 MB."""


@dataclass(frozen=True)
class OverTime:
    """Goodput over time, a panel for each run."""

    row: str
    panels: Mapping[str, str]
    """Title of each panel, and the row's run."""


@dataclass(frozen=True)
class BySize:
    """Bandwidth by message size, a panel for each loss rate, a curve for each run."""

    row: str
    curves: Mapping[str, str]
    """Name of each curve, and the row's run."""
    sizes: Sequence[int]
    """Bytes of the row's first pattern, as its field means them."""
    measure: str
    """Of :mod:`openmrc.sim.measures`."""
    axis: str
    losses: Mapping[str, float] = field(
        default_factory=lambda: {"no loss": 0.0, "0.1 % lost at the NICs": 1e-3, "1 % lost": 1e-2}
    )


FIGURES: dict[str, OverTime | BySize] = {
    "6": OverTime("P11", {"a transceiver flaps four links of three nodes": "mrc"}),
    "8": OverTime("P9", {"a T1 stops forwarding, and returns": "mrc"}),
    "9a": OverTime("P10", {"four of eight ports down, and back": "back"}),
    "9c": OverTime("P14A", {"twenty T0-T1 links taken down one by one": "twenty"}),
    "9d": OverTime("P14B", {"eight T0-T1 links flap at once": "flapping"}),
    "10": OverTime("P14C", {"a T0 goes down": "t0"}),
    "11": OverTime("P14C", {"a T1 goes down": "t1"}),
    "12": OverTime("P17", {"a fifth of the packets lost on two of a plane's links": "mrc"}),
    "14": OverTime("P15", {"two transfers, the second on one path": "mrc"}),
    "16": BySize(
        "P3",
        {"MRC": "mrc", "RoCE, 1 QP": "rocev2-1", "4 QPs": "rocev2-4", "16 QPs": "rocev2-16"},
        [1 << 20, 4 << 20, 16 << 20, 64 << 20],
        "bus_gbps",
        "all-reduce; what has not ended after two seconds has 0",
    ),
    "17": BySize(
        "P6",
        {"MRC": "mrc-small", "RoCE, 1 QP": "rocev2-small", "16 QPs": "rocev2-16-small"},
        [4 << 10, 16 << 10, 64 << 10, 256 << 10],
        "goodput_per_host_gbps",
        "all-to-all, to each peer; what has not ended after two seconds has 0",
    ),
    "18": OverTime(
        "P7",
        {"MRC": "mrc", "DCQCN, 1 QP": "rocev2-1", "DCQCN, 8 QPs": "rocev2-8", "PFC only, 1 QP": "pfc-1"},
    ),
    "19": OverTime(
        "P14E",
        {
            "three of four links of 400 Gb/s down": "three",
            "two of four links of 100 Gb/s, and back": "quarter-back",
        },
    ),
    "20": OverTime(
        "P19",
        {"MRC": "mrc", "DCQCN, 1 QP": "rocev2-1", "DCQCN, 8 QPs": "rocev2-8", "PFC only, 8 QPs": "pfc-8"},
    ),
    "22": OverTime(
        "P20", {"default profile": "default", "more aggressive": "more", "most aggressive": "most"}
    ),
}
"""By the number that the paper gives it."""


def figures_of(row: str) -> list[str]:
    """The figures that show a row."""
    return [name for name, each in FIGURES.items() if each.row == row]


def draw(
    name: str, path: Path, *, seed: int = 1, progress: Callable[[str, Progress], object] | None = None
) -> None:
    """Runs what a figure shows, and draws it.

    Args:
        name: Its number in the paper, such as ``9c``.
        path: The picture, as PNG.
        seed: Of every run.
        progress: Called with the run's name and how far it has come.

    Raises:
        ArgumentError: if there is no such figure.
        Error: if matplotlib is not installed.
        KeyboardInterrupt: if a run was interrupted.
        OSError: if the picture cannot be written.
    """
    if name not in FIGURES:
        raise ArgumentError(f"--figure: there is no figure {name}; there are {', '.join(FIGURES)}")
    if path.suffix.lower() != ".png":
        raise ArgumentError(f"{path}: the name has to end in .png")
    pictures.require()
    shown = FIGURES[name]
    (row,) = rows([shown.row])
    panels = (
        _over_time(row, shown, seed, progress)
        if isinstance(shown, OverTime)
        else _by_size(row, shown, seed, progress)
    )
    pictures.stack(list(panels), path)


def _over_time(
    row: Row, shown: OverTime, seed: int, progress: Callable[[str, Progress], object] | None
) -> "Iterator[Figure]":
    scenarios = row.scenarios(seed=seed)
    for title, name in shown.panels.items():
        record = scenarios[name].record.model_copy(update={"series": True, "events": True})
        results = _run(scenarios[name].model_copy(update={"record": record}), f"{row.row} {name}", progress)
        made = pictures.goodput(results)
        made.axes[0].set_title(title, loc="left")
        yield made


def _by_size(
    row: Row, shown: BySize, seed: int, progress: Callable[[str, Progress], object] | None
) -> "Iterator[Figure]":
    scenarios = row.scenarios(seed=seed)
    for title, loss in shown.losses.items():
        found: dict[str, list[float]] = {}
        for label, name in shown.curves.items():
            for size in shown.sizes:
                scenario = _with(scenarios[name], size, loss)
                what = f"{label}, {_bytes(size)}, {title}"
                figures = _figures(scenario, what, progress)
                found.setdefault(label, []).append(figures.get(shown.measure, 0.0))

        def whole(axes: "Axes", title: str = title, found: dict[str, list[float]] = found) -> None:
            for number, (label, values) in enumerate(found.items()):
                colour = colours.series(number)
                axes.plot(shown.sizes, values, lw=1.3, marker="o", ms=4, color=colour, label=label)
            axes.set_xscale("log", base=2)
            axes.set_xticks(shown.sizes, [_bytes(size) for size in shown.sizes])
            axes.set(title=title, xlabel=shown.axis, ylabel="Gb/s", ylim=(0, None))
            axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))

        yield pictures.figure(whole)


def _bytes(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def _with(scenario: Scenario, size: int, loss: float) -> Scenario:
    """The scenario with messages of another size, and packets lost at hosts' cables: half at each end."""
    traffic = [scenario.traffic[0].model_copy(update={"bytes": size}), *scenario.traffic[1:]]
    faults = [Loss(targets=["host-links"], probability=loss / 2)] if loss else []
    return scenario.model_copy(
        update={"traffic": traffic, "faults": faults, "limit_us": _LIMIT_US, "record": Record()}
    )


def _figures(
    scenario: Scenario, what: str, progress: Callable[[str, Progress], object] | None
) -> dict[str, float]:
    results = _run(scenario, what, progress)
    summary = results.summary()
    return measures(results) if summary.delivered == summary.messages else {}


def _run(scenario: Scenario, what: str, progress: Callable[[str, Progress], object] | None) -> Results:
    results = run(scenario, None if progress is None else lambda so_far: progress(what, so_far))
    if results.interrupted:
        raise KeyboardInterrupt
    return results
