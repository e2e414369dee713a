"""The demo for people: progress while it runs, and the table at its end."""

import time

from rich.console import Console, Group, RenderableType
from rich.text import Text

from openmrc.demos.lab.analysis import ENOUGH, Figures, figures
from openmrc.demos.lab.flows import congestion_control
from openmrc.demos.lab.recording import NAMES, FaultRecord, Recording
from openmrc.demos.screen import Screen
from openmrc.demos.series import WINDOW_NS
from openmrc.tables import Table
from openmrc.units import duration

_SHOWN_NS = 500_000_000


class Progress(Screen):
    """Shows what happens, and on a terminal the goodput."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._began = time.monotonic()
        self.phase = ""
        """What is running now; printed before each line."""

    def log(self, line: str) -> None:
        """A line for something that happens."""
        super().log(f"{time.monotonic() - self._began:6.1f} s  {self.phase:4}  {line}")

    def tick(self, recording: Recording | None) -> None:
        """Updates the goodput."""
        self.show(lambda: Text(_goodput(recording)))


def _goodput(recording: Recording | None) -> str:
    if recording is None or len(recording.series.time_ns) < 2:
        return "waiting for routes"
    series = recording.series
    last = series.time_ns[-1]
    rates = {
        transport: series.bps(recording.flows_of(transport), last - _SHOWN_NS, last) or 0.0
        for transport in recording.transports
    }
    return "   ".join(f"{NAMES[transport]} {rate / 1e6:6.0f} Mb/s" for transport, rate in rates.items())


def summary(
    mrc: Recording | None, conventional: Recording | None, timers: str, rate_bps: float
) -> RenderableType:
    """The table, and what a reader needs to know about it."""
    runs = [each for each in (mrc, conventional) if each is not None]
    rows = [
        [record.fault.title, NAMES[transport], *_cells(figures(recording, record, transport))]
        for records in zip(*(each.faults for each in runs), strict=True)
        for recording, record in zip(runs, records, strict=True)
        for transport in recording.transports
    ]
    columns = ("fault", "over", "flows hit", "outage", "slowest data", "lost packets", "lost until")
    table = Table(columns, rows, left=2)
    lines: list[RenderableType] = [table, Text(_LEGEND, style="dim"), Text()]
    if conventional is not None:
        lines.append(Text(f"TCP ({congestion_control()}) and UDP behind FRR: {timers}, ECMP over all paths"))
    if mrc is not None:
        lines += [Text(f"found by MRC's hosts: {_localised(record)}") for record in mrc.faults]
        verdict = "no byte wrong" if not mrc.wrong else f"{mrc.wrong} WRONG"
        style = "bold green" if not mrc.wrong else "bold red"
        lines.append(Text(f"MRC: {mrc.pieces} writes arrived and were checked, {verdict}", style))
    lines.append(Text(f"each host offered {rate_bps / 1e6:g} Mb/s", style="dim"))
    return Group(*lines)


_LEGEND = f"""\
outage: the longest time in which a flow (queue pair, connection, datagrams) got less than {ENOUGH:.0%} of its
goodput before, over windows of {WINDOW_NS // 1_000_000} ms. slowest data: the longest time from posting to
arrival; in brackets before the fault. lost packets: data packets that MRC sent on dead paths, datagrams
that never arrived; lost until: time from the fault to the last of them."""


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


def _localised(record: FaultRecord) -> str:
    verdict = record.verdict
    if verdict is None:
        return f"{record.fault.what} is down: its host notices it and tells its peers"
    if not verdict.links:
        return f"nothing; the cause was {record.fault.what}"
    when = ""
    if verdict.since_ns is not None:
        when = f" after {duration((verdict.since_ns - record.began_ns) / 1e6)}"
    right = "correct" if verdict.right else f"WRONG, it was {record.fault.what}"
    named = ", ".join(verdict.links)
    common = {end.split(":")[0] for end in verdict.links[0].split("--")}
    for link in verdict.links[1:]:
        common &= {end.split(":")[0] for end in link.split("--")}
    if len(verdict.links) > 1 and len(common) == 1:
        named = f"{common.pop()} ({len(verdict.links)} of its links)"
    return f"{named} is broken, by the events of {len(verdict.hosts)} hosts{when} ({right})"
