"""The display of a running demo: a table that is updated on a terminal, plain lines elsewhere."""

from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table as Grid
from rich.text import Text

from openmrc.closing import Closable
from openmrc.demos.loopback.analysis import Figures
from openmrc.demos.loopback.run import Progress
from openmrc.tables import Table
from openmrc.units import size

_BAR = 24


class Screen(Closable):
    """Where progress is shown."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Shows that the file is being made or hashed."""
        raise NotImplementedError

    def progress(self, progress: Progress) -> None:
        """Shows the state of the run."""
        raise NotImplementedError


class Lines(Screen):
    """Plain lines: every event, and the state once a second."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = 0.0  # The first report has no second before it.
        self._doing = ""

    def preparing(self, what: str, done: int, total: int) -> None:
        """A line for each step."""
        if what != self._doing:
            self._console.print(f"{what} ({size(total)})", markup=False)
        self._doing = what

    def progress(self, progress: Progress) -> None:
        """A line per event, and one per second."""
        for title in progress.events:
            self._console.print(f"{progress.seconds:5.1f} s  *** {title}", markup=False)
        if progress.seconds - self._last >= 1:
            self._last = progress.seconds
            planes = " ".join(f"{gbps:4.1f}" for gbps in progress.plane_gbps)
            bad = sum(bad for bad, _ in progress.paths)
            self._console.print(
                f"{progress.seconds:5.1f} s  {progress.gbps:5.1f} Gb/s  planes {planes}  "
                f"{bad} of {sum(total for _, total in progress.paths)} paths out",
                markup=False,
            )

    def close(self) -> None:
        """Nothing to end."""


class Moving(Screen):
    """A table that is redrawn several times a second."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=8, transient=True)
        self._live.start()
        self._console = console
        self._events: list[tuple[float, str]] = []
        self._most = 0.1

    def preparing(self, what: str, done: int, total: int) -> None:
        """A bar."""
        filled = round(_BAR * done / total) if total else _BAR
        line = Text.assemble(
            (f"{what}  ", "dim"), ("━" * filled, "cyan"), ("━" * (_BAR - filled), "bright_black")
        )
        self._live.update(line.append(f"  {size(done)} of {size(total)}", "dim"))

    def progress(self, progress: Progress) -> None:
        """The table."""
        for title in progress.events:
            self._events.append((progress.seconds, title))
        self._live.update(self._render(progress))

    def _render(self, progress: Progress) -> RenderableType:
        head = Text.assemble(
            (f"{progress.seconds:5.1f} s", "bold"),
            "   ",
            (f"{progress.gbps:5.1f} Gb/s", "bold green"),
            f" verified   {size(progress.verified)}",
            f"   file {progress.files + 1}",
        )
        self._most = max(self._most, *progress.plane_gbps)
        table = Grid.grid(padding=(0, 2))
        for plane, (gbps, (bad, total)) in enumerate(zip(progress.plane_gbps, progress.paths, strict=True)):
            style = "red" if total and bad == total else "yellow" if bad else "green"
            filled = round(_BAR * gbps / self._most)
            table.add_row(
                Text(f"plane {plane}", style="" if bad < total else "red"),
                Text("━" * filled, style=style) + Text("━" * (_BAR - filled), style="bright_black"),
                Text(f"{gbps:4.1f}"),
                Text(
                    f"{bad} of {total} paths out" if bad else f"{total} paths", style=style if bad else "dim"
                ),
            )
        events = [
            Text(f"{seconds:5.1f} s  {title}", style="bold yellow") for seconds, title in self._events[-6:]
        ]
        return Group(head, Text(), table, Text(), *events)

    def close(self) -> None:
        """Ends the live display."""
        self._live.stop()


def screen(console: Console) -> Screen:
    """The display that suits the console."""
    return Moving(console) if console.is_terminal else Lines(console)


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
