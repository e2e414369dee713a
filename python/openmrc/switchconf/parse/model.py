"""What is parsed from one switch's files, for all platforms."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from openmrc.errors import FormatError
from openmrc.files import read_text

ROUTING_PROTOCOLS = ("bgp", "ospf", "ospf6", "isis", "rip", "ripng", "eigrp", "babel", "openfabric")


_NUMBER = re.compile("[0-9]{1,12}")


def is_number(text: str) -> bool:
    """Whether a text is a decimal number."""
    return _NUMBER.fullmatch(text) is not None


class Where(NamedTuple):
    """A place in a file: its line, or, for formats without lines, a text on that line."""

    file: str
    at: int | str

    def line(self, path: Path) -> int:
        """The line in the file, from 1; 0 if the text is not in it."""
        if isinstance(self.at, int):
            return self.at
        text = read_text(path, errors="replace")
        offset = text.find(self.at)
        return text.count("\n", 0, offset) + 1 if offset >= 0 else 0


class Route(NamedTuple):
    """A static route with one next hop."""

    prefix: str
    interface: str | None
    """``None`` if the platform finds it by the address of the next hop."""
    next_hop: str
    where: Where


class Complaint(NamedTuple):
    """An error and its place."""

    where: Where
    text: str


@dataclass
class Parsed:
    """A switch, as described by its files."""

    hostname: str | None = None
    addresses: dict[str, tuple[str, Where]] = field(default_factory=dict)
    """Interface -> its address with prefix length."""
    every_address: list[tuple[str, str]] = field(default_factory=list)
    """(interface, address with prefix length), where an interface has several too."""
    hardware: dict[str, tuple[str, str, Where]] = field(default_factory=dict)
    """Interface -> its lanes and speed, where the file has them (SONiC)."""
    own: list[tuple[str, Where]] = field(default_factory=list)
    """Prefixes at which it shifts the address (uN)."""
    routes: list[Route] = field(default_factory=list)
    forwards: bool = False
    """Whether IPv6 forwarding and SRv6 are enabled."""
    srv6_interfaces: set[str] | None = None
    """Interfaces that accept SRv6 packets; ``None``: all."""
    marking: set[str] = field(default_factory=set)
    """Interfaces whose queue marks ECN."""
    thresholds: set[tuple[int, int]] = field(default_factory=set)
    """ECN thresholds in use, bytes."""
    mapped_codes: set[int] | None = None
    """Code points that have a traffic class; ``None`` where those without one cannot do harm."""
    strict_codes: set[int] = field(default_factory=set)
    """Code points that are served with strict priority."""
    unknown: list[Complaint] = field(default_factory=list)
    """Lines that are not understood. In a file that openmrc wrote there is none."""
    complaints: list[Complaint] = field(default_factory=list)
    """Routing protocols, PFC, and everything else that is not allowed."""

    def not_understood(self, where: Where, line: str) -> None:
        """Adds a line that is not understood."""
        self.unknown.append(Complaint(where, f"not understood: {line}"))

    def complain(self, where: Where, text: str) -> None:
        """Adds an error."""
        self.complaints.append(Complaint(where, text))

    def address(self, interface: str, address: str, where: Where) -> None:
        """Sets an interface's address; a second one is not expected."""
        if interface in self.addresses:
            self.unknown.append(Complaint(where, f"{interface} has a second address, {address}"))
        self.every_address.append((interface, address))
        self.addresses[interface] = (address, where)


class Files:
    """The files of one switch.

    Args:
        directory: Has the files by the names that openmrc gives them.
        main: The name and the file of the only one that must be there, for configurations of others.
    """

    def __init__(self, directory: Path, main: tuple[str, Path] | None = None) -> None:
        self.directory = directory
        self._main = main
        self.absent: set[str] = set()
        """Files that are not there and need not be."""

    def path(self, name: str) -> Path:
        """The place of a file."""
        if self._main is not None and name == self._main[0]:
            return self._main[1]
        return self.directory / name

    def text(self, name: str, parsed: Parsed) -> str:
        """The text of a file; empty, with an error if it must be there, if it cannot be read."""
        try:
            return read_text(self.path(name))
        except (FileNotFoundError, NotADirectoryError):
            if self._main is not None and name != self._main[0]:
                self.absent.add(name)
            else:
                parsed.complain(Where(name, 0), "the file is missing")
        except FormatError as error:
            parsed.complain(Where(name, 0), str(error).removeprefix(f"{self.path(name)}: "))
        return ""
