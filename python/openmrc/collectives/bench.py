"""Measures collective operations as nccl-tests do.

Each rank runs :func:`run`; :func:`spawn` starts ranks as processes of this machine.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from openmrc.collectives.communicator import CallOptions, Communicator, bus_factor
from openmrc.collectives.rendezvous import Tuned, local_ranks
from openmrc.errors import ArgumentError, Error

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
SETTINGS_VARIABLE = "OPENMRC_BENCH"
_LONG = 600.0


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
    shared_memory: bool = True
    check: bool = True

    def __post_init__(self) -> None:
        if self.operation not in OPERATIONS:
            raise ArgumentError(
                f"there is no operation {self.operation!r} to measure: {', '.join(OPERATIONS)}"
            )
        if self.begin < 1 or self.end < self.begin or self.factor < 2:
            raise ArgumentError("sizes go from a smaller to a larger one by a factor of at least 2")

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
    network_bytes: int = field(default=0)
    """Bytes that this rank sent over the network for all of it."""


def run(comm: Communicator, settings: Settings, observe: Callable[[Line], None]) -> list[Line]:
    """Measures on an open communicator. Every rank calls it; each gets all lines.

    Raises:
        ArgumentError: if NumPy has no such type.
        Error: if an operation fails.
    """
    np = _numpy()
    try:
        dtype = np.dtype(settings.dtype)
    except TypeError:
        raise ArgumentError(f"NumPy has no type {settings.dtype!r} to measure with") from None
    lines = []
    for size in settings.sizes:
        count = max(size // dtype.itemsize // comm.size, 1) * comm.size
        before = comm.totals()["network_bytes"]
        comm.records()
        timings = {}
        for in_place in (False, True):
            if in_place and settings.operation == "all_to_all":
                continue
            timings[in_place] = _measure(np, comm, settings, dtype, count, in_place)
        nbytes = count * dtype.itemsize
        own = [r for r in comm.records() if r.name == settings.operation]
        # Times are reduced too, by all_reduce.
        used = [r.algorithm for r in own if r.nbytes == nbytes or settings.operation != "all_reduce"]
        line = Line(
            count * dtype.itemsize, count, settings.dtype,
            settings.op if settings.operation in ("all_reduce", "reduce_scatter", "reduce") else "none",
            used[-1] if used else "none", timings.get(False), timings.get(True),
            comm.totals()["network_bytes"] - before,
        )  # fmt: skip
        lines.append(line)
        observe(line)
    return lines


def _numpy() -> Any:
    try:
        import numpy as np
    except ImportError:
        raise ArgumentError("measuring needs NumPy: pip install numpy") from None
    return np


def _measure(
    np: Any, comm: Communicator, settings: Settings, dtype: Any, count: int, in_place: bool
) -> Timing:
    n = comm.size
    part = count // n

    def values(of: int) -> Any:
        return ((np.arange(count) * 7 + of * 13) % 11).astype(dtype)

    call, output, expected = _prepare(np, comm, settings, values, part, in_place)
    call()
    wrong = 0
    if settings.check and expected is not None:
        wrong = int((output != expected).sum())
    for _ in range(settings.warmup):
        call()
    comm.barrier()
    times = np.empty(settings.iterations)
    begin = time.perf_counter()
    for i in range(settings.iterations):
        before = time.perf_counter()
        call()
        times[i] = time.perf_counter() - before
    mean = np.array([(time.perf_counter() - begin) / settings.iterations, float(wrong)])
    comm.all_reduce(mean)
    comm.all_reduce(times, op="max")
    seconds = float(mean[0]) / n
    algbw = count * dtype.itemsize / seconds
    return Timing(
        seconds * 1e6,
        float(np.median(times)) * 1e6,
        algbw,
        algbw * bus_factor(settings.operation, n),
        int(mean[1]),
    )


def _prepare(
    np: Any, comm: Communicator, settings: Settings, values: Callable[[int], Any], part: int, in_place: bool
) -> tuple[Callable[[], Any], Any, Any]:
    """A call to measure, where its result lies, and what it must be after the first call."""
    rank, n, name, root = comm.rank, comm.size, settings.operation, settings.root
    mine = values(rank)
    here = slice(rank * part, (rank + 1) * part)
    reducers = {"sum": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum}
    reducer = reducers.get(settings.op)

    def reduced() -> Any:
        if reducer is None or settings.dtype not in ("float32", "float64", "int32", "int64"):
            return None
        result = values(0)
        for other in range(1, n):
            result = reducer(result, values(other))
        return result

    def cut(whole: Any) -> Any:
        return None if whole is None else whole[here]

    options: CallOptions = {"algorithm": settings.algorithm}
    if name == "all_reduce":
        out = mine if in_place else np.empty_like(mine)
        return lambda: comm.all_reduce(mine, out, op=settings.op, **options), out, reduced()
    if name == "reduce_scatter":
        out = mine[here] if in_place else np.empty(part, mine.dtype)
        return lambda: comm.reduce_scatter(mine, out, op=settings.op, **options), out, cut(reduced())
    if name == "all_gather":
        out = np.empty_like(mine)
        source = out[here] if in_place else np.empty(part, mine.dtype)
        source[:] = mine[here]
        expected = np.concatenate([values(r)[r * part : (r + 1) * part] for r in range(n)])
        return lambda: comm.all_gather(source, out, **options), out, expected
    if name == "all_to_all":
        out = np.empty_like(mine)
        expected = np.concatenate([values(r)[here] for r in range(n)])
        return lambda: comm.all_to_all(mine, out), out, expected
    if name == "broadcast":
        data = values(root) if rank == root else np.empty_like(mine)
        return lambda: comm.broadcast(data, root, **options), data, values(root)
    if name == "reduce":
        out = mine if in_place else np.empty_like(mine)
        expected = reduced() if rank == root else None
        return lambda: comm.reduce(mine, out, root, op=settings.op, **options), out, expected
    if name == "gather":
        out = np.empty_like(mine)
        source = out[here] if in_place and rank == root else np.empty(part, mine.dtype)
        source[:] = mine[here]
        expected = np.concatenate([values(r)[r * part : (r + 1) * part] for r in range(n)])
        return lambda: comm.gather(source, out, root), out, expected if rank == root else None
    whole = values(root)
    out = whole[here] if in_place and rank == root else np.empty(part, mine.dtype)
    return lambda: comm.scatter(out, whole, root), out, values(root)[here]


def spawn(
    ranks: int, settings: Settings, *, environment: dict[str, str] | None = None
) -> list[subprocess.Popen[str]]:
    """Starts ranks as processes of this machine; what rank 0 prints are the lines, JSON each."""
    processes = []
    for rank, job in enumerate(local_ranks(ranks)):
        told = {SETTINGS_VARIABLE: json.dumps(asdict(settings))}
        variables = {**os.environ, **(environment or {}), **job, **told}
        command = [sys.executable, "-m", "openmrc.collectives.bench"]
        out = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
        processes.append(subprocess.Popen(command, env=variables, stdout=out, text=True))
    return processes


def line_from(text: str) -> Line:
    """A line of :func:`spawn`'s rank 0."""
    found = json.loads(text)
    for way in ("out_of_place", "in_place"):
        if found[way] is not None:
            found[way] = Timing(**found[way])
    return Line(**found)


def main() -> int:
    """Runs one rank of :func:`spawn`."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    settings = Settings(**json.loads(os.environ[SETTINGS_VARIABLE]))
    try:
        tuned = Tuned(shared_memory=settings.shared_memory)
        with Communicator.from_environment(tuned=tuned, timeout=_LONG) as comm:

            def observe(line: Line) -> None:
                if comm.rank == 0:
                    print(json.dumps(asdict(line)), flush=True)

            run(comm, settings, observe)
    except Error as error:
        print(f"rank {os.environ.get('RANK')}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
