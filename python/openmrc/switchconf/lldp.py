"""Compares a list of cables with the LLDP neighbours of switches (IEEE 802.1AB).

Reads the JSON of ``lldpctl -f json`` (Linux, FRR, SONiC, Cumulus Linux; json0 too) and of EOS's
``show lldp neighbors | json``, a file per switch, named by its host name.
"""

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from openmrc.errors import FormatError
from openmrc.files import read_text
from openmrc.switchconf.cabling import Cable


class Neighbour(NamedTuple):
    """The device at the other end of an interface's cable."""

    device: str
    ports: frozenset[str]
    """The names that it gives its port: identifier and description, without MAC addresses."""


class Problem(NamedTuple):
    """A cable that is elsewhere, or not there."""

    device: str
    port: str
    text: str

    def __str__(self) -> str:
        return f"{self.device}: {self.port}: {self.text}"


@dataclass
class Result:
    """The result of :func:`check`."""

    cables: int
    seen_links: set[str] = field(default_factory=set)
    """Links of which at least one end reports the expected neighbour."""
    unnamed: list[str] = field(default_factory=list)
    """Links whose other end has the right device, but no name for its port that is known."""
    silent: list[str] = field(default_factory=list)
    """Links to hosts that send no LLDP; many network cards do not."""
    problems: list[Problem] = field(default_factory=list)

    @property
    def seen(self) -> int:
        """Cables of which at least one end reports the expected neighbour."""
        return len(self.seen_links)

    @property
    def ok(self) -> bool:
        """Whether there is no problem."""
        return not self.problems


@dataclass
class _End:
    """One end of a cable that a switch's output is checked for."""

    cable: Cable
    peer: str
    peer_port: str
    names: frozenset[str]
    """All names of the other end's port."""
    to_host: bool


_Ends = dict[str, dict[str, _End]]
"""Switch -> interface -> its end."""


def check(cables: list[Cable], directory: Path) -> Result:
    """Compares a list of cables with the switches' LLDP output.

    Args:
        cables: The list.
        directory: Has a file ``p3-t0-17.json`` (or another ending) for each switch.

    Raises:
        FormatError: if a file is not such output.
        OSError: if a file cannot be read.
    """
    expected = _ends(cables)
    outputs = _outputs(directory, expected.keys())
    result = Result(len(cables))
    for device in expected:
        if device in outputs:
            _check_switch(device, read(outputs[device]), expected, result)
        else:
            result.problems.append(Problem(device, "-", f"no LLDP output in {directory}"))
    return result


def _ends(cables: list[Cable]) -> _Ends:
    ends: _Ends = {}
    for cable in cables:
        lower = frozenset((cable.lower_port, cable.lower_alias, cable.link)) - {""}
        upper = frozenset((cable.upper_port, cable.upper_alias, cable.link)) - {""}
        mine = ends.setdefault(cable.upper, {})
        mine[cable.upper_port] = _End(cable, cable.lower, cable.lower_port, lower, cable.to_host)
        if not cable.to_host:
            mine = ends.setdefault(cable.lower, {})
            mine[cable.lower_port] = _End(cable, cable.upper, cable.upper_port, upper, False)
    return dict(sorted(ends.items(), key=lambda item: _natural(item[0])))


def _check_switch(device: str, reported: dict[str, list[Neighbour]], expected: _Ends, result: Result) -> None:
    mine = expected[device]
    for port, end in mine.items():
        neighbours = reported.get(port) or reported.get(_alias(end, device), [])
        problem = _problem(device, end, neighbours, expected, result)
        if problem:
            result.problems.append(Problem(device, port, problem))
    known = mine.keys() | {_alias(end, device) for end in mine.values()}
    for port, neighbours in reported.items():
        for neighbour in neighbours:
            if port not in known and neighbour.device in expected:
                text = f"is connected to {neighbour.device}, expected no cable"
                result.problems.append(Problem(device, port, text))


def _problem(
    device: str, end: _End, neighbours: list[Neighbour], expected: _Ends, result: Result
) -> str | None:
    """What is wrong at one end of a cable, if anything is."""
    expected_peer = f"expected {end.peer} {end.peer_port}"
    if not neighbours:
        if not end.to_host:
            return f"has no LLDP neighbour, {expected_peer}"
        result.silent.append(end.cable.link)
        return None
    if len(neighbours) > 1:
        names = ", ".join(sorted({neighbour.device for neighbour in neighbours}))
        return f"has several LLDP neighbours, {names}; {expected_peer}"
    (neighbour,) = neighbours
    named = sorted(_ports_of(neighbour, expected))
    if neighbour.device == end.peer:
        if end.to_host or neighbour.ports & end.names:
            result.seen_links.add(end.cable.link)
            return None
        if not named:
            result.unnamed.append(end.cable.link)
            return None
    given = " ".join([neighbour.device, *named])
    return f"is connected to {given}, {expected_peer}{_belongs(neighbour, expected[device])}"


