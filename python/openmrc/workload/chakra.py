"""Chakra execution traces, written: schema 0.0.4 of mlcommons/chakra, one file for each rank.

The simulator reads them (``kind: recorded``).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from openmrc.errors import ArgumentError
from openmrc.files import write_bytes, write_text
from openmrc.workload.program import Node, Workload, scale_up_ns

COMP, SEND, RECV, COLL = 4, 5, 6, 7
"""Types of nodes."""
COMM_TYPES = {
    "all_reduce": 0, "reduce": 1, "all_gather": 2, "gather": 3, "scatter": 4, "broadcast": 5, "all_to_all": 6,
    "reduce_scatter": 7, "barrier": 9,
}  # fmt: skip
_VERSION = b"0.0.4"
_ALGORITHMS = {"all_reduce": "ring", "all_gather": "ring", "reduce_scatter": "ring", "all_to_all": "direct"}


def encode(nodes: Iterable[bytes]) -> bytes:
    """A file of nodes that :func:`node` made."""
    return b"".join([_block(_field(1, _VERSION)), *map(_block, nodes)])


def node(
    number: int,
    name: str,
    kind: int,
    after: Sequence[int],
    begin_us: int,
    took_us: int,
    attributes: Mapping[str, int | str] | None = None,
) -> bytes:
    """A node: its number, name and type, the nodes that it waits for, its times, its attributes."""
    out = _number(1, number) + _field(2, name.encode()) + _number(3, kind)
    if after:
        out += _field(5, b"".join(map(_varint, after)))
    out += _number(6, begin_us) + _number(7, took_us)
    for key, value in {"is_cpu_op": 0, **(attributes or {})}.items():
        # bool_val, int64_val, string_val; a value of a oneof is written even if it is 0.
        if isinstance(value, str):
            what = _field(29, value.encode())
        else:
            what = _varint((27 if key == "is_cpu_op" else 9) << 3) + _varint(value)
        out += _field(10, _field(1, key.encode()) + what)
    return out


def write(workload: Workload, prefix: Path) -> list[Path]:
    """Writes ``PREFIX.0.et`` and so on, and the groups as ``PREFIX.groups.json``; returns the files.

    Times are whole microseconds; what rounding takes from a node the next one of its rank has. An operation
    within a scale-up domain is a computation of the time that it takes there.

    Args:
        workload: A workload without problems.
        prefix: Begin of the names.

    Raises:
        ArgumentError: if a trace of a rank that the workload has not is there already.
        OSError: if a file cannot be written.
    """
    import json

    beyond = Path(f"{prefix}.{len(workload.ranks)}.et")
    if beyond.exists():
        raise ArgumentError(
            f"{beyond} is there, but the workload has {len(workload.ranks)} ranks: it is of a larger job;"
            " remove its files or take another prefix"
        )
    files = []
    for rank in range(len(workload.ranks)):
        files.append(Path(f"{prefix}.{rank}.et"))
        write_bytes(files[-1], encode(_nodes(workload, rank)), sync=False)
    groups = Path(f"{prefix}.groups.json")
    if workload.groups or groups.exists():
        files.append(groups)
        text = json.dumps({name: list(members) for name, members in workload.groups.items()})
        write_text(files[-1], text + "\n", sync=False)
    return files


def _nodes(workload: Workload, rank: int) -> Iterator[bytes]:
    """The nodes of a rank. Their order in lanes becomes dependencies where a reader might not keep it."""
    spare = 0
    """Of the times so far: nanoseconds more than the microseconds written."""
    lanes: dict[str, int] = {}
    for each in workload.programs[workload.ranks[rank].program]:
        group = workload.group_of(rank, each) if each.kind == "collective" else ""
        inside = workload.within_domain(group) if group else False
        if each.kind == "compute" or inside:
            ns = scale_up_ns(workload, each, len(workload.groups[group])) if inside else each.ns
            took, spare = divmod(ns + spare + 500, 1000)
            spare -= 500
            after = each.after
            if inside:
                after = (*after, lanes[group]) if group in lanes else after
                lanes[group] = each.id
            yield node(each.id, each.name or each.operation or each.kind, COMP, after, 0, took)
        else:
            kind, attributes = _communication(workload, rank, each, group)
            yield node(each.id, each.name or each.operation or each.kind, kind, each.after, 0, 0, attributes)


def _communication(workload: Workload, rank: int, each: Node, group: str) -> tuple[int, dict[str, int | str]]:
    if each.kind == "collective":
        assert each.operation is not None
        size = each.bytes
        if each.operation == "all_gather":
            size = -(-size // len(workload.groups[group]))
        attributes: dict[str, int | str] = {"comm_type": COMM_TYPES[each.operation], "comm_size": size}
        attributes["pg_name"] = group
        if each.operation in _ALGORITHMS:
            attributes["algorithm"] = _ALGORITHMS[each.operation]
        return COLL, attributes
    peer = workload.peer_of(rank, each)
    assert peer is not None
    ends = (rank, peer) if each.kind == "send" else (peer, rank)
    found = {"comm_src": ends[0], "comm_dst": ends[1], "comm_tag": each.tag, "comm_size": each.bytes}
    return (SEND if each.kind == "send" else RECV), dict(found)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _block(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _block(data)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value) if value else b""
