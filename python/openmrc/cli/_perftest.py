"""Common to write-bw and write-lat: options, and the server's side."""

from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from openmrc.cli import _common, _impair, _peers, _planes
from openmrc.errors import ArgumentError
from openmrc.perftest import protocol
from openmrc.perftest.client import measuring
from openmrc.perftest.loopback import measuring_here, pin
from openmrc.perftest.server import Server
from openmrc.perftest.settings import SWEEP, Settings
from openmrc.planes import Planes

HostArgument = Annotated[
    str | None,
    typer.Argument(metavar="HOST", help="The server. Without it, this is the server.", show_default=False),
]
PortOption = Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="TCP port of the server.")]
AllOption = Annotated[bool, typer.Option("--all", "-a", help="Run sizes from 2 bytes to 8 MiB.")]
InlineOption = Annotated[
    int | None,
    typer.Option(
        "--inline_size", "--inline-size", "-I", min=0, max=220, help="Longest message that is sent inline."
    ),
]
BindOption = Annotated[
    str,
    typer.Option("--bind", metavar="ADDRESS", help="Server: listen on this address. Default: all."),
]
MaxTimeOption = Annotated[
    float,
    typer.Option(
        "--max-time",
        metavar="SECONDS",
        min=1,
        help="Server: give up a client after this time. Client: give up a run with a number of messages.",
        rich_help_panel="Peers",
    ),
]
LoopbackOption = Annotated[
    bool,
    typer.Option("--loopback", help="Both ends on this machine; the server is a second process."),
]
CpuOption = Annotated[
    str | None,
    typer.Option(
        "--cpu",
        metavar="N[,M]",
        help="Processor of this end; with --loopback of client and server, default the first two.",
    ),
]
CpuFreqOption = Annotated[
    bool, typer.Option("-F", hidden=True, help="Accepted for compatibility with perftest; no effect.")
]
GbitsOption = Annotated[
    bool,
    typer.Option(
        "--report_gbits",
        "--report-gbits",
        hidden=True,
        help="Accepted for compatibility with perftest; always on.",
    ),
]

DEFAULT_PORT = protocol.DEFAULT_PORT
MAX_TIME = protocol.MAX_TIME
_RULE = "-" * 87


def sizes(everything: bool, size: int | None, default: int) -> Sequence[int]:
    """The sizes of ``-a`` and ``-s``."""
    if everything and size is not None:
        raise ArgumentError("-a runs every size and -s one size: use one of them, not both")
    return SWEEP if everything else (default if size is None else size,)


def peers(token_file: Path | None, allow_address: Sequence[str] | None, planes: Planes) -> dict[str, Any]:
    """The settings of the options about peers."""
    return {"token": _peers.token(token_file), "addresses": _peers.rule(allow_address, planes)}


def impairments(
    texts: Sequence[str] | None, loss: float | None, fail_ports: Sequence[str] | None
) -> list[Any]:
    """The rules of all options."""
    rules = _impair.parse_all(texts)
    if loss:
        rules.append(_impair.parse(f"loss={loss}"))
    rules.extend(_impair.fail_port(text) for text in fail_ports or ())
    return rules


class Table(NamedTuple):
    """The table of results, with perftest's header and columns."""

    title: str
    facts: Sequence[tuple[str, object]]
    columns: str
    row: Callable[[dict[str, Any]], str]

    def print_header(self, *more: tuple[str, object]) -> None:
        """Prints the block above the columns, two facts on a line, and the columns."""
        print(_RULE)
        print(f"{self.title:^87}".rstrip())
        cells = [f" {name:<15} : {value!s:<14}" for name, value in (*self.facts, *more)]
        for left, right in zip_longest(cells[::2], cells[1::2], fillvalue=""):
            print((left + right).rstrip())
        print(_RULE)
        print(self.columns, flush=True)


def main(
    settings: Settings,
    host: str | None,
    port: int,
    *,
    bind: str,
    loopback: bool,
    cpu: str | None,
    json: bool,
    table: Table,
) -> None:
    """Runs the server, the client or both."""
    if host is not None and loopback:
        raise ArgumentError("--loopback is client and server on this machine: name no host")
    cpus = _cpus(cpu)
    if len(cpus) > 1 and not loopback:
        raise ArgumentError("--cpu takes one processor, except with --loopback")
    if not loopback:
        pin(cpus[0] if cpus else None)
    if host is None and not loopback:
        _serve(settings, bind, port, table, json=json)
        return
    connected = (
        measuring_here(settings, cpus)
        if host is None
        else measuring(settings, *_planes.parse_host(host, port))
    )
    with connected as measurement:
        if json:
            found = [result.as_dict() for result in measurement]
        else:
            table.print_header(("Transport type", settings.planes.transport), ("Paths", measurement.paths))
            for result in measurement:
                print(table.row(result.as_dict()), flush=True)
            print(_RULE)
    if json:
        _common.print_json(found if len(settings.sizes) > 1 else found[0])


def _serve(settings: Settings, bind: str, port: int, table: Table, *, json: bool) -> None:
    """The server's side: serves one client and shows its results too."""

    def show(result: dict[str, Any]) -> None:
        if json:
            _common.print_json_line(result)
        else:
            print(table.row(result), flush=True)

    server = Server(settings, bind, port)
    try:
        if not json:
            stars = "*" * 36
            print(f"{stars}\n* Waiting for client to connect... *\n{stars}")
            print(f" TCP port {server.port}; the client's options count")
            print(table.columns, flush=True)
        server.serve(show)
    finally:
        server.close()


def _cpus(text: str | None) -> list[int]:
    try:
        return [int(part) for part in text.split(",")] if text else []
    except ValueError:
        raise ArgumentError(f"--cpu {text}: write a number, or two numbers with a comma") from None
