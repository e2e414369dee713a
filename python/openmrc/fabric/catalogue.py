"""The parts catalogue: what switches, transceivers and cables draw and cost.

The catalogue shipped with the package is an example that a user replaces. Nothing is ever guessed: a part
that the catalogue does not have leaves the figure unknown and says so.
"""

from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt

from openmrc.fabric import yamlfile
from openmrc.fabric.units import Rate

EXAMPLE = Path(__file__).with_name("catalogue.yaml")
"""The example catalogue of the package."""

Medium = Literal["copper", "multi-mode", "single-mode"]
Amount = Annotated[float, Field(ge=0)]
Name = Annotated[str, Field(min_length=1)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SwitchPart(_Part):
    """A switch."""

    name: Name
    capacity: Rate
    cages: Annotated[StrictInt, Field(ge=1)]
    cage_rate: Rate
    max_ports: Annotated[StrictInt, Field(ge=1)]
    """Ports it can be broken out to."""
    latency_ns: Amount
    """First bit in to first bit out."""
    watts: Amount
    price: Amount


class Transceiver(_Part):
    """A pluggable module that may serve several ports."""

    name: Name
    rate: Rate
    medium: Literal["multi-mode", "single-mode"]
    reach: Amount
    ports: Annotated[list[StrictInt], Field(min_length=1)]
    """Into how many ports it may be broken out."""
    watts: Amount
    price: Amount

    def breakout(self, port_rate: int) -> int | None:
        """How many ports of a rate it serves; ``None`` if it cannot."""
        ports, rest = divmod(self.rate, port_rate)
        return ports if not rest and ports in self.ports else None


class Cable(_Part):
    """A cable, one per link."""

    name: Name
    medium: Medium
    reach: Amount
    rate: Rate | None = None
    """Copper: the port rate it is for. Fibre: none, it carries any."""
    price: Amount
    per_metre: Amount = 0.0
    watts: Amount = 0.0


class Cabling(BaseModel):
    """How the links of a layer are made: a cable, and the modules at its ends."""

    model_config = ConfigDict(frozen=True)

    cable: Cable
    transceiver: Transceiver | None
    """None for copper."""
    ports_per_module: int


class Catalogue(BaseModel):
    """Parts to build of."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Name
    currency: Annotated[str, Field(min_length=1, max_length=8)]
    switches: list[SwitchPart]
    transceivers: list[Transceiver] = []
    cables: list[Cable] = []

    def switch(self, capacity: int | None = None, name: str | None = None) -> SwitchPart | None:
        """The first switch of this capacity and name, as far as given."""
        for part in self.switches:
            if (capacity is None or part.capacity == capacity) and (name is None or part.name == name):
                return part
        return None

    def cabling(self, port_rate: int, length: float, cage_rate: int) -> Cabling | None:
        """The cheapest way to join two ports; ``None`` if the catalogue has none.

        Args:
            port_rate: Of one port, bit/s.
            length: Of the cable, metres.
            cage_rate: Of the slower of the two cages the ports are broken out of, bit/s: no module is faster.
        """
        options: list[tuple[float, float, Cabling]] = []
        for cable in self.cables:
            if cable.reach < length or cable.rate not in (None, port_rate):
                continue
            price = cable.price + cable.per_metre * length
            if cable.medium == "copper":
                way = Cabling(cable=cable, transceiver=None, ports_per_module=1)
                options.append((price, cable.watts, way))
                continue
            for module in self.transceivers:
                ports = module.breakout(port_rate)
                fits = module.medium == cable.medium and module.reach >= length and module.rate <= cage_rate
                if fits and ports:
                    way = Cabling(cable=cable, transceiver=module, ports_per_module=ports)
                    ends = 2 / ports
                    options.append((price + ends * module.price, cable.watts + ends * module.watts, way))
        return min(options, key=lambda option: option[:2])[2] if options else None


@cache
def load(path: Path) -> Catalogue:
    """Reads a catalogue.

    Raises:
        FormatError: with file, line and field.
        OSError: if the file cannot be read.
    """
    return yamlfile.read(path, Catalogue)
