"""The ranks of a training job as processes, here or in the hosts of a lab."""

import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import IO

from openmrc.closing import Closable
from openmrc.collectives.bench.spawn import Place, ended, last_words
from openmrc.collectives.rendezvous import local_ranks
from openmrc.demos.training.settings import (
    VARIABLE,
    EndReport,
    JobSettings,
    StepReport,
    decode,
    encode_rules,
)
from openmrc.errors import Error
from openmrc.testing import Impairment


@dataclass
class _Rank:
    process: "subprocess.Popen[bytes]"
    errors: IO[bytes]
    unread: bytes = b""
    ended: bool = False


class Job(Closable):
    """A job under way.

    Args:
        settings: What it trains.
        places: One for each rank. In a lab, their variables say where rank 0 serves torch's store.
    """

    def __init__(self, settings: JobSettings, places: Sequence[Place]) -> None:
        variables = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", VARIABLE: settings.to_json()}
        self._ranks: list[_Rank] = []
        with ExitStack() as stack:
            self._selector = stack.enter_context(selectors.DefaultSelector())
            files = stack.enter_context(ExitStack())
            processes = stack.enter_context(ended([]))
            for number, (job, place) in enumerate(zip(local_ranks(len(places)), places, strict=True)):
                errors = files.enter_context(tempfile.TemporaryFile())
                process = subprocess.Popen(
                    [*place.prefix, sys.executable, "-m", "openmrc.demos.training.worker"],
                    env={**os.environ, **job, **variables, **place.environment},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                )
                processes.append(process)
                files.callback(_close, process)
                rank = _Rank(process, errors)
                self._ranks.append(rank)
                assert process.stdout is not None
                os.set_blocking(process.stdout.fileno(), False)
                self._selector.register(process.stdout, selectors.EVENT_READ, (number, rank))
            self._stack = stack.pop_all()

    @property
    def running(self) -> bool:
        """Whether a rank has not ended."""
        return not all(rank.ended for rank in self._ranks)

    def poll(self, timeout: float) -> list[StepReport | EndReport]:
        """What ranks have reported, after at most ``timeout`` seconds.

        Raises:
            Error: if a rank has failed, with its last words.
        """
        reports: list[StepReport | EndReport] = []
        for key, _ in self._selector.select(timeout):
            number, rank = key.data
            data = os.read(key.fd, 1 << 16)
            if not data:
                self._selector.unregister(key.fileobj)
                rank.ended = True
                if rank.process.wait():
                    raise Error(
                        f"rank {number} ended with {rank.process.returncode}: {last_words(rank.errors)}"
                    )
                continue
            *lines, rank.unread = (rank.unread + data).split(b"\n")
            reports += [decode(line.decode()) for line in lines]
        return reports

    def impair(self, rank: int, rules: Sequence[Impairment], seed: int) -> None:
        """Replaces the impairments of a rank's device."""
        pipe = self._ranks[rank].process.stdin
        assert pipe is not None
        # A rank that has ended has no network; `poll` says why it has ended.
        with suppress(OSError):
            pipe.write(encode_rules(rules, seed).encode() + b"\n")
            pipe.flush()

    def close(self) -> None:
        """Ends all ranks. Closing twice is harmless."""
        self._stack.close()


def _close(process: "subprocess.Popen[bytes]") -> None:
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):
            if pipe is not None:
                pipe.close()
