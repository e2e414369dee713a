"""The configuration of a lab's switches: the files of the Linux renderer, unchanged.

Its queues are not applied: not every kernel has the schedulers, and the soft switch replaces them.
"""

from collections.abc import Iterable

from openmrc.lab import system
from openmrc.lab.layout import Layout
from openmrc.switchconf.facts import Facts
from openmrc.switchconf.render import render_switch


class Configurations:
    """The rendered configuration of each switch of a lab."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._facts = Facts(layout.fabric, "linux")

    def files(self, switch: str) -> dict[str, str]:
        """The files of a switch, by name."""
        return dict(render_switch(self._facts.of(self._layout.switches[switch]), "linux"))

    def apply(self, switch: str, space: str) -> None:
        """Configures the switch in its namespace, which has its ports."""
        files = self.files(switch)
        system.ip(files["ip.batch"].splitlines(), space)
        system.sysctl(files["sysctl.conf"], space)

    def lines_of_ports(self, switch: str, ports: Iterable[str]) -> list[str]:
        """The commands for these ports, in the order of the file."""
        wanted = set(ports)
        lines = (line for line in self.files(switch)["ip.batch"].splitlines() if not line.startswith("#"))
        return [line for line in lines if _device(line) in wanted]


def _device(line: str) -> str | None:
    words = line.split()
    return words[words.index("dev") + 1] if "dev" in words else None
