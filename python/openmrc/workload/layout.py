"""How a model is spread over ranks: groups, and the layers of each pipeline stage.

Ranks are counted as Megatron-LM does by default: tensor-parallel position fastest, then context, then data,
then pipeline; experts are spread over the consecutive ranks of a stage.
"""

from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Literal

from openmrc.errors import ArgumentError
from openmrc.workload.models import Model

Schedule = Literal["1f1b", "interleaved", "zero-bubble"]
Kind = Literal["forward", "backward", "inputs", "weights"]
"""A pass of a microbatch through a part of the model: forward, backward, or of the backward pass only the
gradients of inputs or of weights."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes of the parallel dimensions, and what a step does."""

    gpus: int
    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: int = 1
    microbatches: int = 1
    """Microbatches of a replica in a step."""
    microbatch: int = 1
    """Sequences of a microbatch."""
    schedule: Schedule = "1f1b"
    chunks: int = 1
    """Of the interleaved schedule: parts of the model at each stage (virtual stages)."""
    context: int = 1
    """Ranks over which each sequence is spread."""

    @property
    def width(self) -> int:
        """Ranks of a pipeline stage."""
        return self.tensor * self.context * self.data

    def check(self, model: Model) -> None:
        """Refuses a layout that does not divide ranks, heads, layers, experts or microbatches.

        Raises:
            ArgumentError: names the field, its value and what it has to divide.
        """
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, int) and value < 1:
                raise ArgumentError(f"{each.name}: {value} is less than 1")
        product = self.width * self.pipeline
        if product != self.gpus:
            context = f" x context {self.context}" if self.context > 1 else ""
            raise ArgumentError(
                f"gpus: {self.gpus} ranks are not tensor {self.tensor}{context} x pipeline {self.pipeline} x"
                f" data {self.data} = {product}"
            )
        for what, count in [
            ("attention heads", model.heads),
            ("key-value heads", 0 if model.latent else model.key_value_heads),
        ]:
            if count % self.tensor:
                raise ArgumentError(f"tensor: {self.tensor} does not divide the {count} {what}")
        if model.sequence % (self.tensor * self.context):
            raise ArgumentError(
                f"context: tensor {self.tensor} x context {self.context} does not divide the"
                f" {model.sequence} tokens of a sequence"
            )
        self._check_experts(model)
        if self.schedule != "interleaved" and self.chunks != 1:
            raise ArgumentError(f"chunks: {self.chunks} need the schedule interleaved, {self.schedule} has 1")
        if self.schedule == "interleaved" and self.microbatches % self.pipeline:
            raise ArgumentError(
                f"microbatches: {self.microbatches} are not a multiple of pipeline {self.pipeline}, as the"
                " schedule interleaved needs"
            )
        self.layers(model)

    def _check_experts(self, model: Model) -> None:
        if model.experts is None:
            if self.expert != 1:
                raise ArgumentError(f"expert: {self.expert}, but the model is dense: it has no experts")
            return
        if model.experts.count % self.expert:
            raise ArgumentError(f"expert: {self.expert} does not divide the {model.experts.count} experts")
        if self.width % self.expert:
            raise ArgumentError(f"expert: {self.expert} does not divide the {self.width} ranks of a stage")

    def layers(self, model: Model) -> list[range]:
        """The layers of each part of the model, parts in the order in which a token passes them.

        Stage ``i`` holds the parts ``i``, ``i + pipeline``, and so on. Where the layers do not divide
        evenly, the ends have ``model.ends`` fewer, as embedding and head take their time.

        Raises:
            ArgumentError: if the layers do not divide even so.
        """
        parts = self.pipeline * self.chunks
        first, last = (0, 0) if model.layers % parts == 0 else model.ends
        each, rest = divmod(model.layers + first + last, parts)
        if rest or each <= max(first, last):
            raise ArgumentError(
                f"pipeline: {model.layers} layers do not divide into {parts} parts"
                f" (pipeline {self.pipeline} x chunks {self.chunks}), nor with {sum(model.ends)} fewer"
                " at the ends"
            )
        edges = [0, *(each * part - first for part in range(1, parts)), model.layers]
        return [range(*pair) for pair in pairwise(edges)]

    def stage(self, rank: int) -> int:
        """The pipeline stage of a rank."""
        return rank // self.width

    def groups(self, model: Model) -> dict[str, list[list[int]]]:
        """Ranks of the groups of more than one rank, by role: tp, cp, dp, ep; edp: replicas of an expert.

        Ranks of a context group have the same parameters, so dp has them all.
        """
        t, width, both = self.tensor, self.width, self.tensor * self.context
        found: dict[str, list[list[int]]] = {"tp": [], "cp": [], "dp": [], "ep": [], "edp": []}
        for base in range(0, self.gpus, width):
            stage = range(base, base + width)
            found["tp"] += [list(stage[at : at + t]) for at in range(0, width, t)]
            for first in range(0, width, both):
                found["cp"] += [list(stage[first + at : first + both : t]) for at in range(t)]
            found["dp"] += [list(stage[at::t]) for at in range(t)]
            found["ep"] += [list(stage[at : at + self.expert]) for at in range(0, width, self.expert)]
            found["edp"] += [list(stage[at :: self.expert]) for at in range(self.expert)]
        if model.experts is None:
            del found["ep"], found["edp"]
        return {role: groups for role, groups in found.items() if len(groups[0]) > 1}


def order(layout: Layout, stage: int) -> list[tuple[Kind, int, int]]:
    """What a stage does, in order: the kind of the pass, the chunk, the microbatch.

    1F1B (arXiv 2006.09503), its interleaved form (arXiv 2104.04473, as in Megatron-LM), and ZB-H1 (arXiv
    2401.10241), which takes no more memory than 1F1B.
    """
    p, m, v = layout.pipeline, layout.microbatches, layout.chunks
    if layout.schedule == "zero-bubble":
        return _zero_bubble(p, m, stage)
    plain = p - 1 - stage
    warm_up = min(m * v, plain if v == 1 else 2 * plain + (v - 1) * p)
    total = m * v

    def place(number: int, kind: Kind) -> tuple[Kind, int, int]:
        if v == 1:
            return kind, 0, number
        group, within = divmod(number, p * v)
        chunk, microbatch = within // p, group * p + within % p
        return kind, chunk if kind == "forward" else v - 1 - chunk, microbatch

    found = [place(number, "forward") for number in range(warm_up)]
    for number in range(warm_up, total):
        found += [place(number, "forward"), place(number - warm_up, "backward")]
    return found + [place(number, "backward") for number in range(total - warm_up, total)]


def _zero_bubble(stages: int, microbatches: int, stage: int) -> list[tuple[Kind, int, int]]:
    """ZB-H1: forward passes and gradients of inputs as in 1F1B, those of weights later.

    A stage is as many microbatches behind with them as stages come before it. So it passes gradients of
    inputs on earlier, and has work while it waits.
    """
    warm_up = min(microbatches, stages - 1 - stage)
    found: list[tuple[Kind, int, int]] = [("forward", 0, number) for number in range(warm_up)]
    weights = 0
    for number in range(microbatches):
        if warm_up + number < microbatches:
            found.append(("forward", 0, warm_up + number))
        found.append(("inputs", 0, number))
        if number >= stage:
            found.append(("weights", 0, weights))
            weights += 1
    return found + [("weights", 0, number) for number in range(weights, microbatches)]
