"""Verifies rendered configurations, from the files alone.

The files of every switch are parsed, and every entry is checked against the cabling and the addressing plan:
link addresses, the port of each route, missing, duplicate and unnecessary uSIDs. docs/fabric.md shows that
every path arrives then. In a small fabric a packet is also walked along every path through the parsed tables.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from ipaddress import IPv6Address
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from openmrc.errors import FormatError
from openmrc.fabric.spec import Platform
from openmrc.fabric.topology import Fabric, SwitchId, SwitchPort
from openmrc.files import read_text
from openmrc.switchconf.facts import QosFacts
from openmrc.switchconf.interfaces import Interfaces
from openmrc.switchconf.parse import PARSERS, Files, Parsed, Where
from openmrc.switchconf.render import FILES, PLATFORM, SPECIFICATION, switch_directory
from openmrc.switchconf.walk import World, connect, tables_of, usid_of

WALK_LIMIT = 200_000
"""Up to this number of paths (T0, uplinks, host, plane), every path is walked."""


class Problem(NamedTuple):
    """An error in a switch's files."""

    switch: str
    file: str
    line: int
    text: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{self.switch}: {place}: {self.text}"


@dataclass
class Result:
    """The result of :func:`verify`."""

    platform: Platform
    switches: int = 0
    entries: int = 0
    """Number of own uSIDs and routes in the files."""
    paths: int | None = None
    """Number of paths walked; ``None``: the fabric is too large."""
    problems: list[Problem] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether there is no problem."""
        return not self.problems


def verify(
    directory: Path | str, *, walk: bool | None = None, progress: Callable[[int, int], Any] | None = None
) -> Result:
    """Verifies a directory that ``openmrc config`` wrote.

    Args:
        directory: The directory, with the specification and a directory per switch.
        walk: Whether to walk every path too; default if there are at most :data:`WALK_LIMIT`.
        progress: Called with the number of switches done and of all switches.

    Raises:
        FormatError: if it is no such directory, or its specification is wrong.
        OSError: if a file cannot be read.
    """
    root = Path(directory)
    fabric, platform = written(root)
    checker = _Checker(fabric, platform, root)
    paths = count_paths(fabric)
    keep = paths <= WALK_LIMIT if walk is None else walk
    result = Result(platform)
    result.problems += _strangers(fabric, root)
    kept: dict[str, Parsed] = {}
    for switch in fabric.switches():
        parsed = checker.check(switch, result.problems)
        result.switches += 1
        result.entries += len(parsed.own) + len(parsed.routes)
        if keep:
            kept[str(switch)] = parsed
        if progress is not None:
            progress(result.switches, fabric.switch_count)
    if keep:
        _walk(fabric, checker, kept, result)
    return result


def written(root: Path) -> tuple[Fabric, Platform]:
    """The fabric and the platform of a directory that ``openmrc config`` wrote.

    Raises:
        FormatError: if it is no such directory, or its specification is wrong.
        OSError: if a file cannot be read.
    """
    platform = _platform(root)
    return Fabric.load(root / SPECIFICATION), platform


def count_paths(fabric: Fabric) -> int:
    """Number of different path addresses: source T0, uplinks, destination host and plane.

    Of a fabric with more than :data:`WALK_LIMIT`, a number above it.
    """
    core = fabric.core
    per_t0 = core.hosts_per_t0
    total = 0
    for t0 in range(core.switches_per_tier[0]):
        src = t0 * per_t0
        # One destination per T0 represents all of its hosts.
        for other in range(core.switches_per_tier[0]):
            hosts = min(per_t0, fabric.hosts - other * per_t0)
            dst = other * per_t0
            paths = fabric.planes if other == t0 else core.path_count(src, dst)
            total += paths * hosts
        if total > WALK_LIMIT:
            return total
    return total


def _platform(root: Path) -> Platform:
    if not root.is_dir():
        is_fabric = root.is_file() and root.suffix in (".yaml", ".yml")
        hint = f"; `openmrc config {root} --platform NAME -o DIR` writes one" if is_fabric else ""
        raise FormatError(f"{root} is not a directory{hint}")
    try:
        name = read_text(root / PLATFORM, most=64).strip()
    except FileNotFoundError:
        raise FormatError(f"{root}: no file {PLATFORM}; `openmrc config` writes one there") from None
    if name not in FILES:
        raise FormatError(f"{root / PLATFORM}: {name} is not one of {', '.join(FILES)}")
    return name


def _strangers(fabric: Fabric, root: Path) -> Iterator[Problem]:
    """Directories of switches that the fabric does not have; somebody could load them."""
    for plane in sorted(root.glob("p*")):
        for directory in sorted(plane.glob("t*")):
            name = f"{plane.name}/{directory.name}"
            try:
                fabric.switch(name)
            except ValueError:
                yield Problem(name, name, 0, "the fabric has no such switch")


class _Checker:
    """Checks one switch at a time."""

    def __init__(self, fabric: Fabric, platform: Platform, root: Path) -> None:
        self.fabric, self.root = fabric, root
        self.parse = PARSERS[platform]
        self.interfaces = Interfaces(fabric, platform)
        self.name = self.interfaces.name
        self.block = fabric.spec.prefix_bits()[0]
        # The switches of a fabric have entries for the same uSIDs.
        self._usid = cache(partial(usid_of, block=self.block))
        self.prefix = f"{self.block >> 16:x}:{self.block & 0xFFFF:x}:"
        qos = QosFacts.of(fabric.spec, fabric.port_rate)
        self.thresholds = {(qos.ecn_min, qos.ecn_max)}
        self.control = set(qos.control_codes)

    def check(self, switch: SwitchId, problems: list[Problem]) -> Parsed:
        directory = switch_directory(self.root, switch)
        if not directory.is_dir():
            problems.append(Problem(str(switch), self._path(switch, ""), 0, "the switch's files are missing"))
            return Parsed()
        parsed = self.parse(Files(directory))
        ports = {self.name(port): port for port in self.fabric.ports(switch)}
        self._interfaces(parsed, ports)
        self._entries(switch, parsed, ports)
        self._facts(switch, parsed, ports)
        for where, text in (*parsed.unknown, *parsed.complaints):
            problems.append(self.problem(switch, where, text))
        return parsed

    def problem(self, switch: SwitchId, where: Where, text: str) -> Problem:
        """A problem at a place in a switch's files."""
        line = where.line(switch_directory(self.root, switch) / where.file)
        return Problem(str(switch), self._path(switch, where.file), line, text)

    def _path(self, switch: SwitchId, name: str) -> str:
        return str(switch_directory(Path(), switch) / name)

    # --- checks ---------------------------------------------------------------------------------------------

    def _interfaces(self, parsed: Parsed, ports: dict[str, SwitchPort]) -> None:
        """Checks the address of every cable end; then a next hop determines its port."""
        for name, (address, where) in parsed.addresses.items():
            port = ports.get(name)
            if port is None:
                parsed.complain(where, f"{name} has an address, but nothing is connected to it")
            elif address != f"{port.address}/127" and not _same(address, f"{port.address}/127"):
                text = f"{name} has address {address}, its end of {port.link} is {port.address}/127"
                parsed.complain(where, text)
        for name, (lanes, speed, where) in parsed.hardware.items():
            row = self.interfaces.row(ports[name]) if name in ports else None
            if row is not None and (lanes, speed) != (row.lanes, row.speed):
                parsed.complain(
                    where,
                    f"{name} has lanes {lanes} and speed {speed}, "
                    f"the port table has lanes {row.lanes} and speed {row.speed}",
                )
        for name, port in ports.items():
            if name not in parsed.addresses:
                parsed.complain(
                    _file(parsed), f"{name} has no address, its end of {port.link} is {port.address}/127"
                )

    def _entries(self, switch: SwitchId, parsed: Parsed, ports: dict[str, SwitchPort]) -> None:
        own, routes = self.fabric.table(switch)
        missing = set(own)
        for prefix, where in parsed.own:
            usid = self._usid(prefix)
            if usid in missing:
                missing.discard(usid)
            elif usid in own:
                parsed.complain(where, f"{prefix} is there twice")
            else:
                parsed.complain(where, f"{prefix} is not a uSID of {switch}{self._owner(usid)}")
        for usid in sorted(missing):
            parsed.complain(_file(parsed), f"its own uSID {self.prefix}{usid:x}::/48 is missing")
        self._routes(parsed, ports, dict(routes))

    def _routes(self, parsed: Parsed, ports: dict[str, SwitchPort], expected: dict[int, int]) -> None:
        behind = {port.peer_address: name for name, port in ports.items()}
        seen: set[int] = set()
        for prefix, interface, next_hop, where in parsed.routes:
            usid = self._usid(prefix)
            if usid is None or usid not in expected:
                parsed.complain(where, f"{prefix} is never used here{self._owner(usid)}")
                continue
            if usid in seen:
                parsed.complain(where, f"{prefix} has a second next hop, {next_hop}")
                continue
            seen.add(usid)
            egress = behind.get(next_hop) or behind.get(_canonical(next_hop) or "")
            if egress is None:
                parsed.complain(where, f"{prefix} goes to {next_hop}, which is no neighbour's address")
            elif interface is not None and interface != egress:
                parsed.complain(where, f"{prefix} leaves by {interface}, but {next_hop} is behind {egress}")
            elif ports[egress].number != expected[usid]:
                right = next(p for p in ports.values() if p.number == expected[usid])
                text = f"{prefix}{self._owner(usid)} leaves by {egress} to {ports[egress].peer}"
                parsed.complain(where, f"{text}; {right.peer} is behind {self.name(right)}")
        for usid in sorted(expected.keys() - seen):
            parsed.complain(
                _file(parsed), f"the route for {self.prefix}{usid:x}::/48{self._owner(usid)} is missing"
            )

    def _owner(self, usid: int | None) -> str:
        """`` (p3/t1-5)`` behind a prefix in a message."""
        name = None if usid is None else self.fabric.core.usid_name(usid)
        return f" ({name})" if name else ""

    def _facts(self, switch: SwitchId, parsed: Parsed, ports: dict[str, SwitchPort]) -> None:
        place = _file(parsed)
        if not parsed.forwards:
            parsed.complain(place, "IPv6 forwarding or SRv6 is not enabled")
        if parsed.srv6_interfaces is not None:
            for name in sorted(ports.keys() - parsed.srv6_interfaces):
                parsed.complain(Where("sysctl.conf", 0), f"seg6_enabled is not set on {name}")
        hostname = str(switch).replace("/", "-")
        if parsed.hostname is not None and parsed.hostname != hostname:
            parsed.complain(place, f"the host name is {parsed.hostname}, not {hostname}")
        should_mark = {name for name, port in ports.items() if port.is_uplink or switch.tier > 0}
        for name in sorted(parsed.marking ^ should_mark):
            text = "must not mark ECN: it is a last hop" if name in parsed.marking else "does not mark ECN"
            parsed.complain(place, f"{name} {text}")
        if should_mark and parsed.thresholds != self.thresholds:
            parsed.complain(place, f"ECN thresholds are {parsed.thresholds}, should be {self.thresholds}")
        if parsed.mapped_codes is not None and (unmapped := set(range(64)) - parsed.mapped_codes):
            codes = ", ".join(map(str, sorted(unmapped)))
            parsed.complain(place, f"code points without a traffic class, which keep a default: {codes}")
        if parsed.strict_codes != self.control:
            given, right = sorted(parsed.strict_codes), sorted(self.control)
            parsed.complain(place, f"code points with strict priority are {given}, should be {right}")


