"""What ``simulate --live`` shows: goodput and queues of every plane, in the terminal, while a run goes on."""

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from openmrc import colours
from openmrc.sim.text import gbps, micros
from openmrc.units import size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from openmrc.sim import PlaneNow, Progress

PERIOD_S = 0.25
"""Between two looks; a look reads every port."""
SHARE = 0.1
"""Of the time, at most, for looks: those at a large fabric are rarer."""
BAR = 24


class Live:
    """The display; what :func:`openmrc.sim.run` calls as ``watch``. It is removed at the end."""

    def __init__(self, console: "Console") -> None:
        from rich.live import Live as Display

        self._display = Display(console=console, transient=True, auto_refresh=False)
        self._next = 0.0
        self._before: tuple[int, list[int]] | None = None
        self._most = 0.0
        """The highest rate of a plane so far, to which the bars are drawn."""

    def __enter__(self) -> Self:
        self._display.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._display.stop()

    def __call__(self, so_far: "Progress", planes: "Callable[[], list[PlaneNow]]") -> None:
        """Looks and draws, if it is time."""
        began = time.monotonic()
        if began < self._next:
            return
        self._display.update(self.table(so_far, planes()), refresh=True)
        took = time.monotonic() - began
        self._next = time.monotonic() + max(PERIOD_S, took / SHARE)

    def table(self, so_far: "Progress", planes: "Sequence[PlaneNow]") -> "Table":
        """The planes as they are now. Rates are means since the look before."""
        from rich.table import Table
        from rich.text import Text

        sent = [plane.to_hosts for plane in planes]
        since_ps, before = self._before or (0, [0] * len(sent))
        rates = [0.0] * len(sent)
        if so_far.now_ps > since_ps:
            took_s = (so_far.now_ps - since_ps) * 1e-12
            rates = [(now - then) * 8 / took_s for now, then in zip(sent, before, strict=True)]
            self._before = so_far.now_ps, sent
            self._most = max(self._most, *rates)
        title = (
            f"{micros(so_far.now_ps * 1e-6)}, {so_far.finished:,} of {so_far.messages:,} messages, "
            f"{gbps(sum(rates))} to hosts"
        )
        table = Table(title=Text(title), title_justify="left", box=None, pad_edge=False)
        table.add_column("plane", justify="right")
        table.add_column("", width=BAR)
        for name in ("to hosts", "waiting", "longest queue"):
            table.add_column(name, justify="right")
        table.add_column("at")
        for number, (plane, rate) in enumerate(zip(planes, rates, strict=True)):
            filled = round(BAR * rate / self._most) if self._most else 0
            table.add_row(
                str(number),
                Text("█" * filled, style=colours.plane(number)),
                gbps(rate),
                size(plane.waiting),
                size(plane.longest),
                plane.longest_port or "",
            )
        return table
