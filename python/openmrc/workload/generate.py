"""A training step of a transformer as programs, one for each pipeline stage (docs/workloads.md).

Gradients are reduced and parameters gathered as a distributed optimizer does (ZeRO stage 1, arXiv
1910.02054): reduce-scatter of each layer's gradients when its last backward pass is done, all-gather of its
parameters before its first forward pass. Tensor parallelism is that with sequence parallelism (arXiv
2205.05198).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from openmrc.errors import ArgumentError
from openmrc.workload.layout import Layout, order
from openmrc.workload.models import GPUS, Model
from openmrc.workload.program import Node, Operation, Rank, Workload


@dataclass(frozen=True, slots=True)
class Costs:
    """What a GPU needs for a floating-point operation, and the widths of what is sent."""

    tflops: float
    """Reached by matrix products, 10^12 operations a second."""
    activation_bytes: int = 2
    gradient_bytes: int = 4
    parameter_bytes: int = 2

    def ns(self, flops: float) -> int:
        """How long operations take, nanoseconds."""
        return round(flops / self.tflops / 1e3)


def generate(model: Model, layout: Layout, *, gpu: str = "h100", domain: int | None = None) -> Workload:
    """A training step.

    Args:
        model: The transformer.
        layout: How it is spread over ranks.
        gpu: Accelerator: how fast it computes, and its scale-up network.
        domain: Consecutive ranks of a scale-up domain; default that of the accelerator.

    Raises:
        ArgumentError: if the layout does not divide the model or the ranks, or the accelerator is not known.
    """
    if gpu not in GPUS:
        raise ArgumentError(f"gpu {gpu!r} is not known: {', '.join(GPUS)}")
    if domain is not None and domain < 1:
        raise ArgumentError(f"domain: {domain} is less than 1")
    layout.check(model)
    kind = GPUS[gpu]
    costs = Costs(kind.reached_tflops)
    by_role = layout.groups(model)
    stages = range(layout.pipeline)
    programs = {
        f"stage{stage}": _Stage(model, layout, costs, stage, by_role.keys()).program() for stage in stages
    }
    groups = {
        f"{role}{number}": tuple(members)
        for role, all_of in by_role.items()
        for number, members in enumerate(all_of)
    }
    roles: list[dict[str, str]] = [{} for _ in range(layout.gpus)]
    for role, all_of in by_role.items():
        for number, members in enumerate(all_of):
            for rank in members:
                roles[rank][role] = f"{role}{number}"
    width = layout.width
    if model.tied and layout.pipeline > 1:
        for position in range(width):
            name = f"embedding{position}"
            groups[name] = (position, layout.gpus - width + position)
            for rank in groups[name]:
                roles[rank]["embedding"] = name
    ranks = []
    for rank in range(layout.gpus):
        beside = {"next": (rank + width) % layout.gpus, "previous": (rank - width) % layout.gpus}
        peers = beside if layout.pipeline > 1 else {}
        ranks.append(Rank(f"stage{layout.stage(rank)}", roles[rank], peers))
    domain = kind.domain if domain is None else domain
    return Workload(programs, ranks, groups, "", domain, kind.scale_up_gbytes)


_LETTERS = {"forward": "F", "backward": "B", "inputs": "B", "weights": "W"}


@dataclass
class _Stage:
    """The program of a stage under construction."""

    model: Model
    layout: Layout
    costs: Costs
    stage: int
    roles: Collection[str]
    """Roles of groups of more than one rank."""
    nodes: list[Node] = field(default_factory=list)
    computed: tuple[int, ...] = ()
    """The last computation, after which the next one comes."""

    def program(self) -> list[Node]:
        layout, last = self.layout, self.layout.microbatches - 1
        parts = layout.layers(self.model)
        gathered: dict[int, int] = {}
        """By layer: the all-gather of its parameters."""
        chunks = [chunk * layout.pipeline + self.stage for chunk in range(layout.chunks)]
        for part in chunks:
            for layer in parts[part]:
                gathered |= self._parameters("all_gather", layer, self.costs.parameter_bytes, ())
        tables = {
            part: self._embedding("all_gather", held, self.costs.parameter_bytes, ())
            for part, held in self._tables(chunks, len(parts)).items()
        }
        started: set[int] = set()
        saved: dict[tuple[int, int], tuple[int, ...]] = {}
        """By part and microbatch: after which the gradients of weights can be computed."""
        for kind, chunk, microbatch in order(layout, self.stage):
            part = chunk * layout.pipeline + self.stage
            label = f"{_LETTERS[kind]}{microbatch}.{part}"
            forward = kind == "forward"
            if kind == "weights":
                begin = saved.pop((part, microbatch))
                if part == len(parts) - 1:
                    begin = self._head(1, begin, label)
                for layer in reversed(parts[part]):
                    done = self._backward_weights(layer, begin, f"{label} layer {layer}")
                    if microbatch == last:
                        self._parameters("reduce_scatter", layer, self.costs.gradient_bytes, done)
                if microbatch == last and part in tables:
                    self._embedding_gradients(self._tables(chunks, len(parts))[part], self.computed)
                continue
            begin = self._receive(forward, part, len(parts), microbatch, label)
            if kind == "inputs":
                if part == len(parts) - 1:
                    begin = self._head(1, begin, label)
                for layer in reversed(parts[part]):
                    begin = self._backward_inputs(layer, begin, f"{label} layer {layer}")
                saved[part, microbatch] = begin
            elif forward:
                begin = (*begin, *(tables.get(0, ()) if part == 0 and microbatch == 0 else ()))
                for layer in parts[part]:
                    waits = begin + ((gathered[layer],) if layer in gathered and layer not in started else ())
                    started.add(layer)
                    begin = self._forward(layer, waits, f"{label} layer {layer}")
                if part == len(parts) - 1:
                    table = tables.get(part, tables.get(0, ())) if microbatch == 0 else ()
                    begin = self._head(1, (*begin, *table), label)
            else:
                if part == len(parts) - 1:
                    begin = self._head(2, begin, label)
                for layer in reversed(parts[part]):
                    begin, done = self._backward(layer, begin, f"{label} layer {layer}")
                    if microbatch == last:
                        self._parameters("reduce_scatter", layer, self.costs.gradient_bytes, done)
                # The whole chunk's backward pass comes before what follows it.
                begin = tuple(dict.fromkeys((*begin, *self.computed)))
                if microbatch == last and part in tables:
                    self._embedding_gradients(self._tables(chunks, len(parts))[part], begin)
            self._send(forward, part, len(parts), microbatch, begin, label)
        return self.nodes

    # Parts of a step.

    def _forward(self, layer: int, begin: tuple[int, ...], label: str) -> tuple[int, ...]:
        begin = self._collective("all_gather", "tp", self._activation(), begin, f"{label} attention")
        begin = self._attention(1, begin, f"{label} attention")
        begin = self._collective("reduce_scatter", "tp", self._activation(), begin, f"{label} attention")
        if self.model.is_moe(layer):
            begin = self._collective("all_to_all", "ep", self._dispatched(), begin, f"{label} dispatch")
            begin = self._compute(self._block_flops(layer), begin, f"{label} experts")
            return self._collective("all_to_all", "ep", self._dispatched(), begin, f"{label} combine")
        begin = self._collective("all_gather", "tp", self._activation(), begin, f"{label} mlp")
        begin = self._compute(self._block_flops(layer), begin, f"{label} mlp")
        return self._collective("reduce_scatter", "tp", self._activation(), begin, f"{label} mlp")

    def _backward(
        self, layer: int, begin: tuple[int, ...], label: str
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Nodes after which the layer before goes on, and those after which its gradients are complete."""
        if self.model.is_moe(layer):
            begin = self._collective("all_to_all", "ep", self._dispatched(), begin, f"{label} combine")
            inputs = self._compute(self._block_flops(layer), begin, f"{label} experts, inputs")
            begin = self._collective("all_to_all", "ep", self._dispatched(), inputs, f"{label} dispatch")
            weights = self._compute(self._block_flops(layer), inputs, f"{label} experts, weights")
        else:
            begin, weights = self._backward_block(self._block_flops(layer), begin, f"{label} mlp")
        begin, more = self._backward_block(None, begin, f"{label} attention")
        return begin, (*weights, *more)

    def _backward_inputs(self, layer: int, begin: tuple[int, ...], label: str) -> tuple[int, ...]:
        """Gradients of inputs alone; the layer before goes on after these nodes."""
        if self.model.is_moe(layer):
            begin = self._collective("all_to_all", "ep", self._dispatched(), begin, f"{label} combine")
            begin = self._compute(self._block_flops(layer), begin, f"{label} experts, inputs")
            begin = self._collective("all_to_all", "ep", self._dispatched(), begin, f"{label} dispatch")
        else:
            begin = self._inputs_of_block(self._block_flops(layer), begin, f"{label} mlp")
        return self._inputs_of_block(None, begin, f"{label} attention")

    def _inputs_of_block(self, flops: float | None, begin: tuple[int, ...], label: str) -> tuple[int, ...]:
        """Gradients of inputs of a block; ``None`` is attention."""
        begin = self._collective("all_gather", "tp", self._activation(), begin, f"{label} gradients")
        begin = self._input_gradients(flops, begin, f"{label}, inputs")
        return self._collective("reduce_scatter", "tp", self._activation(), begin, f"{label} gradients")

    def _backward_weights(self, layer: int, begin: tuple[int, ...], label: str) -> tuple[int, ...]:
        """Gradients of weights alone; they are complete after these nodes."""
        if self.model.is_moe(layer):
            done = self._compute(self._block_flops(layer), begin, f"{label} experts, weights")
        else:
            done = self._weights_of_block(self._block_flops(layer), begin, f"{label} mlp")
        return done + self._weights_of_block(self._attention_flops(), begin, f"{label} attention")

    def _weights_of_block(self, flops: float, begin: tuple[int, ...], label: str) -> tuple[int, ...]:
        saved = self._collective("all_gather", "tp", self._activation(), begin, f"{label} saved input")
        return self._compute(flops, saved, f"{label}, weights")

    def _backward_block(
        self, flops: float | None, begin: tuple[int, ...], label: str
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Gradients of inputs, then of weights. Without ``flops`` the block is attention.

        The saved input is gathered again beside the first; gradients of inputs are scattered beside the
        second.
        """
        whole = self._collective("all_gather", "tp", self._activation(), begin, f"{label} gradients")
        saved = self._collective("all_gather", "tp", self._activation(), begin, f"{label} saved input")
        inputs = self._input_gradients(flops, whole, f"{label}, inputs")
        ended = self._collective("reduce_scatter", "tp", self._activation(), inputs, f"{label} gradients")
        flops = self._attention_flops() if flops is None else flops
        weights = self._compute(flops, (*inputs, *(saved if saved != begin else ())), f"{label}, weights")
        return ended, weights

    def _input_gradients(self, flops: float | None, begin: tuple[int, ...], label: str) -> tuple[int, ...]:
        return self._attention(2, begin, label) if flops is None else self._compute(flops, begin, label)

    def _attention(self, scores: int, begin: tuple[int, ...], label: str) -> tuple[int, ...]:
        """Attention forward (``scores`` 1), or the gradients of its inputs, with scores and values twice (2).

        Where sequences are spread, keys and values of the whole sequence are gathered between projections and
        scores, and their gradients scattered, as Llama 3 does it (arXiv 2407.21783, section 3.3.2).
        """
        behind = 2 * self.model.output_parameters() + scores * self.model.attention_flops()
        ahead = 2 * (self.model.attention_parameters() - self.model.output_parameters())
        share = self._tokens() / self.layout.tensor
        if "cp" not in self.roles:
            return self._compute((ahead + behind) * share, begin, label)
        width = self.model.key_value_width() * self.costs.activation_bytes
        size = width * self.layout.microbatch * self.model.sequence // self.layout.tensor
        keys = f"{label} keys and values"
        if scores == 1:
            begin = self._compute(ahead * share, begin, f"{label} projections")
            begin = self._collective("all_gather", "cp", size, begin, keys)
            return self._compute(behind * share, begin, label)
        gathered = self._collective("all_gather", "cp", size, begin, keys)
        begin = self._compute(behind * share, gathered, label)
        begin = self._collective("reduce_scatter", "cp", size, begin, f"{keys}, gradients")
        return self._compute(ahead * share, begin, f"{label} of projections")

    def _head(self, times: int, begin: tuple[int, ...], label: str) -> tuple[int, ...]:
        flops = 2 * self.model.embedding_parameters() * self._tokens() / self.layout.tensor
        return self._compute(times * flops, begin, f"{label} head") if flops else begin

    def _parameters(
        self, operation: Operation, layer: int, width: int, after: tuple[int, ...]
    ) -> dict[int, int]:
        """Gathers a layer's parameters, or reduces their gradients: dense ones, then the experts'."""
        model, layout = self.model, self.layout
        dense = (model.attention_parameters() + model.shared_parameters(layer)) // layout.tensor
        found = self._collective(operation, "dp", width * dense, after, f"layer {layer} parameters")
        if model.is_moe(layer):
            assert model.experts is not None
            experts = model.experts.count // layout.expert * model.expert_parameters()
            found = self._collective(operation, "edp", width * experts, found, f"layer {layer} experts")
        return {layer: found[0]} if found and found != after else {}

    def _tables(self, chunks: Sequence[int], parts: int) -> dict[int, int]:
        """How many embedding tables each part of this stage holds; a tied one is held once by a stage."""
        if self.model.tied and self.layout.pipeline == 1:
            return {0: 1}
        return {part: (part == 0) + (part == parts - 1) for part in chunks if part in (0, parts - 1)}

    def _embedding(
        self, operation: Operation, tables: int, width: int, after: tuple[int, ...]
    ) -> tuple[int, ...]:
        size = tables * width * self.model.embedding_parameters() // self.layout.tensor
        return self._collective(operation, "dp", size, after, "embedding")

    def _embedding_gradients(self, tables: int, begin: tuple[int, ...]) -> None:
        if self.model.tied and self.layout.pipeline > 1:
            size = self.costs.gradient_bytes * self.model.embedding_parameters() // self.layout.tensor
            begin = self._collective("all_reduce", "embedding", size, begin, "tied embedding gradients")
        self._embedding("reduce_scatter", tables, self.costs.gradient_bytes, begin)

    # Sizes.

    def _tokens(self) -> int:
        """Tokens of a microbatch at a rank."""
        return self.layout.microbatch * self.model.sequence // self.layout.context

    def _activation(self) -> int:
        return self._tokens() * self.model.hidden * self.costs.activation_bytes

    def _dispatched(self) -> int:
        assert self.model.experts is not None
        return self._activation() * self.model.experts.routed // self.layout.tensor

    def _attention_flops(self) -> float:
        """Of the matrices of attention; scores and values have no weights."""
        return 2 * self.model.attention_parameters() * self._tokens() / self.layout.tensor

    def _block_flops(self, layer: int) -> float:
        """Forward operations of the feed-forward part of a layer; routing is balanced."""
        active = self.model.layer_parameters(layer, active=True) - self.model.attention_parameters()
        return 2 * active * self._tokens() / self.layout.tensor

    # Nodes.

    def _add(self, node: Node) -> tuple[int, ...]:
        self.nodes.append(node)
        return (node.id,)

    def _compute(self, flops: float, after: tuple[int, ...], name: str) -> tuple[int, ...]:
        # A GPU computes one thing at a time.
        waits = tuple(dict.fromkeys((*self.computed, *after)))
        number = len(self.nodes)
        self.computed = self._add(Node(number, "compute", waits, name, ns=self.costs.ns(flops)))
        return self.computed

    def _collective(
        self, operation: Operation, role: str, size: int, after: tuple[int, ...], name: str
    ) -> tuple[int, ...]:
        """A collective, or nothing if the group is only this rank: then what came before goes on."""
        if (role not in self.roles and role != "embedding") or size == 0:
            return after
        number = len(self.nodes)
        return self._add(Node(number, "collective", after, name, bytes=size, operation=operation, group=role))

    def _tag(self, forward: bool, part: int, microbatch: int) -> int:
        """Of what enters a part: unique among the messages of a step."""
        parts = self.layout.pipeline * self.layout.chunks
        return 2 * (microbatch * parts + part) + (not forward)

    def _message_bytes(self) -> int:
        return self._activation() // self.layout.tensor

    def _receive(self, forward: bool, part: int, parts: int, microbatch: int, label: str) -> tuple[int, ...]:
        if self.layout.pipeline == 1 or part == (0 if forward else parts - 1):
            return ()
        tag, peer = self._tag(forward, part, microbatch), "previous" if forward else "next"
        number = len(self.nodes)
        return self._add(Node(number, "receive", (), label, bytes=self._message_bytes(), peer=peer, tag=tag))

    def _send(
        self, forward: bool, part: int, parts: int, microbatch: int, after: tuple[int, ...], label: str
    ) -> None:
        if self.layout.pipeline == 1 or part == (parts - 1 if forward else 0):
            return
        other = part + 1 if forward else part - 1
        tag, peer = self._tag(forward, other, microbatch), "next" if forward else "previous"
        number = len(self.nodes)
        self._add(Node(number, "send", after, label, bytes=self._message_bytes(), peer=peer, tag=tag))
