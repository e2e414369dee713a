"""The C interface that the wheel carries: where its headers and libraries are, and environments that use it.

The wheel has one library, ``libopenmrc.so.0``. It must not be copied: the dynamic linker recognises a library
by its file, and a process with two copies would have two devices. Its other names are symbolic links, which a
wheel cannot carry, so they are made when they are first asked for.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from openmrc.errors import Error

SONAME = "libopenmrc.so.0"
LINKS = ("libopenmrc.so", "libmrc.so", "lib_mrc.so", "libnv_mrc.so", "libopenmrc-verbs.so")
"""Other names of the library, for linking and for preloading."""
HEADERS = ("mrc.h", "mrc_api_ver.h", "mrc_ctl.h", "mrc_ctl_api_ver.h")


def include_directory() -> Path:
    """The directory of the headers."""
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
        # Another process may make the same link: the last one wins, and there is always one.
        temporary = link.with_name(f".{link.name}.{os.getpid()}")
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(os.path.relpath(target, directory) if target.parent == directory else target)
        temporary.replace(link)
    return directory


def preloaded(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which unmodified verbs programs find openmrc's devices.

    Raises:
        Error: if this installation was built without the library.
    """
    others = environment.get("LD_PRELOAD", "")
    return {**environment, "LD_PRELOAD": f"{library()}:{others}" if others else str(library())}
