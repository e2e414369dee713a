"""Verifies configurations that openmrc did not write: does every path address of the plan arrive?

Own uSIDs and routes to uSIDs must be the plan's. Link addresses, further lines, tables and routes are the
operator's own; a next hop must be the address of the neighbour at the other end of the right cable.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv6Address, IPv6Interface, IPv6Network, ip_interface
from pathlib import Path
from typing import Any

from openmrc.errors import ArgumentError, FormatError
from openmrc.fabric.spec import Platform
from openmrc.fabric.topology import Fabric, SwitchId, SwitchPort
from openmrc.switchconf.cabling import Cable, device
from openmrc.switchconf.facts import QosFacts
from openmrc.switchconf.interfaces import Interfaces
from openmrc.switchconf.parse import PARSERS, Files, Parsed, Route, Where
from openmrc.switchconf.verify import Problem
from openmrc.switchconf.walk import usid_of

MAIN: dict[Platform, str] = {
    "linux": "ip.batch",
    "frr": "frr.conf",
    "sonic": "config_db.json",
    "eos": "startup-config",
    "cumulus": "nvue.cmds",
}
"""The file of a switch that must be there; it may have another name."""


@dataclass
class Result:
    """The result of :func:`verify_foreign`."""

    platform: Platform
    switches: int = 0
    entries: int = 0
    """Own uSIDs and routes to uSIDs of the plan."""
    ignored: int = 0
    """Lines and routes that have no meaning for the paths."""
    unchecked: set[str] = field(default_factory=set)
    """What could not be checked, as no file says it."""
    notes: list[Problem] = field(default_factory=list)
    """Differences that do not lose packets."""
    problems: list[Problem] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether there is no problem."""
        return not self.problems


def verify_foreign(
    directory: Path | str,
    fabric: Fabric,
    platform: Platform,
    *,
    cables: list[Cable] | None = None,
    progress: Callable[[int, int], Any] | None = None,
) -> Result:
    """Verifies the configurations of a fabric's switches that others wrote.

    Args:
        directory: Has for switch ``p3/t0-17`` a file ``p3-t0-17.cfg`` (any ending), or a directory
            ``p3-t0-17`` or ``p3/t0-17`` with one file, or with the files that openmrc would write.
        fabric: The plan that the hosts' path addresses come from.
        platform: The system of the switches.
        cables: Which port each link is at, if not where the plan has it; the links are named as in the plan.
        progress: Called with the number of switches done and of all switches.

    Raises:
        FormatError: if there is no file of any switch.
        ArgumentError: if the fabric cannot be addressed, or a link of the list is not in the fabric.
        OSError: if a file cannot be read.
    """
    fabric.core.check_addresses()
    checker = _Checker(Path(directory), fabric, platform, cables)
    result = Result(platform)
    for switch in fabric.switches():
        checker.read(switch, result)
    if not checker.parsed:
        name = device(str(next(fabric.switches())))
        raise FormatError(
            f"{directory} has no file of a switch, such as {name}.cfg or {name}/{MAIN[platform]}"
        )
    for switch in fabric.switches():
        checker.check(switch, result)
        result.switches += 1
        if progress is not None:
            progress(result.switches, fabric.switch_count)
    return result


