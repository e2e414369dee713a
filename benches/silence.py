"""One plane of eight goes silent while two ranks do nothing but all_reduce: prints the longest operation.

The longest before it tells what the machine's own pauses are. Called by ``make bench``.
"""

import sys
import time

import numpy as np

from job import run
from openmrc.collectives import Communicator
from openmrc.testing import Impairment, impair

_BYTES = 1 << 20
_SECONDS = 3.0
_PLANE = 3


def longest(comm: Communicator, data: "np.ndarray[tuple[int], np.dtype[np.float32]]") -> float:
    """The longest of the operations of some seconds, milliseconds."""
    found = 0.0
    end = time.perf_counter() + _SECONDS
    going = np.ones(1, np.int32)
    while going[0]:
        began = time.perf_counter()
        comm.all_reduce(data, op="max")
        found = max(found, time.perf_counter() - began)
        # Both end with the same operation.
        going[0] = time.perf_counter() < end
        comm.all_reduce(going, op="min")
    worst = np.array([found * 1e3])
    comm.all_reduce(worst, op="max")
    return float(worst[0])


def measure() -> dict[str, float]:
    """All measurements of one rank."""
    with Communicator.from_environment(timeout=60) as comm:
        data = np.ones(_BYTES // 4, np.float32)
        longest(comm, data)
        before = longest(comm, data)
        impair(comm.device, Impairment.drop(ports=[_PLANE]))
        after = longest(comm, data)
    return {"before_ms": before, "longest_ms": after, "beyond_ms": max(after - before, 0.0)}


if __name__ == "__main__":
    sys.exit(run(measure, 2, {"OPENMRC_SHARED_MEMORY": "0", "OPENMRC_PLANES": "8"}))
