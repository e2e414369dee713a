"""The operations as calls to be measured, with what their first call must give."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from openmrc.collectives.bench.settings import Settings
from openmrc.collectives.communicator import Communicator
from openmrc.collectives.work import CallOptions


@dataclass(frozen=True, slots=True)
class Case:
    """A call to be measured."""

    call: Callable[[], object]
    output: Any
    """Where its result lies."""
    expected: Any
    """The result of the first call; ``None``: not known."""

    def wrong(self) -> int:
        """Elements of the result that differ from the expected ones."""
        return 0 if self.expected is None else int((self.output != self.expected).sum())


class Values:
    """The elements of each rank, and results computed by NumPy.

    Args:
        np: NumPy.
        settings: What is measured.
        count: Elements of the larger buffer.
        ranks: Number of ranks.
    """

    def __init__(self, np: Any, settings: Settings, count: int, ranks: int) -> None:
        self._np = np
        self._settings = settings
        self._dtype = np.dtype(settings.dtype)
        self.count = count
        self.ranks = ranks
        self.part = count // ranks

    def of(self, rank: int) -> Any:
        """Elements of a rank: small integers, whose sums are exact. They repeat after eleven."""
        np = self._np
        period = ((np.arange(11) * 7 + rank * 13) % 11).astype(self._dtype)
        return np.tile(period, -(-self.count // period.size))[: self.count]

    def slice(self, rank: int) -> slice:
        """Where the part of a rank lies."""
        return slice(rank * self.part, (rank + 1) * self.part)

    def empty(self) -> Any:
        """Room for one part."""
        return self._np.empty(self.part, self._dtype)

    def reduced(self) -> Any:
        """The reduction of all ranks' elements; ``None`` where NumPy does not compute it exactly."""
        np, settings = self._np, self._settings
        reducers = {"sum": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum}
        reducer = reducers.get(settings.op)
        if reducer is None or settings.dtype not in ("float32", "float64", "int32", "int64"):
            return None
        result = self.of(0)
        for other in range(1, self.ranks):
            result = reducer(result, self.of(other))
        return result

    def gathered(self) -> Any:
        """The parts of all ranks."""
        return self._np.concatenate([self.of(rank)[self.slice(rank)] for rank in range(self.ranks)])

    def exchanged(self, rank: int) -> Any:
        """What a rank gets of all by an all_to_all."""
        return self._np.concatenate([self.of(other)[self.slice(rank)] for other in range(self.ranks)])


def case(comm: Communicator, settings: Settings, values: Values, *, in_place: bool) -> Case:
    """The operation by a communicator."""
    rank, name, root, op = comm.rank, settings.operation, settings.root, settings.op
    options: CallOptions = {"algorithm": settings.algorithm}
    mine, here = values.of(rank), values.slice(rank)

    def cut(whole: Any) -> Any:
        return None if whole is None else whole[here]

    if name == "all_reduce":
        out = mine if in_place else mine.copy()
        return Case(lambda: comm.all_reduce(mine, out, op=op, **options), out, values.reduced())
    if name == "reduce_scatter":
        out = mine[here] if in_place else values.empty()
        return Case(lambda: comm.reduce_scatter(mine, out, op=op, **options), out, cut(values.reduced()))
    if name == "all_gather":
        out = mine.copy()
        source = out[here] if in_place else mine[here].copy()
        return Case(lambda: comm.all_gather(source, out, **options), out, values.gathered())
    if name == "all_to_all":
        out = mine.copy()
        return Case(lambda: comm.all_to_all(mine, out, **options), out, values.exchanged(rank))
    if name == "broadcast":
        return Case(lambda: comm.broadcast(mine, root, **options), mine, values.of(root))
    if name == "reduce":
        out = mine if in_place else mine.copy()
        expected = values.reduced() if rank == root else None
        return Case(lambda: comm.reduce(mine, out, root, op=op, **options), out, expected)
    if name == "gather":
        out = mine.copy()
        source = out[here] if in_place and rank == root else mine[here].copy()
        expected = values.gathered() if rank == root else None
        return Case(lambda: comm.gather(source, out, root, **options), out, expected)
    whole = values.of(root)
    out = whole[here] if in_place and rank == root else values.empty()
    return Case(lambda: comm.scatter(out, whole, root, **options), out, values.of(root)[here])
