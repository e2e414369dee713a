"""Stores received files below one directory; a file gets its name only when it is complete and correct.

A file is written without a name (``O_TMPFILE``) and named in one step at the end, so no interruption, not
even SIGKILL, leaves a partial file under the name. File systems without nameless files get a hidden name
instead.
Paths come from the network: each is walked directory by directory from the root's descriptor, without
following symbolic links, so that neither ``..`` nor a link leads outside.
"""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import xxhash

from openmrc.closing import Closable
from openmrc.errors import Error
from openmrc.transfer.protocol import Entry, IfExists, Verdict

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_NAME_MAX = 255
_PIECE = 4 << 20


class StoreError(Error):
    """An entry that cannot be stored; the message is for the sender."""


def split(path: str) -> tuple[str, ...]:
    """The names of a relative path.

    Raises:
        StoreError: if it is absolute, or has an empty name, ``.`` or ``..``.
    """
    names = tuple(path.split("/"))
    for name in names:
        if name in ("", ".", "..") or "\0" in name:
            raise StoreError(f"{path!r} is not a path below the receiver's directory")
        if len(os.fsencode(name)) > _NAME_MAX:
            raise StoreError(f"{path!r} has a name of more than {_NAME_MAX} bytes")
    return names


def describe(error: OSError) -> str:
    """The system's text of an error, without the path, which the reader knows."""
    return error.strerror or str(error)


class Store(Closable):
    """A directory that receives files.

    Args:
        root: The directory. It is kept open, so renaming it has no effect.
        sync: Whether a file must be on the disk, and not only in the page cache, before it gets its name.

    Raises:
        OSError: if it is not a directory or cannot be opened.
    """

    def __init__(self, root: Path, *, sync: bool = True) -> None:
        self.root = root
        self._sync = sync
        self._fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def free_bytes(self) -> int:
        """Bytes that this user can still store on the file system."""
        fs = os.fstatvfs(self._fd)
        return fs.f_bavail * fs.f_frsize

    def judge(self, entries: Sequence[Entry], if_exists: IfExists) -> list[Verdict]:
        """Checks all entries before any byte is sent; changes nothing.

        Raises:
            StoreError: if there is not enough space for all of them.
        """
        seen: set[tuple[str, ...]] = set()
        verdicts = []
        for entry in entries:
            try:
                names = split(entry.path)
                if names in seen:
                    raise StoreError("is in the list twice")
                seen.add(names)
                verdicts.append(Verdict(digest=self._judge(names, entry, if_exists)))
            except StoreError as error:
                verdicts.append(Verdict(error=str(error)))
            except OSError as error:
                verdicts.append(Verdict(error=describe(error)))
        needed = sum(e.size for e, v in zip(entries, verdicts, strict=True) if v == Verdict())
        if needed > self.free_bytes():
            raise StoreError(
                f"no space: {needed / 1e9:.1f} GB are needed, {self.free_bytes() / 1e9:.1f} GB are free"
            )
        return verdicts

    def create(self, entry: Entry, if_exists: IfExists) -> "Incoming":
        """Creates a file, and its directories if needed.

        Raises:
            StoreError: if its path is refused.
            OSError: if the system refuses.
        """
        names = split(entry.path)
        parent = self._walk(names[:-1], make=True)
        try:
            return Incoming(parent, names[-1], entry, replace=if_exists != "refuse", sync=self._sync)
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

    def _judge(self, names: tuple[str, ...], entry: Entry, if_exists: IfExists) -> str | None:
        try:
            parent = self._walk(names if entry.directory else names[:-1], make=False)
        except FileNotFoundError:
            return None
        try:
            if not os.access(".", os.W_OK | os.X_OK, dir_fd=parent):
                raise StoreError("no permission to write there")
            if entry.directory:
                return None
            try:
                found = os.stat(names[-1], dir_fd=parent, follow_symlinks=False)
            except FileNotFoundError:
                return None
            if stat.S_ISDIR(found.st_mode):
                raise StoreError("there is a directory of this name")
            if if_exists == "refuse":
                raise StoreError("exists already (use --if-exists replace or update)")
            if if_exists == "update" and stat.S_ISREG(found.st_mode) and found.st_size == entry.size:
                with os.fdopen(os.open(names[-1], _FILE, dir_fd=parent), "rb") as file:
                    return digest_of(file)
            return None
        finally:
            os.close(parent)

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
                        raise StoreError(f"{name!r} in its path is a file or a symbolic link") from None
                    raise
                os.close(at)
                at = below
        except BaseException:
            os.close(at)
            raise
        return at


