"""The same scenario with several transports, side by side: same traffic, same seeds, same total bandwidth."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openmrc import notebook
from openmrc.extras import import_optional
from openmrc.files import write_text
from openmrc.sim import check, collectives
from openmrc.sim.results import DROPS, Results, Summary
from openmrc.sim.run import Progress, run
from openmrc.sim.scenario import Rocev2, Scenario
from openmrc.sim.text import gbps, micros, percentile
from openmrc.sim.transports import apply

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = (
    "transport",
    "delivered",
    "median",
    "99 %",
    "last",
    "fairness",
    "goodput per host",
    "resent",
    "lost",
    "failed QPs",
)
_OF_COLLECTIVES = ("collective", "algbw", "busbw", "collective step")
_OF_TRAINING = ("training step",)


@dataclass(frozen=True, repr=False)
class Comparison:
    """Results by transport, in the order asked for."""

    scenario: Scenario
    results: Mapping[str, Sequence[Results]]
    """One run for each seed."""
    interrupted: bool = False
    """Whether an interrupt ended it: the last run may be incomplete, and those after it are missing."""

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join(self.results)}>"

    def _repr_html_(self) -> str:
        from openmrc.sim import pictures

        shown = notebook.table(self.rows(), self.columns)
        if pictures.are_possible():
            shown += notebook.Gallery(self.figures())._repr_html_()
        return shown

    def to_pandas(self) -> Any:
        """One row for each run, as a ``pandas.DataFrame``: transport, seed, summary, counters.

        Raises:
            Error: if pandas is not installed.
        """
        from openmrc.sim.sweep import row

        runs = [(name, run) for name, runs in self.results.items() for run in runs]
        return import_optional("pandas", "to_pandas", "pandas").DataFrame(
            [{"transport": name, "seed": run.scenario.seed, **row(run)} for name, run in runs]
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """Headings of :meth:`rows`; those of collective operations and training only if there are any."""
        runs = [run for runs in self.results.values() for run in runs]
        of_collectives = _OF_COLLECTIVES if any(run.collectives for run in runs) else ()
        return (*_COLUMNS, *of_collectives, *(_OF_TRAINING if any(run.steps for run in runs) else ()))

    def rows(self) -> list[list[str]]:
        """A table, one row for each transport; with several seeds the mean of each figure."""
        return [[name, *_row(runs, self.columns)] for name, runs in self.results.items()]

    def notes(self) -> list[str]:
        """A line for each transport that leaves planes unused because its queue pairs are fewer."""
        found = []
        for name, runs in self.results.items():
            transport, planes = runs[0].scenario.transport, runs[0].scenario.topology.planes
            if isinstance(transport, Rocev2) and transport.qps < planes:
                qps = "one queue pair" if transport.qps == 1 else f"{transport.qps} queue pairs"
                used = f"{transport.qps} of {planes} planes"
                found.append(f"note: {name} sends each message on {used}: {qps}, one plane each")
        return found

    def to_dict(self) -> dict[str, Any]:
        """Everything measured, for JSON."""
        return {
            name: [
                {"seed": run.scenario.seed, **run.to_dict(), "step_time_us": mean_step(run)} for run in runs
            ]
            for name, runs in self.results.items()
        }

    def figures(self) -> "list[tuple[str, Figure]]":
        """Pictures: goodput, completion times, and step times if there are steps."""
        from openmrc.sim import pictures

        firsts = {name: runs[0] for name, runs in self.results.items()}
        hosts = self.scenario.topology.hosts
        goodput = [
            (name, _mean([(s.goodput_bps or 0.0) / hosts / 1e9 for s in map(Results.summary, runs)]))
            for name, runs in self.results.items()
        ]

        def in_gbps(value: float | None) -> str:
            return gbps(None if value is None else value * 1e9)

        figures = [
            ("Goodput", pictures.side_by_side(goodput, "Goodput per host", "Gb/s", in_gbps)),
            ("Completion times", pictures.completion(next(iter(firsts.values())), firsts)),
        ]
        if any(each.steps for each in firsts.values()):
            steps = [(name, _mean([mean_step(run) for run in runs])) for name, runs in self.results.items()]
            scale, unit = pictures.time_scale(max(time or 0.0 for _, time in steps))
            scaled = [(name, None if time is None else time * scale) for name, time in steps]

            def in_time(value: float | None) -> str:
                return "-" if value is None else f"{value:,.2f} {unit}"

            figures.append(("Step times", pictures.side_by_side(scaled, "Mean step time", unit, in_time)))
        return figures

    def picture(self, path: Path | str) -> None:
        """Writes the goodputs and completion times as one picture, in the format of the name's ending.

        Raises:
            Error: if matplotlib is not installed.
            OSError: if it cannot be written.
        """
        from openmrc.sim import pictures

        pictures.stack([figure for _, figure in self.figures()], path)

    def report(self, path: Path | str, title: str = "openmrc compare") -> None:
        """Writes one self-contained HTML file.

        Raises:
            Error: if matplotlib is not installed.
            OSError: if it cannot be written.
        """
        from openmrc.sim import report

        html = report.render(
            title=title,
            lead=report.lead(self.scenario),
            headline=[],
            figures=self.figures(),
            scenario=self.scenario,
            interrupted=self.interrupted,
            table=(self.columns, self.rows()),
            counters=[(name, list(runs[0].totals.items())) for name, runs in self.results.items()],
        )
        write_text(path, html)


def compare(
    scenario: Scenario,
    transports: Sequence[str],
    seeds: Sequence[int] | None = None,
    progress: Callable[[str, Progress], object] | None = None,
) -> Comparison:
    """Runs a scenario with each transport and each seed; an interrupt ends it with what is known so far.

    Args:
        scenario: What to run.
        transports: Names with options, such as ``rocev2:qps=8``; see :func:`openmrc.sim.transports.apply`.
        seeds: Seeds; the scenario's own if left out.
        progress: Called with the transport's name and how far its run has come.

    Raises:
        ArgumentError: if there is no such transport, or the scenario cannot run with it.
    """
    # All are checked before the first runs, so that a mistake in the last is reported at once.
    variants = {name: apply(scenario, name) for name in transports}
    seeds = seeds or [scenario.seed]
    for variant in variants.values():
        for seed in (min(seeds), max(seeds)):
            checked = check.check(variant.model_copy(update={"seed": seed}))
        check.try_network(variant, checked)
    results: dict[str, list[Results]] = {}
    for name, variant in variants.items():
        for seed in seeds:

            def report_progress(so_far: Progress, name: str = name) -> None:
                if progress is not None:
                    progress(name, so_far)

            try:
                done = run(variant.model_copy(update={"seed": seed}), report_progress)
            except KeyboardInterrupt:
                # The run had not begun: the results are those of the runs before.
                if not results:
                    raise
                return Comparison(scenario, results, interrupted=True)
            results.setdefault(name, []).append(done)
            if done.interrupted:
                return Comparison(scenario, results, interrupted=True)
    return Comparison(scenario, results)


def mean_step(results: Results) -> float | None:
    """Mean time of the training steps that have ended, microseconds."""
    return _mean([step.took_us for step in results.steps])


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _row(runs: Sequence[Results], columns: Sequence[str]) -> list[str]:
    summaries = [asdict(run.summary()) for run in runs]
    hosts = runs[0].scenario.topology.hosts

    def mean(field: str) -> float | None:
        return _mean([summary[field] for summary in summaries])

    def every(field: str) -> float | None:
        """The mean of all runs; ``None`` if one lacks the figure."""
        return None if any(summary[field] is None for summary in summaries) else mean(field)

    def total(*counters: str) -> str:
        return f"{round(sum(run.totals[c] for run in runs for c in counters) / len(runs)):,}"

    goodput = mean("goodput_bps")
    one: Summary = runs[0].summary()
    row = [
        f"{round(mean('delivered') or 0):,} of {one.messages:,}",
        percentile(every("median_us")),
        percentile(every("p99_us")),
        micros(mean("last_us")),
        "-" if (fairness := mean("fairness")) is None else f"{fairness:.3f}",
        gbps(None if goodput is None else goodput / hosts),
        total("retransmits"),
        total(*DROPS),
        total("fatal"),
    ]
    if _OF_COLLECTIVES[0] in columns:
        figures = [collectives.figures(run.collectives) for run in runs]
        of = {name: _mean([each[name] for each in figures]) for name in figures[0]}
        row += [
            micros(of["collective_time_us"]),
            gbps(of["collective_algbw_bps"]),
            gbps(of["collective_busbw_bps"]),
            micros(of["collective_step_mean_us"]),
        ]
    if _OF_TRAINING[0] in columns:
        row.append(micros(_mean([mean_step(run) for run in runs])))
    return row
