"""The C interface that the wheel carries: where its headers and libraries are, and environments that use it.

The wheel has one library, ``libopenmrc.so.0``. It must not be copied: the dynamic linker recognises a library
by its file, and a process with two copies would have two devices. Its other names are symbolic links, which a
wheel cannot carry, so they are made when they are first asked for.

Beside it, in a directory of its own, is a ``libibverbs.so.1`` that leads to it, for programs that load that
name.
"""

import errno
import hashlib
import os
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from openmrc.errors import Error

SONAME = "libopenmrc.so.0"
LINKS = ("libopenmrc.so", "libmrc.so", "lib_mrc.so", "libnv_mrc.so", "libopenmrc-verbs.so")
"""Other names of the library, for linking and for preloading."""
LIBIBVERBS = ("libibverbs.so.1", "libibverbs.so")
"""Names by which programs load verbs; the second is a link to the first."""
TEMPORARY = "/tmp"
"""Every system has it; TMPDIR may name another one, of which nothing is known."""
HEADERS = ("mrc.h", "mrc_api_ver.h", "mrc_ctl.h", "mrc_ctl_api_ver.h")


def include_directory() -> Path:
    """Print the directory of the headers."""
    return Path(__file__).parent / "include"


def library() -> Path:
    """The library itself.

    Raises:
        Error: if this installation was built without it.
    """
    path = Path(__file__).parent / "lib" / SONAME
    if not path.is_file():
        raise Error(f"this installation has no C library: {path} is missing; `make wheel` builds it")
    return path


def library_directory() -> Path:
    """A directory with the library under all its names, and with the headers.

    It is the library's own, or, where that cannot be written, one in the user's cache.

    Raises:
        Error: if this installation was built without the library.
        OSError: if neither directory can be written.
    """
    source = library()
    try:
        return _linked(source.parent, source)
    except OSError:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        directory = cache / "openmrc" / "lib"
        directory.mkdir(parents=True, exist_ok=True)
        return _linked(directory, source)


def libibverbs_directory() -> Path:
    """A directory with ``libibverbs.so.1`` of openmrc under its names, for LD_LIBRARY_PATH.

    Raises:
        Error: if this installation was built without it.
        OSError: if there is no place for its second name.
    """
    if not (source := library().parent / "libibverbs" / LIBIBVERBS[0]).is_file():
        raise Error(f"this installation has no libibverbs: {source} is missing; `make wheel` builds it")
    return library_directory() / "libibverbs"


def _linked(directory: Path, source: Path) -> Path:
    targets = {directory / name: source for name in (SONAME, *LINKS)}
    targets |= {directory / name: include_directory() / name for name in HEADERS}
    verbs = source.parent / "libibverbs" / LIBIBVERBS[0]
    if verbs.is_file():
        # It looks for the library in the directory above the one that led to it.
        (directory / verbs.parent.name).mkdir(exist_ok=True)
        targets |= {directory / verbs.parent.name / name: verbs for name in LIBIBVERBS}
    for link, target in targets.items():
        if link == target or (link.is_symlink() and link.resolve() == target):
            continue
        _make_link(link, Path(target.name) if target.parent == link.parent else target)
    return directory


def _make_link(link: Path, target: Path) -> None:
    # Another process may make the same link: the last one wins, and there is always one.
    temporary = link.with_name(f".{link.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(link)


def preloaded(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which unmodified verbs programs find openmrc's devices.

    The library is preloaded, for programs that are linked to libibverbs, and openmrc's libibverbs.so.1 comes
    first in LD_LIBRARY_PATH, for programs that load it by name.

    Raises:
        Error: if this installation was built without the library.
        OSError: if there is no place for a link to it.
    """
    ours = {"LD_PRELOAD": preload(), "LD_LIBRARY_PATH": library_path()}
    others = {name: environment.get(name, "") for name in ours}
    return {**environment, **{name: f"{own}:{others[name]}".rstrip(":") for name, own in ours.items()}}


def preload() -> str:
    """The library as LD_PRELOAD takes it, which is split at spaces and colons and expands ``$``.

    If the path of this installation has one of them, it is a symbolic link in a directory of this user, which
    stays: programs that the program starts need it too.

    Raises:
        Error: if this installation was built without the library, or there is no place for the link.
    """
    return _plain(library(), "LD_PRELOAD")


def library_path() -> str:
    """The directory of openmrc's libibverbs as LD_LIBRARY_PATH takes it; as :func:`preload`.

    Raises:
        Error: as :func:`preload`.
        OSError: if there is no place for its second name.
    """
    return _plain(libibverbs_directory(), "LD_LIBRARY_PATH")


def _plain(path: Path, variable: str) -> str:
    """A path, or a link to it, that the dynamic linker reads as one."""
    if not _has_special(path):
        return str(path)
    reason = "no directory for temporary files without these characters"
    for base in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), TEMPORARY):
        if base is None or _has_special(base):
            continue
        try:
            directory = _private(Path(base) / f"openmrc-{os.geteuid()}")
            link = directory / f"{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}-{path.name}"
            _make_link(link, path)
        except OSError as error:
            reason = f"{error.filename or base}: {error.strerror}"
            continue
        return str(link)
    raise Error(f"{variable} is split at spaces and colons, which {path} has, and a link failed: {reason}")


def _has_special(path: Path | str) -> bool:
    return any(letter in str(path) for letter in " :;$")


def _private(directory: Path) -> Path:
    """A directory that only this user can change."""
    with suppress(FileExistsError):
        directory.mkdir(0o700)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise OSError(errno.EPERM, "others may change it", str(directory))
    return directory
