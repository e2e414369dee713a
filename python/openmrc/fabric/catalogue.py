"""The parts catalogue: power and cost of switches, transceivers and cables.

The catalogue in the package is an example; users replace it. Nothing is guessed: if a part is not in the
catalogue, the figure is unknown, and the report says so.
"""

from functools import cache
from itertools import product
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StrictInt

from openmrc.fabric import yamlfile
from openmrc.fabric.units import Rate
from openmrc.model import Model

EXAMPLE = Path(__file__).with_name("catalogue.yaml")
"""The example catalogue of the package."""

Medium = Literal["copper", "multi-mode", "single-mode"]
Amount = Annotated[float, Field(ge=0)]
Name = Annotated[str, Field(max_length=200, pattern=r"^\P{Cc}+$")]
"""Without control characters: it goes into tables and CSV files."""


class SwitchPart(Model):
    """A switch."""

    name: Name
    capacity: Rate
    cages: Annotated[StrictInt, Field(ge=1)]
    cage_rate: Rate
    max_ports: Annotated[StrictInt, Field(ge=1)]
    """Most ports that it can be broken out into."""
    latency_ns: Amount
    """From the first bit in to the first bit out."""
    watts: Amount
    price: Amount


class Transceiver(Model):
    """A pluggable module that may serve several ports."""

    name: Name
    rate: Rate
    medium: Literal["multi-mode", "single-mode"]
    reach: Amount
    ports: Annotated[list[StrictInt], Field(min_length=1)]
    """Numbers of ports that it can be broken out into."""
    watts: Amount
    price: Amount

    @property
    def lane_rate(self) -> int:
        """Rate of a lane, bit/s: the finest breakout is one port for each lane."""
        return self.rate // max(self.ports)

    def breakout(self, port_rate: int) -> int | None:
        """Number of ports of a rate that it serves; ``None`` if it cannot."""
        ports, rest = divmod(self.rate, port_rate)
        return ports if not rest and ports in self.ports else None


class Cable(Model):
    """A cable, one per link."""

    name: Name
    medium: Medium
    reach: Amount
    rate: Rate | None = None
    """Copper: the port rate that it is made for. Fibre: ``None``, any rate."""
    price: Amount
    per_metre: Amount = 0.0
    watts: Amount = 0.0


class Cabling(Model):
    """The parts of the links of a layer: a cable, and the modules at its ends, which may differ."""

    cable: Cable
    lower: Transceiver | None
    """At the end nearer to the hosts; ``None`` for copper."""
    upper: Transceiver | None
    lower_ports: int = 1
    """Links that a module at the lower end serves."""
    upper_ports: int = 1


class Catalogue(Model):
    """The parts of a fabric."""

    name: Name
    currency: Annotated[str, Field(min_length=1, max_length=8)]
    source: Name = "not said"
    """Where the figures come from; the report shows it."""
    switches: list[SwitchPart]
    transceivers: list[Transceiver] = Field(default_factory=list)
    cables: list[Cable] = Field(default_factory=list)

    def switch(self, capacity: int | None = None, name: str | None = None) -> SwitchPart | None:
        """The first switch with this capacity and name; ``None`` matches any."""
        for part in self.switches:
            if (capacity is None or part.capacity == capacity) and (name is None or part.name == name):
                return part
        return None

    def cablings(self, port_rate: int, length: float, lower_cage: int, upper_cage: int) -> list[Cabling]:
        """Every way to join two ports, the cheapest first; empty if the catalogue has none.

        Modules at the two ends have the same medium and lanes of the same rate, or no link would come up.

        Args:
            port_rate: Rate of one port, bit/s.
            length: Length of the cable, metres.
            lower_cage: Rate of the cage at the lower end, bit/s; no module there is faster.
            upper_cage: Rate of the cage at the upper end.
        """
        options: list[tuple[float, float, Cabling]] = []
        for cable in self.cables:
            if cable.reach < length or cable.rate not in (None, port_rate):
                continue
            price = cable.price + cable.per_metre * length
            if cable.medium == "copper":
                options.append((price, cable.watts, Cabling(cable=cable, lower=None, upper=None)))
                continue
            modules = [
                (module, ports)
                for module in self.transceivers
                if module.medium == cable.medium and module.reach >= length
                if (ports := module.breakout(port_rate))
            ]
            for (lower, down), (upper, up) in product(modules, repeat=2):
                if lower.rate > lower_cage or upper.rate > upper_cage or lower.lane_rate != upper.lane_rate:
                    continue
                way = Cabling(cable=cable, lower=lower, upper=upper, lower_ports=down, upper_ports=up)
                cost = price + lower.price / down + upper.price / up
                watts = cable.watts + lower.watts / down + upper.watts / up
                options.append((cost, watts, way))
        return [way for _, _, way in sorted(options, key=lambda option: option[:2])]


@cache
def load(path: Path) -> Catalogue:
    """Reads a catalogue.

    Raises:
        FormatError: with file, line and field.
        OSError: if the file cannot be read.
    """
    return yamlfile.read(path, Catalogue)
