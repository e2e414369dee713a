"""``openmrc plan``: a fabric from its specification, with its parts, compared with single-plane fabrics."""

from pathlib import Path
from typing import Annotated

import typer

from openmrc.cli import _common, _complete
from openmrc.cli._simulation import check_outputs, contents_of
from openmrc.cli._values import PLATFORMS
from openmrc.errors import Error
from openmrc.extras import pip_install

FileArgument = Annotated[Path, typer.Argument(metavar="FABRIC.yaml", help="The fabric's specification.")]
DeviceOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="The switch, such as SN5640, instead of the file's.")
]
HwskuOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Its hardware SKU under SONiC, instead of the file's.")
]


def plan(
    file: FileArgument,
    hosts: Annotated[int | None, typer.Option(min=1, help="Number of hosts. Default: the file's.")] = None,
    json: _common.JsonOption = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print the bills of materials as CSV.")] = False,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE.svg|png", help="Draw the fabric into a file.")
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Write one HTML file with everything, for others to read."),
    ] = None,
    cabling: Annotated[
        Path | None, typer.Option(metavar="FILE.csv", help="Write the list of all cables into a file.")
    ] = None,
    platform: Annotated[
        str,
        typer.Option(
            metavar=PLATFORMS,
            help="With --cabling: the system whose port names are used.",
            autocompletion=_complete.choices(*PLATFORMS.split("|")),
        ),
    ] = "linux",
    device: DeviceOption = None,
    hwsku: HwskuOption = None,
    schema: Annotated[bool, _common.schema_option("fabric")] = False,
) -> None:
    """Plan a fabric: switches, links, optics, watts, cost, latency, the effect of failures.

    Prints the smallest fabric that the specification allows, and single-plane fabrics of two, three and four
    tiers of the same switches for comparison. If none fits, one line says why.
    """
    from openmrc.fabric import Fabric
    from openmrc.fabric import plan as make_plan
    from openmrc.fabric import report as texts

    if json and csv:
        raise typer.BadParameter("--json and --csv exclude each other")
    check_outputs([picture, report, cabling])
    fabric = Fabric.load(file, hosts=hosts)
    with contents_of(file if hosts is None else None):
        result = make_plan(fabric)
    if picture is not None:
        try:
            from openmrc.fabric import drawing
        except ModuleNotFoundError as error:
            raise Error(f"--picture needs {error.name}: {pip_install('plots')}") from None
        drawing.save(fabric, picture)
    if report is not None:
        result.report(report)
        _common.console(stderr=True).print(f"wrote {report}", markup=False)
    if cabling is not None:
        from openmrc.switchconf import FILES, with_switch
        from openmrc.switchconf import cabling as listing

        if platform not in FILES:
            raise typer.BadParameter(f"--platform {platform}: not one of {', '.join(FILES)}")
        named = with_switch(fabric, device=device, hwsku=hwsku)
        listing.write(cabling, listing.cables(named, platform, result.asked))
    elif device or hwsku:
        raise typer.BadParameter("--device and --hwsku name ports: add --cabling FILE.csv and --platform")
    if json:
        _common.print_json(texts.as_dict(result))
    elif csv:
        print(texts.as_csv(result), end="")
    else:
        _common.console().print(texts.tables(result))
