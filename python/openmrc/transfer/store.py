"""Stores received files below one directory; a file gets its name only when it is complete and correct.

Paths come from the network: each is walked directory by directory from the root's descriptor, without
following symbolic links, so that neither ``..`` nor a link leads outside.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import xxhash

from openmrc.closing import Closable
from openmrc.transfer.incoming import RESERVED, Incoming, StoreError, mount_of, remove_leftovers
from openmrc.transfer.protocol import Entry, IfExists, Verdict
from openmrc.units import size

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without waiting: the name may have become that of a pipe.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NAME_MAX = 255
_PIECE = 4 << 20
_SHOWN = 200
_EXECUTABLE = 0o111


@dataclass(frozen=True, slots=True)
class Rights:
    """What senders may do besides adding files. Each is the receiver's to allow."""

    replace: bool = False
    """Replace files that exist."""
    digests: bool = False
    """Learn the digest of a file that exists, so that only files that differ are sent."""
    executable: bool = False
    """Make files executable. Set-user-ID and the like are never taken over."""


def split(path: str) -> tuple[str, ...]:
    """The names of a relative path.

    Raises:
        StoreError: if it is absolute, or has an empty name, ``.`` or ``..``.
    """
    names = tuple(path.split("/"))
    for name in names:
        if name in ("", ".", "..") or "\0" in name:
            raise StoreError(f"{path[:_SHOWN]!r} is not a path below the receiver's directory")
        if name.startswith(RESERVED):
            raise StoreError(f"names that begin with {RESERVED} are the receiver's own")
        try:
            encoded = name.encode()
        except UnicodeEncodeError:
            raise StoreError(f"{path[:_SHOWN]!r} is not UTF-8") from None
        if len(encoded) > _NAME_MAX:
            raise StoreError(f"{path[:_SHOWN]!r} has a name of more than {_NAME_MAX} bytes")
    # The same bytes on every host, whatever its locale.
    return tuple(os.fsdecode(name.encode()) for name in names)


def describe(error: OSError) -> str:
    """The system's text of an error, without the path, which the reader knows."""
    return error.strerror or str(error)


