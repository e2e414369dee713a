"""One HTML file that needs nothing else: figures, pictures, events, counters, the scenario."""

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2
import yaml

import openmrc
from openmrc.sim import pictures
from openmrc.sim.results import Entry, Results
from openmrc.sim.scenario import Scenario
from openmrc.sim.text import headline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_environment = jinja2.Environment(
    loader=jinja2.PackageLoader("openmrc.sim"),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)
_MOST_ENTRIES = 200
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
    entries = [_entry(entry) for entry in _telling(results.log)]
    html = render(
        title=title,
        lead=lead(results.scenario),
        headline=headline(results),
        figures=figures,
        scenario=results.scenario,
        interrupted=results.interrupted,
        log=entries[:_MOST_ENTRIES],
        log_left=max(0, len(results.log) + results.log_missed - min(len(entries), _MOST_ENTRIES)),
        counters=[("", list(results.totals.items()))],
    )
    Path(path).write_text(html, encoding="utf-8")


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
    return _environment.get_template("report.html.j2").render(
        title=title,
        lead=lead,
        headline=headline,
        pictures=[(name, _embedded(name, figure)) for name, figure in figures],
        scenario=as_yaml(scenario),
        interrupted=interrupted,
        table=table,
        log=log,
        log_left=log_left,
        counters=counters,
        version=openmrc.__version__,
    )


def lead(scenario: Scenario) -> str:
    """The scenario in a line."""
    topology, network = scenario.topology, scenario.network
    ports = f"{topology.planes} x {network.port_rate / 1e9:g} Gb/s"
    fabric = f"{topology.hosts:,} hosts, {ports}, {topology.tiers} tiers"
    kinds = ", ".join(getattr(pattern, "operation", pattern.kind) for pattern in scenario.traffic)
    return f"{fabric}; {scenario.transport.kind}; {kinds}; seed {scenario.seed}"


def as_yaml(scenario: Scenario) -> str:
    """The scenario as it would be written: fields that are not at their defaults. It can be read again."""
    value = scenario.model_dump(mode="json", exclude_defaults=True)
    # What tells parts of one list apart is at its default in each of them, and needed.
    for field in ("traffic", "faults"):
        parts = zip(getattr(scenario, field), value.get(field, []), strict=False)
        value |= {field: [{"kind": part.kind, **fields} for part, fields in parts]} if field in value else {}
    if scenario.transport.kind != "mrc" or "transport" in value:
        value["transport"] = {"kind": scenario.transport.kind, **value.get("transport", {})}
    text: str = yaml.safe_dump(value, sort_keys=False, default_flow_style=None, width=110)
    return text


def _embedded(name: str, figure: "Figure") -> tuple[str, str]:
    buffer = io.BytesIO()
    # A heat map is pixels anyway; everything else stays sharp as lines.
    kind = "png" if name == _NAMES["link-load"] else "svg"
    figure.savefig(buffer, format=kind)
    return {"png": "png", "svg": "svg+xml"}[kind], base64.b64encode(buffer.getvalue()).decode()


def _telling(log: Sequence[Entry]) -> list[Entry]:
    """Faults and what routing did first; then paths, of which there may be thousands."""
    few = [entry for entry in log if not entry.kind.startswith("ev-")]
    many = [entry for entry in log if entry.kind.startswith("ev-")]
    kept = few[:_MOST_ENTRIES] + many[: max(0, _MOST_ENTRIES - len(few))]
    return sorted(kept, key=lambda entry: entry.time_us)


def _entry(entry: Entry) -> tuple[float, str, str]:
    what = {"ev-bad": "path condemned", "ev-good": "path back", "qp-failed": "queue pair failed"}.get(
        entry.kind
    )
    where = entry.where
    if entry.host is not None:
        where = f"h{entry.host} to h{entry.peer}"
        if entry.ev is not None:
            where += f", EV 0x{entry.ev:08x}, plane {entry.plane}"
    value = "" if entry.value is None else f" {entry.value:g}"
    return entry.time_us, (what or entry.kind) + value, where
