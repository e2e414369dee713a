"""The state of a lab between commands: a directory in /run with its specification and its faults."""

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from openmrc.errors import ArgumentError, FormatError, StateError
from openmrc.files import write_text
from openmrc.lab.system import NAMESPACES

ROOT = Path(os.environ.get("OPENMRC_LAB_STATE", "/run/openmrc/lab"))
"""It is lost at a reboot, like the namespaces."""

SPECIFICATION = "fabric.yaml"
_OWN_NAMESPACE = Path("/proc/self/ns/net")
_STATE = "state.json"
_LOCK = "lock"


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
    delay: dict[str, float] = field(default_factory=dict)
    """Seconds added in each direction, by name of the link."""
    rate: dict[str, int] = field(default_factory=dict)
    """Bits per second in each direction, by name of the link."""

    soft: dict[str, int] = field(default_factory=dict)
    """Process ids of the soft switches, by name of the switch."""

    @property
    def directory(self) -> Path:
        """The directory of the state."""
        return ROOT / self.name

    @property
    def impaired(self) -> list[str]:
        """Names of the links that lose or delay packets, or are slower than they should be."""
        return list(dict.fromkeys([*self.loss, *self.delay, *self.rate]))

    def save(self) -> None:
        """Writes the file, completely or not at all."""
        self.directory.mkdir(parents=True, exist_ok=True)
        write_text(self.directory / _STATE, json.dumps(asdict(self), indent=1))

    def forget(self) -> None:
        """Removes it."""
        shutil.rmtree(self.directory, ignore_errors=True)

    @classmethod
    def load(cls, name: str) -> Self:
        """The state of the lab with this name.

        Raises:
            StateError: if there is none.
        """
        try:
            text = (ROOT / name / _STATE).read_text(encoding="utf-8")
        except FileNotFoundError:
            raise StateError(f"no lab {name} is up; start it with `openmrc lab up`") from None
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise FormatError(f"{ROOT / name / _STATE}: {error}; remove the directory") from None


def names() -> list[str]:
    """The labs that have a state."""
    return sorted(entry.parent.name for entry in ROOT.glob(f"*/{_STATE}"))


def the_name(name: str | None) -> str:
    """The name, or the name of the only lab.

    Raises:
        StateError: if there is none.
        ArgumentError: if there are several.
    """
    if name is not None:
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
    ROOT.mkdir(parents=True, exist_ok=True)
    with (ROOT / _LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
