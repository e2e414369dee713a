"""The file of a workload: JSON Lines, one object on a line (docs/workloads.md, "The file").

The first line is the header; then groups, ranks, and the nodes of each program in their order. Fields with
their
default are left out.
"""

import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from openmrc.errors import FormatError
from openmrc.files import replacing
from openmrc.workload.program import KINDS, OPERATIONS, Node, Rank, Workload

FORMAT = "openmrc-workload"
VERSION = 1
MOST_BYTES = 2**31
"""Longest file that is read."""
MOST_RANKS = 2**20
_MOST = 2**63 - 1


def save(workload: Workload, path: Path | str) -> None:
    """Writes a workload, completely or not at all.

    Raises:
        OSError: if the file cannot be written.
    """
    with replacing(path) as file:
        for line in _lines(workload):
            file.write(json.dumps(line, separators=(",", ":")) + "\n")


def _lines(workload: Workload) -> Iterator[dict[str, Any]]:
    yield {
        "format": FORMAT, "version": VERSION, "ranks": len(workload.ranks),
        "nodes": sum(map(len, workload.programs.values())), "name": workload.name,
        "domain": workload.domain, "scale_up_gbytes": workload.scale_up_gbytes,
        "scale_up_us": workload.scale_up_us,
    }  # fmt: skip
    for name, members in workload.groups.items():
        yield {"group": name, "members": list(members)}
    for number, rank in enumerate(workload.ranks):
        yield {
            "rank": number,
            "program": rank.program,
            "groups": dict(rank.groups),
            "peers": dict(rank.peers),
        }
    for name, nodes in workload.programs.items():
        for node in nodes:
            yield {"node": node.id, "program": name, **_changed(node)}


_DEFAULTS = {each.name: each.default for each in fields(Node) if each.name not in ("id", "kind")}


def _changed(node: Node) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": node.kind}
    for name, default in _DEFAULTS.items():
        value = getattr(node, name)
        if value != default:
            found[name] = list(value) if name == "after" else value
    return found


def parse(text: str, path: Path) -> Workload:
    """Reads a workload from the text of its file.

    Args:
        text: What the file has.
        path: Its name, for errors.

    Raises:
        FormatError: if it is no workload; names file, line and field.
    """
    reader = _Reader(path)
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            reader.line(number, line)
    return reader.workload()


