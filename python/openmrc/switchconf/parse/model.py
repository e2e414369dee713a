"""What is read back from one switch's files, whatever its platform."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

ROUTING_PROTOCOLS = ("bgp", "ospf", "ospf6", "isis", "rip", "ripng", "eigrp", "babel", "openfabric")


class Where(NamedTuple):
    """A place in a file: its line, or, where a format has no lines of its own, a text that stands on it."""

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
    """None where the platform finds it by the next hop's address."""
    next_hop: str
    where: Where


class Complaint(NamedTuple):
    """Something that is wrong, and where."""

    where: Where
    text: str


@dataclass
class Parsed:
    """A switch as its files describe it."""

    hostname: str | None = None
    addresses: dict[str, tuple[str, Where]] = field(default_factory=dict)
    """Interface -> its address with prefix length."""
    own: list[tuple[str, Where]] = field(default_factory=list)
    """Prefixes at which it shifts the address (uN)."""
    routes: list[Route] = field(default_factory=list)
    forwards: bool = False
    """Whether IPv6 forwarding and SRv6 are switched on."""
    srv6_interfaces: set[str] | None = None
    """Interfaces that take SRv6 packets; None where all do."""
    marking: set[str] = field(default_factory=set)
    """Interfaces whose queue marks ECN."""
    thresholds: set[tuple[int, int]] = field(default_factory=set)
    """ECN thresholds in use, bytes."""
    strict_codes: set[int] = field(default_factory=set)
    """Code points that are served with strict priority."""
    complaints: list[Complaint] = field(default_factory=list)
    """Lines that are not understood, routing protocols, PFC, and whatever else must not be."""

    def complain(self, where: Where, text: str) -> None:
        """Adds a complaint."""
        self.complaints.append(Complaint(where, text))

    def address(self, interface: str, address: str, where: Where) -> None:
        """An interface's address; a second one is a complaint."""
        if interface in self.addresses:
            self.complain(where, f"{interface} has a second address, {address}")
        self.addresses[interface] = (address, where)


class Files:
    """The files of one switch."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def text(self, name: str, parsed: Parsed) -> str:
        """The text of a file; empty, with a complaint, if it cannot be read."""
        try:
            return (self.directory / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            parsed.complain(Where(name, 0), "the file is missing")
        except UnicodeDecodeError as error:
            parsed.complain(Where(name, 0), f"not text at byte {error.start}")
        return ""
