"""Reads the files of a Linux switch: ip.batch, sysctl.conf, qos.sh."""

import re

from openmrc.switchconf.parse.model import Files, Parsed, Route, Where

UN = [
    "encap",
    "seg6local",
    "action",
    "End",
    "flavors",
    "next-csid",
    "lblen",
    "32",
    "nflen",
    "16",
    "dev",
    "sr0",
]
"""After ``route add PREFIX``, this makes the kernel shift the address (seg6local End, NEXT-CSID flavor,
F3216)."""

_SYSCTL = re.compile(r"net\.ipv6\.conf\.([\w-]+)\.(\w+)\s*=\s*(\S+)", re.ASCII)
_RED = re.compile(r".*\bred limit \d+ min (\d+) max (\d+) avpkt .* ecn", re.ASCII)
_STRICT = re.compile(r".*\bflower ip_tos (0x[0-9a-f]{2})/0xfc classid 1:1", re.ASCII)


def parse(files: Files) -> Parsed:
    """The switch."""
    parsed = Parsed()
    _ip_batch(files, parsed)
    sysctl(files, parsed)
    qos(files, parsed)
    setup = files.text("setup.sh", parsed)
    if setup and not re.search(r"^[^#\n]*\bip\.batch\b", setup, re.M):
        parsed.complain(Where("setup.sh", 0), "does not load ip.batch")
    for command in ("sysctl -q -p sysctl.conf", "./qos.sh"):
        if setup and command not in setup.splitlines():
            parsed.complain(Where("setup.sh", 0), f"does not run `{command}`")
    return parsed


def _ip_batch(files: Files, parsed: Parsed) -> None:
    name = "ip.batch"
    up: set[str] = set()
    for number, line in enumerate(files.text(name, parsed).splitlines(), start=1):
        words = line.split()
        match words:
            case ["route", "add", prefix, "via", next_hop, "dev", interface]:
                parsed.routes.append(Route(prefix, interface, next_hop, Where(name, number)))
            case ["address", "add", address, "dev", interface, "nodad"]:
                parsed.address(interface, address, Where(name, number))
            case ["link", "set", "dev", interface, *_, "up"]:
                up.add(interface)
            case ["route", "add", prefix, *rest] if rest == UN:
                parsed.own.append((prefix, Where(name, number)))
            case ["link", "add", "sr0", "type", "bridge"] | []:
                pass
            case _ if not line.startswith("#"):
                parsed.not_understood(Where(name, number), line)
    for interface, (_, where) in parsed.addresses.items():
        if interface not in up:
            parsed.complain(where, f"{interface} has an address but is not set up")


def sysctl(files: Files, parsed: Parsed) -> None:
    """The settings for forwarding and SRv6."""
    name = "sysctl.conf"
    values: dict[tuple[str, str], str] = {}
    for number, line in enumerate(files.text(name, parsed).splitlines(), start=1):
        if not line or line.startswith("#"):
            continue
        match = _SYSCTL.fullmatch(line)
        if match is None:
            parsed.not_understood(Where(name, number), line)
            continue
        values[match[1], match[2]] = match[3]
    parsed.forwards = values.get(("all", "forwarding")) == "1" and values.get(("all", "seg6_enabled")) == "1"
    parsed.srv6_interfaces = {
        i for (i, key), value in values.items() if key == "seg6_enabled" and value == "1"
    }


def qos(files: Files, parsed: Parsed) -> None:
    """Interfaces that mark, and code points with strict priority."""
    name = "qos.sh"
    lists: dict[str, set[str]] = {}
    loop = None
    for line in files.text(name, parsed).splitlines():
        text = line.strip()
        variable, equals, value = text.partition("=")
        if equals and value.startswith('"') and variable.isidentifier():
            lists[variable] = set(value.strip('"').split())
        elif text.startswith("for dev in $"):
            loop = text.removeprefix("for dev in $").partition(";")[0]
        elif text == "done":
            loop = None
        elif match := _RED.fullmatch(text):
            parsed.thresholds.add((int(match[1]), int(match[2])))
            parsed.marking |= lists.get(loop or "", set())
        elif match := _STRICT.fullmatch(text):
            parsed.strict_codes.add(int(match[1], 16) >> 2)
