"""Lists of flows as CSV: ``src,dst,bytes,start_us``, header optional; hosts as ``12`` or ``h12``."""

import csv
from functools import lru_cache
from pathlib import Path

from openmrc.errors import FormatError

COLUMNS = ("src", "dst", "bytes", "start_us")
_LONGEST = 1 << 31

Flow = tuple[int, int, int, float]
"""Source, destination, bytes, start in microseconds."""


def read(path: Path, hosts: int) -> list[Flow]:
    """The flows of a file, between hosts of a fabric of so many; ``start_us`` may be left out.

    Raises:
        FormatError: naming file, line and column.
        OSError: if it cannot be read.
    """
    state = path.stat()
    return list(_read(path, hosts, (state.st_mtime_ns, state.st_size)))


@lru_cache(maxsize=4)
def _read(path: Path, hosts: int, state: tuple[int, int]) -> tuple[Flow, ...]:
    """A run looks at its flows several times; ``state`` tells whether the file is still the same."""
    flows = []
    with path.open(newline="", encoding="utf-8-sig") as file:
        try:
            for number, row in enumerate(csv.reader(file), 1):
                cells = [cell.strip() for cell in row]
                if not any(cells) or cells[0].startswith("#"):
                    continue
                if number == 1 and cells[0] == COLUMNS[0]:
                    if tuple(cells) != COLUMNS[: len(cells)] or len(cells) < 3:
                        raise FormatError(f"{path}:1: the columns are {','.join(COLUMNS)}")
                    continue
                flows.append(_flow(f"{path}:{number}", cells, hosts))
        except UnicodeDecodeError:
            raise FormatError(f"{path}: not UTF-8 text") from None
        except csv.Error as error:
            raise FormatError(f"{path}: not CSV: {error}") from None
    if not flows:
        raise FormatError(f"{path}: no flows in it")
    return tuple(flows)


def _flow(place: str, cells: list[str], hosts: int) -> Flow:
    if len(cells) not in (3, 4):
        raise FormatError(f"{place}: {len(cells)} columns, expected {','.join(COLUMNS)}")
    src, dst = (
        _number(place, name, cell.removeprefix("h")) for name, cell in zip(COLUMNS, cells[:2], strict=False)
    )
    for name, host in zip(COLUMNS, (src, dst), strict=False):
        if host >= hosts:
            raise FormatError(
                f"{place}: {name}: host h{host} does not exist, the fabric has h0 to h{hosts - 1}"
            )
    if src == dst:
        raise FormatError(f"{place}: host h{src} would send to itself")
    size = _number(place, "bytes", cells[2])
    if not 1 <= size <= _LONGEST:
        raise FormatError(f"{place}: bytes: {size} is out of range: 1 to {_LONGEST}")
    try:
        start = float(cells[3]) if len(cells) == 4 else 0.0
    except ValueError:
        start = -1.0
    if not 0 <= start <= 1e9:
        raise FormatError(f"{place}: start_us: {_shown(cells[3])} is not a time from 0 to 1e9 us")
    return src, dst, size, start


def _number(place: str, name: str, cell: str) -> int:
    if not cell.isascii() or not cell.isdigit():
        raise FormatError(f"{place}: {name}: {_shown(cell)} is not a whole number")
    if len(cell) > 18:
        raise FormatError(f"{place}: {name}: {cell[:18]}... is out of range")
    return int(cell)


def _shown(cell: str) -> str:
    return repr(cell[:40])[1:-1] or "nothing"
