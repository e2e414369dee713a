"""Kinds of numbers that several parts of a scenario have, and what all parts share."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictInt

Host = Annotated[StrictInt, Field(ge=0, lt=1 << 32)]
Count = Annotated[StrictInt, Field(ge=1, lt=1 << 32)]
Amount = Annotated[StrictInt, Field(ge=1, le=1 << 53)]
"""Bytes of anything but one message."""
Bytes = Annotated[StrictInt, Field(ge=1, le=1 << 31)]
"""Length of a message; 2^31 is the longest there is."""
Micros = Annotated[float, Field(ge=0, le=1e9)]
Duration = Annotated[float, Field(ge=1e-6, le=1e9)]
"""At least a picosecond: time has no smaller unit here."""
Nanos = Annotated[float, Field(ge=0, le=4e6)]
Probability = Annotated[float, Field(ge=0, le=1)]
Rate = Annotated[float, Field(gt=0, le=1e15)]
Share = Annotated[float, Field(gt=0, le=64)]
Seed = Annotated[StrictInt, Field(ge=0, lt=1 << 64)]


class Part(BaseModel):
    """A part of a scenario: unknown fields are errors, and nothing changes once it is made."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def different(hosts: list[int]) -> list[int]:
    """Hosts as they are, unless one of them is named twice."""
    seen: set[int] = set()
    for host in hosts:
        if host in seen:
            raise ValueError(f"h{host} is named twice")
        seen.add(host)
    return hosts


Ranks = Annotated[list[Host], Field(min_length=2), AfterValidator(different)]
Senders = Annotated[list[Host], Field(min_length=1), AfterValidator(different)]
