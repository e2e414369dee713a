"""The settings of a rank, and what it reports while it trains. Without torch."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from openmrc.testing import Impairment, ImpairmentKind, PacketClass

VARIABLE = "OPENMRC_TRAIN_DEMO"
"""Environment variable with the settings of a rank."""

HEADS = 4
"""Heads of attention."""

Backend = Literal["mrc", "gloo"]


@dataclass(frozen=True)
class JobSettings:
    """One training job; every rank has the same."""

    steps: int = 100
    backend: Backend = "mrc"
    fsdp: bool = False
    """Shards parameters (FSDP2) instead of keeping a copy at each rank (DDP)."""
    layers: int = 4
    width: int = 256
    batch: int = 4
    """Pieces of text for each rank and step."""
    trace: str | None = None
    """Begin of the names of the files into which ranks write what they sent."""

    def to_json(self) -> str:
        """For the environment."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "JobSettings":
        """Reads :meth:`to_json`."""
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class StepReport:
    """What a rank reports after each step."""

    rank: int
    step: int
    """From 0."""
    loss: str
    """Mean of all ranks' losses, as a hexadecimal fraction: equal text is equal to the last bit."""
    began_ns: int
    """Monotonic clock, which all processes of a machine share."""
    ended_ns: int
    plane_bytes: list[int] = field(default_factory=list)
    """Bytes sent on each plane since the device was opened; empty over gloo."""
    paths_out: list[int] = field(default_factory=list)
    """Paths out of use on each plane."""
    dropped: int = 0
    """Packets that impairments have dropped."""


@dataclass(frozen=True, slots=True)
class EndReport:
    """What a rank reports at its end."""

    rank: int
    digest: str
    """SHA-256 of this rank's parameters."""
    parameters: int
    """Number of parameters of the whole model."""
    sample: str
    """What the model writes."""


def encode(report: StepReport | EndReport) -> str:
    """A line of a rank's output."""
    return json.dumps(asdict(report))


def decode(line: str) -> StepReport | EndReport:
    """Reads :func:`encode`."""
    fields = json.loads(line)
    return StepReport(**fields) if "step" in fields else EndReport(**fields)


def encode_rules(rules: Sequence[Impairment], seed: int) -> str:
    """A line of a rank's input: from now on its device has these rules."""
    return json.dumps({"rules": [asdict(rule) for rule in rules], "seed": seed})


def decode_rules(line: str) -> tuple[list[Impairment], int]:
    """Reads :func:`encode_rules`."""
    fields: dict[str, Any] = json.loads(line)
    for rule in fields["rules"]:
        rule["kind"], rule["packet_class"] = ImpairmentKind(rule["kind"]), PacketClass(rule["packet_class"])
    return [Impairment(**rule) for rule in fields["rules"]], fields["seed"]
