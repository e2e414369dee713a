"""``openmrc validate``: whether a job should start on some hosts."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openmrc.cli import _common
from openmrc.cli._asking import AuthorityOption, ControllerOption, client, expanded
from openmrc.errors import ConnectError
from openmrc.printable import printable

if TYPE_CHECKING:
    from openmrc.operate.model import LinkVerdict, Validation

_HOSTS, _LINKS = ("HOST", "VERDICT", "REASONS"), ("LINK", "VERDICT", "STATE")


def validate(
    hosts: Annotated[
        str,
        typer.Option("--hosts", metavar="h0-h15,h20", help="The job's hosts, with commas and ranges."),
    ],
    controller: ControllerOption = None,
    authority: AuthorityOption = None,
    json: _common.JsonOption = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
) -> None:
    """Say whether a job should start on some hosts, from what the controller knows now.

    Nothing is measured for it. The exit code is 0 for pass, 3 for degraded, 4 for fail and 5 for unknown; it
    is also 5 if the controller cannot be reached.
    """
    _validate(hosts, controller, authority, json=json, markdown=markdown)


def of_fabric(
    hosts: Annotated[
        str, typer.Argument(metavar="h0-h15,h20", help="The job's hosts, with commas and ranges.")
    ],
    controller: ControllerOption = None,
    authority: AuthorityOption = None,
    json: _common.JsonOption = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
) -> None:
    """Say whether a job should start on some hosts: the same as `openmrc validate --hosts`."""
    _validate(hosts, controller, authority, json=json, markdown=markdown)


def _validate(
    hosts: str, controller: str | None, authority: Path | None, *, json: bool, markdown: bool
) -> None:
    if json and markdown:
        raise typer.BadParameter("--json and --markdown: one of them")
    names = expanded(hosts)
    from openmrc.operate.validate import EXIT_CODES

    try:
        with client(controller, authority) as asked:
            found = asked.validate(names)
    except ConnectError as error:
        # A job must not be refused because a page cannot be seen: the prolog decides.
        _common.print_error(str(error))
        raise typer.Exit(EXIT_CODES["unknown"]) from None
    if json:
        _common.print_json(found.model_dump())
    elif markdown:
        print(_markdown(found))
    else:
        _common.print_table(_HOSTS, [(h, v, printable(r)) for h, v, r in _rows(found)], left=3, prose=True)
        if found.links:
            print()
            rows = [(printable(each.link), each.verdict, _state(each)) for each in found.links]
            _common.print_table(_LINKS, rows, left=3, prose=True)
    raise typer.Exit(EXIT_CODES[found.verdict])


def _rows(found: "Validation") -> Iterable[tuple[str, str, str]]:
    for each in found.hosts:
        yield each.host, each.verdict, "; ".join(each.reasons)


def _state(link: "LinkVerdict") -> str:
    decision = "" if link.decision == "none" else f", {link.decision}"
    loss = "" if link.loss is None else f", {link.loss:.2%} lost"
    return printable(f"{link.evidence}{decision}{loss}")


def _markdown(found: "Validation") -> str:
    counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(found.link_counts.items()))
    lines = [f"**{found.verdict}**: {len(found.hosts)} hosts; links: {_cell(counts)}", ""]
    lines += _table(("Host", "Verdict", "Reasons"), _rows(found))
    if found.links:
        lines += [
            "",
            *_table(("Link", "Verdict", "State"), ((e.link, e.verdict, _state(e)) for e in found.links)),
        ]
    return "\n".join(lines)


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    columns = list(columns)
    lines = [columns, ["---"] * len(columns), *([_cell(cell) for cell in row] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def _cell(text: str) -> str:
    """Text of a controller: no markup of its own."""
    shown = printable(text).replace("\\", "\\\\").replace("|", "\\|").replace("`", "\\`")
    return shown.replace("&", "&amp;").replace("<", "&lt;").replace("[", "\\[")
