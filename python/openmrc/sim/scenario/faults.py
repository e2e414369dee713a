"""What breaks, when, and until when."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from openmrc.sim.scenario.fields import Count, Duration, Host, Micros, Part, Probability, Seed


class _Fault(Part):
    targets: Annotated[list[str], Field(min_length=1)]
    """Links (``p3/t0-17:up5--p3/t1-5``, ``h12:p3--p3/t0-0:down12``), NIC ports (``h12:p3``), switches
    (``p3/t1-5``); or all ``links``, ``host-links``, ``fabric-links``, ``switches``."""
    at_us: Micros = 0.0


class _Lasting(_Fault):
    until_us: Micros | None = None
    """When it is repaired; never without it."""

    @model_validator(mode="after")
    def _forwards(self) -> Self:
        if self.until_us is not None and self.until_us <= self.at_us:
            raise ValueError(f"until_us: {self.until_us:g} is not after at_us, {self.at_us:g}")
        return self


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


class _Recurring(_Fault):
    down_us: Duration
    up_us: Duration
    times: Count = 1

    def times_until(self, limit_us: float) -> int:
        """How often it goes down before a run ends that ends at the latest then."""
        left = max(0.0, limit_us - self.at_us)
        return min(self.times, int(left / (self.down_us + self.up_us)) + 1)


class Flap(_Recurring):
    """Down and up again, and again."""

    kind: Literal["flap"] = "flap"


class Reboot(_Fault):
    """Switches that are gone for a while."""

    kind: Literal["reboot"] = "reboot"
    down_us: Duration


class NicPort(_Lasting):
    """Ports of hosts (``h12:p3``) without a carrier."""

    kind: Literal["nic-port"] = "nic-port"


class Transceiver(_Recurring):
    """Several ports of one switch that share a transceiver go down and up again together."""

    kind: Literal["transceiver"] = "transceiver"
    targets: Annotated[list[str], Field(min_length=1, max_length=1)]
    """The switch."""
    ports: Annotated[list[Host], Field(min_length=1)]
    """Which of its ports, downlinks counted before uplinks."""
    up_us: Duration = 1.0


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

    @model_validator(mode="after")
    def _is_felt(self) -> Self:
        if self.effect != "down" and self.amount == 0:
            raise ValueError(f"amount: {self.effect} needs one above 0")
        return self


Fault = Annotated[
    Down | Loss | BitErrors | Slow | Flap | Reboot | NicPort | Transceiver | Broken | RandomFailures,
    Field(discriminator="kind"),
]
