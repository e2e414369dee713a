"""``openmrc verify``: checks rendered configurations."""

from pathlib import Path
from typing import Annotated

import typer

from openmrc.cli import _common
from openmrc.cli._progress import progress

SHOWN = 20
"""Most problems that are printed; --json has all."""


def verify(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory that `openmrc config` wrote.")],
    walk: Annotated[
        bool | None, typer.Option("--walk/--no-walk", help="Walk every path. Default: in small fabrics.")
    ] = None,
    json: _common.JsonOption = False,
) -> None:
    """Verify the configurations of a fabric: every path arrives, no loop, no missing or unused entry.

    Uses only the files. A problem is named with switch, file and line; then the exit code is 1.
    """
    from openmrc.switchconf import verify as prove

    with progress("switches") as advance:
        result = prove(directory, walk=walk, progress=advance)
    if json:
        _common.print_json(
            {
                "platform": result.platform,
                "ok": result.ok,
                "switches": result.switches,
                "entries": result.entries,
                "paths_walked": result.paths,
                "problems": [problem._asdict() for problem in result.problems],
            }
        )
    else:
        console = _common.console()
        for problem in result.problems[:SHOWN]:
            console.print(str(problem), markup=False)
        if len(result.problems) > SHOWN:
            console.print(f"... and {len(result.problems) - SHOWN:,} more")
        walked = "closed form, paths not walked" if result.paths is None else f"{result.paths:,} paths walked"
        verdict = "proved" if result.ok else f"{len(result.problems):,} problems"
        counts = f"{result.switches:,} switches, {result.entries:,} entries"
        console.print(f"{verdict}: {result.platform}, {counts}, {walked}")
    if not result.ok:
        raise typer.Exit(1)
