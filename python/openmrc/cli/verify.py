"""``openmrc verify``: checks configurations, and cables by LLDP."""

from pathlib import Path
from typing import Annotated

import typer

from openmrc.cli import _common, _complete
from openmrc.cli._progress import progress
from openmrc.cli._values import PLATFORMS
from openmrc.cli.plan import DeviceOption, HwskuOption

SHOWN = 20
"""Most problems that are printed; --json has all."""


def verify(
    target: Annotated[
        Path,
        typer.Argument(
            metavar="DIR|CABLING.csv",
            help="What `openmrc config` wrote; with --lldp also the list of `openmrc plan --cabling`.",
        ),
    ],
    lldp: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Check cables: a file of `lldpctl -f json` or of EOS's LLDP as JSON per switch.",
        ),
    ] = None,
    fabric: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Verify foreign configurations against this fabric's specification."
        ),
    ] = None,
    platform: Annotated[
        str | None,
        typer.Option(
            metavar=PLATFORMS,
            help="With --fabric: the system of the switches.",
            autocompletion=_complete.choices(*PLATFORMS.split("|")),
        ),
    ] = None,
    cabling: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.csv", help="With --fabric: which port each link is on, if it differs from the plan."
        ),
    ] = None,
    device: DeviceOption = None,
    hwsku: HwskuOption = None,
    walk: Annotated[
        bool | None,
        typer.Option(
            "--walk/--no-walk",
            help="Follow every path through the forwarding tables. Default: in small fabrics only.",
        ),
    ] = None,
    json: _common.JsonOption = False,
) -> None:
    """Verify the configurations of a fabric: every path arrives, no loop, no missing or unused entry.

    Uses only the files. A problem is named with switch, file and line; then the exit code is 1.

    With --lldp, verify its cables instead: the LLDP neighbours of each switch are those of the list.

    With --fabric and --platform, verify configurations that openmrc did not write: own uSIDs, routes to
    uSIDs, next hops, ECN and priorities; all else is ignored and counted.
    """
    if fabric is not None or platform is not None:
        if fabric is None or platform is None:
            raise typer.BadParameter("--fabric and --platform belong together")
        _verify_foreign(target, fabric, platform, (device, hwsku), cabling, json)
        return
    if device or hwsku:
        raise typer.BadParameter("--device and --hwsku belong to --fabric")
    if lldp is not None:
        _verify_cables(target, lldp, json)
        return
    if target.suffix == ".csv" and target.is_file():
        raise typer.BadParameter(f"{target} is a list of cables; add --lldp DIR to check them")
    from openmrc.switchconf import verify as prove

    with progress("switches") as advance:
        result = prove(target, walk=walk, progress=advance)
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
        _print_problems([str(problem) for problem in result.problems])
        if result.paths is None:
            walked = "add --walk to test every path"
        else:
            walked = f"{result.paths:,} paths followed"
        switches = f"{result.switches:,} switches"
        verdict = (
            f"OK: {switches} correct" if result.ok else f"{len(result.problems):,} problems in {switches}"
        )
        _common.console().print(f"{verdict} ({result.platform}, {result.entries:,} entries); {walked}")
    if not result.ok:
        raise typer.Exit(1)


def _verify_foreign(
    directory: Path,
    file: Path,
    platform: str,
    switch: tuple[str | None, str | None],
    cabling: Path | None,
    json: bool,
) -> None:
    from openmrc.fabric import Fabric
    from openmrc.switchconf import FILES, verify_foreign, with_switch
    from openmrc.switchconf import cabling as listing

    if platform not in FILES:
        raise typer.BadParameter(f"--platform {platform}: not one of {', '.join(FILES)}")
    cables = listing.read(cabling) if cabling is not None else None
    planned = with_switch(Fabric.load(file), device=switch[0], hwsku=switch[1])
    with progress("switches") as advance:
        result = verify_foreign(directory, planned, platform, cables=cables, progress=advance)
    if json:
        _common.print_json(
            {
                "platform": platform,
                "ok": result.ok,
                "switches": result.switches,
                "entries": result.entries,
                "ignored": result.ignored,
                "unchecked": sorted(result.unchecked),
                "notes": [note._asdict() for note in result.notes],
                "problems": [problem._asdict() for problem in result.problems],
            }
        )
    else:
        _print_problems([f"note: {note}" for note in result.notes])
        _print_problems([str(problem) for problem in result.problems])
        verdict = "every path arrives" if result.ok else f"{len(result.problems):,} problems"
        counts = f"{result.switches:,} switches, {result.entries:,} entries, {result.ignored:,} lines ignored"
        _common.console().print(f"{verdict}: {platform}, {counts}")
        for what in sorted(result.unchecked):
            _common.console().print(f"not checked: {what}", markup=False)
    if not result.ok:
        raise typer.Exit(1)


def _verify_cables(listed: Path, directory: Path, json: bool) -> None:
    from openmrc.fabric import plan
    from openmrc.switchconf import cabling, lldp, written

    if listed.is_dir():
        fabric, platform = written(listed)
        cables = list(cabling.cables(fabric, platform, plan(fabric).asked))
    else:
        cables = cabling.read(listed)
    result = lldp.check(cables, directory)
    if json:
        _common.print_json(
            {
                "ok": result.ok,
                "cables": result.cables,
                "seen": result.seen,
                "silent": result.silent,
                "unnamed": result.unnamed,
                "problems": [problem._asdict() for problem in result.problems],
            }
        )
    else:
        _print_problems([str(problem) for problem in result.problems])
        verdict = "right" if result.ok else f"{len(result.problems):,} problems"
        notes = [f"{result.seen:,} of {result.cables:,} cables seen"]
        if result.silent:
            notes.append(f"{len(result.silent):,} hosts' ports without LLDP")
        if result.unnamed:
            notes.append(f"{len(result.unnamed):,} with the right device but no known name of its port")
        _common.console().print(f"{verdict}: {', '.join(notes)}")
    if not result.ok:
        raise typer.Exit(1)


def _print_problems(problems: list[str]) -> None:
    console = _common.console()
    for problem in problems[:SHOWN]:
        console.print(problem, markup=False)
    if len(problems) > SHOWN:
        console.print(f"... and {len(problems) - SHOWN:,} more")
