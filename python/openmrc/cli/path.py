"""``openmrc path``: the path of an entropy value or of an address in a capture."""

from dataclasses import asdict
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openmrc.cli import _common, _complete

if TYPE_CHECKING:
    from openmrc.fabric import Fabric, Path, Trace
    from openmrc.tables import Table

FabricOption = Annotated[
    FilePath | None,
    typer.Option(
        "--fabric",
        metavar="FILE",
        envvar="OPENMRC_FABRIC",
        help="The fabric's specification. Default, in a host of a lab: the lab's; else fabric.yaml.",
    ),
]


def path(
    src: Annotated[
        str | None, typer.Argument(metavar="SRC", help="Sender, like h12.", autocompletion=_complete.hosts)
    ] = None,
    dst: Annotated[
        str | None, typer.Argument(metavar="DST", help="Receiver.", autocompletion=_complete.hosts)
    ] = None,
    fabric: FabricOption = None,
    ev: Annotated[
        str | None, typer.Option(metavar="N", help="Explain this entropy value (decimal or 0x...).")
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Explain an outer destination address from a capture.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Without --ev: list at most this many paths.")] = 20,
    json: _common.JsonOption = False,
) -> None:
    """Show the paths between two hosts, the hops of one path, or the path of an address in a capture."""
    if address is not None:
        if src is not None or ev is not None:
            raise typer.BadParameter("--address is used alone: an address names its own path")
        trace = _fabric(fabric).path_of(address)
        if json:
            _common.print_json(_plain(asdict(trace)))
        else:
            _common.console().print(_trace_text(trace))
        return
    if src is None or dst is None:
        raise typer.BadParameter("SRC and DST are needed, or --address")
    loaded = _fabric(fabric)
    if ev is not None:
        one = loaded.path(src, dst, ev=_number(ev))
        if json:
            _common.print_json(_path_dict(one))
        else:
            from openmrc.fabric import report

            _common.console().print(f"{report.path_sentence(one)}\nouter destination address {one.address}")
            _common.console().print(report.hops(one))
        return
    paths = loaded.paths(src, dst)
    shown = paths[:limit]
    if json:
        _common.print_json(
            {"src": src, "dst": dst, "count": len(paths), "paths": [_path_dict(p) for p in shown]}
        )
        return
    console = _common.console()
    console.print(_list_table(shown))
    more = f", the first {len(shown)} of them above" if len(shown) < len(paths) else ""
    console.print(f"{len(paths):,} paths from {src} to {dst}{more}")


def _fabric(file: FilePath | None) -> "Fabric":
    from openmrc.fabric import Fabric

    if file is None:
        # It needs a NIC's modules, which are of Linux.
        from openmrc.planes import lab_host

        if (here := lab_host()) is not None:
            return here.fabric
    return Fabric.load(file or "fabric.yaml")


def _number(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise typer.BadParameter(f"--ev {text}: not a number; write 123 or 0x7b") from None


def _path_dict(path: "Path") -> dict[str, Any]:
    return {
        "src": path.src,
        "dst": path.dst,
        "ev": path.ev,
        "plane": path.plane,
        "uplinks": list(path.uplinks),
        "address": str(path.address),
        "usids": list(path.usids),
        "links": list(path.links),
        "addresses": [str(a) for a in path.addresses],
        "hops": [hop._asdict() for hop in path.hops],
    }


def _plain(value: dict[str, Any]) -> dict[str, Any]:
    return {key: str(entry) if key == "address" else entry for key, entry in value.items()}


def _list_table(paths: "list[Path]") -> "Table":
    from openmrc.tables import Table

    rows = []
    for path in paths:
        uplinks = " ".join(str(u) for u in path.uplinks) or "-"
        switches = " ".join(hop.switch for hop in path.hops)
        rows.append((f"{path.ev:#010x}", str(path.plane), uplinks, switches, str(path.address)))
    return Table(("EV", "plane", "uplinks", "switches", "outer destination address"), rows, left=5)


def _trace_text(trace: "Trace") -> str:
    lines = [f"{trace.address}"]
    if trace.plane is None:
        rest = f"after the last switch, to the host at down{trace.downlink} of its T0"
        return f"{trace.address}\n  {rest}"
    climbed = [f"T{tier} uplink {uplink}" for tier, uplink in enumerate(trace.uplinks) if uplink is not None]
    lines.append("  " + ", ".join([f"plane {trace.plane}", *climbed]))
    if trace.whole and trace.senders is not None:
        first, last = trace.senders
        sender = first if first == last else f"one of {first} to {last}"
        ev = f", EV {trace.ev:#010x}" if trace.ev is not None else ""
        lines.append(f"  whole path, from {sender} to {trace.dst}{ev}")
        if len(trace.switches) == 1:
            lines.append("  (or the end of a longer path, whose earlier switches have removed their uSIDs)")
    else:
        lines.append(f"  rest of a path to {trace.dst}: earlier switches have removed their uSIDs")
    lines += [f"  {usid:#06x}  {switch}" for switch, usid in trace.switches]
    lines.append(
        f"  {0xE000 + trace.downlink:#06x}  down{trace.downlink} of {trace.switches[-1][0]}, {trace.dst}"
    )
    lines += [f"  over {link}" for link in trace.links]
    return "\n".join(lines)
