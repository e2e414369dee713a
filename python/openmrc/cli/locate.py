"""``openmrc locate``: which cable is broken, from what running processes believe of their paths."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openmrc.cli import _common, _values

if TYPE_CHECKING:
    from openmrc.fabric import Fabric

FollowOption = Annotated[
    bool, typer.Option("--follow", help="Go on, and print a verdict when it is new or has ended.")
]
WindowOption = Annotated[
    float, typer.Option("--window", help="With --follow: time between two looks.", **_values.time(0.01))
]


def locate(
    file: Annotated[Path, typer.Argument(metavar="FABRIC.yaml", help="The fabric's specification.")],
    follow: FollowOption = False,
    window: WindowOption = 0.5,
    json: _common.JsonOption = False,
) -> None:
    """Name the broken cable, from the devices of this user's processes.

    Every process that publishes its devices (`openmrc devices` lists them) says which paths its queue pairs
    have condemned and which they use. The fewest cables, switches or hosts that explain this are named; if
    several explain it as well, all of them. Root sees only root's processes.

    The exit code is 0 if nothing is broken, 1 if something is, 5 if no process of the fabric could be asked.
    """
    from openmrc.fabric import Fabric

    look(Fabric.load(file), follow=follow, window=window, json=json)


EXIT_UNKNOWN = 5
"""Nothing is known."""


def look(fabric: "Fabric", *, follow: bool, window: float, json: bool) -> None:
    """Looks once or again and again, and prints verdicts.

    Raises:
        typer.Exit: with 1 or 5, as :func:`locate` says.
    """
    from openmrc.operate.locate import Locator, as_dict, described, published

    locator, remarks = Locator(fabric), _common.console(stderr=True)
    shown: dict[str, str] = {}
    while True:
        seen, notes = published()
        sight = locator.sight(seen)
        verdicts = sight.verdicts()
        if not follow:
            for note in (*notes, *sight.notes):
                remarks.print(f"note: {note}")
            if json:
                _common.print_json(
                    {
                        "faults": [as_dict(verdict) for verdict in verdicts],
                        "hosts": sorted(sight.hosts),
                        "dead_paths": len(sight.dead),
                        "alive_paths": len(sight.alive),
                    }
                )
            for verdict in [] if json else verdicts:
                print(described(verdict))
            if not sight.hosts:
                remarks.print(
                    f"no process of this user publishes a device of fabric {fabric.spec.name}"
                    " (OPENMRC_OBSERVE=1)"
                )
                raise typer.Exit(EXIT_UNKNOWN)
            if not verdicts and not json:
                told = f"{len(sight.hosts)} host{'' if len(sight.hosts) == 1 else 's'}"
                print(f"nothing is broken: {len(sight.alive)} paths of {told} in use, none dead")
            raise typer.Exit(1 if verdicts else 0)
        now = {str(v.component or [s for s, _ in v.suspects]): v for v in verdicts}
        for name in now.keys() - shown.keys():
            shown[name] = described(now[name])
            _print(shown[name], as_dict(now[name]) if json else None, ended=False)
        for name in shown.keys() - now.keys():
            _print(shown.pop(name), {"fault": name} if json else None, ended=True)
        time.sleep(window)


def _print(text: str, fields: dict[str, object] | None, *, ended: bool) -> None:
    stamp = time.time()
    if fields is not None:
        _common.print_json_line({"time": stamp, "ended": ended, **fields})
    else:
        print(
            f"{time.strftime('%H:%M:%S', time.localtime(stamp))}  {'over: ' if ended else ''}{text}",
            flush=True,
        )
