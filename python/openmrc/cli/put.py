"""``openmrc put``: send files. Prints; :mod:`openmrc.transfer.sender` does the work."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openmrc.cli import _common, _impair, _interval, _peers, _planes, _values
from openmrc.errors import ConnectError
from openmrc.printable import printable
from openmrc.transfer.manifest import collect
from openmrc.transfer.protocol import DEFAULT_PORT, IfExists
from openmrc.transfer.ring import PEER_TIMEOUT
from openmrc.transfer.sender import PlaneState, Report, Sender
from openmrc.units import files, rate, size

if TYPE_CHECKING:
    from rich.console import Console


def put(
    paths: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="Files and directories.", show_default=False)
    ],
    receiver: Annotated[
        str,
        typer.Argument(metavar="HOST[:PORT]", help="Where `openmrc serve` runs.", show_default=False),
    ],
    port: Annotated[int | None, _peers.port_option(DEFAULT_PORT, "TCP port of the receiver.")] = None,
    if_exists: Annotated[
        IfExists,
        typer.Option(
            "--if-exists",
            help="If a name is taken: refuse that file, replace it, or update (send it only if it differs). "
            "After a transfer that broke off, update sends the missing files. The receiver has to allow both "
            "(serve --allow-replace, --allow-digests).",
        ),
    ] = "refuse",
    token_file: _peers.TokenFileOption = None,
    allow_address: _peers.AllowAddressOption = None,
    mtu: _planes.MtuOption = None,
    peer_timeout: Annotated[
        float,
        typer.Option(
            "--peer-timeout",
            help=f"Give up when no plane has answered for this time. Default {PEER_TIMEOUT:g}s.",
            show_default=False,
            **_values.time(1),
        ),
    ] = PEER_TIMEOUT,
    interval: _interval.IntervalOption = None,
    addresses: _planes.AddressesOption = None,
    count: _planes.CountOption = None,
    evs: _planes.EvsOption = None,
    ev_burst: _planes.EvBurstOption = None,
    srv6: _planes.Srv6Option = False,
    fabric: _planes.FabricOption = None,
    this_host: _planes.ThisHostOption = None,
    peer_host: _planes.PeerHostOption = None,
    impair: _impair.ImpairOption = None,
    json: _common.JsonOption = False,
) -> None:
    """Send files over all planes at once; the receiver verifies checksums (XXH3-128).

    A directory keeps its name and its contents. Files appear at the receiver one by one, each complete or not
    at all. Exit code 0 means that the receiver has everything.
    """
    host, tcp_port = _peers.server(receiver, port, DEFAULT_PORT)
    sources = collect(paths)
    configure = _impair.configure(impair)
    remarks = _common.console(stderr=True)
    routes = _planes.srv6(srv6, fabric, this_host, peer_host)
    planes = _planes.planes(addresses, count, evs, ev_burst, routes)
    with (
        Sender(
            host,
            tcp_port,
            planes=planes,
            mtu=mtu,
            token=_peers.token(token_file),
            addresses=_peers.rule(allow_address, planes),
            peer_timeout=peer_timeout,
            configure=configure,
        ) as sender,
        _planes.naming_cables(planes),
    ):
        here, there = len(sender.context.addresses), sender.peer_planes
        if here != there:
            remarks.print(
                f"planes: {here} here, {there} at {sender.receiver}; "
                f"the first {min(here, there)} of both are used"
            )
        parts: list[dict[str, Any]] = []
        try:
            with _progress(remarks, interval, None if json else _print_interval, parts) as on_tick:
                report = sender.send(sources, if_exists, on_tick)
        except KeyboardInterrupt:
            _report_break(sender, len(sources), "interrupted", interrupted=True, json=json)
            raise
        except ConnectError as error:
            raise ConnectError(
                _report_break(sender, len(sources), str(error), interrupted=False, json=json)
            ) from None
    if json:
        intervals = {} if interval is None else {"intervals": parts}
        _common.print_json({**report.as_dict(), **intervals})
    else:
        _print_report(report)
    if not report.complete:
        failed = [result for result in report.files if result.status == "failed"]
        if len(failed) == 1:
            raise ConnectError(
                f"{printable(failed[0].path)} was not stored: {printable(failed[0].reason or '')}"
            )
        raise ConnectError(f"{len(failed)} of {files(len(report.files))} were not stored")


def _report_break(sender: Sender, count: int, reason: str, *, interrupted: bool, json: bool) -> str:
    """Prints what has arrived of a transfer that broke off; returns the reason with a summary."""
    stored = sum(result.status != "failed" for result in sender.results)
    message = f"{reason}; nothing was stored"
    if stored:
        message = f"{reason}; {stored} of {files(count)} stored, --if-exists update sends the rest"
    if json:
        results = [*map(_as_dict, sender.results)]
        _common.print_json(
            {"complete": False, "interrupted": interrupted, "error": message, "files": results}
        )
    elif interrupted:
        _print_files(sender.results)
        placed = f"{size(sender.bytes_placed)} of {size(sender.total_bytes)} had arrived"
        _common.console().print(f"{message}; {placed}", markup=False)
    return message


def _as_dict(result: Any) -> dict[str, Any]:
    return {name: getattr(result, name) for name in result.__slots__}


def _print_interval(start: float, end: float, count: int, sender: Sender) -> None:
    planes = sender.plane_states()
    alive = f"{sum(plane.alive for plane in planes)} of {len(planes)} planes"
    placed = f"{size(sender.bytes_placed)} of {size(sender.total_bytes)}"
    print(_interval.line(start, end, count, f"{placed}, {alive}"), flush=True)


def _print_files(results: Sequence[Any]) -> None:
    out = _common.console()
    for result in results:
        if result.status == "failed":
            reason = printable(result.reason or "")
            out.print(f"{printable(result.path)}  not stored: {reason}", markup=False)
        else:
            state = "" if result.status == "stored" else "  there already"
            digest = f"  xxh3 {printable(result.digest)}" if result.digest else ""
            out.print(f"{printable(result.path)}  {size(result.bytes)}{digest}{state}", markup=False)


def _print_report(report: Report) -> None:
    out = _common.console()
    _print_files(report.files)
    stored = [result for result in report.files if result.status == "stored"]
    if not stored:
        return
    used = sum(plane.tx_packets > 0 for plane in report.planes)
    again = report.transport.get("retransmits", 0)
    out.print(
        f"{files(len(stored))}, {size(report.bytes)} in {report.seconds:.2f} s,"
        f" {rate(report.bytes, report.network_seconds)} over {used} plane{'' if used == 1 else 's'};"
        f" {again} packets sent again",
        markup=False,
    )


@contextlib.contextmanager
def _progress(
    console: "Console",
    every: float | None,
    show: Callable[[float, float, int, Sender], None] | None,
    parts: list[dict[str, Any]],
) -> Iterator[Callable[[Sender], None]]:
    """What to call while the transfer goes on: a bar on a terminal, or a line for each interval.

    Args:
        console: Where the bar is.
        every: Seconds of an interval; ``None``: there are none.
        show: Prints an interval.
        parts: Takes the intervals.
    """
    if every is not None:
        now: list[Sender] = []

        def interval(start: float, end: float, count: int) -> None:
            parts.append(_interval.as_dict(start, end, count))
            if show is not None:
                show(start, end, count, now[0])

        meter = _interval.Meter(every, interval)

        def on_interval(sender: Sender) -> None:
            now[:] = [sender]
            meter.update(sender.bytes_placed)

        yield on_interval
        if now:
            meter.update(now[0].bytes_placed, last=True)
        return
    if not console.is_terminal:
        yield lambda sender: None
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    bar = Progress(
        TaskProgressColumn(),
        BarColumn(),
        TextColumn("{task.fields[amount]}"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[planes]}"),
        console=console,
        transient=True,
    )
    with bar:
        task = bar.add_task("put", total=None, amount="", rate="", planes="")

        def on_tick(sender: Sender) -> None:
            placed = sender.bytes_placed
            bar.update(
                task,
                total=sender.total_bytes,
                completed=placed,
                amount=f"{size(placed)} of {size(sender.total_bytes)}",
                rate=f"{(bar.tasks[0].speed or 0) * 8 / 1e9:5.1f} Gb/s",
                planes=" ".join(map(_symbol, sender.plane_states())),
            )

        yield on_tick


def _symbol(plane: PlaneState) -> str:
    if not plane.alive:
        return "[red]✕[/]"
    return "[yellow]◐[/]" if plane.bad > plane.good else "[green]●[/]"
