"""Tables for terminals of any width: too wide, a table is divided or turned, so that no cell is ever cut.

Every command that prints a table uses this one. It decides nothing about contents.
"""

from collections.abc import Callable, Iterable, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.measure import Measurement
from rich.table import Table as Grid
from rich.text import Text

_UNLIMITED = 10_000
_FEW_ROWS = 24
"""With at most this many rows, the parts of a table are on one screen."""


class Table:
    """A table with named columns, one line for each row; a renderable of rich.

    If it does not fit the width, it is divided by columns, with the first one repeated, or turned, with its
    rows as columns; whichever has fewer parts. If not even two columns fit, cells are folded.

    Args:
        columns: Names of the columns.
        rows: The cells of each row; the first cell is the row's name if the first column is left-aligned.
        title: A line above it.
        note: Text below it.
        left: Columns that are left-aligned: their number from the first on, or their names. The others are
            numbers, right-aligned.
        totals: Number of rows at the end that are totals, set apart by a line.
        prose: The last column has sentences, which are folded into the width that the others leave, if that
            is at least a third.
    """

    def __init__(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[str | Text]],
        *,
        title: str | None = None,
        note: str | None = None,
        left: int | Sequence[str] = 1,
        totals: int = 0,
        prose: bool = False,
    ) -> None:
        self.columns = tuple(columns)
        self.rows = [tuple(cell if isinstance(cell, Text) else Text(cell) for cell in row) for row in rows]
        self.title = title
        self.note = note
        self._left = set(self.columns[:left] if isinstance(left, int) else left)
        self._totals = totals
        self._prose = prose

    @property
    def left(self) -> list[int]:
        """The numbers of the left-aligned columns."""
        return [number for number, name in enumerate(self.columns) if name in self._left]

    @property
    def totals(self) -> int:
        """Number of rows at the end that are totals."""
        return self._totals

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.title:
            yield Text(self.title, style="bold")
        every = range(len(self.columns))
        if _fits(self._straight(every), console, options) or self._leaves_room(console, options):
            yield self._straight(every)
        else:
            for number, grid in enumerate(self._divided(console, options)):
                if number:
                    yield Text()
                yield grid
        if self.note:
            yield Text(self.note)

    def _leaves_room(self, console: Console, options: ConsoleOptions) -> bool:
        """Whether sentences in the last column have at least a third of the width."""
        if not self._prose:
            return False
        others = self._straight(range(len(self.columns) - 1))
        wanted = Measurement.get(console, options.update(max_width=_UNLIMITED), others).maximum
        return 3 * wanted <= 2 * options.max_width

    @property
    def _named(self) -> bool:
        return self.columns[0] in self._left

    def _divided(self, console: Console, options: ConsoleOptions) -> list[Grid]:
        def fits(grid: Grid) -> bool:
            return _fits(grid, console, options)

        rows = _divide(range(len(self.rows)), lambda part: fits(self._turned(part)))
        turned = [self._turned(part) for part in rows]
        if not all(map(fits, turned)):
            return [self._turned([number], fold=True) for number in range(len(self.rows))]
        if self._named and len(self.rows) <= _FEW_ROWS:
            others = range(1, len(self.columns))
            columns = _divide(others, lambda part: fits(self._straight([0, *part])))
            straight = [self._straight([0, *part]) for part in columns]
            if all(map(fits, straight)) and _extent(straight) <= _extent(turned):
                return straight
        return turned

    def _straight(self, columns: Sequence[int]) -> Grid:
        grid = _grid()
        for place in columns:
            name = self.columns[place]
            folds = self._prose and place == len(self.columns) - 1
            justify: JustifyMethod = "left" if name in self._left else "right"
            grid.add_column(name, justify=justify, no_wrap=not folds, overflow="fold")
        for number, row in enumerate(self.rows):
            last = number + 1 == len(self.rows) - self._totals
            grid.add_row(*(row[place] for place in columns), end_section=last)
        return grid

    def _turned(self, rows: Sequence[int], *, fold: bool = False) -> Grid:
        # Rows without a name have no heading.
        grid = _grid(header=self._named)
        grid.add_column(self.columns[0], style="bold", no_wrap=not fold, overflow="fold")
        for number in rows:
            grid.add_column(self.rows[number][0], justify="right", no_wrap=not fold, overflow="fold")
        for place in range(1 if self._named else 0, len(self.columns)):
            cells = [self.rows[number][place] for number in rows]
            if any(cells):
                grid.add_row(self.columns[place], *cells)
        return grid


def _divide(all_of: range, fits: Callable[[list[int]], bool]) -> list[list[int]]:
    """Parts of at least one member, as few as possible, and about equally long."""
    parts: list[list[int]] = []
    for each in all_of:
        if parts and fits([*parts[-1], each]):
            parts[-1].append(each)
        else:
            parts.append([each])
    if len(parts) < 2:
        return parts
    length = -(-len(all_of) // len(parts))
    equal = [list(all_of[start : start + length]) for start in range(0, len(all_of), length)]
    return equal if all(len(part) == 1 or fits(part) for part in equal) else parts


def _grid(*, header: bool = True) -> Grid:
    return Grid(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), show_header=header
    )


def _extent(grids: Sequence[Grid]) -> tuple[int, int]:
    """What a reader has to go through: parts, then lines."""
    return len(grids), sum(grid.row_count for grid in grids)


def _fits(grid: Grid, console: Console, options: ConsoleOptions) -> bool:
    wanted = Measurement.get(console, options.update(max_width=_UNLIMITED), grid).maximum
    return wanted <= options.max_width