class _Checker:
    def __init__(self, root: Path, fabric: Fabric, platform: Platform, cables: list[Cable] | None) -> None:
        self.root, self.fabric, self.platform = root, fabric, platform
        self.parsed: dict[SwitchId, Parsed] = {}
        self._files: dict[SwitchId, Files] = {}
        self._addresses: dict[SwitchId, dict[str, list[IPv6Interface]]] = {}
        self._interfaces = Interfaces(fabric, platform)
        self._block = fabric.spec.prefix_bits()[0]
        self._qos = QosFacts.of(fabric.spec, fabric.port_rate)
        self._ends = _ends(fabric, cables) if cables is not None else None

    def read(self, switch: SwitchId, result: Result) -> None:
        """Parses the files of a switch."""
        main = MAIN[self.platform]
        path = _find(self.root, switch, main)
        if path is None:
            result.problems.append(Problem(str(switch), str(self.root), 0, "the switch's files are missing"))
            return
        self._files[switch] = Files(path.parent, (main, path))
        parsed = self.parsed[switch] = PARSERS[self.platform](self._files[switch])
        addresses = self._addresses.setdefault(switch, {})
        for interface, text in parsed.every_address:
            try:
                address = ip_interface(text)
            except ValueError:
                parsed.complain(Where(main, 0), f"{interface}: {text} is not an address")
                continue
            if isinstance(address, IPv6Interface):
                addresses.setdefault(interface, []).append(address)

    def interface(self, switch: SwitchId, port: SwitchPort) -> str:
        """The interface of a port."""
        if self._ends is None:
            return self._interfaces.name(port)
        return self._ends.get((device(str(switch)), port.link), "")

    def check(self, switch: SwitchId, result: Result) -> None:
        """Checks a switch; its neighbours are parsed."""
        parsed = self.parsed.get(switch)
        if parsed is None:
            return
        ports = {self.interface(switch, port): port for port in self.fabric.ports(switch)}
        ports.pop("", None)

        def problem(where: Where, text: str) -> None:
            result.problems.append(self._problem(switch, where, text))

        own, routes = self.fabric.table(switch)
        self._own(parsed, set(own), problem, result)
        self._routes(switch, parsed, ports, dict(routes), problem, result)
        self._facts(switch, parsed, ports, problem, result)
        for where, text in parsed.complaints:
            problem(where, text)
        result.ignored += len(parsed.unknown)

    def _problem(self, switch: SwitchId, where: Where, text: str) -> Problem:
        path = self._files[switch].path(where.file)
        shown = path.relative_to(self.root) if path.is_relative_to(self.root) else path
        return Problem(str(switch), str(shown), where.line(path), text)

    # --- entries --------------------------------------------------------------------------------------------

    def _own(
        self, parsed: Parsed, expected: set[int], problem: Callable[[Where, str], None], result: Result
    ) -> None:
        missing = set(expected)
        for prefix, where in parsed.own:
            usid = usid_of(prefix, self._block)
            if usid is None:
                result.ignored += 1
            elif usid in missing:
                missing.discard(usid)
                result.entries += 1
            elif usid not in expected:
                problem(where, f"{prefix} is not a uSID of this switch{self._owner(usid)}")
        for usid in sorted(missing):
            problem(Where(MAIN[self.platform], 0), f"its own uSID {self._prefix(usid)} is missing")

    def _routes(
        self,
        switch: SwitchId,
        parsed: Parsed,
        ports: dict[str, SwitchPort],
        expected: dict[int, int],
        problem: Callable[[Where, str], None],
        result: Result,
    ) -> None:
        behind, subnets = self._behind(switch, ports), self._subnets(switch, ports)
        seen: set[int] = set()
        for route in parsed.routes:
            usid = usid_of(route.prefix, self._block)
            if usid is None or usid not in expected:
                inside = self._inside(route.prefix, expected)
                if inside is not None:
                    text = (
                        f"{route.prefix} is more specific than {self._prefix(inside)} and takes its packets"
                    )
                    problem(route.where, text)
                else:
                    result.ignored += 1
                continue
            if usid in seen:
                problem(route.where, f"{route.prefix} has a second next hop, {route.next_hop}")
                continue
            seen.add(usid)
            result.entries += 1
            wrong = self._wrong(switch, route, usid, ports, expected[usid], behind, subnets)
            if wrong:
                problem(route.where, wrong)
        for usid in sorted(expected.keys() - seen):
            text = f"the route for {self._prefix(usid)}{self._owner(usid)} is missing"
            problem(Where(MAIN[self.platform], 0), text)

    def _wrong(
        self,
        switch: SwitchId,
        route: Route,
        usid: int,
        ports: dict[str, SwitchPort],
        number: int,
        behind: dict[int, str],
        subnets: dict[IPv6Network, tuple[str, IPv6Address]],
    ) -> str | None:
        """What is wrong with a route, if anything is."""
        what = f"{route.prefix}{self._owner(usid)}"
        hop = _address(route.next_hop)
        if hop is None:
            return f"{what}: {route.next_hop} is not an address"
        if hop.is_link_local:
            if route.interface is None:
                return f"{what}: next hop {hop} is link-local and has no interface"
            egress: str | None = route.interface
        else:
            egress = behind.get(int(hop)) or _to_host(hop, subnets)
            if egress is None:
                return f"{what} goes to {hop}, which is no neighbour's address"
            if route.interface is not None and route.interface != egress:
                return f"{what} leaves by {route.interface}, but {hop} is behind {egress}"
        port = ports.get(egress or "")
        if port is not None and port.number == number:
            return None
        right = next(each for each in self.fabric.ports(switch) if each.number == number)
        to = f" to {port.peer}" if port is not None else ", where no link of the plan is"
        place = self.interface(switch, right) or "no interface of the list"
        return f"{what} leaves by {egress}{to}; {right.peer} is behind {place}"

    def _behind(self, switch: SwitchId, ports: dict[str, SwitchPort]) -> dict[int, str]:
        """Addresses of neighbouring switches at the other ends of this switch's links -> interface here."""
        found = {}
        for name, port in ports.items():
            if switch.tier == 0 and not port.is_uplink:
                continue
            peer = self.fabric.switch(port.peer)
            far = self.interface(peer, _other_end(self.fabric, peer, port))
            for address in self._addresses.get(peer, {}).get(far, ()):
                found[int(address.ip)] = name
        return found

    def _subnets(
        self, switch: SwitchId, ports: dict[str, SwitchPort]
    ) -> dict[IPv6Network, tuple[str, IPv6Address]]:
        """Subnets to hosts -> interface and its own address."""
        found = {}
        for name, port in ports.items():
            if switch.tier == 0 and not port.is_uplink:
                for address in self._addresses[switch].get(name, ()):
                    found[address.network] = (name, address.ip)
        return found

    def _inside(self, prefix: str, expected: dict[int, int]) -> int | None:
        """The expected uSID whose packets a more specific route takes."""
        try:
            network = IPv6Network(prefix)
        except ValueError:
            return None
        usid = int(network.network_address) >> 80 & 0xFFFF
        if usid in expected and network.subnet_of(IPv6Network(self._prefix(usid))):
            return usid
        return None

    def _prefix(self, usid: int) -> str:
        return f"{self._block >> 16:x}:{self._block & 0xFFFF:x}:{usid:x}::/48"

    def _owner(self, usid: int) -> str:
        name = self.fabric.core.usid_name(usid)
        return f" ({name})" if name else ""

    # --- the rest -------------------------------------------------------------------------------------------

    def _facts(
        self,
        switch: SwitchId,
        parsed: Parsed,
        ports: dict[str, SwitchPort],
        problem: Callable[[Where, str], None],
        result: Result,
    ) -> None:
        absent = self._files[switch].absent
        place = Where(MAIN[self.platform], 0)
        if "sysctl.conf" in absent:
            result.unchecked.add("forwarding and SRv6 of interfaces (no sysctl.conf)")
        elif not parsed.forwards:
            problem(place, "IPv6 forwarding or SRv6 is not enabled")
        if "sysctl.conf" not in absent and parsed.srv6_interfaces is not None:
            for name in sorted(ports.keys() - parsed.srv6_interfaces):
                problem(Where("sysctl.conf", 0), f"seg6_enabled is not set on {name}")
        if "qos.sh" in absent:
            result.unchecked.add("queues and ECN (no qos.sh)")
            return
        for name, port in ports.items():
            should = port.is_uplink or switch.tier > 0
            if (name in parsed.marking) != should:
                problem(
                    place,
                    f"{name} {'does not mark ECN' if should else 'must not mark ECN: it is a last hop'}",
                )
        wanted = (self._qos.ecn_min, self._qos.ecn_max)
        if parsed.thresholds - {wanted}:
            text = f"ECN thresholds are {sorted(parsed.thresholds)}, the plan has {wanted}"
            result.notes.append(self._problem(switch, place, text))
        if parsed.mapped_codes is not None and (codes := set(range(64)) - parsed.mapped_codes):
            text = f"code points that keep a default class: {', '.join(map(str, sorted(codes)))}"
            result.notes.append(self._problem(switch, place, text))
        control = set(self._qos.control_codes)
        if not control <= parsed.strict_codes:
            late = ", ".join(map(str, sorted(control - parsed.strict_codes)))
            problem(place, f"control code points without strict priority: {late}")
        data = {*self._qos.data_codes, *self._qos.plain_codes} & parsed.strict_codes
        if data:
            problem(place, f"data code points with strict priority: {', '.join(map(str, sorted(data)))}")


