"""Options about planes, the same for every subcommand that moves data."""

import sys
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openmrc import _core
from openmrc.cli import _complete, _values
from openmrc.errors import ArgumentError
from openmrc.planes import Planes, lab_host
from openmrc.verbs.attr import MAX_PATH_MTU, MIN_PATH_MTU
from openmrc.verbs.device import LOOPBACK_PLANES

if TYPE_CHECKING:
    from openmrc.sourceroutes import SourceRoutes

_PANEL = "Planes"
_SRV6 = "SRv6 mode"

AddressesOption = Annotated[
    str | None,
    typer.Option(
        "--addresses",
        "-A",
        metavar="A,B,...",
        help="This end's planes: addresses or interfaces, in the same order at both ends. Default: the "
        "address by which the other end is reached; on one machine, loopback addresses; in a host of a lab, "
        "its own.",
        autocompletion=_complete.interfaces,
        rich_help_panel=_PANEL,
    ),
]
CountOption = Annotated[
    int | None,
    typer.Option(
        "--planes",
        metavar="N",
        help=f"Planes, if both ends are on one machine. Default {LOOPBACK_PLANES}.",
        rich_help_panel=_PANEL,
    ),
]
MtuOption = Annotated[
    int | None,
    typer.Option(
        "--mtu",
        "-m",
        help="Payload bytes per packet. Default: what the routes carry, at most "
        f"{_core.QP_DEFAULTS['path_mtu']}.",
        **_values.size(MIN_PATH_MTU, MAX_PATH_MTU),
    ),
]
EvsOption = Annotated[
    int | None,
    typer.Option(
        "--evs",
        metavar="N",
        help="Active paths (EVs) over all planes. Default: half of the available ones, at most "
        f"{_core.QP_DEFAULTS['ev_active']}.",
        rich_help_panel=_PANEL,
    ),
]
EvBurstOption = Annotated[
    int | None,
    typer.Option(
        "--ev-burst",
        metavar="N",
        help="Consecutive packets on one path. 1 is what hardware does; larger bursts need fewer"
        " system calls. Default 15.",
        rich_help_panel=_PANEL,
    ),
]
Srv6Option = Annotated[
    bool,
    typer.Option(
        "--srv6",
        help="Build SRv6 frames and source-route every packet; both ends need it. Needs root or CAP_NET_RAW.",
        rich_help_panel=_SRV6,
    ),
]
FabricOption = Annotated[
    Path | None,
    typer.Option(
        "--fabric",
        metavar="FILE",
        help="The fabric's specification. Default, in a host of a lab: the lab's.",
        rich_help_panel=_SRV6,
    ),
]
ThisHostOption = Annotated[
    str | None,
    typer.Option(
        "--this-host",
        metavar="HOST",
        help="Which host of the fabric this is, such as h0. Default: the one with this machine's addresses.",
        rich_help_panel=_SRV6,
    ),
]
PeerHostOption = Annotated[
    str | None,
    typer.Option(
        "--peer-host",
        metavar="HOST",
        help="Which host of the fabric the other end is. Default: the one with its addresses.",
        rich_help_panel=_SRV6,
    ),
]


def planes(
    addresses: str | None,
    count: int | None = None,
    evs: int | None = None,
    ev_burst: int | None = None,
    routes: "SourceRoutes | None" = None,
    *,
    loopback: bool = False,
) -> Planes:
    """The planes that these options describe; with ``loopback``, those of this machine, also in a lab.

    Raises:
        ArgumentError: if they contradict each other or are out of range.
    """
    if routes is not None:
        if count is not None:
            raise ArgumentError("--planes is for two ends on one machine; with --srv6 the fabric says it")
        routes = replace(routes, active=evs)
    named = tuple(filter(None, (addresses or "").split(",")))
    lab = None if routes is not None or loopback else lab_host()
    return Planes(addresses=named, count=count, evs=evs, ev_burst=ev_burst, routes=routes, lab=lab)


def srv6(
    wanted: bool, fabric: Path | None, this_host: str | None, peer_host: str | None
) -> "SourceRoutes | None":
    """The source routes that these options describe; ``None`` without ``--srv6``.

    Raises:
        ArgumentError: if the fabric is not known, or which of its hosts this is.
        FormatError, OSError: if the fabric's specification cannot be read.
    """
    if not wanted:
        for option, value in (("--fabric", fabric), ("--this-host", this_host), ("--peer-host", peer_host)):
            if value is not None:
                raise ArgumentError(f"{option} is for SRv6 mode: say --srv6 as well")
        return None
    from openmrc.fabric import Fabric
    from openmrc.lab.state import here
    from openmrc.sourceroutes import SourceRoutes

    if fabric is None:
        found = here()
        if found is None:
            raise ArgumentError("--srv6 needs --fabric FILE: this is no host of a lab")
        fabric, node = found
        this_host = this_host or node
    return SourceRoutes.here(Fabric.load(fabric), host=this_host, peer=peer_host)


def naming_cables(planes: Planes) -> AbstractContextManager[None]:
    """While the block runs, prints the broken cable on standard error as soon as it is known.

    Only where a fabric is known: in SRv6 mode, and in a host of a lab.
    """
    from openmrc.operate.watch import watching

    known = planes.routes or planes.lab
    return watching(
        None if known is None else known.fabric, lambda said: print(said, file=sys.stderr, flush=True)
    )


__all__ = [
    "AddressesOption",
    "CountOption",
    "EvBurstOption",
    "EvsOption",
    "FabricOption",
    "PeerHostOption",
    "Srv6Option",
    "ThisHostOption",
    "naming_cables",
    "planes",
    "srv6",
]