class Incoming:
    """A file that is being received: nameless until :meth:`commit`.

    It owns ``parent``, a descriptor of its directory.
    """

    def __init__(self, parent: int, name: str, entry: Entry, *, replace: bool, sync: bool) -> None:
        self.entry = entry
        self.received = 0
        self._hash = xxhash.xxh3_128()
        self._name = name
        self._replace = replace
        self._sync = sync
        self._hidden: str | None = None
        self._fd = self._open_nameless(parent)
        self._parent = parent

    def _open_nameless(self, parent: int) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC
        try:
            fd = os.open(".", flags | os.O_TMPFILE, 0o600, dir_fd=parent)
            if os.path.exists(f"/proc/self/fd/{fd}"):  # noqa: PTH110 - not a path of the user's
                return fd
            os.close(fd)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
                raise
        self._hidden = _hidden_name()
        return os.open(self._hidden, flags | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=parent)

    def write(self, data: memoryview) -> None:
        """Appends bytes.

        Raises:
            StoreError: if the file becomes longer than announced.
            OSError: if the system refuses, for example without space.
        """
        if self.received + len(data) > self.entry.size:
            raise StoreError(f"more arrived than the {self.entry.size} bytes that were announced")
        self._hash.update(data)
        while data:
            written = os.pwrite(self._fd, data, self.received)
            self.received += written
            data = data[written:]

    @property
    def complete(self) -> bool:
        """Whether all bytes have been written."""
        return self.received == self.entry.size

    def commit(self, digest: str) -> str:
        """Checks the digest, then gives the file its name and closes it. Returns the digest.

        Raises:
            StoreError: if the digest is wrong, or the name has been taken in the meantime.
            OSError: if the system refuses, for example to write cached data.
        """
        try:
            mine = self._hash.hexdigest()
            if mine != digest:
                raise StoreError(f"checksum mismatch: {digest} was sent, {mine} arrived")
            os.fchmod(self._fd, self.entry.mode & ~_umask())
            if self._sync:
                os.fsync(self._fd)
            self._give_name()
            if self._sync:
                os.fsync(self._parent)
            return mine
        finally:
            self.discard()

    def _give_name(self) -> None:
        at = self._parent
        try:
            if self._hidden is None and not self._replace:
                os.link(f"/proc/self/fd/{self._fd}", self._name, dst_dir_fd=at)
                return
            if self._hidden is None:
                # A link cannot replace a name. A rename can, but it needs a name to start from.
                hidden = _hidden_name()
                os.link(f"/proc/self/fd/{self._fd}", hidden, dst_dir_fd=at)
                self._hidden = hidden
            if self._replace:
                os.rename(self._hidden, self._name, src_dir_fd=at, dst_dir_fd=at)
                self._hidden = None
            else:
                os.link(self._hidden, self._name, src_dir_fd=at, dst_dir_fd=at)
        except FileExistsError:
            raise StoreError("the name was taken while the file was sent") from None

    def discard(self) -> None:
        """Closes it; a file without a name is gone then. Calling it twice is harmless."""
        if self._fd < 0:
            return
        if self._hidden is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._hidden, dir_fd=self._parent)
        os.close(self._fd)
        os.close(self._parent)
        self._fd = -1


def _hidden_name() -> str:
    return f".openmrc-{secrets.token_hex(8)}"


def digest_of(file: IO[bytes]) -> str:
    """XXH3-128 of a file that is open for reading."""
    digest = xxhash.xxh3_128()
    while piece := file.read(_PIECE):
        digest.update(piece)
    return str(digest.hexdigest())


def _umask() -> int:
    # os.umask can be read only by setting it, for all threads of the process.
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    return 0o022
