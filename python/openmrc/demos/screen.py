"""Where a demo shows how it goes: lines that stay and, on a terminal, a view that is redrawn in place."""

import time
from collections.abc import Callable

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from openmrc.closing import Closable

_PER_SECOND = 8
_BAR = 24


class Screen(Closable):
    """The screen of a demo.

    Args:
        console: Where. If it is no terminal, there are lines only.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._due = 0.0
        if console.is_terminal:
            self._live = Live(console=console, refresh_per_second=_PER_SECOND, transient=True)
            self._live.start()

    def log(self, line: str) -> None:
        """Prints a line about something that has happened."""
        self._console.print(line, markup=False)

    def show(self, view: Callable[[], RenderableType], line: str = "") -> None:
        """Shows the state of now: on a terminal the view, several times a second; elsewhere the line."""
        if self._live is None:
            if line:
                self.log(line)
        elif (now := time.monotonic()) >= self._due:
            self._due = now + 1 / _PER_SECOND
            self._live.update(view())

    def close(self) -> None:
        """Removes the view."""
        if self._live is not None:
            self._live.stop()


def bar(share: float, style: str) -> Text:
    """A bar of which this share is filled."""
    filled = round(_BAR * share)
    return Text("━" * filled, style) + Text("━" * (_BAR - filled), "bright_black")
