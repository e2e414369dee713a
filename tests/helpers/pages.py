"""Pages of documentation, run as somebody would who follows them.

A page is run from top to bottom in an empty directory. Of its fenced blocks,

- ``sh`` is run by bash, and has to succeed;
- ``text`` after it has lines of its output, in their order, where ``...`` stands for anything;
- ``python``, ``c`` and ``yaml`` become a file, if the first line is a comment with its name;
- other ``python`` is run;
- ``{literalinclude}`` becomes the file that it names.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

PATIENCE = 200
FENCED = re.compile(r"^```(\{\w+\}|[\w-]*)[ ]?([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """A fenced block of a page."""

    line: int
    language: str
    argument: str
    text: str

    @property
    def file(self) -> str | None:
        """The name of the file that it shows."""
        found = re.match(r"(?:#|/\*|//) ([\w.-]+\.\w+)\b", self.text)
        return found[1] if found else None


def blocks(page: Path) -> list[Block]:
    """All of them, in order."""
    text = page.read_text()
    return [
        Block(text[: found.start()].count("\n") + 1, *map(str, found.groups()))
        for found in FENCED.finditer(text)
    ]


def missing(output: str, expected: str) -> str | None:
    """The first line of ``expected`` that is not in the output; ``...`` stands for anything, also nothing."""
    lines = iter([" ".join(line.split()) for line in output.splitlines()])
    for wanted in expected.splitlines():
        parts = " ".join(wanted.split()).split("...")
        pattern = ".*".join(re.escape(part.strip()) for part in parts)
        if wanted.strip() not in ("", "...") and not any(re.fullmatch(pattern, line) for line in lines):
            return wanted
    return None


class Step(NamedTuple):
    """A block that was run."""

    block: Block
    output: str
    seconds: float


def walk(page: Path, directory: Path, python: str = sys.executable) -> list[Step]:
    """Follows a page in an empty directory, and returns what was run.

    Args:
        page: The page.
        directory: Where its files go.
        python: The interpreter whose openmrc is used.

    Raises:
        AssertionError: for a block that fails, or an output that is not what the page shows.
    """
    commands = directory / ".bin"
    commands.mkdir()
    for name, runs in (("openmrc", f"{python} -m openmrc"), ("python", python)):
        (commands / name).write_text(f'#!/bin/sh\nexec {runs} "$@"\n')
        (commands / name).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{commands}:{os.environ['PATH']}",
        "HOME": str(directory / ".home"),
        "COLUMNS": "160",
    }
    output = ""
    steps = []
    for block in blocks(page):
        where = f"{page.name}, line {block.line}"
        if block.language == "text":
            line = missing(output, block.text)
            assert line is None, f"{where}: no line {line!r} in\n{output}"
        elif block.language == "{literalinclude}":
            shown = page.parent / block.argument
            (directory / shown.name).write_text(shown.read_text())
        elif block.file is not None:
            (directory / block.file).write_text(block.text)
        else:
            assert block.language in ("sh", "python"), (
                f"{where}: {block.language or 'no language'} is not run"
            )
            program = ["bash", "-euo", "pipefail"] if block.language == "sh" else [python]
            began = time.monotonic()
            output = _output_of([*program, "-c", block.text], where, directory, environment)
            steps.append(Step(block, output, time.monotonic() - began))
    return steps


def _output_of(command: list[str], where: str, directory: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        command,
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, f"{where}: exit code {done.returncode}\n{done.stdout}"
    return done.stdout
