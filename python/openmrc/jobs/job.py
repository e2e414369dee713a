"""What a training job over days is: size, step, checkpoints, rates of failures, networks."""

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, StrictInt, model_validator

from openmrc.fabric import yamlfile
from openmrc.jobs.network import PRESETS, Network, named
from openmrc.model import Model

MAX_GPUS = 1 << 20
MAX_DAYS = 366.0

_Positive = Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)]


class Step(Model):
    """A training step of the undisturbed job."""

    exposed: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """Share of a step in which computing waits for the network. It grows as bandwidth falls; the rest does
    not. ``openmrc workload run`` gives it for a model: ``exposed_us / step_us``."""


class Checkpoint(Model):
    """How the job keeps its state, and comes back after an interruption."""

    pause_s: Annotated[float, Field(ge=0, le=86400)] = 6.0
    """For how long a checkpoint stops training."""
    every_min: Annotated[float, Field(ge=0.1, le=1e6)] | None = None
    """Minutes of training between two; what loses least for the rates of each network if left open."""
    restart_min: Annotated[float, Field(ge=0, le=1e5)] = 10.0
    """From an interruption until training goes on: detect, replace, load."""


class Rates(Model):
    """How often parts fail and how long repairs take.

    Times between failures are of one part. All times are means of exponential distributions. docs/jobs.md has
    the source of each default, and the range of the sources.
    """

    host_days: _Positive = 294.0
    """Between failures of a host for every reason but the network. Each interrupts the job."""
    host_repair_h: _Positive = 24.0
    """For how long the host is missing."""
    nic_hours: _Positive = 3.0e6
    """Between failures of a NIC. Each interrupts the job; its host is missing as above."""
    link_hours: _Positive = 1.28e6
    """Between failures of a link that has to be repaired: port, cable, two transceivers."""
    link_repair_h: _Positive = 4.0
    """Its repair."""
    flap_days: _Positive = 140.0
    """Between flaps of a link: it is down and comes back by itself."""
    host_flap_s: _Positive = 5.0
    """For how long the link of a NIC is down in a flap."""
    fabric_flap_s: _Positive = 20.0
    """For how long a link between switches is down in a flap."""
    switch_hours: _Positive = 1.43e6
    """Between crashes of a switch."""
    switch_repair_h: _Positive = 4.0
    """Until it forwards again."""

    def scaled(self, **factors: float) -> "Rates":
        """The rates with some times multiplied, by field."""
        return self.model_copy(update={name: getattr(self, name) * by for name, by in factors.items()})


def _network(given: object) -> object:
    """A network may be given as a name, or as a name with fields that differ."""
    if isinstance(given, str):
        return named(given)
    if isinstance(given, dict) and "like" in given:
        fields = {name: value for name, value in given.items() if name != "like"}
        if not isinstance(given["like"], str):
            raise ValueError("like: expected the name of a network")
        return {**named(given["like"]).model_dump(), **fields}
    return given


def _or_a_name(schema: dict[str, Any]) -> None:
    whole = dict(schema)
    schema.clear()
    like = {"type": "object", "required": ["like"], "properties": {"like": {"enum": list(PRESETS)}}}
    schema["anyOf"] = [whole, {"enum": list(PRESETS)}, like]


_AnyNetwork = Annotated[Network, BeforeValidator(_network), Field(json_schema_extra=_or_a_name)]


class Job(Model, yamlfile.Sourced):
    """A job: some GPUs for some days, on each of several networks."""

    gpus: Annotated[StrictInt, Field(ge=2, le=MAX_GPUS)] = 131072
    """Each has a NIC of its own."""
    days: Annotated[float, Field(gt=0, le=MAX_DAYS)] = 30.0
    """For how long it trains."""
    gpus_per_host: Annotated[StrictInt, Field(ge=1, le=1024)] = 8
    """They fail together."""
    spare_hosts: Annotated[StrictInt, Field(ge=0, le=MAX_GPUS)] | None = None
    """Hosts that stand by; 2 % of the job's, and one at least, if left open. When none is left, the job waits
    for a repair."""
    nic_gbps: _Positive = 800.0
    """Of one GPU, over all its ports."""
    switch_tbps: _Positive = 51.2
    """Of one switch, all its ports together."""
    step: Step = Step()
    """A training step."""
    checkpoint: Checkpoint = Checkpoint()
    """How the job comes back after an interruption."""
    rates: Rates = Rates()
    """How often parts fail."""
    networks: list[_AnyNetwork] = Field(
        default_factory=lambda: [named(name) for name in ("mrc", "dual-port", "conventional")], min_length=1
    )
    """Designs that are compared, each with the same failures of hosts: a name, ``{like: NAME}`` with
    the fields that differ, or all fields."""
    usd_per_gpu_hour: Annotated[float, Field(ge=0, le=1e6)] = 2.5
    """What an hour of a GPU costs."""
    seed: Annotated[StrictInt, Field(ge=0, lt=1 << 63)] = 1
    """Of the failures that are drawn."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.gpus % self.gpus_per_host:
            raise ValueError(f"gpus: {self.gpus:,} are not a whole number of hosts of {self.gpus_per_host}")
        names = [network.name for network in self.networks]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"networks: two are called {name}: give one another name")
        for network in self.networks:
            network.shape(self.gpus, self.nic_gbps, self.switch_tbps)
        return self

    @property
    def hosts(self) -> int:
        """Hosts that train."""
        return self.gpus // self.gpus_per_host

    @property
    def spares(self) -> int:
        """Hosts that stand by."""
        return max(1, self.hosts // 50) if self.spare_hosts is None else self.spare_hosts

    @property
    def gpu_hours(self) -> float:
        """GPU-hours that are paid for, without spares."""
        return self.gpus * self.days * 24


def load(path: Path | str) -> Job:
    """A job from a YAML file.

    Raises:
        FormatError: if it is not one, naming file, line and field.
        OSError: if it cannot be read.
    """
    return yamlfile.read(Path(path), Job)
