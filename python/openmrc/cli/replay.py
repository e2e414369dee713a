"""``openmrc replay``: what a job would have seen of an incident, from the simulator."""

import dataclasses
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openmrc.cli import _common
from openmrc.cli._simulation import check_outputs, progress
from openmrc.cli.controller import require
from openmrc.printable import printable

if TYPE_CHECKING:
    from openmrc.operate.incident import Incident
    from openmrc.operate.replay import Replay, Seen


def replay(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="INCIDENT.json", help="As `openmrc fabric incident` writes it; - is standard input."
        ),
    ],
    out: Annotated[
        Path | None,
        _common.out_option("FILE", "Also write the scenario to this file, for `openmrc simulate`."),
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Of the simulation. Default 1.")] = None,
    json: _common.JsonOption = False,
) -> None:
    """Simulate an incident of a controller, and show what a job would have seen beside what was observed.

    The simulated fabric is the controller's, or a small one with the same planes if it is large. The fault is
    of the observed kind at the observed times, compressed to microseconds, under a permutation of all hosts.
    What is not as it was is said.
    """
    require("a replay", "httpx")
    from openmrc import sim
    from openmrc.errors import FormatError
    from openmrc.files import read_text, write_text
    from openmrc.operate import incident as incidents
    from openmrc.operate import replay as replays

    check_outputs([out], [])
    standard = str(file) == "-"
    name = "standard input" if standard else str(file)
    if standard:
        text = sys.stdin.buffer.read(incidents.MOST_BYTES + 1).decode(errors="replace")
        if len(text) > incidents.MOST_BYTES:
            raise FormatError(f"{name}: an incident has at most {incidents.MOST_BYTES >> 20} MiB")
    else:
        text = read_text(file, most=incidents.MOST_BYTES)
    found = incidents.parse(text, name)
    try:
        prepared = replays.prepare(found, seed=seed)
    except FormatError as error:
        raise FormatError(f"{name}: {error}") from None
    if out is not None:
        write_text(out, prepared.scenario.to_yaml())
    saw = []
    for each in (prepared.scenario, replays.without_fault(prepared)):
        with progress() as advance:
            results = sim.run(each, advance)
        if results.interrupted:
            raise typer.Exit(_common.EXIT_INTERRUPTED)
        saw.append(replays.seen(prepared, results))
    if json:
        _common.print_json(_as_json(found, prepared, *saw))
    else:
        _print(found, prepared, *saw)
    if out is not None:
        _common.console(stderr=True).print(f"wrote {out}")


def _as_json(found: "Incident", prepared: "Replay", saw: "Seen", whole: "Seen") -> dict[str, Any]:
    return {
        "observed": {**found.fault.model_dump(), "decisions": [d.model_dump() for d in found.decisions]},
        "simulated": {
            "kind": str(prepared.component.kind),
            "name": prepared.component.name,
            "hosts": prepared.scenario.topology.hosts,
            "begin_us": prepared.begin_us,
            "end_us": prepared.end_us,
            "length_us": prepared.length_us,
            **dataclasses.asdict(saw),
        },
        "without_fault": dataclasses.asdict(whole),
        "remarks": prepared.remarks,
    }


def _print(found: "Incident", prepared: "Replay", saw: "Seen", whole: "Seen") -> None:
    fault = found.fault
    lasts = "still open" if fault.until is None else f"{fault.until - fault.since:,.1f} s"
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(fault.since))
    names = [each.name for each in fault.suspects[:4]] if fault.kind == "unknown" else [fault.name]
    component, topology = prepared.component, prepared.scenario.topology
    total = topology.hosts * topology.planes * topology.port_rate

    def goodput(value: float | None) -> str:
        return "-" if value is None else f"{value / 1e9 / topology.hosts:,.2f} Gbit/s a host"

    end = "to the end" if prepared.end_us is None else f"until {prepared.end_us:,.0f} us"
    rows = [
        ("component", printable(f"{fault.kind} {' or '.join(names)}"), str(component), "-"),
        ("loss", f"{fault.loss:.2%}, confidence {fault.confidence:.2f}", f"{fault.loss:.2%}", "-"),
        ("when", f"{began}, {lasts}", f"from {prepared.begin_us:,.0f} us {end}", "-"),
        ("capacity lost", f"{fault.cost_bps / 1e9:,.0f} Gbit/s", f"of {total / 1e9:,.0f} Gbit/s", "-"),
        ("paths condemned", f"{fault.paths:,} accused", f"{saw.condemned:,}", f"{whole.condemned:,}"),
        ("goodput before", "-", goodput(saw.before_bps), goodput(whole.before_bps)),
        ("goodput during", "-", goodput(saw.during_bps), goodput(whole.during_bps)),
        ("goodput after", "-", goodput(saw.after_bps), goodput(whole.after_bps)),
        ("packets resent", "-", f"{saw.resent:,}", f"{whole.resent:,}"),
        ("queue pairs lost", "-", f"{saw.failed:,}", f"{whole.failed:,}"),
    ]
    _common.print_table(("", "observed", "simulated", "without the fault"), rows, left=4)
    remarks = list(prepared.remarks)
    for outcome in found.decisions:
        done = "" if outcome.done else ", not done" if not outcome.dry_run else ", a dry run"
        when = outcome.time - fault.since
        remarks.append(f"{outcome.who}: {outcome.action} {outcome.what} after {when:,.1f} s{done}")
    remarks += [f"at the same time: {each.kind} {each.name}, not simulated" for each in found.others[:8]]
    for remark in remarks:
        print(printable(f"note: {remark}"))
