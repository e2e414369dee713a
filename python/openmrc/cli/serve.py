"""``openmrc serve``: receive files. Prints; :mod:`openmrc.transfer.receiver` does the work."""

import signal
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from openmrc.cli import _common, _planes
from openmrc.transfer.protocol import DEFAULT_PORT
from openmrc.transfer.receiver import Event, Server
from openmrc.transfer.store import Store
from openmrc.units import rate, size


def serve(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="Where files are stored. Nothing is written outside.", show_default=False
        ),
    ],
    port: Annotated[
        int, typer.Option("--port", "-p", min=0, max=65535, help="TCP port; 0: any free one.")
    ] = DEFAULT_PORT,
    bind: Annotated[
        str,
        typer.Option(
            "--bind", metavar="ADDRESS", help="Listen on this address only. Default: all addresses."
        ),
    ] = "",
    once: Annotated[bool, typer.Option("--once", help="Serve one sender, then exit.")] = False,
    sync: Annotated[
        bool, typer.Option("--sync/--no-sync", help="A file counts as stored only when it is on the disk.")
    ] = True,
    addresses: _planes.AddressesOption = None,
    evs: _planes.EvsOption = None,
    srv6: _planes.Srv6Option = False,
    fabric: _planes.FabricOption = None,
    this_host: _planes.ThisHostOption = None,
    peer_host: _planes.PeerHostOption = None,
    json: _common.JsonOption = False,
) -> None:
    """Receive files that `openmrc put` sends, below DIR.

    A file appears under its name in one step, when it has arrived completely and its checksum is right. There
    is no authentication: everyone who reaches the port can add files. Ctrl-C ends the command and discards
    unfinished files. With --json, every event is one line of JSON.
    """
    out, remarks = _common.console(), _common.console(stderr=True)

    def show(event: Event) -> None:
        if json:
            _common.print_json_line(event.as_dict())
            return
        line = _describe(event)
        if line:
            out.print(line, markup=False)

    # A service manager ends the command as cleanly as Ctrl-C does.
    signal.signal(signal.SIGTERM, _terminate)
    with Store(directory, sync=sync) as store:
        routes = _planes.srv6(srv6, fabric, this_host, peer_host)
        planes = _planes.planes(addresses, evs=evs, routes=routes)
        server = Server(store, host=bind, port=port, planes=planes, observer=show)
        try:
            if json:
                _common.print_json_line(
                    {"kind": "listening", "port": server.port, "directory": str(directory)}
                )
            else:
                remarks.print(f"receiving into {directory}, port {server.port}; Ctrl-C ends it", markup=False)
            complete = server.serve(once=once)
        finally:
            server.close()
    if not complete:
        raise typer.Exit(_common.EXIT_FAILURE)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _describe(event: Event) -> str | None:
    match event.kind:
        case "stored":
            return (
                f"{event.path}  {size(event.bytes)}  {rate(event.bytes, event.seconds)}"
                f"  xxh3 {event.digest}  from {event.peer}"
            )
        case "failed":
            return f"{event.path}  not stored: {event.reason}  from {event.peer}"
        case "broken":
            return f"{event.peer}: {event.reason}"
    return None
