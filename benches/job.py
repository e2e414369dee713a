"""Measurements that are jobs of several ranks: the script starts itself once for each rank."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping

from openmrc.collectives.rendezvous import local_ranks


def run(
    measure: Callable[[], dict[str, float]], ranks: int, environment: Mapping[str, str] | None = None
) -> int:
    """Runs this script as a job of ``ranks`` processes, or is one of them; rank 0 prints the numbers.

    ``environment``: more variables for the ranks.
    """
    if "RANK" in os.environ:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        numbers = measure()
        if os.environ["RANK"] == "0":
            print(json.dumps(numbers))
        return 0
    quiet = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    processes = [
        subprocess.Popen(
            [sys.executable, *sys.argv], env={**os.environ, **quiet, **(environment or {}), **job}
        )
        for job in local_ranks(ranks)
    ]
    return max(process.wait() for process in processes)
