"""Progress bars, on standard error and only on a terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from openmrc.cli import _common


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar; yields a function to call with what is done and the total."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = _common.console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)

        def advance(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield advance
