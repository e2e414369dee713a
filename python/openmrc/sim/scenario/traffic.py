"""What hosts send: patterns that run beside each other."""

from typing import Annotated, Literal

from pydantic import Field, StrictInt

from openmrc.sim.scenario.part import OPEN, Part

Ranks = list[StrictInt]
"""Different hosts, two at least."""


class Permutation(Part):
    """Every host sends to one other and receives from one other."""

    kind: Literal["permutation"] = "permutation"
    start_us: float = OPEN
    bytes: StrictInt
    seed: StrictInt = OPEN


class Incast(Part):
    """Several hosts send to one."""

    kind: Literal["incast"] = "incast"
    start_us: float = OPEN
    senders: list[StrictInt]
    receiver: StrictInt
    bytes: StrictInt


class AllToAll(Part):
    """Every host sends to every other, all at once."""

    kind: Literal["all-to-all"] = "all-to-all"
    start_us: float = OPEN
    ranks: Ranks | None = OPEN
    """The hosts that take part; all of them if left open."""
    bytes: StrictInt


class RandomTraffic(Part):
    """Messages between random hosts, a Poisson process."""

    kind: Literal["random"] = "random"
    start_us: float = OPEN
    load: float
    """Mean load of each host, as a share of its rate, headers not counted."""
    sizes: list[tuple[StrictInt, float]]
    """Points of the cumulative distribution of message lengths: bytes, and the share of messages of at most
    this length."""
    duration_us: float
    """Messages are posted for this time."""
    seed: StrictInt = OPEN


class Flows(Part):
    """Messages one by one."""

    kind: Literal["flows"] = "flows"
    start_us: float = OPEN
    flows: list[tuple[StrictInt, StrictInt, StrictInt, float]] = OPEN
    """(source, destination, bytes, start in microseconds)"""
    file: str | None = OPEN
    """A CSV file of more, with the columns ``src,dst,bytes,start_us``; relative to the scenario's own
    file."""


class Collective(Part):
    """A collective operation: each rank sends when it has received what it needs."""

    kind: Literal["collective"] = "collective"
    start_us: float = OPEN
    operation: Literal[
        "ring-all-reduce",
        "recursive-doubling-all-reduce",
        "all-gather",
        "reduce-scatter",
        "all-to-all",
        "pipeline",
    ]
    """Which one. All but the pipeline are the programs that `openmrc.collectives` executes."""
    ranks: Ranks | None = OPEN
    """Hosts in rank order; all of them if left open."""
    bytes: StrictInt
    """The data of one rank; with all-to-all, of one pair; with pipeline, of one microbatch."""
    microbatches: StrictInt = OPEN
    """Of a pipeline."""


class Training(Part):
    """Training steps: phases of computation and the collectives between them, for a parallel layout.

    Ranks are numbered by pipeline stage, data replica and tensor shard, the last fastest. A step is the
    pipeline's one-forward-one-backward schedule over its microbatches, then the all-reduce of gradients over
    the data replicas. Zero bytes leave an operation out. Step times are the result (``Results.steps``).
    """

    kind: Literal["training"] = "training"
    start_us: float = OPEN
    data: StrictInt = OPEN
    """Data replicas."""
    tensor: StrictInt = OPEN
    """Shards of each layer."""
    pipeline: StrictInt = OPEN
    """Pipeline stages."""
    expert: StrictInt = OPEN
    """Data replicas that share a set of experts; divides ``data``."""
    ranks: Ranks | None = OPEN
    """Hosts in rank order; if left open the first hosts, one for each rank."""
    microbatches: StrictInt = OPEN
    steps: StrictInt = OPEN
    forward_us: float = OPEN
    """Computation of one microbatch in one stage."""
    backward_us: float = OPEN
    tensor_bytes: StrictInt = OPEN
    """All-reduced over the tensor group after the computation of each microbatch, forwards and backwards."""
    activation_bytes: StrictInt = OPEN
    """Sent by each rank to the next stage for each microbatch, and back."""
    expert_bytes: StrictInt = OPEN
    """Sent by each rank to each other of its expert group, and back, for each microbatch and direction."""
    gradient_bytes: StrictInt = OPEN
    """All-reduced over the data replicas at the end of a step, by each rank."""


class Recorded(Part):
    """A recorded job: computations take the time that they took, communication what the fabric gives it.

    Its files are Chakra execution traces, such as :func:`openmrc.collectives.trace.write` writes. Operations
    are replayed by the algorithm that was recorded, all_reduce otherwise by the ring.
    """

    kind: Literal["recorded"] = "recorded"
    start_us: float = OPEN
    file: str
    """Begin of the names of the files: ``job`` of ``job.0.et``, ``job.1.et`` and so on, and of
    ``job.groups.json``; relative to the scenario's own file."""
    ranks: Ranks | None = OPEN
    """Hosts in rank order; if left open the first hosts, one for each rank."""


Traffic = Annotated[
    Permutation | Incast | AllToAll | RandomTraffic | Flows | Collective | Training | Recorded,
    Field(discriminator="kind"),
]
