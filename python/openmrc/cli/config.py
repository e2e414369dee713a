"""``openmrc config``: the configuration of every switch of a fabric."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from openmrc.cli import _common, _complete
from openmrc.cli._progress import progress
from openmrc.cli._values import PLATFORMS
from openmrc.cli.plan import DeviceOption, FileArgument, HwskuOption

if TYPE_CHECKING:
    from openmrc.fabric.spec import Platform


def config(
    file: FileArgument,
    platform: Annotated[
        str,
        typer.Option(
            metavar=PLATFORMS,
            help="System of the switches.",
            autocompletion=_complete.choices(*PLATFORMS.split("|")),
        ),
    ],
    out: Annotated[Path, _common.out_option("DIR", "Output directory; it must be empty or missing.")],
    device: DeviceOption = None,
    hwsku: HwskuOption = None,
    json: _common.JsonOption = False,
) -> None:
    """Write the configuration of every switch: DIR/p3/t0-17/... and a copy of the specification.

    The same specification always gives the same files. `openmrc verify DIR` checks them.
    """
    from openmrc.fabric import Fabric
    from openmrc.switchconf import evidence, render, with_switch

    if platform not in PLATFORMS.split("|"):
        raise typer.BadParameter(f"--platform {platform}: not one of {PLATFORMS.replace('|', ', ')}")

    fabric = with_switch(Fabric.load(file), device=device, hwsku=hwsku)
    with progress("switches") as advance:
        count = render(fabric, cast("Platform", platform), out, progress=advance)
    notes = evidence.notes(fabric, cast("Platform", platform))
    if json:
        _common.print_json({"platform": platform, "directory": out, "switches": count, "notes": notes})
    else:
        _common.console().print(f"{count:,} switches written to {out}; check them with: openmrc verify {out}")
        for note in notes:
            _common.console().print(f"note: {note}", markup=False)
        _common.console().print(f"{out / evidence.FILE} says what each line rests on")
