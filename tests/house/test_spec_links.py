"""Comments name pages of docs/spec/ and their sections: both exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = [
    path
    for folder in ("crates", "python", "benches", "fuzz", "tests")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".rs", ".py", ".lua", ".h", ".c"} and "target" not in path.parts
]
LINK = re.compile(r'docs/spec/([\w-]+)\.md(?:, "([^"]+)")?')
CONTINUATION = re.compile(r"\n\s*(?://!|///|//|#|--|\*)? ?")


def headings(page: str) -> list[str]:
    file = ROOT / "docs" / "spec" / f"{page}.md"
    if not file.exists():
        return []
    return [line.lstrip("# ") for line in file.read_text().splitlines() if line.startswith("#")]


def links(path: Path) -> list[tuple[str, str]]:
    """Page and section of every link of a file; a link may go over the end of a comment's line."""
    text = CONTINUATION.sub(" ", path.read_text(errors="replace"))
    return LINK.findall(text)


def test_every_link_names_a_page_and_a_section_that_exist() -> None:
    broken, found = [], 0
    for path in CODE:
        for page, section in links(path):
            found += 1
            known = headings(page)
            if not known or not any(heading.startswith(section) for heading in known):
                broken.append(f"{path.relative_to(ROOT)}: docs/spec/{page}.md {section!r}")
    assert not broken
    assert found > 150, "the pattern finds links at all"


def test_no_comment_names_a_specification_without_its_page() -> None:
    nameless = re.compile(r"[(;] ?spec: +(?!Specification)[a-zA-Z]")
    assert [
        str(path)
        for path in CODE
        if path != Path(__file__).resolve()
        and nameless.search(CONTINUATION.sub(" ", path.read_text(errors="replace")))
    ] == []


@pytest.mark.parametrize("page", ["wire", "transport", "paths", "congestion"])
def test_a_page_has_sections(page: str) -> None:
    assert len(headings(page)) > 5
