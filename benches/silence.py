"""One plane of eight goes silent while two ranks do nothing but all_reduce: prints the longest operation.

The longest before it tells what the machine's own pauses are. Called by ``make bench``.
"""

import json
import os
import subprocess
import sys
import time

import numpy as np

from openmrc.collectives import Communicator
from openmrc.collectives.rendezvous import local_ranks
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


def main() -> int:
    """Starts the ranks; or is one of them."""
    if "RANK" in os.environ:
        numbers = measure()
        if os.environ["RANK"] == "0":
            print(json.dumps(numbers))
        return 0
    planes = {"OPENMRC_SHARED_MEMORY": "0", "OPENMRC_PLANES": "8"}
    processes = [
        subprocess.Popen([sys.executable, __file__], env={**os.environ, **job, **planes})
        for job in local_ranks(2)
    ]
    return max(process.wait() for process in processes)


if __name__ == "__main__":
    sys.exit(main())
