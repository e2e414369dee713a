"""Common to write-bw and write-lat: options, and the server's side."""

import re
import shutil
import sys
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from openmrc.cli import _common, _complete, _impair, _peers, _planes, _values
from openmrc.errors import ArgumentError
from openmrc.perftest import protocol
from openmrc.perftest.client import measuring
from openmrc.perftest.endpoint import INLINE, Interval
from openmrc.perftest.loopback import measuring_here, pin
from openmrc.perftest.server import Server
from openmrc.perftest.settings import SWEEP, Settings
from openmrc.planes import Planes
from openmrc.printable import printable
from openmrc.testing import Impairment
from openmrc.units import size

HostArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="HOST[:PORT]",
        help="The server. Without it, this is the server.",
        show_default=False,
        autocompletion=_complete.hosts,
    ),
]
PortOption = Annotated[int | None, _peers.port_option(protocol.DEFAULT_PORT, "TCP port of the server.")]
AllOption = Annotated[bool, typer.Option("--all", "-a", help="Run sizes from 2 bytes to 8 MiB.")]
InlineOption = Annotated[
    int | None,
    typer.Option(
        "--inline-size",
        "-I",
        help="Maximum size of an inline message.",
        **_values.size(0, INLINE),
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
        help="Server: time limit of a client. Client: time limit of a run of --iters messages. "
        f"Default {protocol.MAX_TIME:g}s.",
        show_default=False,
        **_values.time(1),
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
        help="Pin this end to a processor; with --loopback, client and server. Default with --loopback: "
        "the first two.",
    ),
]
CpuFreqOption = Annotated[
    bool, typer.Option("-F", hidden=True, help="Accepted for compatibility with perftest; no effect.")
]
GbitsOption = Annotated[
    bool,
    typer.Option(
        "--report-gbits",
        hidden=True,
        help="Accepted for compatibility with perftest; always on.",
    ),
]


def _ignored(*names: str, metavar: str = "") -> Any:
    """A flag of perftest that means nothing without a device of hardware: accepted, with a note."""
    return typer.Option(
        *names, metavar=metavar, hidden=True, help="Accepted for compatibility with perftest."
    )


IbDeviceOption = Annotated[str | None, _ignored("--ib-dev", "-d", metavar="DEVICE")]
IbPortOption = Annotated[int | None, _ignored("--ib-port", metavar="N")]
GidIndexOption = Annotated[int | None, _ignored("--gid-index", "-x", metavar="N")]
ServiceLevelOption = Annotated[int | None, _ignored("--sl", "-S", metavar="N")]
RdmaCmOption = Annotated[bool, _ignored("--rdma-cm", "-R")]


def note_ignored(
    ib_dev: str | None, ib_port: int | None, gid_index: int | None, sl: int | None, rdma_cm: bool
) -> None:
    """Says which flags had no effect, and what decides instead."""
    given = {
        "--ib-dev": ib_dev,
        "--ib-port": ib_port,
        "--gid-index": gid_index,
        "--sl": sl,
        "--rdma-cm": rdma_cm or None,
    }
    names = ", ".join(name for name, value in given.items() if value is not None)
    if names:
        text = f"note: no effect: {names}; the device is software, and --addresses choose its planes"
        _common.console(stderr=True).print(text, markup=False)


MAX_TIME = protocol.MAX_TIME
_RULE = 87
"""Characters of a line, as in perftest."""
_UNLIMITED = 10_000


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
        rules.append(Impairment.drop(probability=loss))
    rules.extend(_impair.fail_port(text) for text in fail_ports or ())
    return rules


