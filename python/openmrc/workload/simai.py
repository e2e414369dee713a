"""Workload text of SimAI and AICB: the layers of a model, which every rank runs (docs/workloads.md).

All layers run forward, then backward from the last one. The collective after a forward pass or a gradient of
inputs is waited for, the one after a gradient of weights is not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from openmrc.errors import FormatError
from openmrc.workload.file import MOST_RANKS
from openmrc.workload.layout import Layout, order
from openmrc.workload.program import Node, Operation, Rank, Workload

_READ = frozenset(
    {
        "MICRO", "DATA", "MODEL", "HYBRID_TRANSFORMER", "HYBRID_TRANSFORMER_FWD_IN_BCKWD",
        "DISTRIBUTED_INFERENCE",
    }
)  # fmt: skip
_OTHERS = frozenset(
    {
        "HYBRID_DATA_MODEL", "HYBRID_MODEL_DATA", "HYBRID_DLRM", "HYBRID_DLRM_ENHANCED", "HYBRID_CUSTOMIZED",
    }
)  # fmt: skip
_OPERATIONS: dict[str, Operation] = {
    # ALLREDUCEALLTOALL is an all-reduce for SimAI too.
    "ALLREDUCEALLTOALL": "all_reduce", "ALLREDUCE": "all_reduce", "ALLGATHER": "all_gather",
    "REDUCESCATTER": "reduce_scatter", "ALLTOALL": "all_to_all", "BROADCAST": "broadcast",
}  # fmt: skip
_COLUMNS = ("forward", "input gradient", "weight gradient")


def is_simai(text: str) -> bool:
    """Whether a text begins with a policy of SimAI."""
    words = text[:200].split(maxsplit=1)
    return bool(words) and words[0] in _READ | _OTHERS


def read(text: str, where: Path | str, gpus: int | None = None) -> Workload:
    """Reads a workload of SimAI.

    With more than one pipeline stage the lines are the work of one stage: they are cut into ``ga`` equal
    runs, the microbatches, which the stages pass through as 1F1B does, with messages of ``pp_comm`` bytes.

    Args:
        text: What the file has.
        where: The name of the file, for errors.
        gpus: Ranks, if the first line has no ``all_gpus``.

    Raises:
        FormatError: if it is no such text, or its sizes do not divide; names file, line and field.
    """
    lines = text.splitlines()
    header = _Header.read(lines[0] if lines else "", where, gpus)
    layers = _layers(lines, where)
    for name, listed in (("checkpoints", header.checkpoints), ("checkpoint_initiates", header.initiates)):
        for index in listed:
            if index >= len(layers):
                raise FormatError(
                    f"{where}, line 1: {name}: there is no layer {index}, there are {len(layers)}"
                )
    return _workload(header, layers, where)


@dataclass(frozen=True, slots=True)
class _Part:
    """A computation of a layer, and the collective after it."""

    ns: int
    operation: Operation | None
    role: str
    size: int


@dataclass(frozen=True, slots=True)
class _Layer:
    """A line: forward pass, gradient of inputs, gradient of weights."""

    name: str
    parts: tuple[_Part, _Part, _Part]
    added_ns: int


@dataclass
class _Header:
    """The first line."""

    policy: str
    tensor: int
    expert: int
    pipeline: int
    microbatches: int
    ranks: int
    message: int
    checkpoints: list[int]
    initiates: list[int]

    @classmethod
    def read(cls, line: str, where: Path | str, gpus: int | None) -> "_Header":
        def wrong(what: str) -> FormatError:
            return FormatError(f"{where}, line 1: {what}")

        policy, *words = line.split() or [""]
        if policy not in _READ:
            raise wrong(f"policy {policy[:40]} is not read, only {', '.join(sorted(_READ))}")
        found: dict[str, int] = {}
        listed: dict[str, list[int]] = {"checkpoints": [], "checkpoint_initiates": []}
        at = 0
        while at < len(words):
            name = words[at].rstrip(":")
            count = 1
            if at + 1 == len(words):
                raise wrong(f"{name}: it has no value; the file may be cut")
            value = _whole(words[at + 1])
            if value is None:
                raise wrong(f"{name}: {words[at + 1][:40]!r} is not a whole number")
            if name in listed:
                indices = [_whole(word) for word in words[at + 2 : at + 2 + value]]
                if len(indices) < value or None in indices:
                    raise wrong(f"{name}: {value} numbers of layers do not follow")
                listed[name] = [index for index in indices if index is not None]
                count += value
            found[name] = value
            at += 1 + count
        tensor = found.get("model_parallel_NPU_group", 1)
        ranks = found.get("all_gpus", gpus)
        if ranks is None:
            raise wrong("all_gpus: it is not there; say how many ranks there are with --gpus N")
        if gpus is not None and gpus != ranks:
            raise wrong(f"all_gpus: it is {ranks}, not the {gpus} of --gpus")
        if policy == "MODEL" and "model_parallel_NPU_group" not in found:
            tensor = ranks
        header = cls(
            policy, tensor, found.get("ep", 1), found.get("pp", 1), found.get("ga", 1), ranks,
            found.get("pp_comm", 0), listed["checkpoints"], listed["checkpoint_initiates"],
        )  # fmt: skip
        sizes = {
            "model_parallel_NPU_group": tensor, "ep": header.expert, "pp": header.pipeline,
            "ga": header.microbatches, "all_gpus": ranks,
        }  # fmt: skip
        for name, value in sizes.items():
            if not 1 <= value <= MOST_RANKS:
                raise wrong(f"{name}: {value} is not 1 to {MOST_RANKS}")
        if ranks % (tensor * header.pipeline):
            raise wrong(
                f"all_gpus: {ranks} ranks are not divided by model_parallel_NPU_group {tensor} x pp"
                f" {header.pipeline}"
            )
        if ranks // header.pipeline // tensor % header.expert:
            raise wrong(
                f"ep: {header.expert} does not divide the {ranks // header.pipeline // tensor}"
                " tensor-parallel groups of a stage"
            )
        return header


def _layers(lines: Sequence[str], where: Path | str) -> list[_Layer]:
    count = _whole(lines[1].strip()) if len(lines) > 1 else None
    if count is None:
        raise FormatError(f"{where}, line 2: it is not the number of layers")
    # What follows the layers is not read, as SimAI does not.
    found = lines[2 : 2 + count]
    if len(found) < count:
        raise FormatError(
            f"{where}, line {len(lines)}: there are {len(found)} layers, but line 2 says {count}; the file"
            " may be cut"
        )
    return [_layer(line, f"{where}, line {number}") for number, line in enumerate(found, start=3)]


def _layer(line: str, where: str) -> _Layer:
    words = line.split()
    if len(words) != 12:
        raise FormatError(f"{where}: it has {len(words)} columns, not 12; the file may be cut")
    numbers = {}
    for column in (2, 4, 5, 7, 8, 10, 11):
        value = _whole(words[column])
        if value is None:
            raise FormatError(f"{where}, column {column + 1}: {words[column][:40]!r} is not a whole number")
        numbers[column] = value
    parts = []
    for at, name in enumerate(_COLUMNS):
        collective = words[3 + 3 * at]
        operation, role = _collective(collective, "dp" if at == 2 else "tp")
        if operation is None and collective != "NONE":
            raise FormatError(
                f"{where}, column {4 + 3 * at}: {collective[:40]!r} is no collective of a {name}: NONE or"
                f" one of {', '.join(_OPERATIONS)}, with _EP, _DP_EP or nothing behind"
            )
        parts.append(_Part(numbers[2 + 3 * at], operation, role, numbers[4 + 3 * at]))
    return _Layer(words[0], (parts[0], parts[1], parts[2]), numbers[11])


def _collective(word: str, role: str) -> tuple[Operation | None, str]:
    for suffix, group in (("_DP_EP", "dp_ep"), ("_EP", "ep")):
        if word.endswith(suffix):
            return _OPERATIONS.get(word.removesuffix(suffix)), group
    return _OPERATIONS.get(word), role


def _whole(word: str) -> int | None:
    """A whole number; AICB writes some with a decimal point."""
    digits = word.removesuffix(".0")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 18:
        return None
    return int(digits)


def _workload(header: _Header, layers: Sequence[_Layer], where: Path | str) -> Workload:
    t, e, stages = header.tensor, header.expert, header.pipeline
    width = header.ranks // stages
    by_role: dict[str, list[range]] = {"tp": [], "dp": [], "ep": [], "dp_ep": []}
    for base in range(0, header.ranks, width):
        end = base + width
        by_role["tp"] += [range(at, at + t) for at in range(base, end, t)]
        by_role["dp"] += [range(base + at, end, t) for at in range(t)]
        blocks = range(base, end, t * e)
        by_role["ep"] += [range(block + at, block + t * e, t) for block in blocks for at in range(t)]
        by_role["dp_ep"] += [range(base + at, end, t * e) for at in range(t * e)]
    used = {part.role for layer in layers for part in layer.parts if part.operation}
    groups: dict[str, tuple[int, ...]] = {}
    roles: list[dict[str, str]] = [{} for _ in range(header.ranks)]
    for role in sorted(used):
        if len(by_role[role][0]) == 1:
            continue
        for number, members in enumerate(by_role[role]):
            groups[f"{role}{number}"] = tuple(members)
            for rank in members:
                roles[rank][role] = f"{role}{number}"
    present = frozenset(role for role in used if len(by_role[role][0]) > 1)
    programs: dict[str, Sequence[Node]] = {}
    runs = None if stages == 1 else _microbatches(layers, header, where)
    for stage in range(stages):
        program = _Program(header, layers, present, stage)
        if runs is None:
            program.forward(0, len(layers))
            program.backward(0, len(layers))
        else:
            program.pipelined(*runs)
        programs[f"stage{stage}"] = program.nodes
    ranks = []
    for rank in range(header.ranks):
        beside = {"next": (rank + width) % header.ranks, "previous": (rank - width) % header.ranks}
        ranks.append(Rank(f"stage{rank // width}", roles[rank], beside if stages > 1 else {}))
    return Workload(programs, ranks, groups)


def _microbatches(layers: Sequence[_Layer], header: _Header, where: Path | str) -> tuple[int, int]:
    """Where the microbatches begin, and how many lines each has: the longest that repeat ``ga`` times."""
    count = header.microbatches
    names = [layer.name for layer in layers]
    for length in range(len(names) // count, 0, -1):
        alike = 0
        for at in range(len(names) - length):
            alike = alike + 1 if names[at] == names[at + length] else 0
            if alike == (count - 1) * length:
                return at + 1 - alike, length
        if count == 1:
            return 0, length
    raise FormatError(
        f"{where}, line 1: ga: the lines do not repeat {count} times, so they cannot be cut into the"
        f" microbatches of pp {header.pipeline} stages"
    )


@dataclass
class _Program:
    """The program of a stage under construction."""

    header: _Header
    layers: Sequence[_Layer]
    roles: frozenset[str]
    """Roles of groups of more than one rank."""
    stage: int
    nodes: list[Node] = field(default_factory=list)
    last: tuple[int, ...] = ()
    """After which the next computation comes."""

    def pipelined(self, begin: int, length: int) -> None:
        """1F1B over the microbatches; the lines before and after them once, around it."""
        header, stages = self.header, self.header.pipeline
        end = begin + header.microbatches * length
        layout = Layout(header.ranks, pipeline=stages, microbatches=header.microbatches)
        self.forward(0, begin)
        for kind, _, microbatch in order(layout, self.stage):
            forward = kind == "forward"
            lines = begin + microbatch * length, begin + (microbatch + 1) * length
            if not forward and header.policy == "DISTRIBUTED_INFERENCE":
                continue
            first, final = (0, stages - 1) if forward else (stages - 1, 0)
            here, there = ("previous", "next") if forward else ("next", "previous")
            tag = 2 * microbatch + (not forward)
            if self.stage != first:
                # It is awaited in advance, however busy the rank is.
                received = self.add("receive", (), f"microbatch {microbatch}", peer=here, tag=tag)
                self.last = (*self.last, received)
            if forward:
                self.forward(*lines)
            else:
                self.backward(*lines)
            if self.stage != final:
                self.add("send", self.last, f"microbatch {microbatch}", peer=there, tag=tag)
        self.forward(end, len(self.layers))
        self.backward(end, len(self.layers))
        self.backward(0, begin)

    def forward(self, begin: int, end: int) -> None:
        for layer in self.layers[begin:end]:
            self.part(layer, 0)

    def backward(self, begin: int, end: int) -> None:
        if self.header.policy == "DISTRIBUTED_INFERENCE":
            return
        for at in range(end - 1, begin - 1, -1):
            if at in self.header.initiates:
                # Activations from the checkpoint before up to here are computed again.
                kept = [index for index in self.header.checkpoints if begin <= index <= at]
                self.forward(max(kept, default=begin), at)
            self.part(self.layers[at], 1)
            self.part(self.layers[at], 2)

    def part(self, layer: _Layer, which: int) -> None:
        part, name = layer.parts[which], f"{layer.name} {_COLUMNS[which]}"
        if part.ns:
            self.last = (self.add("compute", self.last, name, ns=part.ns),)
        if part.operation is None or part.role not in self.roles or part.size == 0:
            return
        ended = self.add(
            "collective", self.last, name, bytes=part.size, operation=part.operation, group=part.role
        )
        if which != 2:
            self.last = (ended,)
            if layer.added_ns:
                self.last = (self.add("compute", self.last, f"{name}, added", ns=layer.added_ns),)

    def add(self, kind: str, after: tuple[int, ...], name: str, **fields: object) -> int:
        number = len(self.nodes)
        if kind in ("send", "receive"):
            fields["bytes"] = self.header.message
        self.nodes.append(Node(number, kind, after, name, **fields))  # type: ignore[arg-type]
        return number
