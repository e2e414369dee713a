"""``openmrc example``: the shipped scenarios, fabrics, grids and jobs, to begin with."""

from pathlib import Path
from typing import Annotated

import typer

from openmrc.cli import _common, _complete


def example(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="The example to write; all are listed if left out.",
            autocompletion=_complete.examples,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        _common.out_option("DIR", "Directory for the example and the files it refers to. Default: here."),
    ] = None,
    json: _common.JsonOption = False,
) -> None:
    """Write a shipped example into this directory, or list all examples.

    A file that is there already with other contents is not overwritten.
    """
    from openmrc import examples

    if name is None:
        found = examples.every()
        if json:
            _common.print_json([each._asdict() | {"path": str(each.path)} for each in found])
        else:
            rows = [[each.name, each.kind, each.says] for each in found]
            _common.print_table(("example", "kind", "shows"), rows, left=3, prose=True)
        return
    written = examples.write(name, out or Path())
    if json:
        _common.print_json([str(path) for path in written])
        return
    screen = _common.console()
    for path in written:
        screen.print(f"wrote {path}")
    command = {"scenario": "simulate", "fabric": "plan", "grid": "sweep", "job": "job"}[
        examples.find(name).kind
    ]
    screen.print(f"try   openmrc {command} {written[0]}")
