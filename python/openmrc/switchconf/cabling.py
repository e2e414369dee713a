"""The list of a fabric's cables as CSV: both ends by the names that the switches have for them.

``openmrc plan --cabling`` writes it for those who lay the cables; ``openmrc verify`` holds LLDP against it.
"""

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from openmrc import csvcells
from openmrc.errors import FormatError
from openmrc.fabric.design import Design
from openmrc.fabric.spec import Platform
from openmrc.fabric.topology import Fabric, SwitchId, SwitchPort
from openmrc.fabric.units import format_rate
from openmrc.files import read_text, replacing
from openmrc.switchconf.interfaces import Interfaces

_MOST_BYTES = 1 << 30
"""Four million cables, of 131,072 hosts with eight planes."""


class Cable(NamedTuple):
    """A cable, from its lower end (a host or a switch nearer to the hosts) to its upper end."""

    link: str
    """Name in the fabric: ``p3/t0-17:up5--p3/t1-5``."""
    layer: str
    """``host-T0``, ``T0-T1``, ..."""
    lower: str
    """Host name of the device: ``p3-t0-17``, ``h12``."""
    lower_port: str
    """Interface on its platform; of a host, the plane's port: ``p3``."""
    lower_alias: str
    """The label of the port where it has another one (SONiC), or the same."""
    upper: str
    upper_port: str
    upper_alias: str
    rate: str
    metres: str
    cable: str
    """Part of the catalogue; empty if unknown."""
    transceiver: str
    """Part at both ends, or ``lower / upper`` if they differ; empty for copper, or if unknown."""

    @property
    def to_host(self) -> bool:
        """Whether its lower end is a host."""
        return self.layer.startswith("host")


def cables(fabric: Fabric, platform: Platform, design: Design) -> Iterator[Cable]:
    """Every cable, switch after switch.

    Args:
        fabric: The fabric.
        platform: Decides the names of interfaces.
        design: The plan's parts.

    Raises:
        ArgumentError: if the fabric names a switch that cannot have its ports.
    """
    return _cables(fabric, Interfaces(fabric, platform), design)


def _cables(fabric: Fabric, interfaces: Interfaces, design: Design) -> Iterator[Cable]:
    for switch in fabric.switches():
        row = design.link_rows[switch.tier]
        parts = (format_rate(row.rate), f"{row.length:g}", row.cable or "", row.transceiver or "")
        for port in fabric.ports(switch):
            if not port.is_uplink:
                upper = (device(str(switch)), *_names(interfaces, port))
                yield Cable(port.link, row.name, *_lower(fabric, interfaces, port, switch), *upper, *parts)


def _lower(
    fabric: Fabric, interfaces: Interfaces, port: SwitchPort, switch: SwitchId
) -> tuple[str, str, str]:
    if switch.tier == 0:
        return port.peer, port.peer_port, port.peer_port
    below = fabric.switch(port.peer)
    number = fabric.core.downlinks(below.tier) + int(port.peer_port.removeprefix("up"))
    peer = port._replace(number=number, name=port.peer_port)
    return device(port.peer), *_names(interfaces, peer)


def _names(interfaces: Interfaces, port: SwitchPort) -> tuple[str, str]:
    name, row = interfaces.name(port), interfaces.row(port)
    return name, row.alias if row else name


def device(switch: str) -> str:
    """The host name of a switch."""
    return switch.replace("/", "-")


def write(path: Path, listed: Iterator[Cable]) -> int:
    """Writes the list; returns the number of cables.

    Raises:
        OSError: if the file cannot be written.
    """
    count = 0
    with replacing(path, newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Cable._fields)
        for cable in listed:
            writer.writerow(csvcells.written(cable))
            count += 1
    return count


def read(path: Path) -> list[Cable]:
    """Reads a list, also one that was changed by hand; further columns are ignored.

    Raises:
        FormatError: with file and line.
        OSError: if the file cannot be read.
    """
    needed = Cable._fields[:8]
    rows = csv.DictReader(io.StringIO(read_text(path, most=_MOST_BYTES, errors="replace"), newline=""))
    missing = [name for name in needed if name not in (rows.fieldnames or ())]
    if missing:
        raise FormatError(f"{path}:1: no column {missing[0]}; `openmrc plan --cabling` writes the list")
    found = []
    ends: dict[tuple[str, str], int] = {}
    for row in rows:
        values = {name: csvcells.read(row.get(name) or "") for name in Cable._fields}
        if not all(values[name] for name in ("lower", "lower_port", "upper", "upper_port")):
            raise FormatError(f"{path}:{rows.line_num}: a cable needs a device and a port at both ends")
        cable = Cable(**values)
        for end in ((cable.lower, cable.lower_port), (cable.upper, cable.upper_port)):
            if (first := ends.setdefault(end, rows.line_num)) != rows.line_num:
                raise FormatError(
                    f"{path}:{rows.line_num}: {end[1]} of {end[0]} already has a cable in line {first}"
                )
        found.append(cable)
    return found