class Store(Closable):
    """A directory that receives files.

    Args:
        root: The directory. It is kept open, so renaming it has no effect.
        sync: Whether a file must be on the disk, and not only in the page cache, before it gets its name.
        rights: What senders may do besides adding files.

    What killed runs left behind is removed now.

    Raises:
        OSError: if it is not a directory or cannot be opened.
    """

    def __init__(self, root: Path, *, sync: bool = True, rights: Rights | None = None) -> None:
        self.root = root
        self.rights = rights or Rights()
        self._sync = sync
        # Read now: without a free descriptor it could not be read later.
        self._umask = _umask()
        self._fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._mount = mount_of(self._fd)
        self._tidied: set[tuple[int, int]] = set()
        self.leftovers = remove_leftovers(self._fd)
        """How many files of killed runs were removed."""

    def free_bytes(self) -> int:
        """Bytes that this user can still store on the file system."""
        fs = os.fstatvfs(self._fd)
        return fs.f_bavail * fs.f_frsize

    def review(self, if_exists: IfExists) -> "Review":
        """Begins to check what a sender announces."""
        return Review(self, if_exists)

    def create(self, entry: Entry, if_exists: IfExists) -> "Incoming":
        """Creates a file, and its directories if needed.

        Raises:
            StoreError: if its path is refused.
            OSError: if the system refuses.
        """
        names = split(entry.path)
        mode = entry.mode & 0o777 & ~self._umask
        if not self.rights.executable:
            mode &= ~_EXECUTABLE
        replace = if_exists != "refuse" and self.rights.replace
        parent = self._walk(names[:-1], make=True)
        try:
            hidden_at = self._fd if mount_of(parent) == self._mount else parent
            if hidden_at == parent:
                self._tidy(parent)
            return Incoming(parent, hidden_at, names[-1], entry, mode=mode, replace=replace, sync=self._sync)
        except BaseException:
            os.close(parent)
            raise

    def make_directory(self, entry: Entry) -> None:
        """Makes a directory if it does not exist.

        Raises:
            StoreError: if its path is refused.
            OSError: if the system refuses.
        """
        os.close(self._walk(split(entry.path), make=True))

    def close(self) -> None:
        """Closes the directory."""
        os.close(self._fd)

    def judge(self, entry: Entry, if_exists: IfExists) -> Verdict:
        """Checks one entry; changes nothing.

        Raises:
            StoreError: if it is refused.
            OSError: if the system refuses.
        """
        names = split(entry.path)
        try:
            parent = self._walk(names if entry.directory else names[:-1], make=False)
        except FileNotFoundError:
            return Verdict()
        try:
            if not os.access(".", os.W_OK | os.X_OK, dir_fd=parent):
                raise StoreError("no permission to write there")
            if entry.directory:
                return Verdict()
            return self._compare(parent, names[-1], entry, if_exists)
        finally:
            os.close(parent)

    def _compare(self, parent: int, name: str, entry: Entry, if_exists: IfExists) -> Verdict:
        """What is to be done about a name that may be taken."""
        try:
            found = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return Verdict()
        if stat.S_ISDIR(found.st_mode):
            raise StoreError("there is a directory of this name")
        if if_exists == "refuse":
            raise StoreError("exists already (use --if-exists replace or update)")
        same_size = stat.S_ISREG(found.st_mode) and found.st_size == entry.size
        if if_exists == "update" and same_size and self.rights.digests:
            with os.fdopen(os.open(name, _FILE, dir_fd=parent), "rb") as file:
                return Verdict(digest=digest_of(file), keep=not self.rights.replace)
        if not self.rights.replace:
            raise StoreError(
                "exists already, and the receiver lets nothing be replaced (serve --allow-replace)"
            )
        return Verdict()

    def _tidy(self, directory: int) -> None:
        """Removes what killed runs left in a directory of another mount, whose hidden names are in itself."""
        status = os.fstat(directory)
        if (key := (status.st_dev, status.st_ino)) not in self._tidied:
            self._tidied.add(key)
            remove_leftovers(directory)

    def _walk(self, names: tuple[str, ...], *, make: bool) -> int:
        """A descriptor of the directory with these names; the caller closes it."""
        at = os.dup(self._fd)
        try:
            for name in names:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(name, dir_fd=at)
                try:
                    below = os.open(name, _DIRECTORY, dir_fd=at)
                except OSError as error:
                    if error.errno in (errno.ENOTDIR, errno.ELOOP):
                        raise StoreError(
                            f"{name[:_SHOWN]!r} in its path is a file or a symbolic link"
                        ) from None
                    raise
                os.close(at)
                at = below
        except BaseException:
            os.close(at)
            raise
        return at


class Review:
    """Checks what one sender announces, piece by piece, before any byte is sent; changes nothing."""

    def __init__(self, store: Store, if_exists: IfExists) -> None:
        self._store = store
        self._if_exists = if_exists
        self._seen: set[str] = set()
        self._needed = 0

    def judge(self, entries: Sequence[Entry]) -> list[Verdict]:
        """Checks the next entries.

        Raises:
            StoreError: if there is not enough space for all that was announced so far.
        """
        verdicts = []
        for entry in entries:
            verdict = self._judge(entry)
            if verdict == Verdict():
                self._needed += entry.size
            verdicts.append(verdict)
        free = self._store.free_bytes()
        if self._needed > free:
            raise StoreError(f"no space: {size(self._needed)} are needed, {size(free)} are free")
        return verdicts

    def _judge(self, entry: Entry) -> Verdict:
        try:
            if entry.path in self._seen:
                raise StoreError("is in the list twice")
            verdict = self._store.judge(entry, self._if_exists)
            self._seen.add(entry.path)
        except StoreError as error:
            return Verdict(error=str(error))
        except OSError as error:
            return Verdict(error=describe(error))
        return verdict


def digest_of(file: IO[bytes], after_piece: Callable[[], None] = lambda: None) -> str:
    """XXH3-128 of a file that is open for reading; ``after_piece`` is called every 4 MiB."""
    digest = xxhash.xxh3_128()
    while piece := file.read(_PIECE):
        digest.update(piece)
        after_piece()
    return str(digest.hexdigest())


def _umask() -> int:
    # os.umask can be read only by setting it, for all threads of the process.
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    return 0o022
