"""Reads the files of an FRR switch: frr.conf, daemons, sysctl.conf, qos.sh, setup.sh."""

from openmrc.switchconf.parse import linux
from openmrc.switchconf.parse.model import ROUTING_PROTOCOLS, Complaint, Files, Parsed, Route, Where

_PLAIN = {
    "frr defaults datacenter",
    "no ip forwarding",
    "ipv6 forwarding",
    "service integrated-vtysh-config",
    "segment-routing",
    "exit",
    "!",
    "",
}


def parse(files: Files) -> Parsed:
    """The switch."""
    parsed = Parsed()
    _frr_conf(files, parsed)
    _daemons(files, parsed)
    linux.sysctl(files, parsed)
    linux.qos(files, parsed)
    setup = files.text("setup.sh", parsed)
    for command in ("ip link set dev sr0 up", "sysctl -q -p sysctl.conf", "./qos.sh"):
        if setup and command not in setup.splitlines():
            parsed.complain(Where("setup.sh", 0), f"does not run `{command}`")
    return parsed


def _frr_conf(files: Files, parsed: Parsed) -> None:
    name = "frr.conf"
    interface = locator = ""
    locators: dict[str, list[str]] = {}
    unsized: dict[str, tuple[str, int]] = {}
    """Locators whose prefix line does not give the lengths of a uSID, and the line."""
    usid: set[str] = set()
    sids: list[tuple[str, str, int]] = []
    """Prefix, locator and line; FRR's running configuration has them before the locators."""
    forwarding = False
    for number, line in enumerate(files.text(name, parsed).splitlines(), start=1):
        words = line.split()
        match words:
            case ["ipv6", "route", prefix, next_hop, egress]:
                parsed.routes.append(Route(prefix, egress, next_hop, Where(name, number)))
            case ["ipv6", "route", prefix, next_hop] if ":" in next_hop:
                parsed.routes.append(Route(prefix, None, next_hop, Where(name, number)))
            case ["no", "ipv6", "forwarding"]:
                parsed.complain(Where(name, number), "IPv6 forwarding is off")
            case ["interface", name_]:
                interface = name_
            case ["ipv6", "address", address] if interface:
                parsed.address(interface, address, Where(name, number))
            case ["description", *_] | ["ipv6", "nd", "suppress-ra"] if interface:
                pass
            case ["exit"] if not line.startswith(" "):
                interface = ""
            case ["hostname", hostname]:
                parsed.hostname = hostname
            case ["locator", name_]:
                locator = name_
                locators[locator] = []
            case ["prefix", prefix, "block-len", "32", "node-len", "16", *rest] if locator and (
                rest in ([], ["func-bits", "16"])
            ):
                locators[locator].append(prefix)
            case ["prefix", prefix, *_] if locator:
                unsized[locator] = (prefix, number)
            case ["format", "usid-f3216"] if locator in unsized:
                locators[locator].append(unsized.pop(locator)[0])
                usid.add(locator)
            case ["behavior", "usid"] if locator:
                usid.add(locator)
            case ["sid", prefix, "locator", given, "behavior", "uN"]:
                parsed.own.append((prefix, Where(name, number)))
                sids.append((prefix, given, number))
            case ["exit"] if line.startswith(" "):
                locator = ""
            case ["srv6" | "locators" | "static-sids"] if line.startswith(" "):
                pass
            case ["router", protocol, *_] if protocol in ROUTING_PROTOCOLS:
                parsed.complain(Where(name, number), f"runs a routing protocol: {line.strip()}")
            case _ if line not in _PLAIN and not line.startswith("!"):
                parsed.not_understood(Where(name, number), line)
        forwarding |= line == "ipv6 forwarding"
    for prefix, given, number in sids:
        if given not in unsized and (prefix not in locators.get(given, []) or given not in usid):
            text = f"{prefix} is not the prefix of a uSID locator {given}"
            parsed.complain(Where(name, number), text)
    for locator, (prefix, number) in unsized.items():
        parsed.complain(
            Where(name, number), f"locator {locator}, {prefix}: not of 32-bit block and 16-bit node"
        )
    if not forwarding:  # FRR forwards if nothing is said; ours says it.
        parsed.unknown.append(Complaint(Where(name, 0), "does not say `ipv6 forwarding`"))


def _daemons(files: Files, parsed: Parsed) -> None:
    name = "daemons"
    for number, line in enumerate(files.text(name, parsed).splitlines(), start=1):
        daemon, _, value = line.partition("=")
        if daemon.removesuffix("d") in (*ROUTING_PROTOCOLS, "fabric", "pim") and value != "no":
            parsed.complain(Where(name, number), f"runs a routing protocol: {line}")
