"""Options about planes, the same for every subcommand that moves data."""

from typing import Annotated

import typer

from openmrc.planes import Planes, parse_host

_PANEL = "Planes"

AddressesOption = Annotated[
    str | None,
    typer.Option(
        "--addresses",
        "-A",
        metavar="A,B,...",
        help="This end's planes: addresses or interfaces, in the same order at both ends. Default: the "
        "address by which the other end is reached; on one machine, loopback addresses.",
        rich_help_panel=_PANEL,
    ),
]
PortsOption = Annotated[
    int | None,
    typer.Option(
        "--ports",
        metavar="N",
        help="Planes, if both ends are on one machine. Default 8.",
        rich_help_panel=_PANEL,
    ),
]
EvsOption = Annotated[
    int | None,
    typer.Option(
        "--evs", metavar="N", help="Paths in rotation over all planes. Default 128.", rich_help_panel=_PANEL
    ),
]
EvBurstOption = Annotated[
    int | None,
    typer.Option(
        "--ev-burst",
        metavar="N",
        help="Consecutive packets on one path: 1 as in hardware; more cost fewer system calls. Default 15.",
        rich_help_panel=_PANEL,
    ),
]


def planes(
    addresses: str | None, ports: int | None = None, evs: int | None = None, ev_burst: int | None = None
) -> Planes:
    """The planes that these options describe.

    Raises:
        ArgumentError: if they contradict each other or are out of range.
    """
    named = tuple(filter(None, (addresses or "").split(",")))
    return Planes(addresses=named, count=ports, evs=evs, ev_burst=ev_burst)


__all__ = ["AddressesOption", "EvBurstOption", "EvsOption", "PortsOption", "parse_host", "planes"]