class Table(NamedTuple):
    """The table of results, with perftest's header and columns. On a narrow terminal it takes less width."""

    title: str
    facts: Sequence[tuple[str, object]]
    columns: str
    row: Callable[[dict[str, Any]], str]

    def print_header(self, *more: tuple[str, object]) -> None:
        """Prints the block above the columns, two facts on a line, and the columns."""
        self.print_rule()
        print(f"{self.title:^{min(_RULE, _width())}}".rstrip())
        cells = [f" {name:<15} : {value!s:<14}" for name, value in (*self.facts, *more)]
        for left, right in zip_longest(cells[::2], cells[1::2], fillvalue=""):
            print((left + right).rstrip())
        self.print_rule()
        self.print_columns()

    def print_rule(self) -> None:
        """Prints a line."""
        print("-" * min(_RULE, _width()))

    def print_columns(self) -> None:
        """Prints the names of the columns, where they are above the figures."""
        if len(self.columns) <= _width():
            print(self.columns, flush=True)
        elif self._narrow <= _width():
            print(" " + "  ".join(self._names), flush=True)

    def print_row(self, result: dict[str, Any]) -> None:
        """Prints the figures of a run."""
        line = self.row(result)
        cells = line.split()
        if len(self.columns) <= _width():
            print(line, flush=True)
        elif self._narrow <= _width():
            widths = map(len, self._names)
            print(" " + "  ".join(map(str.ljust, cells, widths)).rstrip(), flush=True)
        else:
            for name, cell in zip(self._names, cells, strict=True):
                print(f" {name:<22}{cell:>14}")
            print(flush=True)

    @property
    def _names(self) -> list[str]:
        return re.findall(r"\S+(?: \S+)*", self.columns.replace(" #iter", "  #iter"))

    @property
    def _narrow(self) -> int:
        return 1 + len("  ".join(self._names))


def _width() -> int:
    """Columns of the terminal; without one, no limit."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _UNLIMITED


def print_interval(interval: Interval) -> None:
    """A line for a part of a run, as iperf3 prints it."""
    print(
        f" {interval.start:7.2f}-{interval.end:<7.2f} s  {size(interval.bytes):>8}  "
        f"{interval.goodput_gbps:8.2f} Gb/s  {interval.resent:7d} resent",
        flush=True,
    )


def main(
    settings: Settings,
    host: str | None,
    port: int | None,
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
        _serve(settings, bind, protocol.DEFAULT_PORT if port is None else port, table, json=json)
        return
    connected = (
        measuring_here(settings, cpus)
        if host is None
        else measuring(settings, *_peers.server(host, port, protocol.DEFAULT_PORT))
    )
    found: list[dict[str, Any]] = []
    try:
        with connected as measurement, _planes.naming_cables(settings.planes):
            if not json:
                transport = settings.planes.transport
                table.print_header(("Transport type", transport), ("Paths", measurement.paths))
            for result in measurement:
                found.append(result.as_dict())
                if not json:
                    table.print_row(found[-1])
            if not json:
                table.print_rule()
    finally:
        # Also after an error: what was measured before counts.
        if json and found:
            _common.print_json(found if len(settings.sizes) > 1 else found[0])
    if measurement.interrupted:
        raise typer.Exit(_common.EXIT_INTERRUPTED)


def _serve(settings: Settings, bind: str, port: int, table: Table, *, json: bool) -> None:
    """The server's side: serves one client and shows its results too."""

    def show(result: dict[str, Any]) -> None:
        if json:
            _common.print_json_line(result)
        else:
            table.print_row(result)

    def refused(peer: str, reason: str) -> None:
        print(f"{peer} was not served: {printable(reason)}", file=sys.stderr, flush=True)

    server = Server(settings, bind, port)
    try:
        if not json:
            stars = "*" * 36
            print(f"{stars}\n* Waiting for client to connect... *\n{stars}")
            print(f" TCP port {server.port}; the client's options count")
            table.print_columns()
        server.serve(show, refused)
    finally:
        server.close()


def _cpus(text: str | None) -> list[int]:
    try:
        return [int(part) for part in text.split(",")] if text else []
    except ValueError:
        raise ArgumentError(f"--cpu {text}: write a number, or two numbers with a comma") from None
