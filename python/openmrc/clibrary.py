"""The C interface that the wheel carries: where its headers and libraries are, and environments that use it.

The wheel has one library, ``libopenmrc.so.0``. It must not be copied: the dynamic linker recognises a library
by its file, and a process with two copies would have two devices. Its other names are symbolic links, which a
wheel cannot carry, so they are made when they are first asked for.
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


def _linked(directory: Path, source: Path) -> Path:
    targets = {directory / name: source for name in (SONAME, *LINKS)}
    targets |= {directory / name: include_directory() / name for name in HEADERS}
    for link, target in targets.items():
        if link == target or (link.is_symlink() and link.resolve() == target):
            continue
        _make_link(link, Path(target.name) if target.parent == directory else target)
    return directory


def _make_link(link: Path, target: Path) -> None:
    # Another process may make the same link: the last one wins, and there is always one.
    temporary = link.with_name(f".{link.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(link)


def preloaded(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which unmodified verbs programs find openmrc's devices.

    Raises:
        Error: if this installation was built without the library.
    """
    others = environment.get("LD_PRELOAD", "")
    own = preload()
    return {**environment, "LD_PRELOAD": f"{own}:{others}" if others else own}


def preload() -> str:
    """The library as LD_PRELOAD takes it, which is split at spaces and colons and expands ``$``.

    If the path of this installation has one of them, it is a symbolic link in a directory of this user, which
    stays: programs that the program starts need it too.

    Raises:
        Error: if this installation was built without the library, or there is no place for the link.
    """
    path = library()
    if not _has_special(path):
        return str(path)
    reason = "no directory for temporary files without these characters"
    for base in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), TEMPORARY):
        if base is None or _has_special(base):
            continue
        try:
            directory = _private(Path(base) / f"openmrc-{os.geteuid()}")
            link = directory / f"{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}-{SONAME}"
            _make_link(link, path)
        except OSError as error:
            reason = f"{error.filename or base}: {error.strerror}"
            continue
        return str(link)
    raise Error(f"LD_PRELOAD is split at spaces and colons, which {path} has, and a link failed: {reason}")


def _has_special(path: Path | str) -> bool:
    return any(letter in str(path) for letter in " :$")


def _private(directory: Path) -> Path:
    """A directory that only this user can change."""
    with suppress(FileExistsError):
        directory.mkdir(0o700)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise OSError(errno.EPERM, "others may change it", str(directory))
    return directory
