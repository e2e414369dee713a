"""What is measured, and the numbers of one size. Without NumPy."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from openmrc.errors import ArgumentError

OPERATIONS = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
)
"""What can be measured."""

REDUCING = ("all_reduce", "reduce_scatter", "reduce")


@dataclass(frozen=True, slots=True)
class Settings:
    """What is measured."""

    operation: str
    begin: int = 8
    """Smallest size, bytes: as in nccl-tests, that of the larger of the two buffers of a rank."""
    end: int = 32 << 20
    """Largest size, bytes."""
    factor: int = 2
    """From one size to the next."""
    iterations: int = 20
    warmup: int = 5
    dtype: str = "float32"
    op: str = "sum"
    root: int = 0
    algorithm: str | None = None
    check: bool = True
    compare: str | None = None
    """``gloo``: the same by torch's backend gloo, alternating, in the same processes."""

    def __post_init__(self) -> None:
        if self.operation not in OPERATIONS:
            raise ArgumentError(
                f"there is no operation {self.operation!r} to measure: {', '.join(OPERATIONS)}"
            )
        if self.begin < 1 or self.end < self.begin or self.factor < 2:
            raise ArgumentError("sizes go from a smaller to a larger one by a factor of at least 2")
        if self.compare not in (None, "gloo"):
            raise ArgumentError(f"there is no comparison with {self.compare!r}: gloo")

    @property
    def sizes(self) -> Iterator[int]:
        """The sizes, bytes."""
        size = self.begin
        while size <= self.end:
            yield size
            size *= self.factor


@dataclass(slots=True)
class Timing:
    """One way of one size."""

    time_us: float
    """Mean time of an operation over ranks and iterations, microseconds."""
    p50_us: float
    """Median over iterations of the time of the slowest rank, microseconds."""
    algbw: float
    """Bytes per second."""
    busbw: float
    """Bytes per second of each rank's link."""
    wrong: int
    """Elements that were wrong, at all ranks."""


@dataclass(slots=True)
class Line:
    """One size."""

    size: int
    count: int
    dtype: str
    op: str
    algorithm: str
    out_of_place: Timing | None
    in_place: Timing | None
    gloo: Timing | None = None
    """Of the backend gloo, alternating with the one that :attr:`compared` names."""
    gloo_in_place: bool = False
    """Whether gloo's operation has one buffer for input and output."""
    network_bytes: int = field(default=0)
    """Bytes that rank 0 sent over the network for all of it."""

    @property
    def compared(self) -> Timing | None:
        """Our timing that alternated with gloo's."""
        return self.in_place if self.gloo_in_place else self.out_of_place

    @property
    def gain(self) -> float | None:
        """Gloo's time over ours."""
        if self.gloo is None or self.compared is None:
            return None
        return self.gloo.time_us / self.compared.time_us


def line_from(text: str) -> Line:
    """A line that rank 0 of :func:`openmrc.collectives.bench.spawn` has printed."""
    found = json.loads(text)
    for way in ("out_of_place", "in_place", "gloo"):
        if found[way] is not None:
            found[way] = Timing(**found[way])
    return Line(**found)
