"""A process in a host of a lab: which host it is, and its ports. It needs no options."""

from dataclasses import dataclass

from openmrc.fabric import Fabric
from openmrc.lab import hosts, state
from openmrc.lab.layout import Layout
from openmrc.verbs import Port


@dataclass(frozen=True, slots=True)
class LabHost:
    """The host of a lab in whose namespace this process runs."""

    lab: str
    host: str
    fabric: Fabric

    @property
    def ports(self) -> list[Port]:
        """A port per plane, whose entropy values are the fabric's paths."""
        return hosts.device_ports(Layout(self.fabric), self.host)

    def siblings(self, address: str) -> list[str]:
        """All addresses of the host that has an address; none if no host of the lab has it."""
        host = self.fabric.host_of_address(address) if ":" in address else None
        return [] if host is None else self.fabric.host_addresses(host)


def lab_host() -> LabHost | None:
    """The host that this process runs in, or ``None``: not in a lab, or in a switch."""
    found = state.here()
    if found is None:
        return None
    specification, node = found
    fabric = Fabric.load(specification)
    return LabHost(fabric.spec.name, node, fabric) if node in Layout(fabric).hosts else None
