"""What breaks, when, and until when."""

from typing import Annotated, Literal

from pydantic import Field, StrictInt

from openmrc.sim.scenario.part import OPEN, Part

Targets = list[str]
"""Links (``p3/t0-17:up5--p3/t1-5``, ``h12:p3--p3/t0-0:down12``), NIC ports (``h12:p3``), switches
(``p3/t1-5``); or all ``links``, ``host-links``, ``fabric-links``, ``switches``."""


class Down(Part):
    """Nothing gets through. At time 0 it is broken from the start."""

    kind: Literal["down"] = "down"
    targets: Targets
    at_us: float = OPEN
    until_us: float | None = OPEN
    """When it is repaired; never if left open."""


class Loss(Part):
    """Packets are lost at random."""

    kind: Literal["loss"] = "loss"
    targets: Targets
    at_us: float = OPEN
    until_us: float | None = OPEN
    probability: float


class BitErrors(Part):
    """Bits are damaged at random; a damaged packet is dropped."""

    kind: Literal["bit-errors"] = "bit-errors"
    targets: Targets
    at_us: float = OPEN
    until_us: float | None = OPEN
    probability: float


class Slow(Part):
    """A link at a share of its rate."""

    kind: Literal["slow"] = "slow"
    targets: Targets
    at_us: float = OPEN
    until_us: float | None = OPEN
    share: float


class Flap(Part):
    """Down and up again, several times."""

    kind: Literal["flap"] = "flap"
    targets: Targets
    at_us: float = OPEN
    down_us: float
    up_us: float
    times: StrictInt = OPEN


class Reboot(Part):
    """Switches that are gone for a while."""

    kind: Literal["reboot"] = "reboot"
    targets: Targets
    at_us: float = OPEN
    down_us: float


class NicPort(Part):
    """Ports of hosts (``h12:p3``) without a carrier."""

    kind: Literal["nic-port"] = "nic-port"
    targets: Targets
    at_us: float = OPEN
    until_us: float | None = OPEN


class Transceiver(Part):
    """Ports of one switch that share a transceiver go down and up again together."""

    kind: Literal["transceiver"] = "transceiver"
    targets: Targets
    """The switch."""
    at_us: float = OPEN
    ports: list[StrictInt]
    """Which of its ports, downlinks counted before uplinks."""
    down_us: float
    up_us: float = OPEN
    times: StrictInt = OPEN


class Broken(Part):
    """A share of the targets, chosen at random, is down for good. At time 0 it is broken from the start."""

    kind: Literal["broken"] = "broken"
    targets: Targets
    at_us: float = OPEN
    share: float
    seed: StrictInt = OPEN


class RandomFailures(Part):
    """Each target fails and is repaired at random times, exponentially distributed."""

    kind: Literal["random"] = "random"
    targets: Targets
    at_us: float = OPEN
    until_us: float | None = OPEN
    effect: Literal["down", "loss", "bit-errors", "slow"] = OPEN
    amount: float = OPEN
    """Probability of loss or bit errors, or share of the rate that is left."""
    mtbf_us: float
    mttr_us: float
    seed: StrictInt = OPEN


Fault = Annotated[
    Down | Loss | BitErrors | Slow | Flap | Reboot | NicPort | Transceiver | Broken | RandomFailures,
    Field(discriminator="kind"),
]
