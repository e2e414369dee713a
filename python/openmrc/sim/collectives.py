"""Times and bandwidths of the collective operations of a run, counted as nccl-tests counts them.

algbw is the size of the operation over its time. busbw is algbw times a factor of the operation and the
number of ranks, so that it can be held against the rate of a host (nccl-tests, doc/PERFORMANCE.md).
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from openmrc.sim.scenario import AllToAll, Collective, Scenario, Traffic

_NEVER = 2**64 - 1
_IN_PARTS = ("ring-all-reduce", "all-gather", "reduce-scatter")


@dataclass(frozen=True)
class CollectiveTime:
    """One collective operation of a run. A figure is ``None`` if the operation has not finished."""

    pattern: int
    """Place of the pattern in the scenario's traffic."""
    operation: str
    ranks: int
    bytes: int
    """Size of the operation as nccl-tests counts it: the data of one rank; of an all-to-all, what a rank
    sends to all ranks, itself included; of a pipeline, all microbatches together."""
    time_us: float | None
    """From the pattern's start until the last rank has received everything."""
    algbw_bps: float | None
    """``bytes`` over ``time_us``, bit/s."""
    busbw_bps: float | None
    """``algbw_bps`` times 2 (n - 1) / n of an all-reduce, (n - 1) / n of the others, 1 of a pipeline."""
    steps: int
    """Steps of the algorithm; a pipeline and an all-to-all all at once have one."""
    step_least_us: float | None
    """Steps overlap: one ends when the last rank has received its data, and takes the time since the end of
    the one before."""
    step_mean_us: float | None
    step_most_us: float | None


@dataclass(frozen=True)
class CollectiveStep:
    """A step of a collective operation."""

    pattern: int
    """Place of the pattern in the scenario's traffic."""
    number: int
    """Which step, from 0."""
    end_us: float | None
    """When the last rank had received the data of this step; ``None`` if not all have."""
    took_us: float | None
    """Since the end of the step before, or the pattern's start."""


def times(scenario: Scenario, columns: Mapping[str, memoryview]) -> list[CollectiveTime]:
    """The collective operations of a run, in the order of the traffic."""
    found = []
    for number, pattern in enumerate(scenario.traffic):
        if not isinstance(pattern, Collective | AllToAll):
            continue
        taken = [step.took_us for step in _steps(scenario, columns, number, pattern)]
        known = [took for took in taken if took is not None]
        time = sum(known) if known and len(known) == len(taken) else None
        ranks, size = _ranks(scenario, pattern), _size(scenario, pattern)
        algbw = size * 8 / (time * 1e-6) if time else None
        found.append(
            CollectiveTime(
                pattern=number,
                operation=_operation(pattern),
                ranks=ranks,
                bytes=size,
                time_us=time,
                algbw_bps=algbw,
                busbw_bps=None if algbw is None else algbw * _factor(_operation(pattern), ranks),
                steps=len(taken),
                step_least_us=min(known, default=None),
                step_mean_us=sum(known) / len(known) if known else None,
                step_most_us=max(known, default=None),
            )
        )
    return found


def steps(scenario: Scenario, columns: Mapping[str, memoryview]) -> list[CollectiveStep]:
    """The steps of all collective operations of a run."""
    return [
        step
        for number, pattern in enumerate(scenario.traffic)
        if isinstance(pattern, Collective | AllToAll)
        for step in _steps(scenario, columns, number, pattern)
    ]


def _steps(
    scenario: Scenario, columns: Mapping[str, memoryview], number: int, pattern: Traffic
) -> Iterator[CollectiveStep]:
    # Messages are in the order of the patterns, and those of an operation step by step.
    begin = bisect_left(columns["pattern"], number)
    end = bisect_left(columns["pattern"], number + 1)
    width = end - begin
    if isinstance(pattern, Collective) and pattern.operation != "pipeline":
        width = _ranks(scenario, pattern)
        if pattern.operation in _IN_PARTS:
            # A rank's part without a byte is left out.
            width = min(width, pattern.bytes)
    before: float | None = pattern.start_us
    for place, first in enumerate(range(begin, end, max(1, width))):
        last = max(columns["delivered_ps"][first : min(first + width, end)])
        # A step of ranks that were ahead may end before the one before it.
        ended = None if last == _NEVER or before is None else max(last * 1e-6, before)
        took = None if ended is None or before is None else ended - before
        yield CollectiveStep(number, place, ended, took)
        before = ended


def _operation(pattern: Collective | AllToAll) -> str:
    return pattern.operation if isinstance(pattern, Collective) else pattern.kind


def _ranks(scenario: Scenario, pattern: Collective | AllToAll) -> int:
    return scenario.topology.hosts if pattern.ranks is None else len(pattern.ranks)


def _size(scenario: Scenario, pattern: Collective | AllToAll) -> int:
    match _operation(pattern):
        case "all-to-all":
            return pattern.bytes * _ranks(scenario, pattern)
        case "pipeline":
            assert isinstance(pattern, Collective)
            return pattern.bytes * pattern.microbatches
    return pattern.bytes


def _factor(operation: str, ranks: int) -> float:
    if operation == "pipeline":
        return 1.0
    return (2 if "all-reduce" in operation else 1) * (ranks - 1) / ranks


def figures(found: Sequence[CollectiveTime]) -> dict[str, float | None]:
    """Means over the operations of a run, for a row; ``None`` if there is none, or one has not finished."""
    means: dict[str, float | None] = {}
    for name in ("time_us", "algbw_bps", "busbw_bps", "step_mean_us"):
        values = [getattr(each, name) for each in found]
        means[f"collective_{name}"] = sum(values) / len(values) if values and None not in values else None
    return means