class _Reader:
    """A workload on its way out of a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = 0
        self.header: dict[str, Any] | None = None
        self.groups: dict[str, tuple[int, ...]] = {}
        self.ranks: dict[int, Rank] = {}
        self.programs: dict[str, list[Node]] = {}

    def line(self, number: int, text: str) -> None:
        self.number = number
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            raise self.wrong("is no JSON object; the file may be cut") from None
        if not isinstance(found, dict):
            raise self.wrong("is no JSON object")
        if self.header is None:
            self.read_header(found)
        elif "node" in found:
            self.read_node(found)
        elif "rank" in found:
            self.read_rank(found)
        elif "group" in found:
            self.read_group(found)
        else:
            raise self.wrong("has none of node, rank and group")

    def wrong(self, what: str) -> FormatError:
        return FormatError(f"{self.path}, line {self.number}: {what}")

    def read_header(self, found: dict[str, Any]) -> None:
        if found.get("format") != FORMAT:
            raise self.wrong(f'it is no workload: the first line has no "format": "{FORMAT}"')
        if found.get("version") != VERSION:
            raise self.wrong(f"version: {found.get('version')!r} is not read, only {VERSION}")
        known = {"format", "version", "ranks", "nodes", "name", "domain", "scale_up_gbytes", "scale_up_us"}
        self.only(found, known)
        self.whole(found, "ranks", 1, MOST_RANKS)
        self.whole(found, "nodes", 0, _MOST)
        self.whole(found, "domain", 1, MOST_RANKS, 1)
        self.text(found, "name", "")
        for name in ("scale_up_gbytes", "scale_up_us"):
            value = found.setdefault(name, 0.0)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
                raise self.wrong(f"{name}: {value!r} is not a number of 0 or more")
        self.header = found

    def read_group(self, found: dict[str, Any]) -> None:
        self.only(found, {"group", "members"})
        name = self.text(found, "group")
        members = found.get("members")
        if not isinstance(members, list) or not members or not all(map(_is_rank, members)):
            raise self.wrong("members: they are not a list of ranks")
        if name in self.groups:
            raise self.wrong(f"group: {name} is there twice")
        self.groups[name] = tuple(members)

    def read_rank(self, found: dict[str, Any]) -> None:
        self.only(found, {"rank", "program", "groups", "peers"})
        number = self.whole(found, "rank", 0, MOST_RANKS - 1)
        groups, peers = found.get("groups", {}), found.get("peers", {})
        if not isinstance(groups, dict) or not all(isinstance(name, str) for name in groups.values()):
            raise self.wrong("groups: they are not an object of names of groups")
        if not isinstance(peers, dict) or not all(map(_is_rank, peers.values())):
            raise self.wrong("peers: they are not an object of ranks")
        if number in self.ranks:
            raise self.wrong(f"rank: {number} is there twice")
        self.ranks[number] = Rank(self.text(found, "program"), groups, peers)

    def read_node(self, found: dict[str, Any]) -> None:
        self.only(found, {"node", "program", "kind", *_DEFAULTS})
        number = self.whole(found, "node", 0, _MOST)
        program, kind = self.text(found, "program"), found.get("kind")
        if kind not in KINDS:
            raise self.wrong(
                f"program {program}, node {number}, kind: {kind!r} is none of {', '.join(KINDS)}"
            )
        after = found.get("after", [])
        if not isinstance(after, list) or not all(_is_whole(each, _MOST) for each in after):
            raise self.wrong(f"program {program}, node {number}, after: not a list of nodes")
        operation = found.get("operation")
        if kind == "collective" and operation not in OPERATIONS:
            known = ", ".join(OPERATIONS)
            raise self.wrong(f"program {program}, node {number}, operation: {operation!r} is none of {known}")
        peer = found.get("peer", "")
        if not (isinstance(peer, str) or _is_rank(peer)):
            raise self.wrong(f"program {program}, node {number}, peer: {peer!r} is no role or rank")
        self.programs.setdefault(program, []).append(
            Node(
                number,
                kind,
                tuple(after),
                self.text(found, "name", ""),
                self.whole(found, "ns", 0, _MOST, 0),
                self.whole(found, "bytes", 0, _MOST, 0),
                operation,
                self.text(found, "group", ""),
                peer,
                self.whole(found, "tag", 0, _MOST, 0),
            )
        )

    def only(self, found: dict[str, Any], known: set[str]) -> None:
        for name in found:
            if name not in known:
                raise self.wrong(f"{name}: there is no such field; there are {', '.join(sorted(known))}")

    def whole(
        self, found: dict[str, Any], name: str, least: int, most: int, default: int | None = None
    ) -> int:
        value = found.setdefault(name, default) if default is not None else found.get(name)
        if not _is_whole(value, most) or value < least:  # type: ignore[operator]
            raise self.wrong(f"{name}: {value!r} is not a whole number of {least} to {most}")
        assert isinstance(value, int)
        return value

    def text(self, found: dict[str, Any], name: str, default: str | None = None) -> str:
        value = found.get(name, default)
        if not isinstance(value, str):
            raise self.wrong(f"{name}: {value!r} is not a text")
        return value

    def workload(self) -> Workload:
        if self.header is None:
            raise FormatError(f"{self.path}: it is empty, not a workload")
        count = self.header["ranks"]
        for rank in range(count):
            if rank not in self.ranks:
                raise FormatError(f"{self.path}: rank {rank} of {count} is missing; the file may be cut")
        if len(self.ranks) > count:
            raise FormatError(
                f"{self.path}: rank {max(self.ranks)} is there, but the header has ranks {count}"
            )
        nodes = sum(map(len, self.programs.values()))
        if nodes != self.header["nodes"]:
            raise FormatError(
                f"{self.path}: it has {nodes} nodes, the header says {self.header['nodes']};"
                " the file may be cut"
            )
        return Workload(
            self.programs,
            [self.ranks[rank] for rank in range(count)],
            self.groups,
            self.header.get("name", ""),
            self.header["domain"],
            self.header["scale_up_gbytes"],
            self.header["scale_up_us"],
        )


def _is_whole(value: object, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def _is_rank(value: object) -> bool:
    return _is_whole(value, MOST_RANKS - 1)
