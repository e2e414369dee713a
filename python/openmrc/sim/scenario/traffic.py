"""What the hosts send: patterns that run beside each other."""

from typing import Annotated, Literal, Self

from pydantic import Field, StrictInt, model_validator

from openmrc.sim.scenario.fields import (
    Amount,
    Bytes,
    Count,
    Duration,
    Host,
    Micros,
    Part,
    Probability,
    Ranks,
    Seed,
    Senders,
)


class _Pattern(Part):
    start_us: Micros = 0.0


class Permutation(_Pattern):
    """Every host sends to one other and receives from one other."""

    kind: Literal["permutation"] = "permutation"
    bytes: Bytes
    seed: Seed = 1


class Incast(_Pattern):
    """Many hosts send to one."""

    kind: Literal["incast"] = "incast"
    senders: Senders
    receiver: Host
    bytes: Bytes

    @model_validator(mode="after")
    def _apart(self) -> Self:
        if self.receiver in self.senders:
            raise ValueError(f"receiver: h{self.receiver} is one of the senders")
        return self


class AllToAll(_Pattern):
    """Everybody sends to everybody else, all at once."""

    kind: Literal["all-to-all"] = "all-to-all"
    ranks: Ranks | None = None
    """The hosts that take part; all of them without it."""
    bytes: Bytes


class RandomTraffic(_Pattern):
    """Messages between random hosts, a Poisson process."""

    kind: Literal["random"] = "random"
    load: Annotated[float, Field(gt=0, le=2)]
    """Mean load on each host, as a share of its rate, headers not counted."""
    sizes: list[tuple[Bytes, Probability]]
    """Points of the cumulative distribution of message length: (bytes, share of messages at most as long)."""
    duration_us: Duration
    seed: Seed = 1

    @model_validator(mode="after")
    def _is_distribution(self) -> Self:
        shares = [share for _, share in self.sizes]
        lengths = [length for length, _ in self.sizes]
        if not shares or shares[-1] != 1 or shares != sorted(shares) or lengths != sorted(lengths):
            raise ValueError("sizes: both columns have to grow, the last share is 1")
        return self


class Flows(_Pattern):
    """Messages one by one."""

    kind: Literal["flows"] = "flows"
    flows: list[tuple[Host, Host, Bytes, Micros]] = Field(default_factory=list)
    """(source, destination, bytes, start in microseconds)"""
    file: str | None = None
    """A CSV file of more, with the columns ``src,dst,bytes,start_us``; relative to the scenario's own
    file."""

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not self.flows and self.file is None:
            raise ValueError("flows: there are none, and no file")
        return self


class Collective(_Pattern):
    """A collective operation: each rank sends when it has received what it needs."""

    kind: Literal["collective"] = "collective"
    operation: Literal[
        "ring-all-reduce",
        "recursive-doubling-all-reduce",
        "all-gather",
        "reduce-scatter",
        "all-to-all",
        "pipeline",
    ]
    ranks: Ranks | None = None
    """Hosts in rank order; all of them without it."""
    bytes: Amount
    """The data of one rank; with all-to-all, of one pair; with pipeline, of one microbatch."""
    microbatches: Count = 8


class Training(_Pattern):
    """Training steps: phases of computation and the collectives between them, for a parallel layout.

    Ranks are numbered pipeline stage, data replica, tensor shard, the last fastest. A step is the pipeline's
    one-forward-one-backward schedule over its microbatches, then the all-reduce of gradients over the data
    replicas. Zero bytes leave an operation out. Step times are the result (``Results.steps``).
    """

    kind: Literal["training"] = "training"
    data: Count = 1
    """Data replicas."""
    tensor: Count = 1
    """Shards of each layer."""
    pipeline: Count = 1
    """Pipeline stages."""
    expert: Count = 1
    """Data replicas that share a set of experts; divides ``data``."""
    ranks: Ranks | None = None
    """Hosts in rank order; the first so many of all without it."""
    microbatches: Annotated[StrictInt, Field(ge=1, le=1 << 16)] = 4
    steps: Annotated[StrictInt, Field(ge=1, le=1 << 20)] = 4
    forward_us: Micros = 100.0
    """Computation of one microbatch in one stage."""
    backward_us: Micros = 200.0
    tensor_bytes: Annotated[StrictInt, Field(ge=0, le=1 << 53)] = 0
    """All-reduced over the tensor group after the computation of each microbatch, forwards and backwards."""
    activation_bytes: Annotated[StrictInt, Field(ge=0, le=1 << 31)] = 1 << 20
    """Sent by each rank to the next stage for each microbatch, and back."""
    expert_bytes: Annotated[StrictInt, Field(ge=0, le=1 << 31)] = 0
    """Sent by each rank to each other of its expert group, and back, for each microbatch and direction."""
    gradient_bytes: Annotated[StrictInt, Field(ge=0, le=1 << 53)] = 1 << 24
    """All-reduced over the data replicas at the end of a step, by each rank."""

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.data % self.expert:
            raise ValueError(f"expert: {self.expert} does not divide data, {self.data}")
        return self

    @property
    def size(self) -> int:
        """Ranks that take part."""
        return self.data * self.tensor * self.pipeline


Traffic = Annotated[
    Permutation | Incast | AllToAll | RandomTraffic | Flows | Collective | Training,
    Field(discriminator="kind"),
]
