"""The option ``--impair``: a bad network on purpose, for tests."""

from collections.abc import Callable
from typing import Annotated

import typer

from openmrc.verbs import Context

ImpairOption = Annotated[
    list[str] | None,
    typer.Option(
        "--impair",
        metavar="KIND=SHARE",
        help="Harm this end's own packets, for tests.",
        rich_help_panel="Planes",
    ),
]


def configure(rules: list[str] | None) -> Callable[[Context], None] | None:
    return None
