"""Runs a script as the ranks of a job, each a process on this machine."""

import contextlib
import os
import random
import socket
import subprocess
import sys
import textwrap

from openmrc.collectives.rendezvous import local_ranks


def free_port():
    """A free TCP port, below those that the kernel gives to connections.

    One of these may be taken before the port is used.
    """
    while True:
        port = random.randrange(15_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


HEAD = """
    import os, sys, time, json, signal
    import numpy as np
    from openmrc.collectives import Communicator
    from openmrc.collectives.rendezvous import Tuned
    shared = os.environ.get("SHARED", "1") == "1"
    comm = Communicator.from_environment(tuned=Tuned(shared_memory=shared), timeout=60)
    rank, size = comm.rank, comm.size
"""
"""What scripts find: `comm`, `rank`, `size`, `np`, `Communicator`."""


def start(script, size, *, head=HEAD, tail="comm.close()", **environment):
    """The processes of all ranks."""
    text = f"{textwrap.dedent(head)}\n{textwrap.dedent(script)}\n{tail}\n"
    processes = []
    for job in local_ranks(size):
        variables = {**os.environ, **job, **environment}
        processes.append(
            subprocess.Popen(
                # Unbuffered, as some end without flushing.
                [sys.executable, "-u", "-c", text],
                env=variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    return processes


def finish(processes, timeout=240):
    """Output of each rank; raises for one that failed."""
    results = []
    try:
        for rank, process in enumerate(processes):
            out, err = process.communicate(timeout=timeout)
            ended = f"rank {rank} ended with {process.returncode}"
            assert process.returncode == 0, f"{ended}:\n{out}\n{err[-3000:]}"
            results.append(out)
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
                process.communicate()
    return results


def run(script, size, **options):
    """Runs all ranks to their end; their outputs."""
    return finish(start(script, size, **options))
