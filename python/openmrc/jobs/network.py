"""Designs of networks: how many links and switches they have, and what a failure of one does to a job."""

import difflib
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field, StrictInt, model_validator

from openmrc.errors import ArgumentError
from openmrc.fabric import Fabric
from openmrc.model import Model

_MAX_TIERS = 4


@dataclass(frozen=True, slots=True)
class Shape:
    """The parts of a network that a job uses."""

    planes: int
    tiers: int
    radix: int
    """Ports of a switch, at the rate of one port of a NIC."""
    host_links: int
    fabric_links: int
    """Links between switches, of all tiers and planes."""
    t0s: int
    uppers: int
    """Switches above the T0s."""
    nics_per_t0: int
    uplinks_per_t0: int


_Count = Annotated[StrictInt, Field(ge=0, le=1 << 40)]


class Parts(Model):
    """Links and switches of a fabric that is there, over all planes."""

    nics: Annotated[StrictInt, Field(ge=1, le=1 << 24)]
    """The most that it connects."""
    tiers: Annotated[StrictInt, Field(ge=1, le=_MAX_TIERS)]
    """Of switches."""
    radix: Annotated[StrictInt, Field(ge=2, le=1 << 16)]
    """Ports of a switch."""
    nics_per_t0: Annotated[StrictInt, Field(ge=1, le=1 << 16)]
    """A T0 has a link to each."""
    uplinks_per_t0: Annotated[StrictInt, Field(ge=0, le=1 << 16)]
    """Links of a T0 to switches above."""
    upper_links: _Count
    """Links between switches above the T0s."""
    uppers: _Count
    """Switches above the T0s."""

    def shape(self, planes: int, gpus: int) -> Shape:
        """What a job of this size uses: T0s with its NICs and their uplinks, and all above."""
        t0s = -(-gpus // self.nics_per_t0) * planes
        links = t0s * self.uplinks_per_t0 + self.upper_links
        return Shape(
            planes, self.tiers, self.radix, gpus * planes, links, t0s, self.uppers, self.nics_per_t0,
            self.uplinks_per_t0,
        )  # fmt: skip


class Network(Model):
    """A design, and how it reacts."""

    name: Annotated[str, Field(min_length=1, max_length=40, pattern=r"^[\w .,:+/()-]+$")]
    """For tables: letters, digits, spaces and . , : + / ( ) - _."""
    planes: Annotated[StrictInt, Field(ge=1, le=64)]
    """Ports of a NIC, each with its part of the rate, each in a network of its own."""
    port_lost: Literal["slower", "restart"]
    """What the loss of a port of a NIC does: the others carry its traffic, or its connections end, and the
    job with them. A NIC without any port left ends the job in any case, after ``patience_s``."""
    reaction_s: tuple[Annotated[float, Field(gt=0, le=3600)], Annotated[float, Field(gt=0, le=3600)]]
    """From a failure between switches until traffic goes another way: the least and the most, with every
    order of magnitude between them as likely. All ranks wait for the slowest: the job stands still."""
    patience_s: Annotated[float, Field(gt=0, le=86400)] = 30.0
    """For how long connections wait for what does not come back before they end, and with them the job."""
    parts: Parts | None = None
    """Links and switches, if they are known; those of a network without oversubscription if left out.
    ``openmrc job --fabric`` counts them."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        least, most = self.reaction_s
        if least > most:
            raise ValueError(f"reaction_s: the most, {most:g} s, is less than the least, {least:g} s")
        return self

    def shape(self, gpus: int, nic_gbps: float, switch_tbps: float) -> Shape:
        """The parts for this number of NICs.

        Args:
            gpus: NICs.
            nic_gbps: Rate of a NIC, all ports together.
            switch_tbps: Rate of a switch, all ports together.

        Raises:
            ArgumentError: if switches have too few ports for it.
        """
        if self.parts is not None:
            if gpus > self.parts.nics:
                raise ArgumentError(
                    f"networks: {self.name}: its fabric connects {self.parts.nics:,} NICs, not {gpus:,}"
                )
            return self.parts.shape(self.planes, gpus)
        radix = int(switch_tbps * 1000 / (nic_gbps / self.planes)) // 2 * 2
        if radix < 4:
            raise ArgumentError(
                f"networks: {self.name}: a switch of {switch_tbps:g} Tb/s has {max(radix, 0)} ports of"
                f" {nic_gbps / self.planes:g} Gb/s: 4 are needed"
            )
        half = radix // 2
        tiers = next((n for n in range(1, _MAX_TIERS + 1) if gpus <= reach(radix, n)), None)
        if tiers is None:
            raise ArgumentError(
                f"networks: {self.name}: {_MAX_TIERS} tiers of switches with {radix} ports reach"
                f" {reach(radix, _MAX_TIERS):,} NICs, not {gpus:,}: more planes have more ports"
            )
        if tiers == 1:
            return Shape(self.planes, 1, radix, gpus * self.planes, 0, self.planes, 0, gpus, 0)
        t0s = -(-gpus // half) * self.planes
        # Each tier but the last has as many uplinks as downlinks; the last has only downlinks.
        fabric_links = gpus * self.planes * (tiers - 1)
        uppers = -(-gpus * self.planes // half) * (tiers - 2) + -(-gpus * self.planes // radix)
        return Shape(self.planes, tiers, radix, gpus * self.planes, fabric_links, t0s, uppers, half, half)


def of_fabric(network: Network, fabric: Fabric) -> Network:
    """A design on a fabric: its reactions, with the planes, links and switches of the fabric."""
    core = fabric.core
    _, *above = core.switches_per_tier
    parts = Parts(
        nics=fabric.hosts,
        tiers=fabric.tiers,
        radix=fabric.radix,
        nics_per_t0=core.hosts_per_t0,
        uplinks_per_t0=core.uplinks(0) if above else 0,
        upper_links=sum(core.links_per_layer[2:]) * fabric.planes,
        uppers=sum(above) * fabric.planes,
    )
    return network.model_copy(update={"planes": fabric.planes, "parts": parts})


def reach(radix: int, tiers: int) -> int:
    """NICs that a network without oversubscription connects: radix, radix^2 / 2, radix^3 / 4, ..."""
    return int(radix**tiers // 2 ** (tiers - 1))


PRESETS = {
    each.name: each
    for each in (
        Network(name="mrc", planes=8, port_lost="slower", reaction_s=(0.0001, 0.01)),
        Network(name="rocev2-planes", planes=8, port_lost="restart", reaction_s=(1.0, 30.0)),
        Network(name="dual-port", planes=2, port_lost="slower", reaction_s=(1.0, 30.0)),
        Network(name="conventional", planes=1, port_lost="restart", reaction_s=(1.0, 30.0)),
    )
}
"""``mrc``: eight planes, every message over all paths. ``rocev2-planes``: the same wires, with a connection
bound to each plane. ``dual-port``: two ports to two T0s, where the other takes over. ``conventional``: one
port of the whole rate."""


def named(name: str) -> Network:
    """A preset.

    Raises:
        ArgumentError: if there is none of this name, with the nearest.
    """
    if name in PRESETS:
        return PRESETS[name]
    near = difflib.get_close_matches(name, PRESETS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(PRESETS)}"
    raise ArgumentError(f"there is no network {name[:60]}; {hint}")
