"""``openmrc run``: an unmodified verbs program over MRC."""

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from typing import Annotated

import typer

from openmrc import clibrary
from openmrc.cli import _complete, _impair, _planes
from openmrc.errors import ArgumentError
from openmrc.planes import Planes, _named_ports
from openmrc.testing import Impairment, check
from openmrc.verbs import Device

DEVICE = "mrc0"


def run(
    program: Annotated[
        list[str], typer.Argument(metavar="-- PROGRAM", help="The program and its arguments.")
    ],
    addresses: Annotated[
        str | None,
        typer.Option(
            "--addresses",
            "-A",
            metavar="A,B,...",
            help="This end's planes: addresses or interfaces, in the same order at both ends.",
            autocompletion=_complete.interfaces,
            rich_help_panel="Planes",
        ),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(
            "--planes",
            metavar="N",
            help="Planes on loopback, if both ends are on one machine.",
            rich_help_panel="Planes",
        ),
    ] = None,
    evs: _planes.EvsOption = None,
    ev_burst: _planes.EvBurstOption = None,
    impair: _impair.ImpairOption = None,
    fail_port: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-port",
            metavar="PORT@TIME",
            help="Silence a port at a time after the device was opened: 3@2.5s. May be repeated.",
            rich_help_panel="Planes",
        ),
    ] = None,
) -> None:
    """Run an unmodified verbs program over MRC: ibv_devices, ib_write_bw, your own.

    The program sees a device mrc0 whose RC queue pairs write over all planes. Both ends run like this, with
    their planes in the same order. Without options there is a device for each interface of this host, or
    those that OPENMRC_DEVICES and OPENMRC_CONFIG describe (docs/c-interface.md).

    openmrc run --planes 4 -- ib_write_bw &

    openmrc run --planes 4 --impair loss=1% -- ib_write_bw localhost
    """
    environment = clibrary.preloaded(os.environ)
    # Here, because what the library says is lost among the words of the program.
    Planes(count=count, evs=evs, ev_burst=ev_burst)
    planes = _addresses(addresses, count)
    rules = [*_impair.parse_all(impair), *map(_impair.fail_port, fail_port or ())]
    if planes:
        check(rules, len(planes))
    settings = {"evs_per_port": evs and 2 * -(-evs // max(1, len(planes))), "ev_burst": ev_burst}
    if planes:
        environment.pop("OPENMRC_DEVICES", None)
        environment["OPENMRC_CONFIG"] = description(planes, rules, settings)
    elif rules or evs or ev_burst:
        raise ArgumentError("--impair, --fail-port, --evs and --ev-burst need --planes or --addresses")
    found = shutil.which(program[0])
    if found is None:
        raise ArgumentError(f"there is no program {program[0]}")
    os.execve(found, program, environment)


def _addresses(addresses: str | None, count: int | None) -> list[str]:
    if addresses is None:
        return [port.addr for port in Device.loopback(planes=count).ports] if count else []
    if count is not None:
        raise ArgumentError("--planes is for loopback: with --addresses the addresses are the planes")
    named = tuple(filter(None, addresses.split(",")))
    return [port.addr for port in _named_ports(named, [False, True])]


def description(
    addresses: Iterable[str], rules: Iterable[Impairment], settings: Mapping[str, int | None]
) -> str:
    """The text of OPENMRC_CONFIG for one device."""
    lines = ["[[device]]", f'name = "{DEVICE}"', f"addresses = {json.dumps(list(addresses))}"]
    lines += [f"{name} = {value}" for name, value in settings.items() if value is not None]
    for rule in rules:
        lines.append("[[device.impair]]")
        lines += [f"{name} = {json.dumps(value)}" for name, value in rule.settings().items()]
    return "\n".join(lines) + "\n"
