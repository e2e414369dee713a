"""``openmrc serve``: receive files. Prints; :mod:`openmrc.transfer.receiver` does the work."""

import contextlib
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from openmrc.cli import _common, _interval, _peers, _planes, _values
from openmrc.planes import lab_host
from openmrc.printable import printable
from openmrc.transfer.protocol import DEFAULT_PORT, IDLE_TIMEOUT
from openmrc.transfer.receiver import Limits, Server
from openmrc.transfer.session import Event
from openmrc.transfer.store import Rights, Store
from openmrc.units import files, rate, size


def serve(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="Where files are stored. Nothing is written outside.", show_default=False
        ),
    ],
    port: Annotated[int | None, _peers.port_option(DEFAULT_PORT, "TCP port; 0: any free one.")] = None,
    bind: Annotated[
        str | None,
        typer.Option(
            "--bind",
            metavar="ADDRESS",
            help="Listen on this address, which needs a token unless it is a loopback address. 0.0.0.0 is "
            "all of IPv4, :: is all. Default: 127.0.0.1; in a host of a lab: all, without a token.",
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Run without a token: anyone who reaches the port can add files.",
            rich_help_panel="Peers",
        ),
    ] = False,
    token_file: _peers.TokenFileOption = None,
    allow_address: _peers.AllowAddressOption = None,
    max_senders: Annotated[
        int,
        typer.Option("--max-senders", min=1, help="Maximum concurrent senders.", rich_help_panel="Peers"),
    ] = Limits().senders,
    max_per_address: Annotated[
        int,
        typer.Option(
            "--max-per-address",
            min=1,
            help="Maximum concurrent senders from one address.",
            rich_help_panel="Peers",
        ),
    ] = Limits().per_address,
    idle_timeout: Annotated[
        float,
        typer.Option(
            "--idle-timeout",
            help=f"Disconnect a sender that is idle for this time. Default {IDLE_TIMEOUT:g}s.",
            show_default=False,
            rich_help_panel="Peers",
            **_values.time(1),
        ),
    ] = IDLE_TIMEOUT,
    allow_replace: Annotated[
        bool, typer.Option("--allow-replace", help="Senders may replace files that exist.")
    ] = False,
    allow_digests: Annotated[
        bool,
        typer.Option(
            "--allow-digests",
            help="Senders may learn the checksum of a file that exists, so that `put --if-exists update` "
            "sends only what differs.",
        ),
    ] = False,
    allow_executable: Annotated[
        bool, typer.Option("--allow-executable", help="Senders may make files executable.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Serve one sender, then exit.")] = False,
    sync: Annotated[
        bool, typer.Option("--sync/--no-sync", help="A file counts as stored only when it is on the disk.")
    ] = True,
    interval: _interval.IntervalOption = None,
    addresses: _planes.AddressesOption = None,
    evs: _planes.EvsOption = None,
    srv6: _planes.Srv6Option = False,
    fabric: _planes.FabricOption = None,
    this_host: _planes.ThisHostOption = None,
    peer_host: _planes.PeerHostOption = None,
    json: _common.JsonOption = False,
) -> None:
    """Receive files that `openmrc put` sends, below DIR.

    A file appears under its name in one step, when it has arrived completely and its checksum is right. Other
    machines can connect only with --bind, and then both ends need the same token. Senders can add files;
    all else has to be allowed. Ctrl-C ends the command and discards unfinished files. With --json, every
    event is one line of JSON.
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
    token = _peers.token(token_file)
    # Only the hosts of a lab can reach one of them.
    open_to_lab = bind is None and lab_host() is not None
    if bind is None:
        bind = _peers.ALL if open_to_lab else _peers.LOOPBACK
    _peers.check_bind(bind, token, insecure=insecure, isolated=open_to_lab)
    _raise_descriptor_limit()
    rights = Rights(replace=allow_replace, digests=allow_digests, executable=allow_executable)
    with Store(directory, sync=sync, rights=rights) as store:
        routes = _planes.srv6(srv6, fabric, this_host, peer_host)
        planes = _planes.planes(addresses, evs=evs, routes=routes)
        server = Server(
            store,
            host=bind,
            port=DEFAULT_PORT if port is None else port,
            planes=planes,
            token=token,
            addresses=_peers.rule(allow_address, planes),
            limits=Limits(senders=max_senders, per_address=max_per_address),
            idle_timeout=idle_timeout,
            observer=show,
        )
        try:
            if json:
                _common.print_json_line(
                    {"kind": "listening", "address": bind, "port": server.port, "directory": str(directory)}
                )
            else:
                asks = "with the token" if token is not None else "without a token"
                remarks.print(
                    f"receiving into {directory}, {bind} port {server.port}, {asks}; Ctrl-C ends it",
                    markup=False,
                )
                if store.leftovers:
                    remarks.print(
                        f"removed {files(store.leftovers)} that killed runs left behind", markup=False
                    )
            with contextlib.ExitStack() as stack:
                if interval is not None:
                    stack.enter_context(_intervals(server, interval, show))
                complete = server.serve(once=once)
        finally:
            server.close()
    if not complete:
        raise typer.Exit(_common.EXIT_FAILURE)


def _intervals(server: Server, every: float, show: Callable[[Event], None]) -> _interval.Repeat:
    """Reports what arrives in each interval, while there are senders."""
    last, since = server.progress()[0], time.monotonic()

    def report() -> None:
        nonlocal last, since
        (received, senders), now = server.progress(), time.monotonic()
        if senders or received != last:
            who = f"{senders} sender{'' if senders == 1 else 's'}"
            show(Event("interval", who, bytes=received - last, seconds=now - since))
        last, since = received, now

    return _interval.Repeat(every, report)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _raise_descriptor_limit() -> None:
    """To the hard limit. The soft limit protects programs that use select, and this one does not."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _describe(event: Event) -> str | None:
    path, reason = printable(event.path or ""), printable(event.reason or "")
    match event.kind:
        case "stored":
            return (
                f"{path}  {size(event.bytes)}  {rate(event.bytes, event.seconds)}"
                f"  xxh3 {event.digest}  from {event.peer}"
            )
        case "failed":
            return f"{path}  not stored: {reason}  from {event.peer}"
        case "interval":
            goodput = rate(event.bytes, event.seconds)
            return f"{event.seconds:8.2f} s  {size(event.bytes):>8}  {goodput:>11}  {event.peer}"
        case "broken":
            return f"{event.peer}: {reason}"
    return None
