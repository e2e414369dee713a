"""Chakra execution traces, read: one file for each rank, ``PREFIX.0.et`` and so on (schema 0.0.4 and 1.0.0).

Nodes wait for their data and their control dependencies. Groups are in ``PREFIX.groups.json``, in
``comm_group.json`` beside the traces, or in nodes of metadata as PyTorch writes them.
"""

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from openmrc.errors import FormatError
from openmrc.files import read_bytes, read_text
from openmrc.workload.chakra import COLL, COMM_TYPES, COMP, RECV, SEND
from openmrc.workload.file import MOST_BYTES, MOST_RANKS
from openmrc.workload.program import OPERATIONS, Node, Operation, Rank, Workload

_NAME = re.compile(r"(?P<prefix>.+)\.(?P<rank>\d+)\.et")
_METADATA, _LOAD, _STORE = 1, 2, 3
_MOST = 2**63 - 1
_NAMES = {number: name for name, number in COMM_TYPES.items()} | {8: "reduce_scatter"}
_NUMBERS = frozenset({7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27})
_ZIGZAG = frozenset({15, 17})


def prefix_of(path: Path) -> Path | None:
    """The prefix of the traces that a path means: itself, or that of one of the files; None if it is none."""
    found = _NAME.fullmatch(path.name)
    if found is not None:
        return path.with_name(found["prefix"])
    return path if not path.is_file() and Path(f"{path}.0.et").is_file() else None


def read(prefix: Path) -> Workload:
    """Reads the traces of all ranks.

    Args:
        prefix: Begin of the names of the files.

    Raises:
        OSError: if a file cannot be read.
        FormatError: if a rank or the end of a file is missing, or a node cannot be run; names file, node and
            attribute.
    """
    found = [_NAME.fullmatch(path.name) for path in prefix.parent.glob(f"{prefix.name}.*.et")]
    there = sorted(int(each["rank"]) for each in found if each and each["prefix"] == prefix.name)
    for rank in range(len(there) or 1):
        if rank not in there:
            others = f", but there is {prefix}.{there[-1]}.et" if there else ""
            raise FormatError(f"{prefix}.{rank}.et is missing{others}")
    ranks = len(there)
    groups = _groups(prefix, ranks)
    whole = next(name for name in ("all", "all ranks") if name not in groups)
    groups[whole] = tuple(range(ranks))
    programs: dict[tuple[Node, ...], str] = {}
    made = []
    for rank in range(ranks):
        path = Path(f"{prefix}.{rank}.et")
        nodes = tuple(_Trace(path, rank, ranks, whole, groups).nodes())
        made.append(Rank(programs.setdefault(nodes, f"rank{rank}")))
    used = {node.group for nodes in programs for node in nodes}
    return Workload(
        {name: nodes for nodes, name in programs.items()},
        made,
        {name: members for name, members in groups.items() if name in used},
    )


def _groups(prefix: Path, ranks: int) -> dict[str, tuple[int, ...]]:
    for path in (Path(f"{prefix}.groups.json"), prefix.with_name("comm_group.json")):
        if path.exists():
            try:
                found = json.loads(read_text(path))
            except (ValueError, RecursionError):
                raise FormatError(f"{path}: it is no JSON; the file may be cut") from None
            if not isinstance(found, dict):
                raise FormatError(f"{path}: it is no object of groups")
            for name, members in found.items():
                if not _are_ranks(members) or not members:
                    raise FormatError(f"{path}: group {name}: it is no list of ranks")
                if max(members) >= ranks:
                    raise FormatError(
                        f"{path}: group {name}: rank {max(members)} does not exist: there are {ranks}"
                    )
            return {name: tuple(members) for name, members in found.items()}
    return {}


def _are_ranks(found: object) -> bool:
    return isinstance(found, list) and all(
        isinstance(each, int) and not isinstance(each, bool) and 0 <= each < MOST_RANKS for each in found
    )


