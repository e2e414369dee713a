"""Values of options: sizes, times, rates, shares; each is read and named the same way in every command."""

from collections.abc import Callable
from typing import Any, TypeVar

import typer

from openmrc import units
from openmrc.errors import ArgumentError

_T = TypeVar("_T", int, float)

SIZE, TIME, RATE, SHARE, PORT = "SIZE", "TIME", "RATE", "SHARE", "PORT"
"""Names of the values in help texts."""

PLATFORMS = "linux|frr|sonic|eos|cumulus"
"""Systems of switches."""


def _parser(
    read: Callable[[str], _T], show: Callable[[_T], str], least: _T | None, most: _T | None
) -> Callable[[Any], Any]:
    def parse(text: Any) -> Any:
        if not isinstance(text, str):
            return text  # The default.
        try:
            value = read(text)
        except ArgumentError as error:
            raise typer.BadParameter(str(error)) from None
        if least is not None and value < least:
            raise typer.BadParameter(f"{text} is too little: at least {show(least)}")
        if most is not None and value > most:
            raise typer.BadParameter(f"{text} is too much: at most {show(most)}")
        return value

    return parse


def size(least: int = 1, most: int | None = None) -> dict[str, Any]:
    """Of an option that takes bytes: keywords of :func:`typer.Option`."""
    return {
        "metavar": SIZE,
        "parser": _parser(units.parse_size, lambda n: f"{n} byte{'' if n == 1 else 's'}", least, most),
    }


def time(least: float | None = None, *, needs_unit: bool = False) -> dict[str, Any]:
    """Of an option that takes a time, which is passed on in seconds: keywords of :func:`typer.Option`."""

    def read(text: str) -> float:
        return units.parse_time(text, needs_unit=needs_unit)

    return {"metavar": TIME, "parser": _parser(read, lambda s: f"{s:g} s", least, None)}


def port(least: int = 0) -> dict[str, Any]:
    """Of an option that takes a TCP or UDP port: keywords of :func:`typer.Option`."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdecimal()):
            raise ArgumentError(f"{text!r} is not a port number")
        return int(text)

    return {"metavar": PORT, "parser": _parser(read, str, least, 65535)}


def rate() -> dict[str, Any]:
    """Of an option that takes bits per second: keywords of :func:`typer.Option`."""
    return {"metavar": RATE, "parser": _parser(units.parse_rate, str, None, None)}


def share() -> dict[str, Any]:
    """Of an option that takes a share, 0 to 1: keywords of :func:`typer.Option`."""
    return {"metavar": SHARE, "parser": _parser(units.parse_share, str, None, None)}