def _alias(end: _End, device: str) -> str:
    """The other name of a switch's own port."""
    return end.cable.upper_alias if end.cable.upper == device else end.cable.lower_alias


def _ports_of(neighbour: Neighbour, expected: _Ends) -> list[str]:
    """The interface of the neighbour, if it says one that the list has."""
    ends = expected.get(neighbour.device, {})
    return [port for port, end in ends.items() if {port, _alias(end, neighbour.device)} & neighbour.ports]


def _belongs(neighbour: Neighbour, mine: dict[str, _End]) -> str:
    """The port of this switch that the cable should be in."""
    for port, end in mine.items():
        if end.peer == neighbour.device and (end.to_host or neighbour.ports & end.names):
            return f" (this cable belongs to {port})"
    return ""


# --- files --------------------------------------------------------------------------------------------------


def _outputs(directory: Path, switches: Collection[str]) -> dict[str, Path]:
    """The file of each switch."""
    if not directory.is_dir():
        raise FormatError(f"{directory} is not a directory; it should have a file of LLDP output per switch")
    found: dict[str, Path] = {}
    for path in sorted(directory.rglob("*")):
        name = path.name.partition(".")[0]
        name = name if name in switches else "-".join(path.relative_to(directory).parts).partition(".")[0]
        if path.is_file() and name in switches:
            if name in found:
                raise FormatError(f"{path}: {found[name]} is for the same switch")
            found[name] = path
    if not found:
        raise FormatError(
            f"{directory} has no file named after a switch, such as {next(iter(switches))}.json"
        )
    return found


def read(path: Path) -> dict[str, list[Neighbour]]:
    """Interface -> neighbours, from one switch's output.

    Raises:
        FormatError: if it is not LLDP output as JSON.
        OSError: if it cannot be read.
    """
    text = read_text(path, errors="replace")
    try:
        value = json.loads(text or "{}")
        reported: dict[str, list[Neighbour]] = {}
        for interface, neighbour in _entries(value):
            reported.setdefault(interface, []).append(neighbour)
    except json.JSONDecodeError as error:
        raise FormatError(f"{path}:{error.lineno}: not JSON: {error.msg}; use lldpctl -f json") from None
    except (AttributeError, KeyError, TypeError, ValueError):
        raise FormatError(
            f"{path}: not the output of lldpctl -f json or show lldp neighbors | json"
        ) from None
    return reported


def _entries(value: dict[str, Any]) -> Iterator[tuple[str, Neighbour]]:
    if "lldpNeighbors" in value:
        for entry in value["lldpNeighbors"]:
            yield entry["port"], Neighbour(entry["neighborDevice"], frozenset({entry["neighborPort"]}))
        return
    for lldp in _list(value["lldp"]):
        for each in _list(lldp.get("interface", [])):
            # json0 has the name inside, json has it as the key.
            pairs = [(each["name"], each)] if isinstance(each.get("name"), str) else each.items()
            for interface, fields in pairs:
                yield interface, _neighbour(fields)


def _neighbour(fields: dict[str, Any]) -> Neighbour:
    (chassis,) = _list(fields["chassis"])
    if "name" in chassis:
        device = _text(chassis["name"])
    else:
        # The key is the system name; without one, the fields are there themselves.
        device = "" if "id" in chassis else next(iter(chassis))
        chassis = chassis.get(device, chassis)
    if not device:
        device = str(_list(chassis["id"])[0]["value"])
    (port,) = _list(fields["port"])
    names = {_text(port["descr"])} if "descr" in port else set()
    for identity in _list(port.get("id", [])):
        if identity.get("type") not in ("mac", "ip"):
            names.add(str(identity["value"]))
    return Neighbour(device, frozenset(names - {""}))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _text(value: Any) -> str:
    """A text, or the value of json0's ``[{"value": text}]``."""
    value = _list(value)[0]
    return str(value["value"]) if isinstance(value, dict) else str(value)


def _natural(name: str) -> list[tuple[str, int, str]]:
    """Sorts p0-t0-2 before p0-t0-10: of two numbers the longer one is the larger."""
    return [(text, len(digits), digits) for text, digits in re.findall(r"([^0-9]*)([0-9]*)", name)]
