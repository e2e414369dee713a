"""What the commands that ask a controller have in common."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openmrc.cli.controller import require
from openmrc.errors import ArgumentError

if TYPE_CHECKING:
    from openmrc.operate.client import Client

ControllerOption = Annotated[
    str | None,
    typer.Option(
        "--controller",
        metavar="URL",
        help="The controller. Default: the environment variable OPENMRC_CONTROLLER, or this machine.",
    ),
]
AuthorityOption = Annotated[
    Path | None, typer.Option("--tls-ca", metavar="FILE", help="Certificates to trust, PEM.")
]


def client(controller: str | None, authority: Path | None, bearer: str | None = None) -> "Client":
    """A client of the controller that the options name."""
    require("asking a controller", "httpx")
    from openmrc.operate.client import Client

    return Client(controller, bearer=bearer, authority=authority)


def expanded(text: str) -> list[str]:
    """Names of hosts with commas and ranges, such as ``h0-h3,h8``.

    Raises:
        ArgumentError: if it is none.
    """
    found: list[str] = []
    for part in filter(None, text.split(",")):
        match = re.fullmatch(r"h(\d{1,9})(?:-h?(\d{1,9}))?", part.strip())
        if match is None:
            raise ArgumentError(f"{text[:100]}: write names and ranges, such as h0-h15,h20")
        first = int(match[1])
        last = int(match[2] or first)
        if last < first or last - first >= 4096:
            raise ArgumentError(f"{part.strip()}: a range goes up, by at most 4096 hosts")
        found += [f"h{number}" for number in range(first, last + 1)]
    return found
