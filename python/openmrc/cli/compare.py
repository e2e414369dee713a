"""``openmrc compare``: one scenario with several transports, side by side."""

from pathlib import Path
from typing import Annotated

import typer

from openmrc.cli import _common
from openmrc.cli._simulation import check_outputs, progress


def compare(
    file: Annotated[Path, typer.Argument(metavar="SCENARIO.yaml", help="The scenario.")],
    transports: Annotated[
        str,
        typer.Option(
            "--transports",
            metavar="LIST",
            help="Comma-separated, such as mrc,rocev2:qps=8,rocev2:qps=8:planes=1. Fields of a transport"
            " follow colons; planes=1 runs it on one plane of the same total bandwidth.",
        ),
    ] = "mrc,rocev2:qps=1,rocev2:qps=8",
    seeds: Annotated[
        int,
        typer.Option(min=1, help="Runs per transport, with the scenario's seed and the following ones."),
    ] = 1,
    picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="Draw goodputs and completion times."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write one HTML file with pictures and figures.")
    ] = None,
    json: _common.JsonOption = False,
) -> None:
    """Run one scenario with several transports and the same seeds, and show the results side by side.

    Each runs on the network it is meant for: MRC with source routes and trimming, RoCEv2 with ECMP and PFC.
    With several seeds the table has means. Ctrl-C ends the run and prints what is known so far.
    """
    from openmrc import sim
    from openmrc.sim import transports as named

    check_outputs([picture, report])
    if picture or report:
        from openmrc.sim import pictures

        pictures.require(picture)
    scenario = sim.load(file)
    with progress() as advance:
        comparison = sim.compare(
            scenario,
            named.names(transports),
            range(scenario.seed, scenario.seed + seeds),
            lambda name, so_far: advance(so_far, name),
        )
    if json:
        _common.print_json(comparison.to_dict())
    else:
        _common.print_table(comparison.columns, comparison.rows())
        for note in comparison.notes():
            _common.console().print(note, markup=False)
    if picture:
        comparison.picture(picture)
    if report:
        comparison.report(report, f"{file.stem}, side by side")
    for path in (picture, report):
        if path:
            _common.console(stderr=True).print(f"wrote {path}")
    if comparison.interrupted:
        raise typer.Exit(_common.EXIT_INTERRUPTED)
