"""Runs the benchmarks: all measurements in turn, repeated several times; called by ``make bench``.

The rows of the table are in ``figures.py``, the measurements in ``instruments.py``.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import growth
import report
from figures import FIGURES, Figure, Repetition, needed
from instruments import ROOT, Bench, Instrument, NotMeasured, Numbers


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--bench-binary",
        type=Path,
        default=ROOT / "target/release/openmrc-bench",
        help="the program openmrc-bench",
    )
    add("--repetitions", type=int, default=5, help="repetitions of all measurements (default 5)")
    add("--seconds", type=float, default=2.0, help="length of each throughput measurement (default 2)")
    add(
        "--iterations",
        type=int,
        default=100_000,
        help="round trips of each latency measurement (default 100000)",
    )
    add("--cpus", metavar="A,B", help="cores of the two sides of a reference (default: the first two usable)")
    add(
        "--only",
        metavar="TEXT",
        help="only figures with TEXT in their name, or in that of their table or of a measurement",
    )
    add(
        "--output",
        type=Path,
        default=ROOT / "benches/results",
        help="directory for latest.json and latest.md",
    )
    add("--update-docs", action="store_true", help="put the table into docs/benchmarks.md")
    add("--check", action="store_true", help="exit with 1 if a figure misses its bound")
    add("--list", action="store_true", help="list the figures and measurements and end")
    options = parser.parse_args(arguments)
    if options.repetitions < 1 or options.seconds <= 0 or options.iterations < 1:
        parser.error("--repetitions and --iterations must be at least 1, --seconds above 0")
    usable = sorted(os.sched_getaffinity(0))
    try:
        options.cpus = tuple(map(int, options.cpus.split(","))) if options.cpus else tuple(usable[:2])
    except ValueError:
        parser.error(f"--cpus takes two numbers such as 0,1, not {options.cpus!r}")
    if len(options.cpus) != 2 or not set(options.cpus) <= set(usable):
        parser.error(f"two usable CPUs are needed, each side polls on one; usable here: {usable}")
    return options


def select(text: str | None) -> list[Figure]:
    """The figures whose name or table, or the name of a measurement of theirs, contains a text."""
    names = {
        figure.name: [figure.name, figure.section, *(each.name for each in figure.instruments())]
        for figure in FIGURES
    }
    return [each for each in FIGURES if text is None or any(text in name for name in names[each.name])]


def measure(instruments: Sequence[Instrument], bench: Bench, repetition: str) -> Repetition:
    """Runs every instrument once, one after the other."""
    results: dict[str, Numbers | NotMeasured] = {}
    for instrument in instruments:
        try:
            numbers = instrument.measure(bench)
            results[instrument.name] = numbers
            line = ", ".join(f"{key} {value:.5g}" for key, value in numbers.items())
        except NotMeasured as reason:
            results[instrument.name] = reason
            line = f"not measured: {reason}"
        print(f"[{repetition}] {instrument.name:20} {line}", file=sys.stderr, flush=True)
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints the table, writes the files; returns the exit code."""
    options = parse(arguments)
    figures = select(options.only)
    instruments = needed(figures)
    if not figures:
        print(f"error: no figure has {options.only!r} in its name; see --list", file=sys.stderr)
        return 2
    if options.list:
        for figure in figures:
            print(f"{figure.name}: {figure.target.text}")
        print()
        for instrument in instruments:
            print(f"{instrument.name:20} {instrument.describe}")
        return 0

    if os.getloadavg()[0] > 0.5:
        print(
            f"note: the load average is {os.getloadavg()[0]:.1f}; other programs disturb the measurements",
            file=sys.stderr,
        )
    bench = Bench(options.bench_binary.resolve(), options.seconds, options.iterations, options.cpus)
    repetitions = [
        measure(instruments, bench, f"{number}/{options.repetitions}")
        for number in range(1, options.repetitions + 1)
    ]
    outcomes = [report.evaluate(figure, repetitions) for figure in figures]
    where = report.machine()
    tables = {}
    for section in dict.fromkeys(figure.section for figure in figures):
        rows = [each for each in outcomes if each.figure.section == section]
        tables[section] = report.markdown(rows, repetitions, where)
    table = "\n".join(tables.values())
    print(table)
    paths = report.write(options.output, table, report.as_json(outcomes, repetitions, where))
    print("written: " + ", ".join(str(path) for path in paths))
    if options.update_docs:
        for section, section_table in tables.items():
            report.update_docs(ROOT / "docs/benchmarks.md", section, section_table)
        growth.draw(repetitions, ROOT / "docs/images/sim-growth.png")
    return 1 if options.check and any(each.failed for each in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
