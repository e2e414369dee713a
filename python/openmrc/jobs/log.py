"""Logs of failures: which part failed when and for how long, as CSV.

One row for each failure, in order of time::

    part,number,port,what,begin_s,seconds
    nic-link,17,3,flap,1234.567,4.210

======== ============================================== ==========================
part     number                                         port
======== ============================================== ==========================
host     of the host                                    empty
nic      of the NIC, host by host                       empty
nic-link of the NIC                                     of the NIC, from 0: plane
link     between switches; those of a T0 are together   empty
t0       of the T0 in its plane                         plane
switch   above the T0s                                  empty
======== ============================================== ==========================

Times count from the begin of the job. ``what`` is ``flap`` for a link that comes back by itself, otherwise
``repair``.
"""

import csv
import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from openmrc.errors import ArgumentError, FormatError
from openmrc.files import read_text, replacing
from openmrc.jobs.draw import DAY, MOST_INTERRUPTIONS, Failures, Outages, draw, parts
from openmrc.jobs.job import MAX_DAYS, Job
from openmrc.jobs.network import Network, Shape

COLUMNS = ("part", "number", "port", "what", "begin_s", "seconds")

_MOST_BYTES = 256 << 20
_MOST_S = MAX_DAYS * DAY
"""Times count from the job's begin: those since 1970 are refused by this."""


class _Kind(NamedTuple):
    """Parts of one kind."""

    part: str
    what: str
    has_port: bool


_KINDS = {
    "hosts": _Kind("host", "repair", False),
    "nics": _Kind("nic", "repair", False),
    "ports": _Kind("nic-link", "repair", True),
    "port_flaps": _Kind("nic-link", "flap", True),
    "links": _Kind("link", "repair", False),
    "link_flaps": _Kind("link", "flap", False),
    "t0s": _Kind("t0", "repair", True),
    "uppers": _Kind("switch", "repair", False),
}
"""By field of :class:`openmrc.jobs.draw.Failures`."""
_FIELDS = {(kind.part, kind.what): field for field, kind in _KINDS.items()}


