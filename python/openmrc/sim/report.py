"""One self-contained HTML file: figures, pictures, events, counters, the scenario."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from openmrc import htmlpage
from openmrc.files import write_text
from openmrc.sim import pictures
from openmrc.sim.results import LogEvent, Results
from openmrc.sim.scenario import Scenario
from openmrc.sim.text import count, headline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_EVENTS = 200
_OF_QUEUE_PAIRS = ("ev-", "peer-")
_NAMES = {
    "goodput": "Goodput over time",
    "planes": "Planes",
    "completion": "Completion times",
    "steps": "Training steps",
    "queues": "Queues",
    "link-load": "Links",
}


def write(results: Results, path: Path | str, title: str = "openmrc simulate") -> None:
    """Writes the report of one run.

    Raises:
        Error: if matplotlib is not installed.
        OSError: if the file cannot be written.
    """
    pictures.require()
    figures = [(_NAMES[name], draw(results)) for name, draw in pictures.available(results).items()]
    events = [_row(event) for event in _most_important(results.log)]
    html = render(
        title=title,
        lead=lead(results.scenario),
        headline=headline(results),
        figures=figures,
        scenario=results.scenario,
        interrupted=results.interrupted,
        log=events[:_MOST_EVENTS],
        log_left=max(0, len(results.log) + results.log_missed - min(len(events), _MOST_EVENTS)),
        counters=[("", [*results.totals.items(), *((name, n) for name, n in results.life.items() if n)])],
    )
    write_text(path, html)


def render(
    *,
    title: str,
    lead: str,
    headline: Sequence[tuple[str, str]],
    figures: "Sequence[tuple[str, Figure]]",
    scenario: Scenario,
    interrupted: bool = False,
    table: tuple[Sequence[str], Sequence[Sequence[str]]] | None = None,
    log: Sequence[tuple[float, str, str]] = (),
    log_left: int = 0,
    counters: Sequence[tuple[str, Sequence[tuple[str, int]]]] = (),
) -> str:
    """The page."""
    return htmlpage.render(
        "openmrc.sim",
        "report.html.j2",
        title=title,
        lead=lead,
        headline=headline,
        pictures=[(name, htmlpage.embedded(figure)) for name, figure in figures],
        scenario=scenario.to_yaml(),
        interrupted=interrupted,
        table=table,
        log=[(f"{time_us:,.2f}", what, where) for time_us, what, where in log],
        log_left=log_left,
        counters=[(name, [(key, f"{value:,}") for key, value in values]) for name, values in counters],
    )


def lead(scenario: Scenario) -> str:
    """The scenario in a line."""
    topology = scenario.topology
    ports = f"{topology.planes} x {topology.port_rate / 1e9:g} Gb/s"
    fabric = f"{count(topology.hosts, 'host')}, {ports}, {count(topology.tiers, 'tier')}"
    kinds = ", ".join(getattr(pattern, "operation", pattern.kind) for pattern in scenario.traffic)
    return f"{fabric}; {scenario.transport.kind}; {kinds}; seed {scenario.seed}"


def _most_important(log: Sequence[LogEvent]) -> list[LogEvent]:
    """Faults and what routing did; thousands of events of queue pairs only while there is room."""
    few = [event for event in log if not event.kind.startswith(_OF_QUEUE_PAIRS)]
    many = [event for event in log if event.kind.startswith(_OF_QUEUE_PAIRS)]
    chosen = few[:_MOST_EVENTS] + many[: max(0, _MOST_EVENTS - len(few))]
    return sorted(chosen, key=lambda event: event.time_us)


def _row(event: LogEvent) -> tuple[float, str, str]:
    what = {
        "ev-bad": "path condemned",
        "ev-good": "path back",
        "peer-ports": "ports of the peer",
        "qp-failed": "queue pair failed",
    }.get(event.kind)
    where = event.where
    if event.host is not None:
        where = f"h{event.host} to h{event.peer}"
        if event.ev is not None:
            where += f", EV 0x{event.ev:08x}, plane {event.plane}"
        elif event.where:
            where += f", {event.where}"
    value = "" if event.value is None else f" {event.value:g}"
    return event.time_us, (what or event.kind) + value, where
