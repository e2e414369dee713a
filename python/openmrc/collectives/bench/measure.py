"""Measures on an open communicator; every rank calls it."""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

from openmrc.collectives.bench import gloo
from openmrc.collectives.bench.cases import Case, Values, case
from openmrc.collectives.bench.settings import REDUCING, Line, Settings, Timing
from openmrc.collectives.communicator import Communicator
from openmrc.collectives.records import bus_factor
from openmrc.errors import ArgumentError, UnsupportedError

_TURNS = 5
"""Blocks of iterations of those that take turns."""


def run(comm: Communicator, settings: Settings, observe: Callable[[Line], None]) -> list[Line]:
    """Measures on an open communicator. Every rank calls it; each gets all lines.

    Raises:
        ArgumentError: if NumPy has no such type, or gloo no such operation.
        UnsupportedError: if NumPy, or torch where it is needed, is not installed.
        Error: if an operation fails.
    """
    np = numpy()
    try:
        dtype = np.dtype(settings.dtype)
    except TypeError:
        raise ArgumentError(f"NumPy has no type {settings.dtype!r} to measure with") from None
    lines = []
    with ExitStack() as stack:
        rival = None
        if settings.compare:
            host = os.environ.get("MASTER_ADDR", "127.0.0.1")
            rival = stack.enter_context(gloo.joined(comm, settings, host, np))
        for size in settings.sizes:
            count = max(size // dtype.itemsize // comm.size, 1) * comm.size
            line = _line(np, comm, settings, Values(np, settings, count, comm.size), rival)
            lines.append(line)
            observe(line)
    return lines


def numpy() -> Any:
    """NumPy.

    Raises:
        UnsupportedError: if it is not installed.
    """
    try:
        import numpy as np
    except ImportError:
        raise UnsupportedError("measuring needs NumPy: pip install numpy") from None
    return np


def _line(
    np: Any, comm: Communicator, settings: Settings, values: Values, rival: "gloo.Cases | None"
) -> Line:
    before = comm.totals()["network_bytes"]
    comm.records()
    nbytes = values.count * np.dtype(settings.dtype).itemsize
    gloo_in_place = settings.operation in gloo.IN_PLACE
    timings: dict[bool, Timing] = {}
    theirs = None
    for in_place in (False, True):
        if in_place and settings.operation == "all_to_all":
            continue
        cases = {"mrc": case(comm, settings, values, in_place=in_place)}
        if rival is not None and in_place == gloo_in_place:
            cases["gloo"] = rival(values)
        found = in_turns(np, comm, settings, cases, nbytes)
        timings[in_place] = found["mrc"]
        theirs = found.get("gloo", theirs)
    own = [record for record in comm.records() if record.name == settings.operation]
    # Times are reduced too, by all_reduce.
    used = [each.algorithm for each in own if each.nbytes == nbytes or settings.operation != "all_reduce"]
    return Line(
        size=nbytes,
        count=values.count,
        dtype=settings.dtype,
        op=settings.op if settings.operation in REDUCING else "none",
        algorithm=used[-1] if used else "none",
        out_of_place=timings.get(False),
        in_place=timings.get(True),
        gloo=theirs,
        gloo_in_place=gloo_in_place,
        network_bytes=comm.totals()["network_bytes"] - before,
    )


def in_turns(
    np: Any, comm: Communicator, settings: Settings, cases: Mapping[str, Case], nbytes: int
) -> dict[str, Timing]:
    """Timings of cases whose iterations take turns in blocks.

    Args:
        np: NumPy.
        comm: Every rank of it calls this.
        settings: How often, and the operation.
        cases: What is measured, by name.
        nbytes: Bytes of the larger buffer of a rank.
    """
    wrong = {}
    for name, each in cases.items():
        each.call()
        wrong[name] = each.wrong() if settings.check else 0
        for _ in range(settings.warmup):
            each.call()
    times = {name: np.empty(settings.iterations) for name in cases}
    turns = min(_TURNS if len(cases) > 1 else 1, settings.iterations)
    bounds = [settings.iterations * turn // turns for turn in range(turns + 1)]
    for begin, end in pairwise(bounds):
        for name, each in cases.items():
            comm.barrier()
            for i in range(begin, end):
                before = time.perf_counter()
                each.call()
                times[name][i] = time.perf_counter() - before
    return {name: _timing(np, comm, settings.operation, times[name], wrong[name], nbytes) for name in cases}


def _timing(np: Any, comm: Communicator, operation: str, times: Any, wrong: int, nbytes: int) -> Timing:
    mean = np.array([float(times.mean()), float(wrong)])
    comm.all_reduce(mean)
    comm.all_reduce(times, op="max")
    seconds = float(mean[0]) / comm.size
    algbw = nbytes / seconds
    return Timing(
        seconds * 1e6,
        float(np.median(times)) * 1e6,
        algbw,
        algbw * bus_factor(operation, comm.size),
        int(mean[1]),
    )
