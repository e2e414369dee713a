"""What the pages show is run, and every command and option that they name exists.

README.md, the tutorials, the questions, docs/coming-from.md and docs/troubleshooting.md are followed from top
to bottom. Of the other pages the commands are compared with the program, and the programs in Python are run;
those that need a job, a lab or torch are compiled, and what they import is there.
"""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.commands import unknown_words
from tests.helpers.pages import blocks, missing, walk
from tests.helpers.repository import ROOT

WALKED = [
    ROOT / "README.md",
    *sorted((ROOT / "docs/tutorials").glob("*.md")),
    *sorted((ROOT / "docs/questions").glob("*.md")),
    ROOT / "docs/coming-from.md",
    ROOT / "docs/troubleshooting.md",
]
ELSEWHERE = {"pytorch.md", "c.md"}
"""Followed by test_tutorial.py of tests/torch and tests/c, which need more than Python."""
OTHERS = sorted(set((ROOT / "docs").glob("*.md")) - set(WALKED))
CONTEXT = {"collectives.md", "lab.md"}
"""Pages whose programs need a job or a lab."""


@pytest.mark.parametrize(
    "page", [each for each in WALKED if each.name not in ELSEWHERE], ids=lambda page: page.stem
)
def test_what_a_page_shows_works_and_prints_what_it_says(page, tmp_path):
    walk(page, tmp_path)


@pytest.mark.parametrize(
    ("output", "expected", "line"),
    [
        ("a  b\nc 17 us\n", "a b\nc ... us", None),
        ("c 17 us\na b\n", "a b\nc ... us", "c ... us"),
        ("a b c\n", "a b", "a b"),
        ("a\nb\nc\n", "a\n...\nc", None),
        ("a b c\n", "... b ...", None),
    ],
)
def test_lines_of_output_are_found_in_their_order(output, expected, line):
    assert missing(output, expected) == line


def test_a_page_that_is_wrong_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    for number, (text, why) in enumerate(
        [
            ("```sh\nfalse\n```\n", "page.md, line 1: exit code 1"),
            ("\n```sh\necho 1\n```\n```text\n2\n```\n", "page.md, line 5: no line '2'"),
            ("```ruby\nputs 1\n```\n", "ruby is not run"),
        ]
    ):
        page.write_text(text)
        (tmp_path / str(number)).mkdir()
        with pytest.raises(AssertionError, match=why):
            walk(page, tmp_path / str(number))


def shown_commands(page: Path) -> list[tuple[int, list[str]]]:
    """Lines of code that call openmrc: the words after `openmrc`, up to a comment or a pipe."""
    found = []
    inside = False
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        if line.startswith("```"):
            inside = not inside and line != "```text"
        match = re.match(r"(?:\w+\$ +|sudo +|\$ )*openmrc +(\S.*)", line.strip())
        if match is None or not (inside or line.startswith("    ")):
            continue
        text = re.split(r"\s#|\s\||\s&|\s>|;|\s{3,}", match[1])[0]
        found.append((number, shlex.split(text.replace("[", " ").replace("]", " "))))
    return found


@pytest.mark.parametrize("page", [*WALKED, *OTHERS], ids=lambda page: page.stem)
def test_every_command_and_option_that_a_page_shows_exists(page):
    wrong = [(line, mistake) for line, words in shown_commands(page) for mistake in unknown_words(words)]
    assert wrong == []


PROGRAMS = [
    pytest.param(page, block, id=f"{page.stem}-{block.line}")
    for page in OTHERS
    for block in blocks(page)
    if block.language == "python"
]
"""Those of docs/torch.md are compiled only."""


@pytest.mark.parametrize(("page", "block"), PROGRAMS)
def test_programs_of_the_other_pages_run(page, block, tmp_path):
    compile(block.text, f"{page.name}:{block.line}", "exec")
    if page.name == "torch.md":
        return
    program = block.text
    if page.name in CONTEXT:
        program = "\n".join(re.findall(r"^from openmrc.*", program, re.MULTILINE))
    shutil.copytree(ROOT / "examples/fabrics", tmp_path / "examples/fabrics")
    shutil.copytree(ROOT / "examples/scenarios", tmp_path / "examples/scenarios")
    shutil.copy(ROOT / "examples/fabrics/lab.yaml", tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
