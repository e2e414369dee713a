"""Follows the tutorials and writes docs/walks.md: what was typed, what came, how long it took.

``make walks`` runs it. The tutorial for PyTorch is followed with .venv-torch, which `make test-torch` makes.
"""

import os
import sys
import tempfile
from pathlib import Path

from openmrc.files import write_text
from tests.helpers.pages import Step, walk
from tests.helpers.repository import ROOT

MOST_LINES = 12
"""Of the output of one block."""
MOST_LETTERS = 150
"""Of a line."""
HEAD = """# Seven walks

The tutorials, followed by `make walks` from top to bottom in an empty directory: what was typed, the first
lines of what came, and how long each step took on {processors} processors that others used as well. Reading
is not counted.

| tutorial | steps | seconds |
|---|---|---|
"""


def transcript(steps: list[Step]) -> list[str]:
    """The steps as text."""
    lines = []
    for step in steps:
        typed = step.block.text.rstrip().splitlines()
        shell = step.block.language == "sh"
        if not shell:
            typed = ["python <<EOF", *typed, "EOF"]
        came = [line[:MOST_LETTERS].rstrip() for line in step.output.splitlines() if line.strip()]
        if len(came) > MOST_LINES:
            came = [*came[:MOST_LINES], f"... {len(came) - MOST_LINES} lines more"]
        lines += ["", f"{step.seconds:.1f} s:", "", "```text"]
        lines += [f"$ {line}" if shell or i == 0 else f"> {line}" for i, line in enumerate(typed)]
        lines += [*came, "```"]
    return lines


def main(out: Path) -> None:
    """Follows all tutorials."""
    table, body = [], []
    for page in sorted((ROOT / "docs/tutorials").glob("*.md")):
        python, title = sys.executable, page.read_text().partition("\n")[0].removeprefix("# ")
        if page.stem == "pytorch":
            python = str(ROOT / ".venv-torch/bin/python")
            if not Path(python).exists():
                table.append(f"| [{title}](tutorials/{page.name}) | not followed: no torch here | |")
                continue
        with tempfile.TemporaryDirectory() as directory:
            steps = walk(page, Path(directory), python)
        seconds = sum(step.seconds for step in steps)
        table.append(f"| [{title}](tutorials/{page.name}) | {len(steps)} | {seconds:.0f} |")
        body += ["", f"## {title}", *transcript(steps)]
        print(table[-1], flush=True)
    text = HEAD.format(processors=os.cpu_count()) + "\n".join([*table, *body]) + "\n"
    write_text(out, text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
