"""Workload files of any format: which one it is, its contents say."""

from pathlib import Path
from typing import Literal, get_args

from openmrc.errors import ArgumentError, FormatError
from openmrc.files import read_text
from openmrc.workload import chakra, expand, file, goal, recorded, simai
from openmrc.workload.program import Workload

Format = Literal["openmrc", "goal", "chakra"]
FORMATS: tuple[str, ...] = get_args(Format)
"""What can be written."""


def load(path: Path | str, gpus: int | None = None) -> Workload:
    """Reads a workload: the project's own file, GOAL, text of SimAI or AICB, or Chakra traces.

    Args:
        path: The file. Of Chakra traces the prefix of all ranks, ``job`` of ``job.0.et``, or one of them.
        gpus: Ranks, for files of AICB that do not say it.

    Raises:
        OSError: if the file cannot be read.
        FormatError: if it is no workload; names file, line and field.
    """
    path = Path(path)
    prefix = recorded.prefix_of(path)
    text = "" if prefix is not None else read_text(path, most=file.MOST_BYTES)
    if simai.is_simai(text):
        return simai.read(text, path, gpus)
    if gpus is not None:
        raise FormatError(f"{path}: --gpus is for text of SimAI; this file says how many ranks it has")
    if prefix is not None:
        return recorded.read(prefix)
    if goal.is_goal(text):
        return goal.read(text, path)
    if text.lstrip()[:1] != "{":
        raise FormatError(
            f"{path}, line 1: it is no workload: neither JSON Lines of openmrc, nor GOAL (num_ranks N), nor"
            " text of SimAI (a policy such as HYBRID_TRANSFORMER); Chakra traces are PREFIX.0.et and so on"
        )
    return file.parse(text, path)


def convert(workload: Workload, path: Path | str, to: str) -> list[Path]:
    """Writes a workload in a format; returns the files.

    Args:
        workload: A workload without problems.
        path: The file; of Chakra traces the prefix of all ranks.
        to: One of ``FORMATS``.

    Raises:
        ArgumentError: if there is no such format, or traces of a larger job have the prefix.
        OSError: if a file cannot be written.
    """
    path = Path(path)
    if to == "chakra":
        return chakra.write(workload, path)
    if to == "goal":
        expand.write_goal(workload, path)
    elif to == "openmrc":
        file.save(workload, path)
    else:
        raise ArgumentError(f"the format {to!r} is not written: {', '.join(FORMATS)}")
    return [path]