class _Trace:
    """The file of one rank."""

    def __init__(
        self, path: Path, rank: int, ranks: int, whole: str, groups: dict[str, tuple[int, ...]]
    ) -> None:
        self.path = path
        self.rank = rank
        self.ranks = ranks
        self.whole = whole
        self.groups = groups
        """Nodes of metadata add theirs."""

    def nodes(self) -> Iterator[Node]:
        data = read_bytes(self.path, most=MOST_BYTES)
        if data.startswith(b"\x1f\x8b"):
            try:
                with gzip.open(self.path) as file:
                    data = file.read(MOST_BYTES + 1)
            except (OSError, EOFError, zlib.error) as error:
                raise FormatError(f"{self.path}: it cannot be unpacked ({error}); it may be cut") from None
            if len(data) > MOST_BYTES:
                raise FormatError(f"{self.path}: it is longer than {MOST_BYTES} bytes when unpacked")
        if data.startswith(b"{"):
            raise FormatError(f"{self.path}: it is JSON of a Chakra tool; read the .et file that it is from")
        records = self.records(data)
        first = next(records, None)
        if first is None:
            raise FormatError(f"{self.path}: it is empty, no Chakra trace")
        self.check_metadata(first)
        for record in records:
            yield self.node(record)

    def records(self, data: bytes) -> Iterator[bytes]:
        at, number = 0, 0
        while at < len(data):
            try:
                length, at = _varint(data, at)
            except ValueError:
                length = len(data) + 1
            if at + length > len(data):
                raise FormatError(
                    f"{self.path}: record {number} ends after the file; it is cut, or no Chakra trace"
                )
            yield data[at : at + length]
            at += length
            number += 1

    def check_metadata(self, record: bytes) -> None:
        if record[:1] == b"\x08":
            raise FormatError(
                f"{self.path}: it has no metadata: traces of Chakra 0.0.1 and 0.0.2 are not read"
            )
        try:
            version = next((value for field, value in _fields(record) if field == 1), b"")
        except ValueError:
            raise FormatError(f"{self.path}: record 0 is no metadata, so it is no Chakra trace") from None
        if not isinstance(version, bytes) or not version.decode("ascii", "replace").isprintable():
            raise FormatError(f"{self.path}: its metadata are those of Chakra 0.0.3, which is not read")

    def node(self, record: bytes) -> Node:
        number = kind = micros = 0
        old = False
        name, after, attributes, inputs = "", [], {}, b""
        try:
            for field, value in _fields(record):
                if isinstance(value, int):
                    if field == 1:
                        number = value
                    elif field == 3:
                        kind = value
                    elif field in (4, 5):
                        after.append(value)
                    elif field == 7:
                        micros = value
                elif field == 2:
                    name = value.decode("utf-8", "replace")
                elif field in (4, 5):
                    after += _packed(value)
                elif field == 8:
                    inputs = value
                elif field == 10:
                    key, what = _attribute(value)
                    attributes[key] = what
                elif field == 11:
                    old = True
        except ValueError:
            raise self.wrong(number, name, "record", "it is broken") from None
        if old:
            raise self.wrong(number, name, "type", "it is of Chakra 0.0.2, which is not read")
        waits = tuple(dict.fromkeys(after))
        if kind == COLL:
            return self.collective(number, name, waits, attributes)
        if kind in (SEND, RECV):
            return self.message(number, name, waits, attributes, kind)
        if kind == _METADATA:
            self.read_groups(inputs)
        elif kind > COLL:
            raise self.wrong(number, name, "type", f"there is no type {kind}")
        ns = micros * 1000 if kind in (COMP, _LOAD, _STORE) else 0
        if ns > _MOST:
            raise self.wrong(number, name, "duration_micros", f"{micros} is too long")
        return Node(number, "compute", waits, name, ns=ns)

    def collective(self, number: int, name: str, after: tuple[int, ...], attributes: dict[str, Any]) -> Node:
        what = self.whole_of(number, name, attributes, "comm_type")
        operation = _NAMES.get(what)
        group = str(attributes.get("pg_name", attributes.get("comm_group", "")))
        group = self.whole if group in ("", "0") else group
        if operation == "barrier":
            # An all-reduce of nothing waits for all too.
            return Node(number, "collective", after, name, operation="all_reduce", group=group)
        if operation not in OPERATIONS:
            raise self.wrong(
                number, name, "comm_type",
                f"{what} ({operation or 'unknown'}) is not read, only {', '.join(OPERATIONS)} and barrier",
            )  # fmt: skip
        size = self.whole_of(number, name, attributes, "comm_size")
        if operation == "all_gather":
            # The trace has one rank's part. A group that is not known is refused later.
            size *= len(self.groups.get(group, (0,)))
        if size > _MOST:
            raise self.wrong(number, name, "comm_size", f"{size} is too large")
        kept: Operation = operation  # type: ignore[assignment]
        return Node(number, "collective", after, name, bytes=size, operation=kept, group=group)

    def message(
        self, number: int, name: str, after: tuple[int, ...], attributes: dict[str, Any], kind: int
    ) -> Node:
        size = self.whole_of(number, name, attributes, "comm_size")
        peer = self.whole_of(number, name, attributes, "comm_dst" if kind == SEND else "comm_src")
        tag = self.whole_of(number, name, attributes, "comm_tag", 0)
        of = "send" if kind == SEND else "receive"
        return Node(number, of, after, name, bytes=size, peer=peer, tag=tag)  # type: ignore[arg-type]

    def whole_of(
        self, number: int, name: str, attributes: dict[str, Any], key: str, default: int | None = None
    ) -> int:
        value = attributes.get(key, default)
        if value is None:
            raise self.wrong(number, name, key, "the node lacks it, so it cannot be run")
        if not isinstance(value, int) or not 0 <= value <= _MOST:
            raise self.wrong(number, name, key, f"{value!r} is not a whole number of 0 or more")
        return value

    def read_groups(self, inputs: bytes) -> None:
        """Groups as PyTorch writes them: a printed list with JSON in it; what is no such list is nothing."""
        begin, end = inputs.find(b"[{"), inputs.rfind(b"}]")
        if b"pg_name" not in inputs or not 0 <= begin < end:
            return
        try:
            found = json.loads(inputs[begin : end + 2].decode().replace('\\"', '"'))
        except (ValueError, RecursionError):
            return
        for each in found:
            if isinstance(each, dict) and "pg_name" in each and _are_ranks(each.get("ranks")):
                members = tuple(each["ranks"]) or tuple(range(self.ranks))
                self.groups.setdefault(str(each["pg_name"]), members)

    def wrong(self, number: int, name: str, field: str, what: str) -> FormatError:
        named = f" ({name})" if name else ""
        return FormatError(f"{self.path}, rank {self.rank}, node {number}{named}, {field}: {what}")


