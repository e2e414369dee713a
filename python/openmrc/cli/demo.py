"""``openmrc demo``. Prints; :mod:`openmrc.demo` does the work."""

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

from openmrc.cli import _common, _planes
from openmrc.demo.analysis import figures
from openmrc.demo.picture import PictureError, draw
from openmrc.demo.run import run
from openmrc.demo.schedule import standard
from openmrc.demo.screen import screen, summary
from openmrc.demo.source import source_file
from openmrc.errors import ArgumentError, Error

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


def demo(
    size: Annotated[
        str, typer.Option("--size", help="Size of the file that is made: 2GiB, 500M ...")
    ] = "2GiB",
    file: Annotated[
        Path | None, typer.Option("--file", help="Send this file instead.", show_default=False)
    ] = None,
    duration: Annotated[
        float,
        typer.Option(
            "--duration", "-D", min=1, metavar="SECONDS", help="How long the schedule of faults is."
        ),
    ] = 15.0,
    ports: Annotated[int, typer.Option("--ports", min=2, max=16, help="Planes.")] = 8,
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
    """Send a file over many planes of this machine while planes and paths fail, and check it all.

    Two processes with a NIC each, over loopback, no privileges. A plane falls silent, some paths lose
    packets, some trim and mark them, the plane comes back. A file that is through earlier is sent again
    until all has happened. Exit code 0 only if every byte of every pass arrived.
    """
    schedule = standard(duration, ports)
    planes = _planes.planes(None, ports, evs, ev_burst)
    count = _bytes(size)
    out, remarks = _common.console(), _common.console(stderr=True)
    # What the demo leaves behind must not fail at its end.
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


def _bytes(text: str) -> int:
    """Bytes of ``2GiB``, ``500M``, ``1048576``."""
    lower = text.lower().removesuffix("b")
    number = lower.rstrip("kmgi")
    unit = lower[len(number) :]
    try:
        count = int(float(number) * _UNITS[unit])
    except (ValueError, KeyError):
        raise ArgumentError(
            f"--size {text}: a number with k, M, G, Ki, Mi or Gi is meant, such as 2GiB"
        ) from None
    if count < 1:
        raise ArgumentError(f"--size {text}: at least 1 byte")
    return count
