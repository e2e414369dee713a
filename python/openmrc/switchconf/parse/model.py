"""What is parsed from one switch's files, for all platforms."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

ROUTING_PROTOCOLS = ("bgp", "ospf", "ospf6", "isis", "rip", "ripng", "eigrp", "babel", "openfabric")


class Where(NamedTuple):
    """A place in a file: its line, or, for formats without lines, a text on that line."""

    file: str
    at: int | str

    def line(self, directory: Path) -> int:
        """The line, from 1; 0 if the text is not in the file."""
        if isinstance(self.at, int):
            return self.at
        text = (directory / self.file).read_text(encoding="utf-8", errors="replace")
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
    complaints: list[Complaint] = field(default_factory=list)
    """Lines that are not understood, routing protocols, PFC, and everything else that is not allowed."""

    def complain(self, where: Where, text: str) -> None:
        """Adds an error."""
        self.complaints.append(Complaint(where, text))

    def address(self, interface: str, address: str, where: Where) -> None:
        """Sets an interface's address; a second address is an error."""
        if interface in self.addresses:
            self.complain(where, f"{interface} has a second address, {address}")
        self.addresses[interface] = (address, where)


class Files:
    """The files of one switch."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def text(self, name: str, parsed: Parsed) -> str:
        """The text of a file; empty, with an error, if it cannot be read."""
        try:
            return (self.directory / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            parsed.complain(Where(name, 0), "the file is missing")
        except UnicodeDecodeError as error:
            parsed.complain(Where(name, 0), f"not text at byte {error.start}")
        return ""
