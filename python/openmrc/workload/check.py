"""Whether a workload can run: what its nodes refer to, and whether ranks agree on their operations."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from openmrc.errors import FormatError
from openmrc.workload.order import Deadlock, run
from openmrc.workload.program import Node, Workload


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, and where."""

    rank: int | None
    node: int | None
    field: str
    message: str

    def __str__(self) -> str:
        place = [
            *([f"rank {self.rank}"] if self.rank is not None else []),
            *([f"node {self.node}"] if self.node is not None else []),
            self.field,
        ]
        return f"{', '.join(place)}: {self.message}"


def require(workload: Workload, where: object) -> None:
    """Refuses a workload that cannot run.

    Args:
        workload: The workload.
        where: What the message begins with, such as the name of the file.

    Raises:
        FormatError: names rank, node and field of what is wrong first.
    """
    for problem in problems(workload):
        raise FormatError(f"{where}: {problem}")


def problems(workload: Workload) -> Iterator[Problem]:
    """What is wrong: within ranks; if nothing is, between ranks; and if nothing is, the order of all."""
    found = False
    for check in (_groups, _programs, _bindings, _agreement, _messages, _order):
        for problem in check(workload):
            found = True
            yield problem
        if found:
            return


def _groups(workload: Workload) -> Iterator[Problem]:
    count = len(workload.ranks)
    for name, members in workload.groups.items():
        for rank in members:
            if rank >= count:
                yield Problem(rank, None, f"group {name}", f"the rank does not exist: there are {count}")
        if len(set(members)) != len(members):
            twice = next(rank for rank in members if list(members).count(rank) > 1)
            yield Problem(twice, None, f"group {name}", "the rank is in it twice")


def _programs(workload: Workload) -> Iterator[Problem]:
    """Within each program: numbers that are there twice, nodes that wait for none, cycles."""
    first: dict[str, int] = {}
    for number, rank in enumerate(workload.ranks):
        first.setdefault(rank.program, number)
        if rank.program not in workload.programs:
            yield Problem(number, None, "program", f"{rank.program} has no nodes")
    for program, rank_number in first.items():
        nodes = workload.programs.get(program, ())
        known = {node.id for node in nodes}
        if len(known) != len(nodes):
            seen: set[int] = set()
            for node in nodes:
                if node.id in seen:
                    yield Problem(rank_number, node.id, "node", "the number is there twice")
                seen.add(node.id)
            return
        for node in nodes:
            for other in node.after:
                if other not in known:
                    yield Problem(rank_number, node.id, "after", f"there is no node {other}")
        cycle = _cycle(nodes)
        if cycle:
            path = " -> ".join(map(str, cycle))
            yield Problem(rank_number, cycle[0], "after", f"the node waits for itself: {path}")


def _cycle(nodes: Sequence[Node]) -> list[int]:
    """Nodes that wait for each other in a circle, the first one again at the end; empty if there are none."""
    number = {node.id: at for at, node in enumerate(nodes)}
    if all(number.get(other, -1) < at for at, node in enumerate(nodes) for other in node.after):
        return []  # All wait for earlier ones only.
    after = {node.id: node.after for node in nodes}
    done: set[int] = set()
    for start in after:
        path: dict[int, Iterator[int]] = {}
        at: int | None = start
        while at is not None:
            if at in done or at not in after:
                at = next(reversed(path), None)
            if at is None:
                break
            waits = path.setdefault(at, iter(after[at]))
            other = next((each for each in waits if each not in done), None)
            if other is None:
                done.add(at)
                del path[at]
                at = next(reversed(path), None)
            elif other in path:
                inside = list(path)
                return [*inside[inside.index(other) :], other]
            else:
                at = other
    return []


def _bindings(workload: Workload) -> Iterator[Problem]:
    """Groups and peers of every rank."""
    count = len(workload.ranks)
    members = {name: frozenset(ranks) for name, ranks in workload.groups.items()}
    named: dict[str, dict[object, Node]] = {}
    for program, nodes in workload.programs.items():
        groups: dict[object, Node] = {}
        for node in nodes:
            if node.kind == "collective":
                groups.setdefault(("group", node.group), node)
            elif node.kind in ("send", "receive"):
                groups.setdefault(("peer", node.peer), node)
        named[program] = groups
    for number, rank in enumerate(workload.ranks):
        for node in named[rank.program].values():
            if node.kind == "collective":
                group = workload.group_of(number, node)
                if group not in members:
                    yield Problem(number, node.id, "group", f"{group or '(none)'} is not known")
                elif number not in members[group]:
                    yield Problem(number, node.id, "group", f"the rank is not in {group}")
                continue
            peer = workload.peer_of(number, node)
            if peer is None:
                yield Problem(number, node.id, "peer", f"the rank has no {node.peer or '(none)'}")
            elif peer >= count:
                yield Problem(number, node.id, "peer", f"rank {peer} does not exist: there are {count}")
            elif peer == number:
                yield Problem(number, node.id, "peer", "it is the rank itself")


