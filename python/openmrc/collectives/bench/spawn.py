"""Ranks as processes: of this machine, or in the hosts of a lab."""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import IO, Any

from openmrc.collectives.bench.settings import Settings
from openmrc.collectives.communicator import Communicator
from openmrc.collectives.rendezvous import local_ranks
from openmrc.errors import ArgumentError, Error

SETTINGS_VARIABLE = "OPENMRC_BENCH"
"""Environment variable with the settings of a rank."""

_LONG = 600.0
"""Seconds for an operation of a measurement."""

_REFUSED = "refused: "
"""Begin of the line in which rank 0 says why the ranks cannot measure."""
_REFUSAL = 2
"""Exit code of such ranks."""

Processes = list["subprocess.Popen[Any]"]

_LOOK = 0.2
"""Seconds after which processes are looked at while rank 0 prints nothing."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank runs."""

    prefix: Sequence[str] = ()
    """Begin of its command, such as ``ip netns exec``."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """What it needs besides the job's variables."""


def spawn(places: Sequence[Place], settings: Settings) -> Processes:
    """Starts one rank of a measurement at each place. Rank 0 prints the lines, JSON each."""
    environment = {SETTINGS_VARIABLE: json.dumps(asdict(settings)), "TORCH_CPP_LOG_LEVEL": "ERROR"}
    return start(places, "openmrc.collectives.bench", environment)


def start(places: Sequence[Place], module: str, environment: Mapping[str, str]) -> Processes:
    """Starts a module as one rank at each place, with the variables of a job; rank 0 has a pipe."""
    processes: Processes = []
    for rank, (job, place) in enumerate(zip(local_ranks(len(places)), places, strict=True)):
        variables = {**os.environ, **job, **environment, **place.environment}
        command = [*place.prefix, sys.executable, "-m", module]
        out = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
        processes.append(subprocess.Popen(command, env=variables, stdout=out, text=True))
    return processes


def lines(processes: Processes) -> Iterator[str]:
    """What rank 0 prints, line by line, until all ranks have ended.

    Raises:
        ArgumentError: if the ranks cannot measure what they are asked for.
        Error: if a rank fails; what it said is on standard error.
    """
    pipe = processes[0].stdout
    assert pipe is not None
    os.set_blocking(pipe.fileno(), False)
    unread = ""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            at_end = all(process.poll() is not None for process in processes)
            ready = selector.select(0 if at_end else _LOOK)
            text = os.read(pipe.fileno(), 1 << 16).decode() if ready else ""
            *whole, unread = (unread + text).split("\n")
            for line in whole:
                if line.startswith(_REFUSED):
                    raise ArgumentError(line.removeprefix(_REFUSED))
                yield line
            failed = [
                rank for rank, process in enumerate(processes) if process.poll() not in (None, 0, _REFUSAL)
            ]
            if failed:
                raise Error(f"rank {failed[0]} failed")
            if at_end and not text:
                return
            if ready and not text:
                time.sleep(_LOOK)


def as_rank(measure: Callable[[Communicator], None]) -> int:
    """Measures as one rank that :func:`start` has started; returns the exit code."""
    # Ctrl-C reaches all processes of the terminal: a rank ends without words.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        with Communicator.from_environment(timeout=_LONG) as comm:
            measure(comm)
    except ArgumentError as error:
        # Every rank finds the same.
        if os.environ.get("RANK") == "0":
            print(f"{_REFUSED}{error}", flush=True)
        return _REFUSAL
    except Error as error:
        print(f"rank {os.environ.get('RANK')}: {error}", file=sys.stderr)
        return 1
    return 0


@contextmanager
def ended(processes: Processes) -> Iterator[Processes]:
    """Ends all processes if one of them, or this one, ends early."""
    try:
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
        for process in processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def last_words(errors: IO[bytes]) -> str:
    """The last line that a process has written to its standard error, a file."""
    errors.seek(0)
    return (errors.read().decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
