"""The tutorials as notebooks, run from top to bottom, with what they print.

``make notebooks`` writes them. A page stays the source: its text becomes cells of Markdown, its blocks become
cells that run them, and what the page shows of their output has to be there.
"""

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.helpers.pages import FENCED, Block, blocks, missing
from tests.helpers.repository import ROOT

TUTORIALS = ROOT / "docs" / "tutorials"
PAGES = [
    TUTORIALS / f"{name}.md" for name in ("planner", "network-engineer", "researcher", "student", "manager")
]
"""Those of C and of PyTorch need programs that the environment of the site does not have."""
_PATIENCE = 300
_SITE = re.compile(r"\]\(\.\./([\w/-]+)\.md")


def notebook(page: Path) -> dict[str, Any]:
    """A page as a notebook that has not been run; ``shown`` in a cell's metadata is what it has to print."""
    cells: list[dict[str, Any]] = []
    text = page.read_text()
    found = blocks(page)
    prose = FENCED.split(text)[:: FENCED.groups + 1]
    for number, part in enumerate(prose):
        if part.strip():
            # The notebooks are beside the pages of the site.
            cells.append({"cell_type": "markdown", "source": _SITE.sub(r"](../\1.html", part.strip())})
        if number == len(found):
            break
        block = found[number]
        if block.language == "text":
            cells[_last_run(cells)]["metadata"]["shown"] = block.text
        else:
            cells.append({"cell_type": "code", "source": _source(page, block), "metadata": {}})
    for number, cell in enumerate(cells):
        cell.setdefault("metadata", {})
        cell["id"] = f"{page.stem}-{number}"
        if cell["cell_type"] == "code":
            cell |= {"outputs": [], "execution_count": None}
            cells[number] = cell
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}


def _last_run(cells: list[dict[str, Any]]) -> int:
    return max(number for number, cell in enumerate(cells) if cell["cell_type"] == "code")


def _source(page: Path, block: Block) -> str:
    """A block as a cell: Python as it is, a shell's with ``%%bash``, a file with ``%%writefile``."""
    text = block.text.rstrip("\n")
    if block.language == "{literalinclude}":
        shown = page.parent / block.argument
        return f"%%writefile {shown.name}\n{shown.read_text().rstrip()}"
    if block.file is not None:
        return f"%%writefile {block.file}\n{text}"
    assert block.language in ("sh", "python"), f"{page.name}, line {block.line}: {block.language} is not run"
    return f"%%bash\n{text}" if block.language == "sh" else text


def wrong(book: dict[str, Any]) -> Iterator[str]:
    """What a notebook that has been run lacks of what its page shows."""
    for cell in book["cells"]:
        if (expected := cell["metadata"].get("shown")) is None:
            continue
        printed = "".join("".join(output.get("text", "")) for output in cell["outputs"])
        line = missing(printed, expected)
        if line is not None:
            yield f"{cell['id']}: no line {line!r} in\n{printed}"


def run(book: dict[str, Any]) -> dict[str, Any]:
    """Runs a notebook in an empty directory.

    Raises:
        nbclient.exceptions.CellExecutionError: for a cell that fails.
    """
    import nbformat
    from nbclient import NotebookClient

    with tempfile.TemporaryDirectory() as directory:
        made = nbformat.from_dict(book)
        NotebookClient(made, timeout=_PATIENCE, resources={"metadata": {"path": directory}}).execute()
    for cell in made["cells"]:
        cell["metadata"].pop("execution", None)
    result: dict[str, Any] = json.loads(nbformat.writes(made))
    return result


def main(out: Path) -> int:
    """Runs all and writes them; 1 if one prints something else than its page."""
    out.mkdir(parents=True, exist_ok=True)
    # The commands of this environment, as in a terminal in which it is active.
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    os.environ["COLUMNS"] = "160"
    failed = 0
    for page in PAGES:
        book = run(notebook(page))
        for problem in wrong(book):
            failed = 1
            print(f"error: {page.name}: {problem}", file=sys.stderr)
        for cell in book["cells"]:
            cell["metadata"].pop("shown", None)
        (out / f"{page.stem}.ipynb").write_text(json.dumps(book, indent=1, ensure_ascii=False) + "\n")
        print(out / f"{page.stem}.ipynb")
    return failed


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
