"""``openmrc demo``. Prints; :mod:`openmrc.demos.loopback` does the work."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from openmrc.cli import _common, _demo, _planes, _values
from openmrc.demos.loopback.analysis import figures
from openmrc.demos.loopback.picture import draw
from openmrc.demos.loopback.run import run
from openmrc.demos.loopback.schedule import standard
from openmrc.demos.loopback.screen import Screen, summary
from openmrc.demos.loopback.source import source_file
from openmrc.errors import Error
from openmrc.verbs.device import LOOPBACK_PLANES


def demo(
    size: Annotated[
        int, typer.Option("--size", "-s", help="Size of the generated file.", **_values.size())
    ] = "2GiB",  # type: ignore[assignment]  # parsed like what a user writes
    file: Annotated[
        Path | None, typer.Option("--file", help="Send this file instead.", show_default=False)
    ] = None,
    duration: Annotated[
        float,
        typer.Option("--duration", "-D", help="Length of the schedule of faults.", **_values.time(1)),
    ] = "15s",  # type: ignore[assignment]
    count: Annotated[
        int, typer.Option("--planes", metavar="N", min=2, max=16, help="Planes.")
    ] = LOOPBACK_PLANES,
    evs: _planes.EvsOption = None,
    ev_burst: _planes.EvBurstOption = None,
    out: _common.DemoOutOption = None,
    no_picture: Annotated[
        bool, typer.Option("--no-picture", help="Do not draw the throughput over time.")
    ] = False,
    json: _common.JsonOption = False,
) -> None:
    """Send a file over many planes of this machine while planes and paths fail, and check every byte.

    Two processes with a NIC each, over loopback, without privileges. A plane goes silent, some paths lose
    packets, some trim and mark them, then the plane comes back. A file that arrives before the end of the
    schedule is sent again. The exit code is 0 only if every byte of every pass arrived.
    """
    schedule = standard(duration, count)
    planes = _planes.planes(None, count, evs, ev_burst)
    # Now, so that what cannot be drawn or written is found before the run.
    drawn = _demo.drawer(draw, wanted=not no_picture)
    with _demo.directory(out, "openmrc-demo") as where:
        screen = Screen(_common.console(stderr=True))
        with screen as watch, source_file(file, size, watch.preparing) as source:
            outcome = run(source, schedule, planes, watch.progress)
        found = figures(outcome)
        _demo.present(
            {**found.as_dict(), "planes": outcome.addresses},
            where,
            "demo",
            draw=partial(drawn, outcome) if drawn else None,
            summary=partial(summary, found),
            json=json,
        )
    if not found.verified:
        raise Error(found.error or "not every byte arrived: a checksum is wrong")
