"""Options about whom to talk to, the same for every subcommand that meets a peer over TCP."""

import ipaddress
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from openmrc.errors import ArgumentError
from openmrc.handshake import AddressRule, Token
from openmrc.planes import Planes

LOOPBACK = "127.0.0.1"

_PANEL = "Peers"

TokenFileOption = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="File with the token that both ends must have. Default: the environment variable OPENMRC_TOKEN; "
        "without it, neither end may have one.",
        rich_help_panel=_PANEL,
    ),
]
AllowAddressOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-address",
        metavar="NETWORK",
        help="An address, or a network such as 10.1.0.0/16, that the other end may name as its plane. "
        "Default: the address by which it connects, and with a token any.",
        rich_help_panel=_PANEL,
    ),
]


def token(file: Path | None) -> Token | None:
    """The token of the option, else of the environment.

    Raises:
        OSError: if the file cannot be read.
        ArgumentError: if it is no token, or every user may read the file.
    """
    return Token.from_environment() if file is None else Token.from_file(file)


def rule(allowed: Sequence[str] | None, planes: Planes) -> AddressRule:
    """Which addresses a peer may offer. In SRv6 mode a host of the fabric owns all that the fabric gives it.

    Raises:
        ArgumentError: if something is no address and no network.
    """
    routes = planes.routes
    return AddressRule(allowed or (), siblings=None if routes is None else routes.siblings)


def check_bind(address: str, token: Token | None, *, insecure: bool) -> None:
    """Asks for a token where other machines can connect.

    Raises:
        ArgumentError: if there is none, or --insecure contradicts it.
    """
    if insecure and token is not None:
        raise ArgumentError("--insecure serves without a token: leave out --token-file, unset OPENMRC_TOKEN")
    if token is None and not insecure and not _is_loopback(address):
        raise ArgumentError(
            f"--bind {address} lets other machines connect: name a token (--token-file or OPENMRC_TOKEN),"
            " or say --insecure"
        )


def _is_loopback(host: str) -> bool:
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host or "::", 0, type=socket.SOCK_STREAM)}
    except OSError:
        return False  # Listening there will say what is wrong.
    return all(ipaddress.ip_address(text.partition("%")[0]).is_loopback for text in found)