# The encoding of Protocol Buffers. What is broken raises ValueError.


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7


def _packed(data: bytes) -> list[int]:
    found, at = [], 0
    while at < len(data):
        value, at = _varint(data, at)
        found.append(value)
    return found


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        field, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield field, value
            continue
        length, at = (8, at) if wire == 1 else (4, at) if wire == 5 else _length(data, at, wire)
        if at + length > len(data):
            raise ValueError
        block = data[at : at + length]
        yield field, block if wire == 2 else int.from_bytes(block, "little")
        at += length


def _length(data: bytes, at: int, wire: int) -> tuple[int, int]:
    if wire != 2:
        raise ValueError
    return _varint(data, at)


def _attribute(data: bytes) -> tuple[str, int | str | None]:
    """Name and value; None for lists and real numbers."""
    name = ""
    value: int | str | None = None
    for field, what in _fields(data):
        if field == 1 and isinstance(what, bytes):
            name = what.decode("utf-8", "replace")
        elif field in _NUMBERS and isinstance(what, int):
            value = (what >> 1) ^ -(what & 1) if field in _ZIGZAG else what
            if field in (7, 9) and what >> 63:
                value = what - (1 << 64)
        elif field == 29 and isinstance(what, bytes):
            value = what.decode("utf-8", "replace")
    return name, value
