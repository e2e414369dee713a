"""The ranks of a training job as processes, here or in the hosts of a lab."""

import contextlib
import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from openmrc.closing import Closable
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

_GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank runs."""

    prefix: Sequence[str] = ()
    """Begin of its command, such as ``ip netns exec``."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """What it needs besides the job's variables."""


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
        places: One for each rank.
        master: Address and port at which rank 0 serves torch's store.
    """

    def __init__(self, settings: JobSettings, places: Sequence[Place], master: tuple[str, int]) -> None:
        self._selector = selectors.DefaultSelector()
        self._ranks: list[_Rank] = []
        try:
            for rank, place in enumerate(places):
                self._ranks.append(self._start(rank, len(places), place, settings, master))
        except BaseException:
            self.close()
            raise

    def _start(
        self, rank: int, size: int, place: Place, settings: JobSettings, master: tuple[str, int]
    ) -> _Rank:
        variables = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(size),
            "MASTER_ADDR": master[0],
            "MASTER_PORT": str(master[1]),
            "OMP_NUM_THREADS": "1",
            "TORCH_CPP_LOG_LEVEL": "ERROR",
            VARIABLE: settings.to_json(),
            **place.environment,
        }
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the rank
        process = subprocess.Popen(
            [*place.prefix, sys.executable, "-m", "openmrc.demos.training.worker"],
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        found = _Rank(process, errors)
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        self._selector.register(process.stdout, selectors.EVENT_READ, (rank, found))
        return found

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
                        f"rank {number} ended with {rank.process.returncode}: {_last_words(rank.errors)}"
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
        with contextlib.suppress(OSError):
            pipe.write(encode_rules(rules, seed).encode() + b"\n")
            pipe.flush()

    def close(self) -> None:
        """Ends all ranks. Closing twice is harmless."""
        for rank in self._ranks:
            if rank.process.poll() is None:
                rank.process.terminate()
        for rank in self._ranks:
            try:
                rank.process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                rank.process.kill()
                rank.process.wait()
            for pipe in (rank.process.stdin, rank.process.stdout, rank.errors):
                with contextlib.suppress(OSError):
                    if pipe is not None:
                        pipe.close()
        self._selector.close()
        self._ranks = []


def _last_words(file: IO[bytes]) -> str:
    file.seek(0)
    lines = file.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
