"""``openmrc reproduce``: the published results of MRC, simulated and compared."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openmrc.cli import _common, _complete
from openmrc.cli._simulation import progress

if TYPE_CHECKING:
    from openmrc.sim.reproduce import Outcome, Verdict


def reproduce(
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROW",
            help="Only this row, like P4; may be repeated.",
            autocompletion=_complete.rows,
        ),
    ] = None,
    full: Annotated[
        bool,
        typer.Option("--full", help="At the published sizes, for rows that have them: hours, not minutes."),
    ] = False,
    json: _common.JsonOption = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Write Markdown, for a page.")] = False,
) -> None:
    """Simulate the published results of MRC (arXiv 2605.04333) and compare them with ours.

    Sizes are scaled down to minutes on a laptop; the table says how. Exit code 1 if a result disagrees.
    """
    from openmrc.sim import reproduce as published

    if json and markdown:
        raise typer.BadParameter("--json and --markdown: one of them")
    rows = published.rows(only or ())
    outcomes = []
    with progress() as advance:
        for row in rows:
            outcome = published.reproduce(row, full=full, progress=lambda name, so_far: advance(so_far, name))
            outcomes.append(outcome)
            if outcome.interrupted:
                break
    if json:
        _common.print_json([_as_dict(outcome, full) for outcome in outcomes])
    elif markdown:
        typer.echo("\n".join(line for outcome in outcomes for line in _markdown(outcome, full)))
    else:
        _print(outcomes, full)
    if any(outcome.interrupted for outcome in outcomes):
        raise typer.Exit(_common.EXIT_INTERRUPTED)
    if not all(outcome.agrees for outcome in outcomes):
        raise typer.Exit(_common.EXIT_FAILURE)


def _as_dict(outcome: "Outcome", full: bool) -> dict[str, Any]:
    row = outcome.row
    return {
        "row": row.row,
        "setting": row.setting,
        "published": row.published,
        "scaled": None if full and row.full else row.scaled,
        "agrees": outcome.agrees,
        "interrupted": outcome.interrupted,
        "took_s": round(outcome.took_s, 1),
        "claims": [
            {
                "says": verdict.claim.says,
                "ours": verdict.ours,
                "unit": verdict.claim.unit,
                "low": verdict.claim.low,
                "high": verdict.claim.high,
                "agrees": verdict.agrees,
                "why": verdict.claim.why,
            }
            for verdict in outcome.verdicts
        ],
        "figures": outcome.figures,
    }


def _print(outcomes: "list[Outcome]", full: bool) -> None:
    from rich.table import Table

    console = _common.console()
    for outcome in outcomes:
        row = outcome.row
        console.print(f"[bold]{row.row}[/bold]  {row.setting}")
        console.print(f"    published: {row.published}")
        if row.scaled and not (full and row.full):
            console.print(f"    scaled: {row.scaled}")
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        for _ in range(4):
            table.add_column()
        for verdict in outcome.verdicts:
            word = _word(verdict, outcome)
            colour = {"agrees": "green", "disagrees": "red"}.get(word, "yellow")
            bounds = _bounds(verdict.claim)
            table.add_row(
                "   ", verdict.claim.says, _ours(verdict), f"[{colour}]{word}[/{colour}] with {bounds}"
            )
        console.print(table)
        for verdict in outcome.verdicts:
            if verdict.claim.why and verdict.ours is not None:
                console.print(f"    {verdict.claim.says}: {verdict.claim.why}")
        console.print(f"    {'interrupted after ' if outcome.interrupted else ''}{outcome.took_s:.0f} s")


def _markdown(outcome: "Outcome", full: bool) -> Iterator[str]:
    row = outcome.row
    yield f"## {row.row}: {row.setting}\n"
    scaled = f"  \nScaled: {row.scaled}." if row.scaled and not (full and row.full) else ""
    yield f"Published: {row.published}.{scaled}\n"
    yield "| claim | ours | agrees | with |"
    yield "|---|---|---|---|"
    for verdict in outcome.verdicts:
        word = {"agrees": "yes", "disagrees": "**no**"}.get(_word(verdict, outcome), "not run")
        yield f"| {verdict.claim.says} | {_ours(verdict)} | {word} | {_bounds(verdict.claim)} |"
    yield ""
    for verdict in outcome.verdicts:
        if verdict.claim.why and verdict.ours is not None:
            yield f"*{verdict.claim.says}*: {verdict.claim.why}.\n"


def _ours(verdict: "Verdict") -> str:
    return "-" if verdict.ours is None else f"{verdict.ours:,.4g} {verdict.claim.unit}".strip()


def _word(verdict: "Verdict", outcome: "Outcome") -> str:
    if verdict.ours is None and outcome.interrupted:
        return "not run, to agree"
    return "agrees" if verdict.agrees else "disagrees"


def _bounds(claim: Any) -> str:
    if claim.high is None:
        return f"at least {claim.low:g}"
    return f"at most {claim.high:g}" if claim.low is None else f"{claim.low:g} to {claim.high:g}"
