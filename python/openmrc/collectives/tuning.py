"""The sizes at which the algorithm changes on this machine, as ``openmrc tune`` has measured them.

They are kept in a file. Rank 0 of a communicator reads it, and all ranks use what it has read.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from openmrc.errors import FormatError
from openmrc.files import read_text, write_text

VARIABLE = "OPENMRC_TUNING"
"""Environment variable with the name of the file; empty: none is read."""
_VERSION = 1
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """What was measured with a number of ranks."""

    ranks: int
    shared_memory: bool
    """Whether they exchanged through shared memory, or over planes."""
    direct: int
    """all_reduce, reduce_scatter and all_gather: each rank writes to all others up to this many bytes."""
    halving: int | None
    """all_reduce: by halving up to this many bytes; ``None``: the number of ranks is no power of two."""
    tree: int
    """broadcast and reduce: by a tree up to this many bytes."""

    @property
    def borders(self) -> dict[str, int]:
        """As :class:`openmrc.collectives.rendezvous.Tuned` takes them."""
        found = {"direct": self.direct, "halving": self.halving, "tree": self.tree}
        return {name: size for name, size in found.items() if size is not None}


def path() -> Path | None:
    """The file of this machine; ``None``: :data:`VARIABLE` is empty."""
    named = os.environ.get(VARIABLE)
    if named is not None:
        return Path(named) if named else None
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "openmrc" / "tuning.json"


def read() -> list[Entry]:
    """The entries of this machine's file; none if there is no file.

    Raises:
        FormatError: if it is no such file.
        OSError: if it cannot be read.
    """
    file = path()
    if file is None or not file.exists():
        return []
    try:
        found = json.loads(read_text(file, most=_MOST_BYTES))
        if found["version"] != _VERSION:
            raise ValueError(f"its version is {found['version']}, not {_VERSION}")
        return [_entry(each) for each in found["entries"]]
    except (ValueError, TypeError, KeyError) as error:
        raise FormatError(f"{file} was not written by `openmrc tune`: {error}") from None


def _entry(fields: Mapping[str, Any]) -> Entry:
    sizes = [size for name, size in fields.items() if name != "shared_memory" and size is not None]
    if not all(isinstance(size, int) and size >= 0 for size in sizes) or fields["ranks"] < 1:
        raise ValueError(f"{dict(fields)} has a size that is none")
    return Entry(**fields)


def write(entries: Sequence[Entry], file: Path) -> None:
    """Writes the file as a whole, or not at all.

    Raises:
        OSError: if it cannot be written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"version": _VERSION, "entries": [asdict(each) for each in entries]}, indent=2)
    write_text(file, text + "\n")


def choose(entries: Sequence[Entry], ranks: int, *, shared_memory: bool) -> dict[str, int]:
    """The borders for a communicator: those that were measured with the nearest number of ranks."""
    alike = [each for each in entries if each.shared_memory == shared_memory]
    if not alike:
        return {}
    return min(alike, key=lambda each: abs(math.log(each.ranks / ranks))).borders
