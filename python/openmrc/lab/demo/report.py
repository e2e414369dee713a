"""The demo for people: progress while it runs, and the table at its end."""

import time
from collections.abc import Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from openmrc.lab.demo.analysis import ENOUGH, WINDOW_NS, Figures, figures
from openmrc.lab.demo.flows import congestion_control
from openmrc.lab.demo.trace import Broken, Half, Transport

_EVERY_S = 0.25
_SHOWN_NS = 500_000_000


class Progress:
    """Says what happens, and on a terminal what arrives meanwhile.

    Args:
        console: Where; its status line moves only on a terminal.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = console.status("") if console.is_terminal else None
        self._due = 0.0
        self._began = time.monotonic()
        self.half = ""

    def __enter__(self) -> "Progress":
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def say(self, what: str) -> None:
        """A line for something that happens."""
        now = time.monotonic() - self._began
        self._console.print(f"{now:6.1f} s  {self.half:4}  {what}", markup=False)

    def tick(self, half: Half | None) -> None:
        """What arrives now."""
        now = time.monotonic()
        if self._status is None or now < self._due:
            return
        self._due = now + _EVERY_S
        if half is None or len(half.time_ns) < 2:
            self._status.update("waiting for routes")
            return
        last = len(half.time_ns) - 1
        first = last
        while first > 0 and half.time_ns[last] - half.time_ns[first] < _SHOWN_NS:
            first -= 1
        parts = []
        for transport in ("mrc", "tcp", "udp"):
            if flows := half.flows_of(transport):
                arrived = sum(half.received[last][flow] - half.received[first][flow] for flow in flows)
                rate = arrived * 8 / (half.time_ns[last] - half.time_ns[first])
                parts.append(f"{transport.upper()} {1000 * rate:6.0f} Mb/s")
        self._status.update("   ".join(parts))


def summary(mrc: Half | None, conventional: Half | None, timers: str, rate_bps: float) -> RenderableType:
    """The table, and what has to be known to read it."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("fault")
    table.add_column("over", no_wrap=True)
    for name in ("flows hit", "outage", "slowest data", "lost in it", "for"):
        table.add_column(name, justify="right")
    rows: list[tuple[Half, Sequence[Transport]]] = []
    if mrc is not None:
        rows.append((mrc, ("mrc",)))
    if conventional is not None:
        rows.append((conventional, ("tcp", "udp")))
    for number, broken in enumerate(rows[0][0].faults):
        title = broken.fault.title
        for half, transports in rows:
            for transport in transports:
                found = figures(half, half.faults[number], transport)
                table.add_row(title, _NAMES[transport], *_cells(found))
                title = ""
        table.add_section()
    lines: list[RenderableType] = [table, Text(_LEGEND, style="dim"), Text()]
    if conventional is not None:
        lines.append(Text(f"TCP ({congestion_control()}) and UDP behind FRR: {timers}, ECMP over all paths"))
    if mrc is not None:
        lines += [Text(f"MRC's hosts say: {_naming(broken)}") for broken in mrc.faults]
        verdict = "no byte wrong" if not mrc.wrong else f"{mrc.wrong} WRONG"
        style = "bold green" if not mrc.wrong else "bold red"
        lines.append(Text(f"MRC: {mrc.pieces} writes arrived and were checked, {verdict}", style))
    lines.append(Text(f"each host offered {rate_bps / 1e6:g} Mb/s", style="dim"))
    return Group(*lines)


_NAMES: dict[Transport, str] = {"mrc": "MRC", "tcp": "TCP", "udp": "UDP"}

_LEGEND = f"""\
outage: the longest that a flow (queue pair, connection, datagrams) got less than {ENOUGH:.0%} of what it had
before, over windows of {WINDOW_NS // 1_000_000} ms. slowest data: the longest that a piece took from being
posted to having arrived; in brackets before the fault. lost in it: data packets that MRC still
sent on dead paths, datagrams that never arrived; for so long after the fault."""


def _cells(found: Figures) -> list[str]:
    wait = "-"
    if found.wait_ms is not None:
        wait = f"{duration(found.wait_ms)} ({duration(found.wait_before_ms or 0.0)})"
    return [
        f"{found.flows_hit} of {found.flows}",
        duration(found.outage_ms) if found.flows_hit else "none",
        wait,
        "-" if found.hole_packets is None else str(found.hole_packets),
        duration(found.hole_ms) if found.hole_ms is not None and found.hole_packets != 0 else "-",
    ]


def duration(milliseconds: float) -> str:
    """``3.2 ms`` or ``1.4 s``."""
    if milliseconds >= 1000:
        return f"{milliseconds / 1000:.2f} s"
    return f"{milliseconds:.0f} ms" if milliseconds >= 100 else f"{milliseconds:.1f} ms"


def _naming(broken: Broken) -> str:
    if broken.right is None:
        return f"{broken.fault.what} is down: the host itself sees it and tells its peers"
    if not broken.named:
        return f"nothing, where {broken.fault.what} was the cause"
    when = ""
    if broken.named_ns is not None:
        when = f" after {duration((broken.named_ns - broken.began_ns) / 1e6)}"
    verdict = "which is right" if broken.right else f"WRONG: it was {broken.fault.what}"
    named = ", ".join(broken.named)
    common = {end.split(":")[0] for end in broken.named[0].split("--")}
    for link in broken.named[1:]:
        common &= {end.split(":")[0] for end in link.split("--")}
    if len(broken.named) > 1 and len(common) == 1:
        named = f"{common.pop()} ({len(broken.named)} of its links)"
    return f"{named} is broken, by the events of {len(broken.named_by)} hosts{when}: {verdict}"
