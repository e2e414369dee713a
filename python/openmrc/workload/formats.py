"""Workload files of any format: which one it is, its contents say."""

from pathlib import Path

from openmrc.errors import FormatError
from openmrc.files import read_text
from openmrc.workload import file, goal, simai
from openmrc.workload.program import Workload


def load(path: Path, gpus: int | None = None) -> Workload:
    """Reads a workload: the project's own file, GOAL text, or text of SimAI or AICB.

    Args:
        path: The file.
        gpus: Ranks, for files of AICB that do not say it.

    Raises:
        OSError: if the file cannot be read.
        FormatError: if it is no workload; names file, line and field.
    """
    text = read_text(path, most=file.MOST_BYTES)
    if simai.is_simai(text):
        return simai.read(text, path, gpus)
    if gpus is not None:
        raise FormatError(f"{path}: --gpus is for text of SimAI; this file says how many ranks it has")
    if goal.is_goal(text):
        return goal.read(text, path)
    if text.lstrip()[:1] != "{":
        raise FormatError(
            f"{path}, line 1: it is no workload: neither JSON Lines of openmrc, nor GOAL (num_ranks N), nor"
            " text of SimAI (a policy such as HYBRID_TRANSFORMER)"
        )
    return file.parse(text, path)
