"""Reads the file of a Cumulus Linux switch: NVUE commands."""

import re
from itertools import product

from openmrc.switchconf.parse.model import ROUTING_PROTOCOLS, Files, Parsed, Route, Where, is_number

FILE = "nvue.cmds"
_BYTES = ("min-threshold", "max-threshold")


def parse(files: Files) -> Parsed:
    """The switch."""
    parsed = Parsed()
    _Reader(parsed).read(files.text(FILE, parsed))
    return parsed


_RANGE = re.compile(r"([0-9]{1,4}-[0-9]{1,4})", re.ASCII)


def expand(names: str) -> list[str]:
    """The single names of a list such as ``swp1-3,5,swp6-7s0-1``."""
    found: list[str] = []
    prefix = ""
    for name in names.split(","):
        # A number after a name has its letters: swp1,2 is swp1 and swp2.
        full = prefix + name if name[:1].isdecimal() else name
        prefix = full.rstrip("0123456789-") if full[:1].isalpha() else ""
        pieces = [_numbers(piece) for piece in _RANGE.split(full)]
        found += ("".join(piece) for piece in product(*pieces))
    return found


def _numbers(piece: str) -> list[str]:
    if _RANGE.fullmatch(piece) is None:
        return [piece]
    first, _, last = piece.partition("-")
    return [str(number) for number in range(int(first), int(last) + 1)]


