"""The files and directories of a command line, with their paths at the receiver."""

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from openmrc.errors import ArgumentError
from openmrc.transfer.protocol import Entry


@dataclass(frozen=True, slots=True)
class Source:
    """A file or empty directory to send."""

    local: Path
    entry: Entry


def collect(paths: Iterable[Path]) -> list[Source]:
    """Finds everything below the given paths, in a stable order.

    A file keeps its name at the receiver; a directory keeps its name and contents, as with ``cp -r``.
    Symbolic links to files are followed.

    Raises:
        OSError: for a path that does not exist or cannot be read.
        ArgumentError: for something that is neither file nor directory, for a link to a directory inside a
            tree, or for two paths that would get the same name.
    """
    found: dict[str, Source] = {}
    for path in paths:
        for source in _below(path):
            clash = found.setdefault(source.entry.path, source)
            if clash is not source:
                both = f"{clash.local} and {source.local}"
                raise ArgumentError(f"{both} would both become {source.entry.path}; send them one at a time")
    return list(found.values())


def _below(path: Path) -> Iterator[Source]:
    # "." and "dir/.." have no name of their own.
    base = path.resolve() if path.name in ("", "..") else path
    if not base.name:
        raise ArgumentError(f"{path} has no name to store it under")
    if base.is_dir():
        yield from _tree(base, base.name)
    else:
        yield _file(base, base.name)


def _tree(directory: Path, name: str) -> Iterator[Source]:
    names = sorted(os.listdir(directory))  # noqa: PTH208 - names are wanted, not paths
    if not names:
        yield Source(directory, Entry(path=name, directory=True))
    for below in names:
        local = directory / below
        if not local.is_dir():
            yield _file(local, f"{name}/{below}")
        elif local.is_symlink():
            raise ArgumentError(f"{local} is a symbolic link to a directory; name that directory itself")
        else:
            yield from _tree(local, f"{name}/{below}")


def _file(local: Path, name: str) -> Source:
    status = local.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ArgumentError(f"{local} is neither a file nor a directory")
    # An unreadable file is found now, not after an hour of sending others.
    with local.open("rb"):
        pass
    try:
        name = os.fsencode(name).decode()  # In every locale the bytes of the name.
    except UnicodeDecodeError:
        raise ArgumentError(f"the name of {os.fsencode(local)!r} is not UTF-8") from None
    return Source(local, Entry(path=name, size=status.st_size, mode=stat.S_IMODE(status.st_mode) & 0o777))
