"""What breaks, when, and until when."""

from typing import Annotated, Literal

from pydantic import Field

from openmrc.sim.scenario.fields import Count, Duration, Host, Micros, Part, Probability, Seed


class _Fault(Part):
    targets: Annotated[list[str], Field(min_length=1)]
    """Links (``p3/t0-17:up5--p3/t1-5``, ``h12:p3--p3/t0-0:down12``), NIC ports (``h12:p3``), switches
    (``p3/t1-5``); or all ``links``, ``host-links``, ``fabric-links``, ``switches``."""
    at_us: Micros = 0.0


class _Lasting(_Fault):
    until_us: Micros | None = None
    """When it is repaired; never without it."""


class Down(_Lasting):
    """Nothing gets through. At 0 it is broken from the start."""

    kind: Literal["down"] = "down"


class Loss(_Lasting):
    """Packets are lost at random."""

    kind: Literal["loss"] = "loss"
    probability: Probability


class BitErrors(_Lasting):
    """Bits are damaged at random; a damaged packet is dropped."""

    kind: Literal["bit-errors"] = "bit-errors"
    probability: Probability


class Slow(_Lasting):
    """A link at a share of its rate."""

    kind: Literal["slow"] = "slow"
    share: Annotated[float, Field(gt=0, le=1)]


class Flap(_Fault):
    """Down and up again, and again."""

    kind: Literal["flap"] = "flap"
    down_us: Duration
    up_us: Duration
    times: Count = 1


class Reboot(_Fault):
    """Switches that are gone for a while."""

    kind: Literal["reboot"] = "reboot"
    down_us: Duration


class NicPort(_Lasting):
    """Ports of hosts (``h12:p3``) without a carrier."""

    kind: Literal["nic-port"] = "nic-port"


class Transceiver(_Fault):
    """Several ports of one switch that share a transceiver go down and up again together."""

    kind: Literal["transceiver"] = "transceiver"
    targets: Annotated[list[str], Field(min_length=1, max_length=1)]
    """The switch."""
    ports: Annotated[list[Host], Field(min_length=1)]
    """Which of its ports, downlinks counted before uplinks."""
    down_us: Duration
    up_us: Duration = 1.0
    times: Count = 1


class Broken(_Fault):
    """A share of the targets, chosen at random, is down and stays so: at 0, broken from the start."""

    kind: Literal["broken"] = "broken"
    share: Annotated[float, Field(gt=0, le=1)]
    seed: Seed = 1


class RandomFailures(_Lasting):
    """Each target fails and is repaired at random times, exponentially distributed."""

    kind: Literal["random"] = "random"
    effect: Literal["down", "loss", "bit-errors", "slow"] = "down"
    amount: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Probability of loss or bit errors, or share of the rate that is left."""
    mtbf_us: Duration
    mttr_us: Duration
    seed: Seed = 1


Fault = Annotated[
    Down | Loss | BitErrors | Slow | Flap | Reboot | NicPort | Transceiver | Broken | RandomFailures,
    Field(discriminator="kind"),
]