def _walk(fabric: Fabric, checker: _Checker, kept: dict[str, Parsed], result: Result) -> None:
    """Walks a packet along every path, then finds the entries that no packet used."""
    ids = {str(switch): switch for switch in fabric.switches()}
    world = _world(fabric, checker, kept, ids)
    result.paths = 0
    lost: dict[tuple[str, Where], list[str]] = {}
    for src, dst in _pairs(fabric):
        for path in fabric.paths(src, dst):
            result.paths += 1
            start = path.hops[0].switch
            host, wrong, last, route = world.deliver(start, path.address)
            if host == path.dst:
                continue
            reason = wrong or f"it arrives at {host}"
            where = route.where if route else _file(kept[last])
            text = f"a packet of {path.src} to {path.dst} on EV {path.ev:#010x} is lost: {reason}"
            lost.setdefault((last, where), []).append(text)
    for (name, where), texts in lost.items():
        more = f" (and {len(texts) - 1:,} paths more)" if len(texts) > 1 else ""
        result.problems.append(checker.problem(ids[name], where, texts[0] + more))
    for name, tables in world.tables.items():
        for usid in sorted((tables.own | tables.routes.keys()) - tables.used):
            unused = tables.routes.get(usid)
            where = unused.where if unused else _file(kept[name])
            result.problems.append(
                checker.problem(ids[name], where, f"no path uses the entry for uSID {usid:#06x}")
            )


