"""GOAL text, as ATLAHS and LogGOPSim read it (arXiv 2505.08936): what each rank computes, sends and receives.

Collectives are expanded in it already. A computation of a cpu begins when the one before it has ended; which
is before which, an execution without a network says, so the order never makes ranks wait for each other.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from openmrc.errors import FormatError
from openmrc.workload.check import problems
from openmrc.workload.file import MOST_RANKS
from openmrc.workload.order import run
from openmrc.workload.program import Node, Rank, Workload

_MOST = 2**63 - 1
_TOKEN = re.compile(
    r"(?P<skip>[ \t\r\f]+|//[^\n]*)|(?P<line>\n)|(?P<comment>/\*.*?\*/)|(?P<size>\d+b)\b|(?P<number>\d+)\b"
    r"|(?P<word>[A-Za-z]\w*)|(?P<mark>[{}:])",
    re.DOTALL | re.ASCII,
)
_KEYWORDS = frozenset({"calc", "send", "recv", "rank"})


def is_goal(text: str) -> bool:
    """Whether a text begins as GOAL does."""
    try:
        return next(_tokens("", text))[1] == "num_ranks"
    except FormatError:
        return False


def read(text: str, where: Path | str) -> Workload:
    """Reads GOAL.

    ``l2 irequires l1`` becomes: l2 begins after everything that l1 begins after.

    Args:
        text: What the file has.
        where: The name of the file, for errors.

    Raises:
        FormatError: if it is no GOAL; names file, line and rank.
    """
    ranks = _Parser(where, text).ranks()
    programs = {f"rank{number}": rank.nodes for number, rank in enumerate(ranks)}
    found = Workload(programs, [Rank(name) for name in programs])
    if any(problems(found)):
        return found  # It cannot run, so there is no order; a check names the reason.
    ends = run(found).ends  # Of every rank, as each has a program of its own.
    chained = {f"rank{number}": _chained(rank, ends[number]) for number, rank in enumerate(ranks)}
    return replace(found, programs=chained)


@dataclass
class _Rank:
    """What one rank does."""

    nodes: list[Node] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    requires: list[tuple[int, int]] = field(default_factory=list)
    """A node, and one that has ended before."""
    starts: list[tuple[int, int]] = field(default_factory=list)
    """A node, and one that has started before."""
    cpus: dict[int, int] = field(default_factory=dict)
    """The cpu of each computation."""


def _chained(rank: _Rank, order: Iterable[int]) -> list[Node]:
    """Computations of one cpu wait for each other, in the order in which they begin."""
    last: dict[int, int] = {}
    before: dict[int, int] = {}
    for number in order:
        if number in rank.cpus:
            cpu = rank.cpus[number]
            if cpu in last:
                before[number] = last[cpu]
            last[cpu] = number
    return [
        replace(node, after=(*node.after, before[node.id]))
        if node.id in before and before[node.id] not in node.after
        else node
        for node in rank.nodes
    ]


def _tokens(where: Path | str, text: str) -> Iterator[tuple[int, str, str]]:
    """Line, text and kind of each token; at the end an empty one."""
    at, line = 0, 1
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            if text.startswith("/*", at):
                raise FormatError(f"{where}, line {line}: the comment has no end; the file may be cut")
            word = text[at:].split(maxsplit=1)[0]
            raise FormatError(f"{where}, line {line}: {word[:40]!r} is no word of GOAL")
        kind = found.lastgroup or ""
        if kind not in ("skip", "line", "comment"):
            yield line, found.group(), kind
        line += found.group().count("\n")
        at = found.end()
    yield line, "", "end"


def _whole(digits: str, most: int) -> int | None:
    """A number, or None if it is larger than the most."""
    value = int(digits) if len(digits) <= 20 else most + 1
    return value if value <= most else None


class _Parser:
    def __init__(self, where: Path | str, text: str) -> None:
        self.where = where
        self.tokens = _tokens(where, text)
        self.ahead = next(self.tokens)
        self.rank = -1

    def ranks(self) -> list[_Rank]:
        self.expect("num_ranks")
        count = self.number("num_ranks", MOST_RANKS)
        if count == 0:
            raise self.wrong("num_ranks: 0 is less than 1")
        found: dict[int, _Rank] = {}
        while self.ahead[2] != "end":
            self.expect("rank")
            number = self.number("rank", MOST_RANKS)
            if number >= count:
                raise self.wrong(f"rank {number} does not exist: num_ranks is {count}")
            if number in found:
                raise self.wrong(f"rank {number} is there twice")
            self.rank = number
            found[number] = self.block()
            self.rank = -1
        for number in range(count):
            if number not in found:
                raise FormatError(f"{self.where}: rank {number} of {count} is missing; the file may be cut")
        return [found[number] for number in range(count)]

    def block(self) -> _Rank:
        self.expect("{")
        rank = _Rank()
        named: list[tuple[int, str, str, str]] = []
        while self.ahead[1] != "}":
            line, word, kind = self.take()
            if word in ("calc", "send", "recv"):
                self.operation(rank, word, "")
            elif kind != "word" or word in _KEYWORDS:
                raise self.wrong(f"{word!r} is no label, calc, send or recv", line)
            elif self.ahead[1] == ":":
                self.take()
                if word in rank.labels:
                    raise self.wrong(f"the label {word} is there twice", line)
                rank.labels[word] = len(rank.nodes) + 1
                self.operation(rank, self.take()[1], word)
            else:
                relation = self.take()[1]
                if relation not in ("requires", "irequires"):
                    raise self.wrong(f"after {word} comes {relation!r}, not ':', requires or irequires", line)
                named.append((line, word, relation, self.take()[1]))
        self.take()
        for line, label, relation, other in named:
            for each in (label, other):
                if each not in rank.labels:
                    raise self.wrong(f"there is no label {each!r}", line)
            pairs = rank.requires if relation == "requires" else rank.starts
            pairs.append((rank.labels[label], rank.labels[other]))
        return self.joined(rank)

    def operation(self, rank: _Rank, kind: str, label: str) -> None:
        number = len(rank.nodes) + 1
        if kind == "calc":
            node = Node(number, "compute", name=label, ns=self.number("calc", _MOST))
        elif kind in ("send", "recv"):
            line, size, what = self.take()
            if what != "size":
                raise self.wrong(f"{kind}: {size!r} is no size such as 4096b", line)
            length = _whole(size[:-1], _MOST)
            if length is None:
                raise self.wrong(f"{kind}: {size[:40]} is more than {_MOST} bytes", line)
            self.expect("to" if kind == "send" else "from")
            peer = self.number(kind, MOST_RANKS)
            of = "send" if kind == "send" else "receive"
            node = Node(number, of, name=label, bytes=length, peer=peer)  # type: ignore[arg-type]
        else:
            raise self.wrong(f"{kind!r} is none of calc, send and recv")
        cpu = 0
        while self.ahead[1] in ("tag", "cpu", "nic"):
            name = self.take()[1]
            value = self.number(name, _MOST)
            if name == "tag" and kind != "calc":
                node = replace(node, tag=value)
            elif name == "cpu":
                cpu = value
        if kind == "calc":
            rank.cpus[number] = cpu
        rank.nodes.append(node)

    def joined(self, rank: _Rank) -> _Rank:
        """The nodes of a rank with what they wait for."""
        after: dict[int, dict[int, None]] = defaultdict(dict)
        for number, other in rank.requires:
            after[number][other] = None
        started: dict[int, list[int]] = defaultdict(list)
        for number, other in rank.starts:
            started[number].append(other)
        waits: dict[int, tuple[int, ...]] = {}
        for node in rank.nodes:
            reach: dict[int, None] = dict(after[node.id])
            seen, ahead = {node.id}, list(started[node.id])
            while ahead:
                other = ahead.pop()
                if other not in seen:
                    seen.add(other)
                    reach |= after[other]
                    ahead += started[other]
            waits[node.id] = tuple(reach)
        rank.nodes = [replace(node, after=waits[node.id]) for node in rank.nodes]
        return rank

    # Tokens.

    def take(self) -> tuple[int, str, str]:
        found = self.ahead
        if found[2] == "end":
            raise self.wrong("it ends too early; the file may be cut")
        self.ahead = next(self.tokens)
        return found

    def expect(self, word: str) -> None:
        line, found, _ = self.take()
        if found != word:
            raise self.wrong(f"{found!r} stands where {word} is expected", line)

    def number(self, name: str, most: int) -> int:
        line, found, kind = self.take()
        value = _whole(found, most) if kind == "number" else None
        if value is None:
            raise self.wrong(f"{name}: {found[:40]!r} is not a whole number of 0 to {most}", line)
        return value

    def wrong(self, what: str, line: int | None = None) -> FormatError:
        rank = f", rank {self.rank}" if self.rank >= 0 else ""
        return FormatError(f"{self.where}, line {line or self.ahead[0]}{rank}: {what}")
