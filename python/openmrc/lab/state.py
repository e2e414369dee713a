"""The state of a lab between commands: a directory in /run with its specification and its faults."""

import fcntl
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from openmrc.errors import ArgumentError, FormatError, StateError
from openmrc.fabric.spec import NAME_PATTERN
from openmrc.files import read_text, write_text
from openmrc.lab.layout import namespace
from openmrc.lab.system import NAMESPACES

ROOT = Path(os.environ.get("OPENMRC_LAB_STATE", "/run/openmrc/lab"))
"""It is lost at a reboot, like the namespaces."""

SPECIFICATION = "fabric.yaml"
_OWN_NAMESPACE = Path("/proc/self/ns/net")
_STATE = "state.json"
_LOCK = ".lock"
"""No lab can have this name."""
_NAME = re.compile(NAME_PATTERN)


@dataclass
class State:
    """The state file of a lab."""

    name: str
    namespaces: list[str]
    """All namespaces, also those still to be created: the next run removes them if this one fails."""
    complete: bool = False
    """Whether it came up completely."""
    cut: list[str] = field(default_factory=list)
    """Names of links that are cut."""
    stopped: list[str] = field(default_factory=list)
    """Names of switches that are stopped."""
    loss: dict[str, float] = field(default_factory=dict)
    """Share of packets lost, by name of the link."""
    direction: dict[str, str] = field(default_factory=dict)
    """The direction of the loss, ``up`` or ``down``, by name of the link; others lose in both."""
    delay: dict[str, float] = field(default_factory=dict)
    """Seconds added in each direction, by name of the link."""
    rate: dict[str, int] = field(default_factory=dict)
    """Bits per second in each direction, by name of the link."""

    soft: dict[str, int] = field(default_factory=dict)
    """Process ids of the soft switches, by name of the switch."""

    @property
    def directory(self) -> Path:
        """The directory of the state."""
        return _directory(self.name)

    @property
    def impaired(self) -> list[str]:
        """Names of the links that lose or delay packets, or are slower than they should be."""
        return list(dict.fromkeys([*self.loss, *self.delay, *self.rate]))

    def note_loss(self, link: str, loss: float, direction: str) -> None:
        """Keeps the loss of a link; 0: it has none."""
        self.loss.pop(link, None)
        self.direction.pop(link, None)
        if loss:
            self.loss[link] = loss
            if direction != "both":
                self.direction[link] = direction

    def save(self) -> None:
        """Writes the file, completely or not at all."""
        self.directory.mkdir(0o755, parents=True, exist_ok=True)
        write_text(self.directory / _STATE, json.dumps(asdict(self), indent=1), permissions=0o644)

    def forget(self) -> None:
        """Removes it."""
        shutil.rmtree(self.directory, ignore_errors=True)

    @classmethod
    def load(cls, name: str) -> Self:
        """The state of the lab with this name.

        Raises:
            ArgumentError: if no lab can have this name.
            StateError: if there is none.
            FormatError: if others could have written it, or it is not of this lab.
        """
        file = _directory(name) / _STATE
        try:
            for path in (ROOT, file.parent, file):
                _check_owner(path)
            text = read_text(file)
        except FileNotFoundError:
            raise StateError(f"no lab {name} is up; start it with `openmrc lab up`") from None
        try:
            state = cls(**json.loads(text))
            own = re.compile(re.escape(namespace(name, "")) + "[a-z0-9-]+")
            if state.name != name or not all(map(own.fullmatch, state.namespaces)):
                raise ValueError(f"it is not of lab {name}")
        except (ValueError, TypeError, AttributeError) as error:
            raise FormatError(f"{file}: {error}; remove the directory") from None
        return state


def _directory(name: str) -> Path:
    """The directory of a lab's state."""
    if not _NAME.fullmatch(name):
        raise ArgumentError(f"{name!r} is not the name of a lab: a letter or digit, then also any of ._-")
    return ROOT / name


def _check_owner(path: Path) -> None:
    """Refuses what others could have written: root would remove what it names.

    Raises:
        FormatError: if it belongs to, or can be written by, another user.
        OSError: if it does not exist.
    """
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        raise FormatError(f"{path} is a symbolic link; the state of a lab has none")
    if status.st_uid not in (0, os.geteuid()):
        raise FormatError(f"{path} belongs to user {status.st_uid}, not to root")
    if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
        raise FormatError(f"others may write {path}: chmod go-w {path}")


def names() -> list[str]:
    """The labs that have a state."""
    return sorted(entry.parent.name for entry in ROOT.glob(f"*/{_STATE}"))


def the_name(name: str | None) -> str:
    """The name, or the name of the only lab.

    Raises:
        StateError: if there is none.
        ArgumentError: if there are several, or no lab can have this name.
    """
    if name is not None:
        _directory(name)
        return name
    up = names()
    if not up:
        raise StateError("no lab is up; start one with `openmrc lab up FABRIC.yaml`")
    if len(up) > 1:
        raise ArgumentError(f"several labs are up: {', '.join(up)}; choose one with --lab")
    return up[0]


def here() -> tuple[Path, str] | None:
    """Specification of the lab and name of the node in whose namespace this process runs, or ``None``."""
    own = _OWN_NAMESPACE.stat()
    for name in names():
        with suppress(StateError, FormatError, OSError):
            for space in State.load(name).namespaces:
                named = NAMESPACES / space
                if named.exists() and os.path.samestat(named.stat(), own):
                    return ROOT / name / SPECIFICATION, _node(name, space)
    return None


def _node(lab: str, space: str) -> str:
    """``h3`` or ``p0/t1-2``, from the name of its namespace."""
    return re.sub(r"^(p\d+)-", r"\1/", space.removeprefix(f"openmrc-{lab}-"))


@contextmanager
def locked() -> Iterator[None]:
    """Lets only one command at a time change labs."""
    ROOT.mkdir(0o755, parents=True, exist_ok=True)
    with (ROOT / _LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