def _world(fabric: Fabric, checker: _Checker, kept: dict[str, Parsed], ids: dict[str, SwitchId]) -> World:
    tables = {name: tables_of(parsed, checker.block) for name, parsed in kept.items()}
    addresses: dict[str, dict[str, int]] = {}
    for name, parsed in kept.items():
        addresses[name] = {}
        for interface, (address, _) in parsed.addresses.items():
            if (canonical := _canonical(address.partition("/")[0])) is not None:
                addresses[name][interface] = int(IPv6Address(canonical))
    hosts = {}
    for name, switch in ids.items():
        if switch.tier == 0:
            for port in fabric.ports(switch):
                if not port.is_uplink:
                    hosts[name, checker.name(port)] = port.peer
    return World(tables, connect(addresses), hosts)


def _pairs(fabric: Fabric) -> Iterator[tuple[int, int]]:
    """Pairs of one sender under each T0 with every host; other senders have the same path addresses."""
    per_t0 = fabric.core.hosts_per_t0
    for first in range(0, fabric.hosts, per_t0):
        for dst in range(fabric.hosts):
            if dst != first:
                yield first, dst
            elif first + 1 < min(first + per_t0, fabric.hosts):
                yield first + 1, dst


def _file(parsed: Parsed) -> Where:
    """The file that an entry is missing from."""
    places = chain(
        (route.where for route in parsed.routes),
        (where for _, where in parsed.own),
        (where for _, where in parsed.addresses.values()),
    )
    return Where(next((where.file for where in places), ""), 0)


def _canonical(address: str) -> str | None:
    try:
        return str(IPv6Address(address))
    except ValueError:
        return None


def _same(a: str, b: str) -> bool:
    """Whether two addresses with prefix length are equal, in any spelling."""
    (one, _, length), (other, _, expected) = a.partition("/"), b.partition("/")
    return length == expected and _canonical(one) == _canonical(other)
