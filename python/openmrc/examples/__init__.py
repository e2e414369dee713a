"""The shipped examples: scenarios, fabrics, grids and jobs. ``openmrc example`` lists and writes them."""

import difflib
import re
from pathlib import Path
from typing import NamedTuple

from openmrc.errors import ArgumentError
from openmrc.files import read_bytes, write_bytes

_HERE = Path(__file__).parent
_KINDS = {"scenarios": "scenario", "fabrics": "fabric", "grids": "grid", "jobs": "job"}
_REFERENCE = re.compile(r"[\w./-]+\.(?:yaml|csv)")
_RECORDED = re.compile(r"kind: recorded, file: ([\w./-]+)")


class Example(NamedTuple):
    """A shipped example."""

    name: str
    kind: str
    """``scenario``, ``fabric``, ``grid`` or ``job``."""
    says: str
    """What it shows, in a sentence."""
    path: Path


def every() -> list[Example]:
    """All examples, by kind and name."""
    return [
        Example(path.stem, kind, _first_sentence(path), path)
        for directory, kind in _KINDS.items()
        for path in sorted((_HERE / directory).glob("*.yaml"))
    ]


def find(name: str) -> Example:
    """An example by its name; by kind and name, as ``grid/incast``, if several kinds have it.

    Raises:
        ArgumentError: if there is none, with the nearest name.
    """
    kind, _, plain = name.removesuffix(".yaml").rpartition("/")
    for each in every():
        if each.name == plain and kind in ("", each.kind):
            return each
    names = [each.name for each in every()]
    near = difflib.get_close_matches(plain, names, n=1)
    hint = f"did you mean {near[0]}?" if near else "`openmrc example` lists all"
    raise ArgumentError(f"there is no example {name}; {hint}")


def write(name: str, directory: Path = Path()) -> list[Path]:
    """Writes an example and the files that it refers to side by side; returns the paths, the example first.

    Raises:
        ArgumentError: if there is no such example, or a file is there already with other contents.
        OSError: if a file cannot be written.
    """
    texts = {directory / source.name: _contents(source) for source in _with_references(find(name).path)}
    for target, contents in texts.items():
        # Examples share files: one that is there as it would be written is no obstacle.
        if target.exists() and read_bytes(target) != contents:
            raise ArgumentError(
                f"{target}: is there already with other contents; --out names another directory"
            )
    directory.mkdir(parents=True, exist_ok=True)
    for target, contents in texts.items():
        write_bytes(target, contents)
    return list(texts)


def _contents(source: Path) -> bytes:
    """An example beside the files that it refers to: references need no directories."""
    if source.suffix == ".et":
        return source.read_bytes()
    return re.sub(r"(?:\.\./|examples/)(?:scenarios|fabrics|grids|jobs)/", "", source.read_text()).encode()


def _with_references(path: Path) -> list[Path]:
    found = [path]
    for line in path.read_text().splitlines():
        for reference in _REFERENCE.findall(line.partition("#")[0]):
            inner = (path.parent / reference).resolve()
            if inner.is_file() and inner not in found:
                found += [each for each in _with_references(inner) if each not in found]
        for prefix in _RECORDED.findall(line):
            found += sorted(path.parent.glob(f"{prefix}.*"))
    return found


def _first_sentence(path: Path) -> str:
    comment = []
    for line in path.read_text().splitlines():
        if not line.startswith("#") or line.startswith("#   "):
            break
        comment.append(line.removeprefix("#").strip())
    return " ".join(comment).split(". ")[0].rstrip(".") + "."
