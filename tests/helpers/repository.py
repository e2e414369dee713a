"""Where the repository is, and what its pages say."""

from pathlib import Path

ROOT = Path(__file__).parents[2]


def words(page: str) -> str:
    """The text of a page in one line."""
    return " ".join((ROOT / page).read_text().split())
