"""``openmrc tune``. Prints; :mod:`openmrc.collectives.tune` measures."""

from pathlib import Path
from typing import Annotated

import typer

from openmrc.cli import _common
from openmrc.errors import ArgumentError


def tune(
    ranks: Annotated[
        list[int] | None,
        typer.Option(
            "--ranks", metavar="N", min=2, max=64, help="Number of ranks; repeat it. Default 2 and 4."
        ),
    ] = None,
    iterations: Annotated[
        int, typer.Option("--iters", "-n", min=1, help="Operations of each size and algorithm.")
    ] = 30,
    out: Annotated[
        Path | None,
        _common.out_option("FILE", "Where the table goes. Default ~/.config/openmrc/tuning.json."),
    ] = None,
    json: _common.JsonOption = False,
) -> None:
    """Measure which algorithm of collective operations is the fastest here, and use it from now on.

    Starts ranks on this machine, which all_reduce and broadcast through shared memory, and over planes on
    loopback. The sizes at which the algorithm changes are kept in a file that rank 0 of every communicator
    reads; OPENMRC_TUNING names another file, or none if it is empty.
    """
    from openmrc.collectives import tune as measuring
    from openmrc.collectives import tuning
    from openmrc.collectives.bench.picture import size_text

    numbers = sorted(set(ranks or (2, 4)))
    file = out or tuning.path()
    if file is None:
        raise ArgumentError(f"{tuning.VARIABLE} is empty: say by --out where the table goes")
    say = _common.console(stderr=True)
    found = []
    for shared_memory in (True, False):
        for number in numbers:
            way = "shared memory" if shared_memory else "planes on loopback"
            say.print(f"{number} ranks, {way} ...", markup=False)
            found.append(measuring.measure(number, shared_memory=shared_memory, iterations=iterations))
    tuning.write([each.entry for each in found], file)
    if json:
        _common.print_json({"file": str(file), "measured": [measuring.as_dict(each) for each in found]})
        return
    rows = []
    for each in found:
        entry = each.entry
        borders = (entry.direct, entry.halving, entry.tree)
        way = "shared memory" if entry.shared_memory else "loopback planes"
        cells = ("-" if size is None else "never" if size == 0 else size_text(size) for size in borders)
        rows.append((str(entry.ranks), way, *cells))
    _common.print_table(("ranks", "through", "direct up to", "halving up to", "tree up to"), rows, left=2)
    say.print(f"wrote {file}", markup=False)
