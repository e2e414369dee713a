"""What the commands that simulate share: progress of a run, what is recorded, where results go."""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from openmrc.cli import _common
from openmrc.errors import ArgumentError, FormatError

if TYPE_CHECKING:
    from openmrc.sim import Progress as SoFar
    from openmrc.sim import Scenario

EngineOption = Annotated[
    Literal["packets", "auto", "flow"] | None,
    typer.Option(
        "--engine",
        help="packets; auto: none for messages whose time is known; flow: shares of links for each message."
        " Default: the scenario's.",
    ),
]
"""What executes a scenario."""


@contextmanager
def progress(what: str = "", *, is_resumed: bool = False) -> Iterator[Callable[..., None]]:
    """A progress bar with simulated time and data packets per second, on a terminal; yields what to call.

    Args:
        what: What is counted; messages if empty.
        is_resumed: The run goes on from a checkpoint, whose progress is the first: not counted for the speed.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = _common.console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None if console.width >= 90 else 12),
        MofNCompleteColumn(),
        TextColumn("{task.fields[time]}"),
        TextColumn("{task.fields[speed]}"),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal, expand=console.width >= 90
    ) as bar:
        task = bar.add_task(what or "messages", total=None, time="", speed="")
        began = perf_counter()
        before: int | None = None if is_resumed else 0

        def advance(so_far: "SoFar", name: str | None = None) -> None:
            nonlocal before
            from openmrc.sim.text import micros

            # Flows have no packets.
            counted, unit = (
                so_far.data_packets or so_far.events,
                "packets" if so_far.data_packets else "events",
            )
            before = counted if before is None else before
            speed = (counted - before) / max(perf_counter() - began, 1e-9)
            bar.update(
                task,
                description=name or what or "messages",
                completed=so_far.finished,
                total=so_far.messages,
                time=micros(so_far.now_ps * 1e-6),
                speed=f"{speed / 1e6:.2f} M {unit}/s",
            )

        yield advance


@contextmanager
def contents_of(file: Path | None) -> Iterator[None]:
    """Values that a file has and no run can have are a fault of the file, not of the command's arguments.

    Raises:
        FormatError: instead of an ArgumentError, if there is a file.
    """
    try:
        yield
    except ArgumentError as error:
        if file is None:
            raise
        raise FormatError(str(error)) from None


def with_record(
    scenario: "Scenario",
    *,
    everything: bool = False,
    interval_us: float | None = None,
    capture: Path | None = None,
    links: list[str] | None = None,
    snaplen: int | None = None,
) -> "Scenario":
    """The scenario, recording also what the options ask for.

    Raises:
        ArgumentError: if options contradict each other, or a value is out of range.
    """
    from openmrc import sim

    record = scenario.record
    if everything:
        record = sim.Record.everything(record.interval_us).model_copy(update={"capture": record.capture})
        if record.links == "all" and scenario.topology.hosts * scenario.topology.planes > MOST_LINKS:
            record = record.model_copy(update={"links": scenario.record.links, "evs": False})
    if interval_us is not None:
        record = record.model_copy(update={"series": True, "interval_us": interval_us})
    if capture is None:
        for option, value in (("--capture-link", links), ("--snaplen", snaplen)):
            if value:
                raise ArgumentError(f"{option} goes with --capture FILE.pcapng")
    elif links or record.capture:
        fields: dict[str, Any] = dict(record.capture or {})
        given = {"links": links or None, "snaplen": snaplen}
        fields |= {name: value for name, value in given.items() if value is not None}
        record = record.model_copy(update={"capture": sim.Capture(**fields)})
    else:
        raise ArgumentError("--capture needs --capture-link LINK, or record.capture in the scenario")
    return scenario.model_copy(update={"record": record})


def check_outputs(files: Sequence[Path | None] = (), directories: Sequence[Path | None] = ()) -> None:
    """Checks before a long run that its results can be written.

    Directories are made; files are not touched.

    Raises:
        ArgumentError: if two outputs have one name, or one is a directory instead of a file or the reverse.
        OSError: if an output cannot be written.
    """
    given = [path for path in (*files, *directories) if path is not None]
    for place, path in enumerate(given):
        if path.resolve() in [other.resolve() for other in given[:place]]:
            raise ArgumentError(f"{path}: two outputs have this name")
    for directory in filter(None, directories):
        if directory.exists() and not directory.is_dir():
            raise ArgumentError(f"{directory}: is no directory")
        directory.mkdir(parents=True, exist_ok=True)
        if not os.access(directory, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(directory))
    for file in filter(None, files):
        if file.is_dir():
            raise ArgumentError(f"{file}: is a directory; name a file")
        if not (file.exists() or file.parent.is_dir()):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file.parent))
        if not os.access(file if file.exists() else file.parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))


MOST_LINKS = 4096
"""With more host ports, links are recorded one by one only if the scenario says so: a heat map of more links
is unreadable, and they cost memory."""
