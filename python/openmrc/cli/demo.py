"""``openmrc demo``. Prints; :mod:`openmrc.demos.loopback` does the work."""

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

from openmrc.cli import _common, _planes
from openmrc.demos.loopback.analysis import figures
from openmrc.demos.loopback.picture import draw
from openmrc.demos.loopback.run import run
from openmrc.demos.loopback.schedule import standard
from openmrc.demos.loopback.screen import screen, summary
from openmrc.demos.loopback.source import source_file
from openmrc.demos.style import PictureError
from openmrc.errors import Error
from openmrc.units import parse_size
from openmrc.verbs.device import LOOPBACK_PLANES


def demo(
    size: Annotated[str, typer.Option("--size", help="Size of the file to make: 2GiB, 500M ...")] = "2GiB",
    file: Annotated[
        Path | None, typer.Option("--file", help="Send this file instead.", show_default=False)
    ] = None,
    duration: Annotated[
        float,
        typer.Option("--duration", "-D", min=1, metavar="SECONDS", help="Length of the schedule of faults."),
    ] = 15.0,
    ports: Annotated[int, typer.Option("--ports", min=2, max=16, help="Planes.")] = LOOPBACK_PLANES,
    evs: _planes.EvsOption = None,
    ev_burst: _planes.EvBurstOption = None,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="DIR", help="Where the picture and the numbers go."),
    ] = Path("openmrc-demo"),
    picture: Annotated[
        bool, typer.Option("--picture/--no-picture", help="Draw throughput over time.")
    ] = True,
    json: _common.JsonOption = False,
) -> None:
    """Send a file over many planes of this machine while planes and paths fail, and check every byte.

    Two processes with a NIC each, over loopback, without privileges. A plane goes silent, some paths lose
    packets, some trim and mark them, then the plane comes back. A file that arrives before the end of the
    schedule is sent again. The exit code is 0 only if every byte of every pass arrived.
    """
    schedule = standard(duration, ports)
    planes = _planes.planes(None, ports, evs, ev_burst)
    count = parse_size(size, "--size")
    out, remarks = _common.console(), _common.console(stderr=True)
    # Now, so that a directory that cannot be made is found before the run.
    output.mkdir(parents=True, exist_ok=True)
    with screen(remarks) as watch, source_file(file, count, watch.preparing) as source:
        outcome = run(source, schedule, planes, watch.progress)
    found = figures(outcome)
    results = {**found.as_dict(), "planes": outcome.addresses}
    numbers = output / "demo.json"
    numbers.write_text(json_module.dumps(results, indent=2, allow_nan=False) + "\n")
    drawn = output / "demo.png"
    if picture:
        try:
            draw(outcome, drawn)
        except PictureError as error:
            remarks.print(str(error), markup=False)
            picture = False
    if json:
        _common.print_json(results)
    else:
        out.print(summary(found))
        out.print(f"numbers: {numbers}" + (f"   picture: {drawn}" if picture else ""), markup=False)
    if not found.verified:
        raise Error(found.error or "not every byte arrived: a checksum is wrong")