def write_log(path: Path | str, job: Job, network: Network | None = None, seed: int | None = None) -> int:
    """Writes the failures that are drawn for a job; returns how many.

    Args:
        path: The file.
        job: The job.
        network: One of its networks; the first if left out.
        seed: Of the draw; the job's if left out.

    Raises:
        ArgumentError: if there are more than fit the memory of a usual machine.
        OSError: if the file cannot be written.
    """
    network = network or job.networks[0]
    shape, failures = draw(job, network, job.seed if seed is None else seed)
    drawn: list[tuple[float, float, str, int]] = []
    for field in _KINDS:
        outages: Outages = getattr(failures, field)
        columns = (outages.begin.tolist(), outages.seconds.tolist(), outages.part.tolist())
        drawn += [(begin, seconds, field, part) for begin, seconds, part in zip(*columns, strict=True)]
    drawn.sort()
    with replacing(Path(path), newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        for begin, seconds, field, part in drawn:
            kind = _KINDS[field]
            number, port = divmod(part, shape.planes) if kind.has_port else (part, "")
            table.writerow([kind.part, number, port, kind.what, f"{begin:.3f}", f"{seconds:.3f}"])
    return len(drawn)


class _Row(NamedTuple):
    line: int
    number: int
    port: int | None
    begin: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Log:
    """The failures of a log, before it is known which network they are of."""

    path: Path
    rows: dict[str, list[_Row]]
    """By field of :class:`openmrc.jobs.draw.Failures`."""

    def __len__(self) -> int:
        return sum(map(len, self.rows.values()))

    def failures(self, job: Job, network: Network) -> tuple[Shape, Failures]:
        """As those of a job on a network; what begins after the job has ended is left out.

        Raises:
            ArgumentError: for the first part that this network does not have, naming its line.
        """
        shape = network.shape(job.gpus, job.nic_gbps, job.switch_tbps)
        made = {}
        counts = parts(job, shape)
        for field, kind in _KINDS.items():
            rows = [row for row in self.rows[field] if row.begin < job.days * DAY]
            numbers = [self._part(row, kind, network, shape) for row in rows]
            for row, number in zip(rows, numbers, strict=True):
                if number >= counts[field]:
                    raise self._wrong(row, kind, network, f"has {counts[field]:,} parts of this kind")
            made[field] = Outages(
                np.array(numbers, np.int64),
                np.array([row.begin for row in rows], np.float64),
                np.array([row.seconds for row in rows], np.float64),
            )
        return shape, Failures(**made)

    def _part(self, row: _Row, kind: _Kind, network: Network, shape: Shape) -> int:
        if row.port is None:
            return row.number
        if row.port >= shape.planes:
            raise self._wrong(row, kind, network, f"has ports 0 to {shape.planes - 1}")
        return row.number * shape.planes + row.port

    def _wrong(self, row: _Row, kind: _Kind, network: Network, why: str) -> ArgumentError:
        port = "" if row.port is None else f" port {row.port}"
        return ArgumentError(
            f"{self.path}: line {row.line}: {kind.part} {row.number}{port}: {network.name} {why}; a log fits"
            " networks of the same size and planes"
        )


def read_log(path: Path | str) -> Log:
    """A log of failures.

    Raises:
        FormatError: if it is none, naming the line.
        OSError: if it cannot be read.
    """
    path = Path(path)
    found = Log(path, {field: [] for field in _KINDS})
    for line, cells in _lines(path):
        if line == 1:
            if tuple(cells) != COLUMNS:
                raise FormatError(f"{path}: line 1: expected the columns {','.join(COLUMNS)}")
            continue
        if cells:
            field, row = _row(path, line, cells)
            found.rows[field].append(row)
    for field in ("hosts", "nics", "t0s", "uppers"):
        if len(found.rows[field]) > MOST_INTERRUPTIONS:
            raise FormatError(f"{path}: more than {MOST_INTERRUPTIONS:,} failures of one kind")
    for rows in found.rows.values():
        rows.sort(key=lambda row: row.begin)
    return found


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Rows with the line that they end on; the first, also of an empty file."""
    table = csv.reader(io.StringIO(read_text(path, most=_MOST_BYTES), newline=""))
    try:
        yield 1, next(table, [])
        for cells in table:
            yield table.line_num, cells
    except csv.Error as error:
        raise FormatError(f"{path}: line {table.line_num}: {error}") from None


def _row(path: Path, line: int, cells: list[str]) -> tuple[str, _Row]:
    where = f"{path}: line {line}"
    if len(cells) != len(COLUMNS):
        raise FormatError(f"{where}: {len(cells)} cells; expected {len(COLUMNS)}")
    part, number, port, what, begin, seconds = (cell.strip() for cell in cells)
    field = _FIELDS.get((part, what))
    if field is None:
        known = ", ".join(" ".join(each) for each in _FIELDS)
        raise FormatError(f"{where}: there is no {part[:20]} {what[:20]}; there are {known}")
    has_port = _KINDS[field].has_port
    if has_port != bool(port):
        raise FormatError(f"{where}: port: {'missing' if has_port else f'a {part} has none'}")
    return field, _Row(
        line,
        _whole(where, "number", number),
        _whole(where, "port", port) if has_port else None,
        _time(where, "begin_s", begin),
        _time(where, "seconds", seconds),
    )


def _whole(where: str, column: str, text: str) -> int:
    if text.isascii() and text.isdecimal() and len(text) <= 9:
        return int(text)
    raise FormatError(f"{where}: {column}: {text[:20]!r} is no whole number from 0 to 999999999")


def _time(where: str, column: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if 0 <= value <= _MOST_S:
        return value
    raise FormatError(
        f"{where}: {column}: {text[:20]!r} is no time from 0 to {_MOST_S:.0f} s after the job's begin"
    )
