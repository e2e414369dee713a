"""Cells of CSV files that people open in a spreadsheet: text from elsewhere is never a formula there.

A text that begins like a formula gets an apostrophe in front, which spreadsheets take for "this is text" and
do not show; reading takes it away.
"""

from collections.abc import Iterable

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def written(values: Iterable[object]) -> list[object]:
    """The cells of a row or column. Numbers stay numbers, also negative ones."""
    return [f"'{each}" if isinstance(each, str) and each.startswith(_FORMULA) else each for each in values]


def read(cell: str) -> str:
    """The text of a cell that :func:`written` made, or a person."""
    return cell[1:] if cell.startswith("'") and cell[1:].startswith(_FORMULA) else cell
