"""Names of a switch's ports on each platform.

Ports are numbered with the downlinks first. A cage of eight lanes is broken out into 1, 2, 4 or 8 of them.
"""

from openmrc.fabric.spec import Platform
from openmrc.fabric.topology import Fabric, SwitchPort
from openmrc.switchconf.devices import LANES, Hardware, PortRow, breakout, hardware


class Interfaces:
    """The interfaces of a fabric's switches on a platform.

    Raises:
        ArgumentError: if the fabric names a switch that cannot have its ports.
    """

    def __init__(self, fabric: Fabric, platform: Platform) -> None:
        self.platform = platform
        self.hardware: Hardware = hardware(fabric, platform)
        self.per_cage = breakout(fabric)
        """Ports per cage."""

    def name(self, port: SwitchPort) -> str:
        """The name of a port's interface."""
        cage, place = divmod(port.number, self.per_cage)
        width = LANES // self.per_cage
        match self.platform:
            case "sonic":
                row = self.row(port)
                return row.name if row else f"Ethernet{port.number * width}"
            case "eos":
                return f"Ethernet{cage + 1}/{place * width + 1}"
            case "cumulus":
                return f"swp{cage + 1}" if self.per_cage == 1 else f"swp{cage + 1}s{place}"
        return port.name

    def row(self, port: SwitchPort) -> PortRow | None:
        """The port in SONiC's PORT table, if the table is known."""
        rows = self.hardware.rows
        return rows[port.number] if rows is not None else None

    def cage(self, port: SwitchPort) -> int:
        """The cage of a port, from 1."""
        return port.number // self.per_cage + 1
