"""Lists of flows as CSV: ``src,dst,bytes,start_us``, header optional; hosts as ``12`` or ``h12``."""

import csv
from pathlib import Path

from openmrc.errors import FormatError

COLUMNS = ("src", "dst", "bytes", "start_us")
_LONGEST = 1 << 31


def read(path: Path) -> list[tuple[int, int, int, float]]:
    """The flows of a file; ``start_us`` may be left out.

    Raises:
        FormatError: naming file, line and column.
        OSError: if it cannot be read.
    """
    flows = []
    with path.open(newline="", encoding="utf-8") as file:
        try:
            for number, row in enumerate(csv.reader(file), 1):
                cells = [cell.strip() for cell in row]
                if not any(cells) or cells[0].startswith("#"):
                    continue
                if number == 1 and cells[0] == COLUMNS[0]:
                    if tuple(cells) != COLUMNS[: len(cells)] or len(cells) < 3:
                        raise FormatError(f"{path}:1: the columns are {','.join(COLUMNS)}")
                    continue
                flows.append(_flow(f"{path}:{number}", cells))
        except (csv.Error, UnicodeDecodeError) as error:
            raise FormatError(f"{path}: not CSV: {error}") from None
    if not flows:
        raise FormatError(f"{path}: no flows in it")
    return flows


def _flow(place: str, cells: list[str]) -> tuple[int, int, int, float]:
    if len(cells) not in (3, 4):
        raise FormatError(f"{place}: {len(cells)} columns, expected {','.join(COLUMNS)}")
    src, dst = (
        _number(place, name, cell.removeprefix("h")) for name, cell in zip(COLUMNS, cells[:2], strict=False)
    )
    size = _number(place, "bytes", cells[2])
    if not 1 <= size <= _LONGEST:
        raise FormatError(f"{place}: bytes: {size} is out of range: 1 to {_LONGEST}")
    try:
        start = float(cells[3]) if len(cells) == 4 else 0.0
    except ValueError:
        start = -1.0
    if not 0 <= start <= 1e9:
        raise FormatError(f"{place}: start_us: {cells[3]} is not a time from 0 to 1e9 us")
    return src, dst, size, start


def _number(place: str, name: str, cell: str) -> int:
    if not cell.isascii() or not cell.isdigit():
        raise FormatError(f"{place}: {name}: {cell or 'nothing'} is not a whole number")
    return int(cell)
