"""What breaks, when, and until when."""

from typing import Annotated, Literal

from pydantic import Field, StrictInt

from openmrc.sim.scenario.part import OPEN, Part

Targets = list[str]
"""Links (``p3/t0-17:up5--p3/t1-5``, ``h12:p3--p3/t0-0:down12``), NIC ports (``h12:p3``), switches
(``p3/t1-5``); or all ``links``, ``host-links``, ``fabric-links``, ``switches``."""


class FaultFields(Part):
    """The fields that every kind of fault has."""

    kind: str
    targets: Targets
    """What it hits."""
    at_us: float = OPEN
    """When it begins."""


class _Once(FaultFields):
    """A fault that comes once."""

    until_us: float | None = OPEN
    """When it is repaired; never if left open."""


class Down(_Once):
    """Nothing gets through. At time 0 it is broken from the start."""

    kind: Literal["down"] = "down"


class Loss(_Once):
    """Packets are lost at random."""

    kind: Literal["loss"] = "loss"
    probability: float
    """That a packet is lost."""
    direction: Literal["both", "upward", "downward"] = OPEN
    """Which direction of the links loses packets: away from the hosts, towards them, or both."""


class BitErrors(_Once):
    """Bits are damaged at random; a damaged packet is dropped."""

    kind: Literal["bit-errors"] = "bit-errors"
    probability: float
    """That a bit is damaged."""


class Slow(_Once):
    """A link at a share of its rate."""

    kind: Literal["slow"] = "slow"
    share: float
    """What is left of the rate."""


class SmallMtu(_Once):
    """Longer packets are lost without a word; shorter and trimmed ones pass."""

    kind: Literal["mtu"] = "mtu"
    bytes: StrictInt
    """Longest IP packet that passes, from its outermost IP header on."""


class NicPort(_Once):
    """Ports of hosts (``h12:p3``) without a carrier."""

    kind: Literal["nic-port"] = "nic-port"


class Reboot(FaultFields):
    """Switches that are gone for a while."""

    kind: Literal["reboot"] = "reboot"
    down_us: float
    """How long they are gone."""


class Flap(FaultFields):
    """Down and up again, several times."""

    kind: Literal["flap"] = "flap"
    down_us: float
    up_us: float
    times: StrictInt = OPEN


class Transceiver(FaultFields):
    """Ports of one switch that share a transceiver go down and up again together."""

    kind: Literal["transceiver"] = "transceiver"
    ports: list[StrictInt]
    """Which of its ports, downlinks counted before uplinks."""
    down_us: float
    up_us: float = OPEN
    times: StrictInt = OPEN


class Broken(FaultFields):
    """A share of the targets, chosen at random, is down for good. At time 0 it is broken from the start."""

    kind: Literal["broken"] = "broken"
    share: float
    """How many of the targets."""
    seed: StrictInt = OPEN
    """Which of them."""


class RandomFailures(FaultFields):
    """Each target fails and is repaired at random times, exponentially distributed."""

    kind: Literal["random"] = "random"
    at_us: float = OPEN
    """When failures may begin."""
    until_us: float | None = OPEN
    """When failures end; with the run if left open."""
    effect: Literal["down", "loss", "bit-errors", "slow"] = OPEN
    amount: float = OPEN
    """Probability of loss or bit errors, or share of the rate that is left."""
    mtbf_us: float
    mttr_us: float
    seed: StrictInt = OPEN
    """Which times."""


Fault = Annotated[
    Down
    | Loss
    | BitErrors
    | Slow
    | SmallMtu
    | Flap
    | Reboot
    | NicPort
    | Transceiver
    | Broken
    | RandomFailures,
    Field(discriminator="kind"),
]
