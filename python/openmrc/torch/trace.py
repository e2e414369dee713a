"""What all process groups of a job did, as traces for the simulator; see :mod:`openmrc.collectives.trace`.

from openmrc.torch import trace
trace.begin()                    # once the model is wrapped
...                              # training
trace.write("traces/job")        # every rank
"""

from pathlib import Path

import torch
import torch.distributed as dist

from openmrc.collectives import Communicator
from openmrc.collectives import trace as traces
from openmrc.errors import ArgumentError
from openmrc.torch.backend import communicators


def begin() -> None:
    """Forgets what was done before."""
    for communicator in communicators():
        communicator.records()


def write(prefix: str | Path) -> None:
    """Writes what the process groups of the backend mrc did since :func:`begin`. Every rank calls it.

    Args:
        prefix: Begin of the names of the files.

    Raises:
        ArgumentError: if the default group is of another backend.
        OSError: if a file cannot be written.
    """
    world = None
    if dist.is_initialized():
        world = getattr(dist.group.WORLD._get_backend(torch.device("cpu")), "communicator", None)
    if not isinstance(world, Communicator):
        raise ArgumentError("there is no default process group of the backend mrc to write a trace of")
    traces.write(prefix, world, [each for each in communicators() if each is not world])
