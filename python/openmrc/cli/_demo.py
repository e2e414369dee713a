"""What the demos leave behind: numbers and a picture in a directory, and a summary."""

import json as json_module
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from openmrc.cli import _common
from openmrc.files import write_text
from openmrc.pictures import PictureError, require_matplotlib


@contextmanager
def directory(out: Path | None, name: str) -> Iterator[Path]:
    """Where a demo leaves its files. Made before the run, so that one that cannot be made is found by then.

    Args:
        out: What the user chose; it may be there.
        name: Otherwise a new directory of this name, or with ``-2`` and so on behind it: neither an earlier
            demo nor one that runs at the same time loses its results. It is removed if nothing is written.
    """
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        yield out
        return
    made = _new(name)
    try:
        yield made
    finally:
        with suppress(OSError):
            made.rmdir()


def _new(name: str) -> Path:
    for number in count(1):
        path = Path(name if number == 1 else f"{name}-{number}")
        with suppress(FileExistsError):
            path.mkdir()
            return path
    raise AssertionError


def drawer(draw: Callable[..., None], *, wanted: bool) -> Callable[..., None] | None:
    """The function that draws the picture; ``None`` if there will be none, which is said if it was wanted."""
    if not wanted:
        return None
    try:
        require_matplotlib()
    except PictureError as error:
        _common.console(stderr=True).print(f"note: {error}", markup=False)
        return None
    return draw


def present(
    results: Mapping[str, Any],
    directory: Path,
    name: str,
    *,
    draw: Callable[[Path], None] | None,
    summary: Callable[[], RenderableType],
    json: bool,
) -> None:
    """Writes ``name.json`` and ``name.png``, and prints the results. A picture that fails is a remark.

    Args:
        results: All figures.
        directory: Where the files go; it is there.
        name: Of both files, without an ending.
        draw: Draws the picture into this file; ``None``: there shall be none.
        summary: What people read.
        json: Print the figures as JSON instead.
    """
    numbers, drawn = directory / f"{name}.json", directory / f"{name}.png"
    write_text(numbers, json_module.dumps(results, indent=2, allow_nan=False) + "\n")
    if draw is not None:
        try:
            draw(drawn)
        except PictureError as error:
            _common.console(stderr=True).print(str(error), markup=False)
            draw = None
    if json:
        _common.print_json(results)
        return
    screen = _common.console()
    screen.print(summary())
    screen.print(f"numbers: {numbers}" + (f"   picture: {drawn}" if draw else ""), markup=False)
