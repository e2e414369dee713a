"""Results of the benchmarks: the table in markdown, all numbers in JSON, the description of the machine."""

import datetime
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from figures import Figure, Repetition, needed
from instruments import ROOT, Absent, NotMeasured

_ENOUGH = 5
"""Repetitions from which on a median says something about a bound."""


def marks(section: str) -> tuple[str, str]:
    """The lines before and after the table of a section in the document."""
    return f"<!-- {section}: begin (written by benches/run.py --update-docs) -->", f"<!-- {section}: end -->"


@dataclass(frozen=True)
class Outcome:
    """A figure over all repetitions; ``reason`` is set, and ``values`` empty, if it was not measured."""

    figure: Figure
    values: Sequence[float]
    reason: str = ""
    absent: bool = False
    """A tool of the figure is not installed."""

    @property
    def reached(self) -> bool | None:
        """Whether the median reaches the bound; None if the figure was not measured or has no bound."""
        holds = self.figure.target.holds
        return holds(median(self.values)) if holds and self.values else None

    @property
    def failed(self) -> bool:
        """Whether the bound was missed, or was not measured although the tools are there."""
        return self.figure.target.holds is not None and not self.absent and not self.reached


def evaluate(figure: Figure, repetitions: Sequence[Repetition]) -> Outcome:
    """Computes a figure within each repetition.

    A figure that is missing in one repetition counts as not measured: a median of the other repetitions
    could be biased.
    """
    try:
        return Outcome(figure, [figure.value(each) for each in repetitions])
    except NotMeasured as reason:
        return Outcome(figure, [], str(reason), isinstance(reason, Absent))


def machine() -> dict[str, str]:
    """The machine on which the figures were measured."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    virtual = " (virtual machine)" if "hypervisor" in _cpuinfo("flags").split() else ""
    return {
        "cpu": f"{_cpuinfo('model name') or platform.processor()}{virtual}",
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{memory:.0f} GiB",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "rust": _output("rustc", "--version").removeprefix("rustc "),
        "commit": _output("git", "describe", "--always", "--dirty"),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def _cpuinfo(key: str) -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""


def _output(*command: str) -> str:
    try:
        result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return result.stdout.strip()


def markdown(outcomes: Sequence[Outcome], repetitions: Sequence[Repetition], where: Mapping[str, str]) -> str:
    """Markdown: the figures, the measurements behind them, and the machine."""
    lines = ["| figure | target | median | range | |", "|---|---|---|---|---|"]
    for outcome in outcomes:
        figure, unit = outcome.figure, outcome.figure.unit
        if outcome.values:
            low, high = min(outcome.values), max(outcome.values)
            mark = {True: "reached", False: "**missed**", None: ""}[outcome.reached]
            cells = [f"{median(outcome.values):.4g}{unit}", f"{low:.4g} .. {high:.4g}", mark]
        else:
            cells = ["-", "-", _why_not(outcome.reason, absent=outcome.absent)]
        lines.append(f"| {figure.name} | {figure.target.text} | {' | '.join(cells)} |")
    few = ", too few to prove a bound" if len(repetitions) < _ENOUGH else ""
    lines += ["", f"The measurements behind it, medians of {len(repetitions)} repetitions{few}:", ""]
    lines += ["| measurement | |", "|---|---|"]
    for instrument in needed([outcome.figure for outcome in outcomes]):
        lines.append(f"| {instrument.name} | {_measured(instrument.name, repetitions)} |")
    lines += ["", "Machine: " + ", ".join(f"{key} {value}" for key, value in where.items()) + "."]
    return "\n".join(lines) + "\n"


def _measured(name: str, repetitions: Sequence[Repetition]) -> str:
    samples = []
    for repetition in repetitions:
        numbers = repetition[name]
        if isinstance(numbers, NotMeasured):
            return _why_not(str(numbers), absent=isinstance(numbers, Absent))
        samples.append(numbers)
    return ", ".join(_with_unit(key, median(each[key] for each in samples)) for key in samples[0])


def _why_not(reason: str, *, absent: bool) -> str:
    text = reason.replace("|", "\\|").replace("\n", " ")
    return f"absent: {text}" if absent else f"not measured: {text}"


_UNITS = {"gbps": "Gb/s", "gbs": "GB/s", "pps": "/s", "mpps": "M/s", "bytes": "B"}
_COUNTS = ("events_per_packet", "hosts")


def _with_unit(key: str, value: float) -> str:
    quantity, _, unit = key.rpartition("_")
    unit = _UNITS.get(unit, unit)
    if key in _UNITS:
        return f"{value:,.0f} {_UNITS[key]}" if value >= 1000 else f"{value:.3g} {_UNITS[key]}"
    if key in _COUNTS:
        return f"{value:,.4g} {key.replace('_', ' ')}" if value < 1000 else f"{value:,.0f} {key}"
    return f"{quantity} {value:,.0f} {unit}" if value >= 1000 else f"{quantity} {value:.3g} {unit}"


def as_json(
    outcomes: Sequence[Outcome], repetitions: Sequence[Repetition], where: Mapping[str, str]
) -> dict[str, Any]:
    """JSON: the figures and the measurements of every repetition."""
    return {
        "machine": dict(where),
        "figures": [
            {
                "figure": each.figure.name,
                "target": each.figure.target.text,
                "unit": each.figure.unit.strip() or "ratio",
                "median": median(each.values) if each.values else None,
                "values": list(each.values),
                "reached": each.reached,
                "not_measured": each.reason or None,
            }
            for each in outcomes
        ],
        "repetitions": [
            {
                name: {"not_measured": str(numbers)} if isinstance(numbers, NotMeasured) else dict(numbers)
                for name, numbers in each.items()
            }
            for each in repetitions
        ],
    }


def write(directory: Path, table: str, everything: Mapping[str, Any]) -> list[Path]:
    """Writes ``latest.md`` and ``latest.json``."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = [directory / "latest.md", directory / "latest.json"]
    paths[0].write_text(table)
    paths[1].write_text(json.dumps(everything, indent=2) + "\n")
    return paths


def update_docs(path: Path, section: str, table: str) -> None:
    """Replaces the text between the two markers of a section of a document.

    Raises:
        ValueError: the document lacks the markers.
    """
    text = path.read_text()
    first, last = marks(section)
    before, begin, rest = text.partition(first)
    _, end, after = rest.partition(last)
    if not (begin and end):
        raise ValueError(f"{path} lacks the lines {first!r} and {last!r}")
    path.write_text(f"{before}{first}\n{table}{last}{after}")
