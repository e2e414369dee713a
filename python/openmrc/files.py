"""Files of the user: read within a limit, and written completely or not at all.

Every command reads its input files with :func:`read_text` or :func:`read_bytes`, and writes its results with
:func:`replacing` or :func:`new_directory`. A result gets its name only when all of it is there, so a full
disk, an error or Ctrl-C leaves what was there before.
"""

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from openmrc.errors import ArgumentError, Error, FormatError
from openmrc.units import size

MOST_BYTES = 64 << 20
"""Limit of an input file, unless its reader has a lower one."""

_KINDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISSOCK, "a socket"),
)
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What the system says when no more can be written: disk, quota, limit of the process."""
_DRAFT = ".openmrc-draft-"
"""Beginning of the names of unfinished directories in an empty one."""


def _flags(*names: str) -> int:
    """Those of these flags of open(2) that the system has: plans and simulations need no Linux."""
    return sum(getattr(os, name, 0) for name in names)


def read_bytes(path: Path, *, most: int = MOST_BYTES) -> bytes:
    """The contents of a regular file.

    Args:
        path: The file.
        most: Limit of its size, bytes.

    Raises:
        FormatError: if it is no regular file, or larger than the limit.
        OSError: if it cannot be read.
    """
    # A named pipe without a writer would block in open(), and a terminal could become ours.
    fd = os.open(path, os.O_RDONLY | _flags("O_CLOEXEC", "O_NONBLOCK", "O_NOCTTY", "O_BINARY"))
    try:
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(status.st_mode):
            kind = next((name for test, name in _KINDS if test(status.st_mode)), "no file")
            raise FormatError(f"{path} is {kind}; a regular file is expected")
        # One byte more: a file can be longer than its size says, as those of /proc are.
        with os.fdopen(fd, "rb", closefd=False) as file:
            found = file.read(min(most, status.st_size or most) + 1)
            found += file.read(most + 1 - len(found))
    finally:
        os.close(fd)
    if len(found) > most:
        raise FormatError(f"{path} is larger than {size(most)}, the most that is read")
    return found


def read_text(path: Path, *, most: int = MOST_BYTES, errors: str = "strict") -> str:
    """The text of a regular file, UTF-8.

    Args:
        path: The file.
        most: Limit of its size, bytes.
        errors: ``strict``, or ``replace`` for text of others that is only searched.

    Raises:
        FormatError: if it is no regular file, larger than the limit, or no UTF-8 text.
        OSError: if it cannot be read.
    """
    try:
        text = read_bytes(path, most=most).decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: not UTF-8 text at byte {error.start}") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


class Draft:
    """A file that is being written: beside its name until :meth:`commit`, which gives it the name.

    A name that is a symbolic link stays one, and its target is replaced. What is no regular file, such as
    ``/dev/stdout``, is written directly.

    Args:
        path: The name.
        mode: ``w`` or ``wb``.
        newline: As of :func:`open`.
        sync: Whether the contents must be on the disk before the file gets its name, so that a crash of the
            machine leaves no empty file.
        permissions: Of a new file, less the umask.

    Raises:
        OSError: if it cannot be made, naming ``path``.
    """

    def __init__(
        self,
        path: Path | str | os.PathLike[str],
        mode: str = "w",
        *,
        newline: str | None = None,
        sync: bool = True,
        permissions: int = 0o666,
    ) -> None:
        self.path = Path(path)
        self._sync = sync
        self._target = Path(os.path.realpath(path))
        self._draft: Path | None = None
        text: dict[str, Any] = {} if "b" in mode else {"encoding": "utf-8", "newline": newline}
        with named(self.path):
            before = self._before()
            if before is not None and not stat.S_ISREG(before.st_mode):
                self.file: IO[Any] = self.path.open(mode, **text)
                return
            draft = self._target.with_name(f".{self._target.name[:100]}.{secrets.token_hex(4)}.part")
            fd = os.open(draft, _NEW, 0o600 if before else permissions)
            self._draft = draft
            if before is not None:
                # As it would be if it were written anew.
                with suppress(OSError):
                    os.fchown(fd, before.st_uid, before.st_gid)
                os.fchmod(fd, stat.S_IMODE(before.st_mode))
            self.file = os.fdopen(fd, mode, **text)

    def _before(self) -> os.stat_result | None:
        """What has the name now."""
        try:
            return self.path.stat()
        except FileNotFoundError:
            return None

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Gives an OSError of the block the name of the file, and the sizes if it is full."""
        with named(self.path, self._draft):
            yield

    def commit(self) -> None:
        """Writes what is buffered, and gives the file its name.

        Raises:
            OSError: if the system refuses, naming the file; what had the name before is still there.
        """
        try:
            with self.writing():
                self.file.flush()
                if self._draft is not None and self._sync:
                    os.fsync(self.file.fileno())
                self.file.close()
                if self._draft is not None:
                    self._draft.replace(self._target)
                    self._draft = None
        finally:
            self.discard()

    def discard(self) -> None:
        """Closes the file; without its name it is gone then. Calling it twice is harmless."""
        with suppress(OSError):
            self.file.close()
        if self._draft is not None:
            with suppress(OSError):
                self._draft.unlink()
            self._draft = None


