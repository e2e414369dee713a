"""Options about whom to talk to, the same for every subcommand that meets a peer over TCP."""

import ipaddress
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from openmrc.cli import _values
from openmrc.control import Token
from openmrc.errors import ArgumentError
from openmrc.handshake import AddressRule
from openmrc.planes import Planes, parse_host

LOOPBACK = "127.0.0.1"
ALL = "::"

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


def port_option(default: int, help: str) -> Any:
    """The option ``--port``/``-p``: a TCP port, at both ends of every command that meets a peer."""
    return typer.Option("--port", "-p", help=f"{help} Default {default}.", **_values.port())


def server(text: str, port: int | None, default: int) -> tuple[str, int]:
    """Host and port of ``HOST`` or ``HOST:PORT`` and the option ``--port``.

    Raises:
        ArgumentError: if the text is no host, or both name a port and differ.
    """
    host, named = parse_host(text, 0)
    if port is not None and named not in (0, port):
        raise ArgumentError(f"{text} names port {named} and --port {port}: name one of them")
    return host, named or port or default


def token(file: Path | None) -> Token | None:
    """The token of the option, else of the environment.

    Raises:
        OSError: if the file cannot be read.
        ArgumentError: if it is no token, or every user may read the file.
    """
    return Token.from_environment() if file is None else Token.from_file(file)


def rule(allowed: Sequence[str] | None, planes: Planes) -> AddressRule:
    """Which addresses a peer may offer. A host of a known fabric owns all that the fabric gives it.

    Raises:
        ArgumentError: if something is no address and no network.
    """
    knows = planes.routes is not None or planes.lab is not None
    return AddressRule(allowed or (), siblings=planes.siblings if knows else None)


def check_bind(address: str, token: Token | None, *, insecure: bool, isolated: bool = False) -> None:
    """Asks for a token where other machines can connect.

    Args:
        address: Where the command listens.
        token: The token, if there is one.
        insecure: Whether the user wants none.
        isolated: Whether only this machine's own namespaces can connect.

    Raises:
        ArgumentError: if there is none, or --insecure contradicts it.
    """
    if insecure and token is not None:
        raise ArgumentError("--insecure serves without a token: leave out --token-file, unset OPENMRC_TOKEN")
    if token is None and not insecure and not isolated and not is_loopback(address):
        raise ArgumentError(
            f"--bind {address} lets other machines connect: name a token (--token-file or OPENMRC_TOKEN),"
            " or say --insecure"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to this address."""
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host or "::", 0, type=socket.SOCK_STREAM)}
    except OSError:
        return False  # Listening there will say what is wrong.
    return all(ipaddress.ip_address(text.partition("%")[0]).is_loopback for text in found)
