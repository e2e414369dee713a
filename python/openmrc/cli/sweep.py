"""``openmrc sweep``: a grid of scenarios over all cores."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openmrc.cli import _common
from openmrc.cli._progress import progress
from openmrc.cli._simulation import check_outputs
from openmrc.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from openmrc.sim.sweep import Sweep


def sweep(
    file: Annotated[Path, typer.Argument(metavar="GRID.yaml", help="Base scenario, axes, seeds.")],
    out: Annotated[
        Path | None, _common.out_option("FILE.parquet|csv", "Write the frame, one row for each point.")
    ] = None,
    points: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Directory that keeps finished points. Default: GRID.points beside the grid."
        ),
    ] = None,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", min=-1, help="Points computed in parallel; -1: one per core.")
    ] = -1,
    dask: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Run on a Dask cluster: its scheduler's address; local: start one here."
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Run on a Ray cluster: its address; local: start one here."),
    ] = None,
    schema: Annotated[bool, _common.schema_option("grid")] = False,
    json: _common.JsonOption = False,
) -> None:
    """Run a grid of scenarios, over all cores or on a Dask or Ray cluster; the results are one frame.

    Every finished point is kept: after Ctrl-C the same command goes on where it stopped, and a grid that has
    grown runs only what is new.
    """
    from openmrc.sim import sweep as sweeping
    from openmrc.sim.clusters import connected
    from openmrc.sim.results import require_arrow

    if out is not None and out.suffix not in (".parquet", ".csv"):
        raise ArgumentError(f"{out}: the name has to end in .parquet or .csv")
    check_outputs([out])
    if out is not None:
        require_arrow()
    grid = sweeping.load(file)
    kept = points or file.with_suffix(".points")
    with connected(dask=dask, ray=ray) as backend, progress("points") as advance:
        result = sweeping.sweep(grid, kept, jobs=jobs, backend=backend, progress=advance)
    if out is not None:
        result.write(out)
        _common.console(stderr=True).print(f"wrote {out}")
    if json:
        _common.print_json(list(result.rows))
    else:
        _print(result)
    if not result.complete:
        left = result.points - len(result.rows)
        _common.console(stderr=True).print(
            f"{left} of {result.points} points are left; the same command goes on"
        )
        raise typer.Exit(_common.EXIT_INTERRUPTED)


def _of_collectives(row: "Mapping[str, Any]") -> list[str]:
    from openmrc.sim.text import gbps, micros

    return [
        micros(row.get("collective_time_us")),
        gbps(row.get("collective_algbw_bps")),
        gbps(row.get("collective_busbw_bps")),
        micros(row.get("collective_step_mean_us")),
    ]


def _print(result: "Sweep") -> None:
    from openmrc.sim.results import DROPS
    from openmrc.sim.text import gbps, micros, percentile

    first = result.rows[0] if result.rows else {}
    axes = list(first)[: list(first).index("seed") + 1] if first else []
    collective = any(row.get("collective_time_us") is not None for row in result.rows)
    of_collectives = ["collective", "algbw", "busbw", "collective step"] if collective else []
    figures = [
        "delivered",
        "median",
        "99 %",
        "last",
        "goodput",
        *of_collectives,
        "training step",
        "resent",
        "lost",
    ]
    rows = []
    for row in result.rows:
        lost = sum(row[name] for name in DROPS)
        rows.append(
            [
                *(str(row.get(name, "-")) for name in axes),
                f"{row['delivered']:,} of {row['messages']:,}",
                *(percentile(row[name]) for name in ("median_us", "p99_us")),
                micros(row["last_us"]),
                gbps(row["goodput_bps"]),
                *(_of_collectives(row) if collective else ()),
                micros(row["step_time_us"]),
                f"{row['retransmits']:,}",
                f"{lost:,}",
            ]
        )
    if rows:
        _common.print_table([*axes, *figures], rows, left=0)
    _common.console().print(f"{len(result.rows)} of {result.points} points, {result.kept} reused")