_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _flags("O_CLOEXEC", "O_BINARY")


@contextmanager
def replacing(
    path: Path | str | os.PathLike[str],
    mode: str = "w",
    *,
    newline: str | None = None,
    sync: bool = True,
    permissions: int = 0o666,
) -> Iterator[IO[Any]]:
    """Yields a file that gets its name at the end of the block; see :class:`Draft`.

    Raises:
        OSError: if the system refuses, naming the file and, on a full disk, the sizes.
    """
    draft = Draft(path, mode, newline=newline, sync=sync, permissions=permissions)
    try:
        with draft.writing():
            yield draft.file
        draft.commit()
    finally:
        draft.discard()


def write_text(path: Path | str, text: str, *, sync: bool = True, permissions: int = 0o666) -> None:
    """Writes a file of UTF-8 text, completely or not at all.

    Raises:
        OSError: as :func:`replacing`.
    """
    with replacing(path, "wb", sync=sync, permissions=permissions) as file:
        file.write(text.encode())


def write_bytes(path: Path | str, contents: bytes, *, sync: bool = True) -> None:
    """Writes a file, completely or not at all.

    Raises:
        OSError: as :func:`replacing`.
    """
    with replacing(path, "wb", sync=sync) as file:
        file.write(contents)


@contextmanager
def named(path: Path, draft: Path | None = None) -> Iterator[None]:
    """Gives an OSError of the block the name of the file, and the sizes where no more could be written.

    Args:
        path: The name that the user knows.
        draft: The file that is written, if it has another name.

    Raises:
        OSError: what the block raises, with the name.
    """
    try:
        yield
    except OSError as error:
        others = error.filename not in (None, str(path), str(draft)) and error.filename2 is None
        if isinstance(error, Error) or error.errno is None or others:
            raise
        raise OSError(error.errno, _reason(error, path, draft), str(path)) from None


def _reason(error: OSError, path: Path, draft: Path | None) -> str:
    reason = os.strerror(error.errno or errno.EIO)
    if error.errno not in _FULL:
        return reason
    with suppress(OSError):
        written = (draft or path).stat().st_size
        disk = os.statvfs((draft or path).parent)
        free = disk.f_bavail * disk.f_frsize
        return f"{reason}: {size(written)} were written, {size(free)} are free"
    return reason


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Yields a directory to be filled; at the end of the block it is ``path``, or its files are in ``path``.

    After an error or an interrupt nothing is left.

    Args:
        path: A directory that does not exist or is empty.

    Raises:
        ArgumentError: if it is not empty.
        OSError: if the system refuses, naming the file.
    """
    exists = path.exists()
    if exists and any(path.iterdir()):
        raise ArgumentError(f"{path} is not empty; an empty directory is needed")
    if not exists:
        path.parent.mkdir(parents=True, exist_ok=True)
    # A directory that exists cannot be replaced: it may be a mount, or where somebody's shell is.
    draft = (path if exists else path.parent) / f"{_DRAFT}{secrets.token_hex(4)}"
    try:
        draft.mkdir()
        yield draft
        if exists:
            for child in draft.iterdir():
                child.rename(path / child.name)
            draft.rmdir()
        else:
            draft.rename(path)
    except OSError as error:
        if isinstance(error, Error) or not str(error.filename).startswith(str(draft)):
            raise
        name = str(path) + str(error.filename).removeprefix(str(draft))
        raise OSError(error.errno, error.strerror, name) from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
