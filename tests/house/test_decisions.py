"""docs/decisions.md has entries of one paragraph each, and what names an entry names one that exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "decisions.md"
LONGEST = 200
"""Words of a paragraph; the longest entry lists the rules of profiles."""

PARTS = re.compile(r"^(#{1,3}) ([^\n]+)\n+(.*?)(?=^#{1,3} |\Z)", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r'docs/decisions\.md, "([^"]+)"')
LINKED = re.compile(r"decisions\.md#([\w-]+)")
COMMENT = re.compile(r"\n\s*(?://!|///|//|#)? ?")


def entries(text: str) -> dict[str, list[str]]:
    """Title to blocks of each decision, which are the headings of the third level."""
    return {title: body.split("\n\n") for level, title, body in found(text) if level == "###"}


def found(text: str) -> list[tuple[str, str, str]]:
    return [(level, title, body.strip()) for level, title, body in PARTS.findall(text)]


def anchor(title: str) -> str:
    """The name that the site and GitHub give to a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def faults(text: str) -> list[str]:
    """Entries that are no paragraph, or a long one; a table may follow."""
    wrong = []
    for title, (paragraph, *more) in entries(text).items():
        words = len(paragraph.split())
        if not words or paragraph.startswith(("|", "- ")) or any(not each.startswith("|") for each in more):
            wrong.append(f"{title}: more or less than one paragraph")
        elif words > LONGEST:
            wrong.append(f"{title}: {words} words")
    return wrong


def names() -> list[tuple[Path, str]]:
    """Titles of decisions in comments of the code, and anchors of them in pages and docstrings."""
    files = [
        path
        for folder in ("crates", "python", "benches", "tests", "docs", "examples")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".rs", ".py", ".h", ".c", ".md"} and path not in (PAGE, Path(__file__).resolve())
    ]
    texts = [(path, COMMENT.sub(" ", path.read_text(errors="replace"))) for path in files]
    named = [(path, anchor(title)) for path, text in texts for title in NAMED.findall(text)]
    return named + [(path, title) for path, text in texts for title in LINKED.findall(text)]


def test_every_decision_is_one_paragraph() -> None:
    text = PAGE.read_text()
    assert faults(text) == []
    assert len(entries(text)) > 200, "the pattern finds entries at all"


def test_every_title_is_there_once_and_every_room_is_in_the_table_of_contents() -> None:
    anchors = [anchor(title) for _, title, _ in found(PAGE.read_text())]
    assert len(anchors) == len(set(anchors))
    introduction = found(PAGE.read_text())[0][2]
    rooms = [anchor(title) for level, title, _ in found(PAGE.read_text()) if level == "##"]
    assert re.findall(r"\(#([\w-]+)\)", introduction) == rooms


def test_comments_and_pages_name_decisions_that_exist() -> None:
    known = {anchor(title) for _, title, _ in found(PAGE.read_text())}
    named = names()
    assert [f"{path.relative_to(ROOT)}: {title}" for path, title in named if title not in known] == []
    assert len(named) > 5, "the pattern finds names at all"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("### A choice\n\nWhy.\n\n### Another\n\nWhy.\n", 0),
        ("### A choice\n\nWhy.\n\n| a | b |\n|---|---|\n", 0),
        ("### A choice\n\nWhy.\n\nAnd more.\n", 1),
        ("### A choice\n\n- a list\n", 1),
        ("### A choice\n\n### Another\n\nWhy.\n", 1),
        (f"### A choice\n\n{'word ' * 300}\n", 1),
    ],
)
def test_an_entry_of_another_form_is_noticed(text: str, wrong: int) -> None:
    assert len(faults(text)) == wrong