def _other_end(fabric: Fabric, peer: SwitchId, port: SwitchPort) -> SwitchPort:
    """The neighbour's port of a link, as far as its name and number."""
    kind, place = port.peer_port.rstrip("0123456789"), int(port.peer_port.lstrip("updown"))
    number = place + (fabric.core.downlinks(peer.tier) if kind == "up" else 0)
    return port._replace(number=number, name=port.peer_port)


def _to_host(hop: IPv6Address, subnets: dict[IPv6Network, tuple[str, IPv6Address]]) -> str | None:
    """The interface to a host in whose subnet an address is."""
    for length in {network.prefixlen for network in subnets}:
        network = IPv6Network((int(hop), length), strict=False)
        if network in subnets and subnets[network][1] != hop:
            return subnets[network][0]
    return None


def _ends(fabric: Fabric, cables: list[Cable]) -> dict[tuple[str, str], str]:
    """(switch, link) -> interface."""
    known = {port.link for switch in fabric.switches() for port in fabric.ports(switch)}
    ends = {}
    for cable in cables:
        if cable.link not in known:
            raise ArgumentError(f"the list of cables has a link {cable.link}, which the fabric does not have")
        ends[cable.upper, cable.link] = cable.upper_port
        ends[cable.lower, cable.link] = cable.lower_port
    return ends


def _find(root: Path, switch: SwitchId, main: str) -> Path | None:
    """The main file of a switch."""
    for base in (root / str(switch), root / device(str(switch))):
        if base.is_file():
            return base
        if base.is_dir():
            if (base / main).is_file():
                return base / main
            files = [path for path in base.iterdir() if path.is_file()]
            if len(files) == 1:
                return files[0]
        if base.parent.is_dir():
            for path in sorted(base.parent.glob(f"{base.name}.*")):
                if path.is_file():
                    return path
    return None


def _address(text: str) -> IPv6Address | None:
    try:
        return IPv6Address(text)
    except ValueError:
        return None
