"""Names of a switch's ports on each platform.

Ports are numbered with the downlinks first. A cage of eight lanes is broken out into 1, 2, 4 or 8 of them.
"""

from collections.abc import Callable

from openmrc.fabric.spec import Platform
from openmrc.fabric.topology import Fabric, Port

LANES = 8
"""Lanes of a cage (OSFP, QSFP-DD)."""


def breakout(fabric: Fabric) -> int:
    """Ports per cage: the smallest of 1, 2, 4, 8 that gives the radix."""
    part, choice = fabric.size.switch, fabric.spec.switch
    cages = part.cages if part is not None else choice.cages or fabric.radix
    return next((b for b in (1, 2, 4, LANES) if cages * b >= fabric.radix), LANES)


def sonic_lanes(number: int, ports: int) -> str:
    """The lanes of a port, as in the PORT table of SONiC."""
    width = LANES // ports
    first = number * width + 1
    return ",".join(str(lane) for lane in range(first, first + width))


def _linux(port: Port, ports: int) -> str:
    return port.name


def _sonic(port: Port, ports: int) -> str:
    return f"Ethernet{port.number * (LANES // ports)}"


def _eos(port: Port, ports: int) -> str:
    cage, place = divmod(port.number, ports)
    return f"Ethernet{cage + 1}" if ports == 1 else f"Ethernet{cage + 1}/{place * (LANES // ports) + 1}"


def _cumulus(port: Port, ports: int) -> str:
    cage, place = divmod(port.number, ports)
    return f"swp{cage + 1}" if ports == 1 else f"swp{cage + 1}s{place}"


NAMES: dict[Platform, Callable[[Port, int], str]] = {
    "linux": _linux,
    "frr": _linux,
    "sonic": _sonic,
    "eos": _eos,
    "cumulus": _cumulus,
}
"""Port and ports per cage -> interface name."""
