"""Reads the file of an Arista EOS switch: startup-config."""

import re

from openmrc.switchconf.parse.model import ROUTING_PROTOCOLS, Files, Parsed, Route, Where, is_number

FILE = "startup-config"

_ECN = re.compile(
    r"random-detect ecn minimum-threshold ([0-9]+) (bytes|kbytes|mbytes) maximum-threshold ([0-9]+) \2 "
    r"max-mark-probability [0-9]+( weight [0-9]+)?",
    re.ASCII,
)
_USID = re.compile("(0x)?[0-9a-fA-F]{1,4}")
_UNIT = {"bytes": 1, "kbytes": 1000, "mbytes": 10**6}


def parse(files: Files) -> Parsed:
    """The switch."""
    parsed = Parsed()
    _Reader(parsed).read(files.text(FILE, parsed))
    return parsed


class _Reader:
    """A section begins at the margin; indented lines belong to it."""

    def __init__(self, parsed: Parsed) -> None:
        self.parsed = parsed
        self.section: list[str] = []
        self.queue = ""
        self.profiles: dict[str, set[tuple[int, int]]] = {}
        self.strict_queues: set[str] = set()
        self.used: set[str] = set()
        """Profiles of interfaces."""
        self.shared_queues: dict[str, set[str]] = {}
        """Queues of each profile that are not strict."""
        self.classes: dict[str, list[str]] = {}
        self.loopback: set[str] = set()
        self.block = ""

    def read(self, text: str) -> None:
        for number, line in enumerate(text.splitlines(), start=1):
            if not line or line.startswith("!"):
                continue
            words = line.split()
            understood = (
                self._indented(words, number) if line.startswith(" ") else self._margin(words, number)
            )
            if not understood:
                self.parsed.not_understood(Where(FILE, number), line)
        shared = {queue for name in self.used for queue in self.shared_queues.get(name, ())}
        for queue in sorted(self.strict_queues & shared):
            self.parsed.complain(Where(FILE, 0), f"queue {queue} is strict in some profiles only")
        for traffic_class, codes in self.classes.items():
            if traffic_class in self.strict_queues:
                self.parsed.strict_codes.update(map(int, codes))
        self.parsed.mapped_codes = {int(code) for codes in self.classes.values() for code in codes}
        queues = self.classes.keys() - self.strict_queues
        for name in sorted(self.used):
            for queue in sorted(queues - self.shared_queues.get(name, set())):
                text = f"queue {queue} of profile {name} keeps its default priority: `no priority` is missing"
                self.parsed.complain(Where(FILE, 0), text)
        for prefix, where in self.parsed.own:
            if prefix not in self.loopback:
                self.parsed.complain(where, f"no loopback has {prefix}")

    def _margin(self, words: list[str], number: int) -> bool:
        self.section = words
        match words:
            case ["ipv6", "route", prefix, interface, next_hop]:
                self.parsed.routes.append(Route(prefix, interface, next_hop, Where(FILE, number)))
            case ["ipv6", "route", prefix, next_hop] if ":" in next_hop:
                self.parsed.routes.append(Route(prefix, None, next_hop, Where(FILE, number)))
            case ["hostname", hostname]:
                self.parsed.hostname = hostname
            case ["end"] | ["interface", _] | ["router", "srv6"]:
                pass
            case ["ipv6", "unicast-routing"]:
                self.parsed.forwards = True
            case ["qos", "map", "dscp", *codes, "to", "traffic-class", traffic_class] if all(
                map(is_number, codes)
            ):
                self.classes[traffic_class] = codes
            case ["qos", "profile", name]:
                self.profiles[name] = set()
            case ["router", protocol, *_] if protocol.removesuffix("3") in ROUTING_PROTOCOLS:
                self.parsed.complain(Where(FILE, number), f"runs a routing protocol: {' '.join(words)}")
            case _:
                return False
        return True

    def _indented(self, words: list[str], number: int) -> bool:
        match self.section:
            case ["interface", interface] if interface.startswith("Loopback"):
                self.loopback.add(words[-1])
                return words[:-1] == ["ipv6", "address"]
            case ["interface", interface]:
                return self._interface(interface, words, number)
            case ["qos", "profile", name]:
                return self._profile(name, words)
            case ["router", "srv6"]:
                return self._srv6(words, number)
        return False

    def _interface(self, interface: str, words: list[str], number: int) -> bool:
        match words:
            case ["ipv6", "address", address]:
                self.parsed.address(interface, address, Where(FILE, number))
            case ["service-profile", name]:
                if name not in self.profiles:
                    return False
                self.used.add(name)
                if self.profiles[name]:
                    self.parsed.marking.add(interface)
                    self.parsed.thresholds |= self.profiles[name]
            case ["priority-flow-control", *_]:
                self.parsed.complain(Where(FILE, number), f"PFC is on at {interface}")
            case (
                ["description", _]
                | ["mtu", _]
                | ["speed", _]
                | ["no", "switchport" | "priority-flow-control"]
            ):
                pass
            case _:
                return False
        return True

    def _profile(self, name: str, words: list[str]) -> bool:
        match words:
            case ["uc-tx-queue", queue]:
                self.queue = queue
            case ["priority", "strict"]:
                self.strict_queues.add(self.queue)
            case ["no", "priority"]:
                self.shared_queues.setdefault(name, set()).add(self.queue)
            case ["qos", "trust", "dscp"]:
                pass
            case _:
                match = _ECN.fullmatch(" ".join(words))
                if match is None:
                    return False
                unit = _UNIT[match[2]]
                self.profiles[name].add((int(match[1]) * unit, int(match[3]) * unit))
        return True

    def _srv6(self, words: list[str], number: int) -> bool:
        match words:
            case ["vrf", "default"] | ["micro-segment", "domain", _] | ["locator", _]:
                pass
            case ["block", block]:
                self.block = block
            case ["prefix", "micro-segment", "domain", _, "end", "usid", usid] if _USID.fullmatch(usid):
                self.parsed.own.append((_prefix(self.block, int(usid, 16)), Where(FILE, number)))
            case _:
                return False
        return True


def _prefix(block: str, usid: int) -> str:
    """The /48 that the switch matches for ``block::/32`` and a uSID."""
    groups = [*block.removesuffix("/32").removesuffix("::").split(":"), "0"]
    return f"{groups[0]}:{groups[1]}:{usid:x}::/48"