def _agreement(workload: Workload) -> Iterator[Problem]:
    """The collectives of each group: the same at every member, in the same order."""
    by_role = {program: _by_role(nodes) for program, nodes in workload.programs.items()}
    calls: dict[tuple[int, str], tuple[Node, ...]] = {}
    shared: dict[tuple[str, tuple[str, ...]], tuple[Node, ...]] = {}
    for number, rank in enumerate(workload.ranks):
        roles: dict[str, list[str]] = {}
        for role in by_role[rank.program]:
            roles.setdefault(rank.groups.get(role, role), []).append(role)
        for name, together in roles.items():
            key = (rank.program, tuple(together))
            if key not in shared:
                found = [each for role in together for each in by_role[rank.program][role]]
                shared[key] = tuple(node for _, node in sorted(found, key=lambda each: each[0]))
            calls[number, name] = shared[key]
    # Members with the same program mostly share a tuple; others are compared once for each pair of programs.
    alike: set[tuple[int, int]] = set()
    for name, ranks in workload.groups.items():
        first = calls.get((ranks[0], name), ())
        for rank_number in ranks[1:]:
            mine = calls.get((rank_number, name), ())
            if mine is first or (id(first), id(mine)) in alike:
                continue
            problem = _compare(name, ranks[0], first, rank_number, mine)
            if problem is None:
                alike.add((id(first), id(mine)))
            else:
                yield problem


def _by_role(nodes: Sequence[Node]) -> Mapping[str, list[tuple[int, Node]]]:
    """The collectives of a program, with their places, by the role or name of their group."""
    found: dict[str, list[tuple[int, Node]]] = {}
    for at, node in enumerate(nodes):
        if node.kind == "collective":
            found.setdefault(node.group, []).append((at, node))
    return found


def _compare(name: str, one: int, first: Sequence[Node], other: int, mine: Sequence[Node]) -> Problem | None:
    for theirs, ours in zip(first, mine, strict=False):
        if theirs.operation != ours.operation:
            return Problem(
                other, ours.id, "operation", f"{ours.operation}, but rank {one} has {theirs.operation} there"
                f" (node {theirs.id}, group {name})"
            )  # fmt: skip
        if theirs.bytes != ours.bytes:
            return Problem(
                other, ours.id, "bytes", f"{ours.bytes}, but rank {one} has {theirs.bytes}"
                f" (node {theirs.id}, group {name})"
            )  # fmt: skip
    if len(first) == len(mine):
        return None
    if len(first) > len(mine):
        one, other, first, mine = other, one, mine, first
    lacking = mine[len(first)]
    return Problem(
        other, lacking.id, "group", f"rank {one} lacks this {lacking.operation} of group {name}:"
        f" it has {len(first)}, this rank {len(mine)}"
    )  # fmt: skip


def _messages(workload: Workload) -> Iterator[Problem]:
    """Sends and receives: each send has its receive, with the same length."""
    sent = _channels(workload, "send")
    received = _channels(workload, "receive")
    for channel in sorted({*sent, *received}):
        source, target, tag = channel
        out, back = sent.get(channel, []), received.get(channel, [])
        for a, b in zip(out, back, strict=False):
            if a.bytes != b.bytes:
                yield Problem(
                    target, b.id, "bytes", f"{b.bytes}, but rank {source} sends {a.bytes} (node {a.id})"
                )
        if len(out) > len(back):
            lacking = out[len(back)]
            yield Problem(source, lacking.id, "tag", f"rank {target} does not receive {tag} from this rank")
        elif len(back) > len(out):
            lacking = back[len(out)]
            yield Problem(target, lacking.id, "tag", f"rank {source} does not send {tag} to this rank")


def _channels(workload: Workload, kind: str) -> Mapping[tuple[int, int, int], list[Node]]:
    found: dict[tuple[int, int, int], list[Node]] = {}
    by_program = {
        name: [node for node in nodes if node.kind == kind] for name, nodes in workload.programs.items()
    }
    for number, rank in enumerate(workload.ranks):
        for node in by_program[rank.program]:
            peer = workload.peer_of(number, node)
            if peer is not None:
                ends = (number, peer) if kind == "send" else (peer, number)
                found.setdefault((*ends, node.tag), []).append(node)
    return found


def _order(workload: Workload) -> Iterator[Problem]:
    try:
        run(workload)
    except Deadlock as deadlock:
        yield Problem(deadlock.rank, deadlock.node, deadlock.field, deadlock.missing)