class _Reader:
    def __init__(self, parsed: Parsed) -> None:
        self.parsed = parsed
        self.locators: dict[str, dict[str, str]] = {}
        self.sids: dict[str, dict[str, str]] = {}
        self.sid_lines: dict[str, int] = {}
        self.routes: dict[tuple[str, str], tuple[str | None, int]] = {}
        """Prefix and next hop -> interface and line; NVUE itself writes a line for each setting."""
        self.profiles: dict[str, dict[str, dict[str, str]]] = {}
        """Profile -> traffic class -> setting."""
        self.bound: dict[str, list[str]] = {}
        self.priorities: dict[str, str] = {}
        self.classes: dict[str, str] = {}
        self.strict: set[str] = set()
        self.shared: dict[str, int] = {}
        """Traffic classes in mode dwrr, and the line."""
        self.weighted: set[str] = set()

    def read(self, text: str) -> None:
        for number, line in enumerate(text.splitlines(), start=1):
            if not line or line.startswith("#"):
                continue
            words = line.split()
            if words[:2] != ["nv", "set"] or not self._set(words[2:], number):
                self.parsed.not_understood(Where(FILE, number), line)
        self.parsed.routes += (
            Route(prefix, interface, next_hop, Where(FILE, number))
            for (prefix, next_hop), (interface, number) in self.routes.items()
        )
        self._own()
        self._qos()

    def _set(self, words: list[str], number: int) -> bool:
        match words:
            case ["vrf", "default", "router", "static", prefix, "via", next_hop, *rest]:
                return self._route(prefix, next_hop, rest, number)
            case ["vrf", "default", "router", "static", _, "address-family", "ipv6-unicast"]:
                pass
            case ["interface", interfaces, *rest]:
                return self._interface(",".join(expand(interfaces)), rest, number)
            case ["router", "segment-routing", "srv6", "state", "enabled"]:
                self.parsed.forwards = True
            case ["router", "segment-routing", "srv6", "locator", name, key, value]:
                self.locators.setdefault(name, {})[key] = value
            case ["router", "segment-routing", "static", "srv6-sid", prefix, key, value]:
                self.sids.setdefault(prefix, {})[key] = value
                self.sid_lines[prefix] = number
            case ["system", "hostname", hostname]:
                self.parsed.hostname = hostname
            case ["system", "forwarding", "packet-trim", *_]:
                pass
            case ["qos", *rest]:
                return self._qos_line(rest, number)
            case ["router", protocol, *_] | ["vrf", _, "router", protocol, *_] if (
                protocol in ROUTING_PROTOCOLS
            ):
                self.parsed.complain(Where(FILE, number), f"runs a routing protocol: {' '.join(words)}")
            case _:
                return False
        return True

    def _route(self, prefix: str, next_hop: str, rest: list[str], number: int) -> bool:
        known, first = self.routes.get((prefix, next_hop), (None, number))
        interface = rest[1] if len(rest) == 2 and rest[0] == "interface" else known
        self.routes[prefix, next_hop] = interface, first
        return rest[:1] == ["interface"] or rest in ([], ["type", "ipv6-address"])

    def _interface(self, interfaces: str, words: list[str], number: int) -> bool:
        match words:
            case ["ipv6", "address", address]:
                self.parsed.address(interfaces, address, Where(FILE, number))
            case ["qos", "congestion-control", "profile", name]:
                self.bound.setdefault(name, []).extend(interfaces.split(","))
            case ["description", _] | ["link", "mtu" | "breakout", _] | ["qos", "remark", "profile", _]:
                pass
            case ["packet-trim", "egress-eligibility", "traffic-class", _]:
                pass
            case ["qos", "pfc", *_] | ["qos", "link-pause", *_]:
                self.parsed.complain(Where(FILE, number), f"PFC is on at {interfaces}")
            case _:
                return False
        return True

    def _qos_line(self, words: list[str], number: int) -> bool:
        match words:
            case ["mapping", "default-global", "dscp", codes, "switch-priority", priority] if all(
                map(is_number, expand(codes))
            ):
                self.priorities.update(dict.fromkeys(expand(codes), priority))
            case [
                "egress-queue-mapping",
                "default-global",
                "switch-priority",
                priority,
                "traffic-class",
                number_,
            ]:
                self.classes[priority] = number_
            case ["egress-scheduler", "default-global", "traffic-class", classes, "mode", mode]:
                if mode == "strict":
                    self.strict.update(expand(classes))
                else:
                    self.shared.update(dict.fromkeys(expand(classes), number))
            case ["egress-scheduler", "default-global", "traffic-class", classes, "bw-percent", _]:
                self.weighted.update(expand(classes))
            case ["congestion-control", name, "traffic-class", classes, key, value] if (
                key not in _BYTES or is_number(value)
            ):
                for each in expand(classes):
                    self.profiles.setdefault(name, {}).setdefault(each, {})[key] = value
            case ["mapping", "default-global", "trust", "l3"] | ["remark", *_]:
                pass
            case ["pfc" | "roce" | "link-pause", *_]:
                self.parsed.complain(Where(FILE, number), f"PFC is on: {' '.join(words)}")
            case _:
                return False
        return True

    def _own(self) -> None:
        expected = {"block-length": "32", "node-length": "16"}
        for prefix, fields in self.sids.items():
            where = Where(FILE, self.sid_lines[prefix])
            self.parsed.own.append((prefix, where))
            locator = self.locators.get(fields.get("locator-name", ""), {})
            if locator.get("prefix") != prefix:
                self.parsed.complain(where, f"{prefix} is not the prefix of its locator")
            if fields.get("behavior") != "uN":
                self.parsed.complain(where, f"{prefix}: behavior {fields.get('behavior')}, not uN")
            if any(locator.get(key) != value for key, value in expected.items()):
                self.parsed.complain(where, f"the locator of {prefix} is not of 32-bit block and 16-bit node")

    def _qos(self) -> None:
        for name, interfaces in self.bound.items():
            for settings in self.profiles.get(name, {}).values():
                if settings.get("ecn") == "enabled":
                    self.parsed.marking.update(interfaces)
                    low, high = settings.get("min-threshold", "0"), settings.get("max-threshold", "0")
                    self.parsed.thresholds.add((int(low), int(high)))
        # Other interfaces have the profile default-global, which marks traffic class 0 if nothing is said.
        if self.profiles.get("default-global", {}).get("0", {}).get("ecn") != "disabled":
            bound = {interface for interfaces in self.bound.values() for interface in interfaces}
            self.parsed.marking.update(self.parsed.addresses.keys() - bound)
        for traffic_class, number in self.shared.items():
            if traffic_class not in self.weighted:
                text = f"traffic class {traffic_class} has mode dwrr and no bw-percent"
                self.parsed.complain(Where(FILE, number), text)
        self.parsed.mapped_codes = {int(code) for code in self.priorities}
        for code, priority in self.priorities.items():
            if self.classes.get(priority) in self.strict:
                self.parsed.strict_codes.add(int(code))
