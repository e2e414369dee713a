"""A file that is being received: without its name until it is complete and its checksum is right.

Hidden names are for file systems without nameless files or hard links, and for replacing a file. What a
killed run leaves under such names, the next run removes (:func:`remove_leftovers`).
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

import xxhash

from openmrc.errors import Error
from openmrc.transfer.protocol import Entry

RESERVED = ".openmrc-"
"""Beginning of hidden names; no sender may use it."""

_HIDDEN = re.compile(re.escape(RESERVED) + r"[0-9a-f]{16}")
_WITHOUT_LOCKS = 86_400.0
"""Seconds after which a hidden file counts as left behind where files cannot be locked."""

_NOT_SUPPORTED = frozenset(
    {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EISDIR, errno.EPERM, errno.EMLINK, errno.EXDEV}
)
"""How file systems say that they lack nameless files, hard links, renames without replacement, or locks."""

_RENAME_NOREPLACE = 1
_PIECE = 1 << 20


class StoreError(Error):
    """An entry that cannot be stored; the message is for the sender."""


class Incoming:
    """A file that is being received: nameless or hidden until :meth:`commit`.

    Args:
        parent: Descriptor of its directory; closed with the file.
        hidden_at: Descriptor of the directory for its hidden name, on the same mount.
        name: What it will be called.
        entry: What the sender announced.
        mode: Its permissions.
        replace: Whether a file of that name may be replaced.
        sync: Whether it must be on the disk before it gets its name.

    Raises:
        OSError: if it cannot be made.
    """

    def __init__(
        self, parent: int, hidden_at: int, name: str, entry: Entry, *, mode: int, replace: bool, sync: bool
    ) -> None:
        self.entry = entry
        self.received = 0
        self._hash = xxhash.xxh3_128()
        self._name = name
        self._mode = mode
        self._replace = replace
        self._sync = sync
        self._parent = parent
        self._hidden_at = hidden_at
        self._hidden: str | None = None
        self._fd = self._open()

    @property
    def complete(self) -> bool:
        """Whether all bytes have been written."""
        return self.received == self.entry.size

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

    def commit(self, digest: str) -> str:
        """Checks the digest, then gives the file its name and closes it. Returns the digest.

        Raises:
            StoreError: if the digest is wrong, or the name has been taken in the meantime.
            OSError: if the system refuses, for example to write cached data.
        """
        try:
            mine = self._hash.hexdigest()
            if mine != digest:
                raise StoreError(f"checksum mismatch: {digest[:64]} was sent, {mine} arrived")
            self._set_mode()
            if self._sync:
                os.fsync(self._fd)
            self._give_name()
            if self._sync:
                os.fsync(self._parent)
            return mine
        finally:
            self.discard()

    def discard(self) -> None:
        """Closes it; a file without its name is gone then. Calling it twice is harmless."""
        if self._fd < 0:
            return
        if self._hidden is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._hidden, dir_fd=self._hidden_at)
        os.close(self._fd)
        os.close(self._parent)
        self._fd = -1

    def _open(self) -> int:
        try:
            fd = os.open(".", os.O_RDWR | os.O_CLOEXEC | os.O_TMPFILE, 0o600, dir_fd=self._parent)
            if os.path.exists(f"/proc/self/fd/{fd}"):  # noqa: PTH110 - not a path of the user's
                return fd
            os.close(fd)
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED:
                raise
        return self._open_hidden()

    def _open_hidden(self) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL
        while True:
            self._hidden = _hidden_name()
            fd = os.open(self._hidden, flags, 0o600, dir_fd=self._hidden_at)
            _lock(fd)
            if os.fstat(fd).st_nlink:
                return fd
            os.close(fd)  # Another run took it for left behind before it was locked.

    def _set_mode(self) -> None:
        try:
            os.fchmod(self._fd, self._mode)
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED:  # File systems like VFAT cannot keep every mode.
                raise

    def _give_name(self) -> None:
        try:
            if self._hidden is None and not self._name_nameless():
                self._copy_to_hidden()
            if self._hidden is not None:
                self._rename_hidden(self._hidden)
        except FileExistsError:
            raise StoreError("the name was taken while the file was sent") from None

    def _name_nameless(self) -> bool:
        """Gives a nameless file a name, or a hidden one to rename; ``False`` if there are no hard links."""
        nameless = f"/proc/self/fd/{self._fd}"
        try:
            if not self._replace:
                os.link(nameless, self._name, dst_dir_fd=self._parent)
                return True
            # A link cannot replace a name. A rename can, but it needs a name to start from.
            hidden = _hidden_name()
            _lock(self._fd)
            os.link(nameless, hidden, dst_dir_fd=self._hidden_at)
            self._hidden = hidden
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED:
                raise
            return False
        return True

    def _copy_to_hidden(self) -> None:
        nameless = self._fd
        self._fd = self._open_hidden()
        try:
            at = 0
            while piece := os.pread(nameless, _PIECE, at):
                at += os.pwrite(self._fd, piece, at)
        finally:
            os.close(nameless)
        self._set_mode()
        if self._sync:
            os.fsync(self._fd)

    def _rename_hidden(self, hidden: str) -> None:
        source, target = (self._hidden_at, hidden), (self._parent, self._name)
        if self._replace:
            os.rename(hidden, self._name, src_dir_fd=self._hidden_at, dst_dir_fd=self._parent)
            self._hidden = None
            return
        for step in (_rename_noreplace, _link):
            try:
                step(source, target)
            except OSError as error:
                if error.errno not in _NOT_SUPPORTED:
                    raise
                continue
            self._hidden = None if step is _rename_noreplace else hidden
            return
        _rename_if_free(source, target)
        self._hidden = None


def remove_leftovers(directory: int) -> int:
    """Removes what killed runs left under hidden names in a directory; how many files that were.

    A file that a living run holds is locked, and stays.

    Args:
        directory: Its descriptor.
    """
    removed = 0
    with os.scandir(directory) as found:
        names = [entry.name for entry in found if _HIDDEN.fullmatch(entry.name)]
    for name in names:
        with contextlib.suppress(OSError):  # It has gone, or is not ours to remove.
            fd = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
            try:
                if _left_behind(fd):
                    os.unlink(name, dir_fd=directory)
                    removed += 1
            finally:
                os.close(fd)
    return removed


def _left_behind(fd: int) -> bool:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return time.time() - status.st_mtime > _WITHOUT_LOCKS
    return True


def _lock(fd: int) -> None:
    with contextlib.suppress(OSError):  # File systems without locks: see _WITHOUT_LOCKS.
        fcntl.flock(fd, fcntl.LOCK_EX)


def _hidden_name() -> str:
    return RESERVED + secrets.token_hex(8)


def mount_of(fd: int) -> str:
    """The mount that a descriptor is on. No rename goes between two mounts, even of one file system."""
    for line in Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines():
        if line.startswith("mnt_id:"):
            return line
    return str(os.fstat(fd).st_dev)


_Place = tuple[int, str]
"""Descriptor of a directory, and a name in it."""


def _rename_noreplace(source: _Place, target: _Place) -> None:
    if _renameat2 is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    (at, old), (to, new) = source, target
    if _renameat2(at, os.fsencode(old), to, os.fsencode(new), _RENAME_NOREPLACE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _link(source: _Place, target: _Place) -> None:
    (at, old), (to, new) = source, target
    os.link(old, new, src_dir_fd=at, dst_dir_fd=to)


def _rename_if_free(source: _Place, target: _Place) -> None:
    """For file systems with neither: two steps, between which only another program can take the name."""
    (at, old), (to, new) = source, target
    with _one_at_a_time:
        with contextlib.suppress(FileNotFoundError):
            os.stat(new, dir_fd=to, follow_symlinks=False)
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        os.rename(old, new, src_dir_fd=at, dst_dir_fd=to)


_one_at_a_time = threading.Lock()


def _find_renameat2() -> Callable[..., int] | None:
    # Python has no function for it; C libraries without it exist.
    found = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if found is not None:
        found.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    return found


_renameat2 = _find_renameat2()
