"""``openmrc reproduce``: the published results of MRC, simulated and compared."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openmrc.cli import _common, _complete
from openmrc.cli._simulation import check_outputs, progress

if TYPE_CHECKING:
    from openmrc.sim.reproduce import Outcome


def reproduce(
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROW",
            help="Only this row, such as P4, or P14 for P14A to P14E. May be repeated.",
            autocompletion=_complete.rows,
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Seeds per run. Default 8; 1 is enough for a first look.")
    ] = None,
    sweeps: Annotated[bool, typer.Option("--sweeps", help="Also sweep what the paper leaves open.")] = False,
    full: Annotated[
        bool,
        typer.Option("--full", help="Run at the published sizes where a row has them: takes hours."),
    ] = False,
    keep: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Directory that keeps the figures of finished runs, which are not repeated."
            " Empty it when the program has changed.",
        ),
    ] = None,
    figure: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Draw this figure of the paper from our runs, such as 16 or 9c."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE.png", help="With --figure: the picture. Default figure-NAME.png."
        ),
    ] = None,
    json: _common.JsonOption = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
) -> None:
    """Simulate the published results of MRC (arXiv 2605.04333) and compare them with ours.

    Sizes are scaled down to minutes on a laptop; the table says how. Exit code 1 if a result disagrees.
    """
    from openmrc.sim import published_page
    from openmrc.sim import reproduce as published

    if figure is not None:
        if only or seeds or sweeps or full or keep or json or markdown:
            raise typer.BadParameter("--figure: only with --out")
        _draw(figure, out or Path(f"figure-{figure}.png"))
        return
    if out is not None:
        raise typer.BadParameter("--out: only with --figure")
    if json and markdown:
        raise typer.BadParameter("--json and --markdown: one of them")
    rows = published.rows(only or ())
    check_outputs([], [keep])
    outcomes = []
    with progress() as advance:
        for row in rows:
            outcome = published.reproduce(
                row,
                full=full,
                seeds=seeds,
                sweeps=sweeps,
                keep=keep,
                progress=lambda name, so_far: advance(so_far, name),
            )
            outcomes.append(outcome)
            if outcome.interrupted:
                break
    if json:
        _common.print_json([_as_dict(outcome, full) for outcome in outcomes])
    elif markdown:
        typer.echo("\n".join(published_page.page(outcomes, full=full)))
    else:
        _print(outcomes, full)
    if any(outcome.interrupted for outcome in outcomes):
        raise typer.Exit(_common.EXIT_INTERRUPTED)
    if not all(outcome.agrees for outcome in outcomes):
        raise typer.Exit(_common.EXIT_FAILURE)


def _draw(figure: str, out: Path) -> None:
    from openmrc.sim import paper

    check_outputs([out], [])
    with progress() as advance:
        paper.draw(figure, out, progress=lambda name, so_far: advance(so_far, name))
    _common.console(stderr=True).print(f"wrote {out}")


def _as_dict(outcome: "Outcome", full: bool) -> dict[str, Any]:
    row = outcome.row
    return {
        "row": row.row,
        "setting": row.setting,
        "published": row.published,
        "scaled": None if full and row.full else row.scaled,
        "chosen": row.chosen,
        "agrees": outcome.agrees,
        "interrupted": outcome.interrupted,
        "took_s": round(outcome.took_s, 1),
        "claims": [
            {
                "says": verdict.claim.says,
                "ours": verdict.ours,
                "values": list(verdict.values),
                "interval": verdict.interval,
                "unit": verdict.claim.unit,
                "bounds": verdict.bounds,
                "verdict": verdict.word,
                "calibrated": verdict.claim.calibrated,
                "why": verdict.claim.why,
            }
            for verdict in outcome.verdicts
        ],
        "figures": list(outcome.figures),
    }


def _print(outcomes: "list[Outcome]", full: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    from openmrc.sim import published_page

    console = _common.console()
    for outcome in outcomes:
        row = outcome.row
        console.print(Text.assemble((row.row, "bold"), f"  {row.setting}"))
        console.print(f"    published: {row.published}")
        if row.scaled and not (full and row.full):
            console.print(f"    scaled: {row.scaled}")
        for choice in row.chosen:
            console.print(f"    chosen: {choice}")
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        for _ in range(5):
            table.add_column()
        for verdict in outcome.verdicts:
            word: str = verdict.word
            if verdict.ours is None and outcome.interrupted:
                word = "not run"
            colour = {"agrees": "green", "disagrees": "red"}.get(word, "yellow")
            table.add_row(
                "   ",
                verdict.claim.says,
                published_page.ours(verdict),
                published_page.interval(verdict),
                Text.assemble((word, colour), f", bounds: {published_page.bounds(verdict.bounds)}"),
            )
        console.print(table)
        for verdict in outcome.verdicts:
            if verdict.claim.why and verdict.ours is not None:
                console.print(f"    {verdict.claim.says}: {verdict.claim.why}")
        console.print(f"    {'interrupted after ' if outcome.interrupted else ''}{outcome.took_s:.0f} s")
