"""``openmrc tune``. Prints; :mod:`openmrc.collectives.tune` measures."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openmrc.cli import _common
from openmrc.errors import ArgumentError

if TYPE_CHECKING:
    from openmrc.collectives.tune import Measured


def tune(
    ranks: Annotated[
        list[int] | None,
        typer.Option(
            "--ranks", metavar="N", min=2, max=64, help="Number of ranks. May be repeated. Default 2 and 4."
        ),
    ] = None,
    iterations: Annotated[
        int, typer.Option("--iters", "-n", min=1, help="Operations of each size and algorithm.")
    ] = 30,
    out: Annotated[
        Path | None,
        _common.out_option("FILE", "File for the table. Default ~/.config/openmrc/tuning.json."),
    ] = None,
    json: _common.JsonOption = False,
) -> None:
    """Measure which algorithm of collective operations is the fastest here, and use it from now on.

    Starts ranks on this machine, which all_reduce and broadcast through shared memory, and over planes on
    loopback. The sizes at which the algorithm changes are kept in a file that rank 0 of every communicator
    reads; OPENMRC_TUNING names another file, or none if it is empty. Ctrl-C shows what was measured so far,
    and leaves the file as it is.
    """
    from openmrc.cli._simulation import check_outputs
    from openmrc.collectives import tune as measuring
    from openmrc.collectives import tuning
    from openmrc.collectives.bench.measure import numpy
    from openmrc.collectives.bench.picture import size_text

    numbers = sorted(set(ranks or (2, 4)))
    file = out or tuning.path()
    if file is None:
        raise ArgumentError(f"{tuning.VARIABLE} is empty: say by --out where the table goes")
    numpy()
    file.parent.mkdir(parents=True, exist_ok=True)
    check_outputs([file])
    say = _common.console(stderr=True)
    found = []
    interrupted = False
    try:
        for shared_memory in (True, False):
            for number in numbers:
                way = "shared memory" if shared_memory else "planes on loopback"
                say.print(f"{number} ranks, {way} ...")
                found.append(measuring.measure(number, shared_memory=shared_memory, iterations=iterations))
        tuning.write([each.entry for each in found], file)
    except KeyboardInterrupt:
        interrupted = True
    if json:
        measured = [measuring.as_dict(each) for each in found]
        _common.print_json({"file": None if interrupted else str(file), "measured": measured})
    else:
        _print(found, size_text)
    if interrupted:
        raise typer.Exit(_common.EXIT_INTERRUPTED)
    if not json:
        say.print(f"wrote {file}")


def _print(found: "Sequence[Measured]", size_text: Callable[[int], str]) -> None:
    rows = []
    for each in found:
        entry = each.entry
        borders = (entry.direct, entry.halving, entry.tree)
        way = "shared memory" if entry.shared_memory else "loopback planes"
        cells = ("-" if size is None else "never" if size == 0 else size_text(size) for size in borders)
        rows.append((str(entry.ranks), way, *cells))
    if rows:
        _common.print_table(("ranks", "through", "direct up to", "halving up to", "tree up to"), rows, left=2)
