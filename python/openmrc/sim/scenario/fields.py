"""Kinds of numbers that several parts of a scenario have, and what all parts share."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictInt

Host = Annotated[StrictInt, Field(ge=0)]
Count = Annotated[StrictInt, Field(ge=1)]
Bytes = Annotated[StrictInt, Field(ge=1, le=1 << 31)]
"""Length of a message; 2^31 is the longest there is."""
Micros = Annotated[float, Field(ge=0, le=1e9)]
Duration = Annotated[float, Field(gt=0, le=1e9)]
Nanos = Annotated[float, Field(ge=0, le=4e6)]
Probability = Annotated[float, Field(ge=0, le=1)]
Share = Annotated[float, Field(gt=0, le=64)]
Seed = Annotated[StrictInt, Field(ge=0, lt=1 << 64)]


class Part(BaseModel):
    """A part of a scenario: unknown fields are errors, and nothing changes once it is made."""

    model_config = ConfigDict(extra="forbid", frozen=True)
