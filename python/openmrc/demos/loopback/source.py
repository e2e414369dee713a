"""The file that the demo sends: the user's own, or one of random bytes."""

import contextlib
import io
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import xxhash

from openmrc import units
from openmrc.errors import ArgumentError

_PIECE = 64 << 20

OnProgress = Callable[[str, int, int], None]
"""Called with the name of the step, bytes done, and bytes in total."""


@dataclass(frozen=True)
class SourceFile:
    """A file, mapped."""

    data: mmap.mmap
    size: int
    digest: str
    """XXH3-128."""


@contextlib.contextmanager
def source_file(path: Path | None, size: int, progress: OnProgress) -> Iterator[SourceFile]:
    """Maps a file and hashes it. Without a path, it makes a file.

    The file that is made has no name, so that nothing is left of it however the process ends.

    Args:
        path: The user's file.
        size: Bytes of the file that is made.
        progress: Called with the progress.

    Raises:
        ArgumentError: if the file is empty, or does not fit into memory.
        OSError: if it cannot be read, or there is no space to make one.
    """
    with contextlib.ExitStack() as stack:
        if path is None:
            _check_memory(size)
            file: io.FileIO = stack.enter_context(tempfile.TemporaryFile(dir=_where(size), buffering=0))
            _make(file, size, progress)
        else:
            file = stack.enter_context(path.open("rb", buffering=0))
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                raise ArgumentError(f"{path} is empty: there is nothing to send")
            _check_memory(size)
        data = stack.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        yield SourceFile(data, size, _digest(data, progress))


def _where(size: int) -> str | None:
    # In memory if there is room, so that a slow disk does not delay the demo.
    with contextlib.suppress(OSError):
        if shutil.disk_usage("/dev/shm").free > 2 * size and os.access("/dev/shm", os.W_OK):
            return "/dev/shm"
    return None


def _check_memory(size: int) -> None:
    available = _available_memory()
    if available is not None and size > 0.8 * available:
        raise ArgumentError(
            f"the demo keeps its file in memory: {units.size(size)} do not fit the "
            f"{units.size(available)} available; choose a smaller --size, or use openmrc put"
        )


def _available_memory() -> int | None:
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _make(file: io.FileIO, size: int, progress: OnProgress) -> None:
    """Writes random bytes. Later pieces are the first, rotated: fast, and no two blocks are equal."""
    base = memoryview(os.urandom(min(_PIECE, size)))
    done = 0
    number = 0
    while done < size:
        progress("making a file of random bytes", done, size)
        turn = number * 1_000_003 % len(base)
        for part in (base[turn:], base[:turn]):
            part = part[: size - done]
            while part:
                written = file.write(part)
                done += written
                part = part[written:]
        number += 1
    progress("making a file of random bytes", size, size)


def _digest(data: mmap.mmap, progress: OnProgress) -> str:
    digest = xxhash.xxh3_128()
    with memoryview(data) as view:
        for start in range(0, len(view), _PIECE):
            progress("checksum of the file", start, len(view))
            digest.update(view[start : start + _PIECE])
    progress("checksum of the file", len(data), len(data))
    return str(digest.hexdigest())
