"""Measures at which size which algorithm is the fastest here; :mod:`openmrc.collectives.tuning` keeps it."""

import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations_with_replacement

from openmrc.collectives.bench.cases import Values, case
from openmrc.collectives.bench.measure import in_turns, numpy
from openmrc.collectives.bench.settings import Settings
from openmrc.collectives.bench.spawn import Place, as_rank, ended, lines, start
from openmrc.collectives.communicator import Communicator
from openmrc.collectives.tuning import Entry

SIZES = tuple(1 << power for power in range(10, 25, 2))
"""Sizes that are measured, bytes: 1 KiB to 16 MiB."""
_VARIABLE = "OPENMRC_TUNE"
_ALL_REDUCE = ("direct", "halving", "ring")
_ROOTED = ("tree", "chain")

Times = Mapping[str, Mapping[int, float]]
"""Median times of an operation by algorithm and size, microseconds."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured with a number of ranks."""

    entry: Entry
    all_reduce: Times
    broadcast: Times


def measure(
    ranks: int,
    *,
    shared_memory: bool,
    iterations: int = 30,
    sizes: Sequence[int] = SIZES,
    observe: Callable[[str, int], None] = lambda operation, size: None,
) -> Measured:
    """Starts ranks on this machine, and measures.

    Args:
        ranks: How many.
        shared_memory: They exchange through shared memory, or else over planes on loopback.
        iterations: Operations of each size and algorithm.
        sizes: Bytes, growing.
        observe: Called with an operation and a size once it is measured.

    Raises:
        Error: if a rank fails.
    """
    place = Place(environment={"OPENMRC_SHARED_MEMORY": str(int(shared_memory))})
    environment = {_VARIABLE: json.dumps({"iterations": iterations, "sizes": list(sizes)})}
    found: dict[str, dict[str, dict[int, float]]] = {"all_reduce": {}, "broadcast": {}}
    with ended(start([place] * ranks, "openmrc.collectives.tune", environment)) as processes:
        for text in lines(processes):
            line = json.loads(text)
            for algorithm, time_us in line["times"].items():
                found[line["operation"]].setdefault(algorithm, {})[line["size"]] = time_us
            observe(line["operation"], line["size"])
    return Measured(entry_of(ranks, found, shared_memory=shared_memory), **found)


def entry_of(ranks: int, times: Mapping[str, Times], *, shared_memory: bool) -> Entry:
    """The borders that make the measured times the shortest."""
    reduce = [name for name in _ALL_REDUCE if name in times["all_reduce"]]
    all_reduce = borders([times["all_reduce"][name] for name in reduce])
    [tree] = borders([times["broadcast"][name] for name in _ROOTED])
    halving = all_reduce[1] if len(all_reduce) > 1 else None
    return Entry(ranks, shared_memory, all_reduce[0], halving, tree)


def borders(times: Sequence[Mapping[int, float]]) -> list[int]:
    """The largest size of each algorithm but the last, in this order, that makes the sum of all times least.

    The logarithms are summed, so that each size counts alike. A border lies between two sizes.
    """
    sizes = sorted(times[0])

    def cost(cuts: Sequence[int]) -> float:
        bounds = [0, *cuts, len(sizes)]
        return sum(
            math.log(times[which][size])
            for which in range(len(times))
            for size in sizes[bounds[which] : bounds[which + 1]]
        )

    def border(cut: int) -> int:
        if cut in (0, len(sizes)):
            return sizes[-1] if cut else 0
        return math.isqrt(sizes[cut - 1] * sizes[cut])

    every = combinations_with_replacement(range(len(sizes) + 1), len(times) - 1)
    return [border(cut) for cut in min(every, key=cost)]


def _run(comm: Communicator, iterations: int, sizes: Sequence[int]) -> None:
    np = numpy()
    algorithms = {"all_reduce": _ALL_REDUCE, "broadcast": _ROOTED}
    for operation, names in algorithms.items():
        for size in sizes:
            cases = {}
            for name in names:
                if name == "halving" and comm.size & (comm.size - 1):
                    continue
                settings = Settings(operation, size, size, iterations=iterations, algorithm=name)
                values = Values(np, settings, max(size // 4 // comm.size, 1) * comm.size, comm.size)
                cases[name] = case(comm, settings, values, in_place=True)
            found = in_turns(np, comm, settings, cases, size)
            if comm.rank == 0:
                times = {name: timing.p50_us for name, timing in found.items()}
                print(json.dumps({"operation": operation, "size": size, "times": times}), flush=True)


def as_dict(measured: Measured) -> dict[str, object]:
    """For JSON."""
    return asdict(measured)


def main() -> int:
    """Runs one rank of :func:`measure`."""
    settings = json.loads(os.environ[_VARIABLE])
    return as_rank(lambda comm: _run(comm, settings["iterations"], settings["sizes"]))


if __name__ == "__main__":
    sys.exit(main())
