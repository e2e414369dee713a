"""What communicators did as Chakra execution traces, which the simulator and others replay.

One file for each rank, ``PREFIX.0.et``, ``PREFIX.1.et`` and so on; groups in ``PREFIX.groups.json``.
Operations become COMM nodes, and the time between them COMP nodes. Only lengths of time count: hosts need no
common clock.

from openmrc.collectives import trace
comm.records()                     # forgets what was before
...                                # the job
trace.write("traces/job", comm)    # every rank; the simulator reads {kind: recorded, file: traces/job}
"""

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from openmrc.collectives.communicator import Communicator
from openmrc.collectives.records import OperationRecord
from openmrc.files import write_bytes, write_text
from openmrc.workload import chakra


@dataclass(frozen=True, slots=True)
class Group:
    """The ranks of a communicator."""

    name: str
    """Empty: that of the whole job."""
    members: Sequence[int]
    """Ranks in the job."""


def write(prefix: str | Path, world: Communicator, groups: Sequence[Communicator] = ()) -> None:
    """Writes what communicators have done since their records were taken. Every rank of ``world`` calls it.

    Args:
        prefix: Begin of the names of the files.
        world: The communicator of the whole job.
        groups: Other communicators of this rank, made of ranks of ``world``.

    Raises:
        OSError: if a file cannot be written.
        Error: if ranks cannot exchange their groups.
    """
    done = [(Group("", world.members), record) for record in world.records()]
    done += [(Group(comm.name, comm.members), record) for comm in groups for record in comm.records()]
    write_bytes(f"{prefix}.{world.rank}.et", encode(world.rank, done))
    mine = json.dumps({comm.name: list(comm.members) for comm in groups}).encode()
    lengths = bytearray(8 * world.size)
    world.all_gather(len(mine).to_bytes(8, "little"), lengths)
    counts = [int.from_bytes(lengths[at : at + 8], "little") for at in range(0, len(lengths), 8)]
    texts = bytearray(sum(counts))
    world.all_gather(mine, texts, counts=counts)
    if world.rank == 0:
        found: dict[str, list[int]] = {}
        at = 0
        for count in counts:
            found |= json.loads(texts[at : at + count])
            at += count
        if found:
            write_text(f"{prefix}.groups.json", json.dumps(found) + "\n")


def encode(rank: int, done: Sequence[tuple[Group, OperationRecord]]) -> bytes:
    """The trace of a rank.

    Args:
        rank: The rank in the job.
        done: What it has done, each with the group in which it did so.
    """
    return chakra.encode(_nodes(rank, done))


def _nodes(rank: int, done: Sequence[tuple[Group, OperationRecord]]) -> Iterator[bytes]:
    """Nodes in the order of the calls.

    A call comes after the one before it, and after the last operation that has ended in between: the host may
    have waited for that. What is left of the time is computation.
    """
    calls = sorted(done, key=lambda each: each[1].end - each[1].seconds)
    number = 0
    after: list[int] = []
    since = calls[0][1].end - calls[0][1].seconds if calls else 0.0
    begin = since
    ended: list[tuple[float, int]] = []
    for group, record in calls:
        called = record.end - record.seconds
        joined = max(((end, node) for end, node in ended if since < end <= called), default=None)
        if joined is not None:
            since = joined[0]
            after = [*after, joined[1]]
        ended = [each for each in ended if each[0] > called]
        gap = round((called - since) * 1e6)
        if gap > 0:
            number += 1
            yield chakra.node(number, "compute", chakra.COMP, after, round((since - begin) * 1e6), gap)
            after = [number]
        number += 1
        what, attributes = _communication(rank, group, record)
        took = round(record.seconds * 1e6)
        yield chakra.node(number, record.name, what, after, round((called - begin) * 1e6), took, attributes)
        ended.append((record.end, number))
        since = called


def _communication(rank: int, group: Group, record: OperationRecord) -> tuple[int, dict[str, int | str]]:
    """The type of a node, and its attributes."""
    size = len(group.members)
    if record.name in ("send", "recv"):
        peer = group.members[record.peer]
        # Tags of different communicators are different ones.
        tag = zlib.crc32(f"{group.name}/{record.tag}".encode()) & 0x7FFFFFFF
        ends = (rank, peer) if record.name == "send" else (peer, rank)
        found = {"comm_src": ends[0], "comm_dst": ends[1], "comm_tag": tag, "comm_size": record.nbytes}
        return (chakra.SEND if record.name == "send" else chakra.RECV), dict(found)
    nbytes = record.nbytes
    if record.name == "all_gather":
        nbytes //= size
    elif record.name == "all_to_all" and size > 1:
        nbytes = nbytes * size // (size - 1)  # What stays at the rank is not sent.
    attributes: dict[str, int | str] = {"comm_type": chakra.COMM_TYPES[record.name], "comm_size": nbytes}
    attributes |= {"root": record.peer} if record.peer else {}
    attributes |= {"pg_name": group.name} if group.name else {}
    return chakra.COLL, attributes | {"algorithm": record.algorithm}
