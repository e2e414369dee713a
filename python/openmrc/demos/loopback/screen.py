"""The display of a running demo, and the summary of its figures."""

from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from openmrc.demos import screen
from openmrc.demos.loopback.analysis import Figures
from openmrc.demos.loopback.run import Progress
from openmrc.demos.screen import bar
from openmrc.tables import Table
from openmrc.units import size


class Screen(screen.Screen):
    """Every event as a line; the state as a table, or as a line once a second."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._last = 0.0  # The first report has no second before it.
        self._most = 0.1
        self._doing = ""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Shows that the file is being made or hashed."""
        line = "" if what == self._doing else f"{what} ({size(total)})"
        self._doing = what
        progress = Text(f"  {size(done)} of {size(total)}", "dim")
        filled = bar(done / total if total else 1.0, "cyan")
        self.show(lambda: Text(f"{what}  ", "dim") + filled + progress, line)

    def progress(self, progress: Progress) -> None:
        """Shows the state of the run."""
        for title in progress.events:
            self.log(f"{progress.seconds:5.1f} s  *** {title}")
        line = ""
        if progress.seconds - self._last >= 1:
            self._last = progress.seconds
            planes = " ".join(f"{gbps:4.1f}" for gbps in progress.plane_gbps)
            bad, total = map(sum, zip(*progress.paths, strict=True))
            line = f"{progress.seconds:5.1f} s  {progress.gbps:5.1f} Gb/s  planes {planes}  "
            line += f"{bad} of {total} paths out"
        self._most = max(self._most, *progress.plane_gbps)
        self.show(lambda: self._table(progress), line)

    def _table(self, progress: Progress) -> RenderableType:
        head = Text.assemble(
            (f"{progress.seconds:5.1f} s", "bold"),
            "   ",
            (f"{progress.gbps:5.1f} Gb/s", "bold green"),
            f" verified   {size(progress.verified)}",
            f"   file {progress.files + 1}",
        )
        table = Grid.grid(padding=(0, 2))
        for plane, (gbps, (bad, total)) in enumerate(zip(progress.plane_gbps, progress.paths, strict=True)):
            style = "red" if total and bad == total else "yellow" if bad else "green"
            table.add_row(
                Text(f"plane {plane}", style="" if bad < total else "red"),
                bar(gbps / self._most, style),
                Text(f"{gbps:4.1f}"),
                Text(
                    f"{bad} of {total} paths out" if bad else f"{total} paths", style=style if bad else "dim"
                ),
            )
        return Group(head, Text(), table)


def summary(figures: Figures) -> RenderableType:
    """The result of a run, for people."""
    passes = f"{figures.files} x {size(figures.file_bytes)}"
    verdict = Text(f"every byte arrived: {passes}, each with the right checksum", "bold green")
    if not figures.verified:
        verdict = Text(f"NOT every byte arrived: {figures.error or 'a checksum is wrong'}", "bold red")
    rows = [
        (
            fault.title,
            f"{fault.begin_s:.1f} s",
            f"{fault.end_s:.1f} s",
            *map(_gbps, (fault.before_gbps, fault.during_gbps, fault.after_gbps)),
            "none" if not fault.dip_ms else f"{fault.dip_ms:.0f} ms",
        )
        for fault in figures.faults
    ]
    table = Table(("fault", "from", "to", "before", "during", "after", "dip"), rows)
    lines: list[RenderableType] = [
        verdict,
        Text(f"goodput {_gbps(figures.goodput_gbps)} Gb/s over {figures.seconds:.1f} s, faults included"),
        Text(),
        table,
        Text(
            "goodput in Gb/s; dip: the longest time below 80 % of the goodput that the fault leaves",
            style="dim",
        ),
        Text(),
    ]
    for fault in figures.faults:
        if fault.dead_path_last_ms is not None:
            last = f"{fault.dead_path_last_ms:.1f} ms and {fault.dead_path_packets} packets"
            lines.append(Text(f"dead plane: abandoned after {last}"))
    lines.append(
        Text(
            f"{figures.data_packets} data packets: {figures.dropped} dropped by the network, "
            f"{figures.trimmed} trimmed, {figures.ecn_marked} marked; "
            f"{figures.retransmits} sent again; {figures.spurious} were declared lost but had arrived"
        )
    )
    return Group(*lines)


def _gbps(value: Any) -> str:
    return "-" if value is None else f"{value:.1f}"
