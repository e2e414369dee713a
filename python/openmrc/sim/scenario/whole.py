"""The whole of a scenario, and what the core is told of it."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from openmrc.errors import FormatError
from openmrc.fabric import yamlfile
from openmrc.sim import flowfile
from openmrc.sim.scenario.faults import Fault, Flap, Transceiver
from openmrc.sim.scenario.fields import Duration, Part, Seed
from openmrc.sim.scenario.network import Network, Pfc, Topology
from openmrc.sim.scenario.record import Record
from openmrc.sim.scenario.traffic import Flows, Traffic
from openmrc.sim.scenario.transport import Mrc, Transport

_MEANT_FOR = {
    "mrc": ("source", "srv6", "mrc"),
    "uet": ("ecmp", "udp", "mrc"),
    "rocev2": ("ecmp", "udp", "rocev2"),
    "adaptive": ("adaptive", "udp", "adaptive"),
}
"""Routing, encapsulation and switch settings of each transport, where the network leaves them open."""


class Scenario(Part, yamlfile.Sourced):
    """A run."""

    topology: Topology
    network: Network = Network()
    transport: Transport = Mrc()
    traffic: Annotated[list[Traffic], Field(min_length=1)]
    """Patterns that run beside each other."""
    faults: list[Fault] = Field(default_factory=list)
    limit_us: Duration = 10_000_000.0
    """Virtual time at which the run ends at the latest; ten seconds."""
    seed: Seed = 1
    """Of everything left to chance in the network and in queue pairs; patterns have their own."""
    record: Record = Record()
    """What is written down on the way."""

    def core_arguments(self) -> tuple[Any, ...]:
        """What :class:`openmrc._core.Simulation` is made of."""
        topology = self.topology.model_dump()
        ratio = self.topology.oversubscription
        topology["oversubscription"] = (ratio.numerator, ratio.denominator)
        return (
            topology,
            self._network_arguments(),
            self.transport.model_dump(),
            [self._pattern_arguments(pattern) for pattern in self.traffic],
            [_fault_arguments(fault, self.limit_us) for fault in self.faults],
            self.limit_us,
            self.seed,
            _record_arguments(self.record),
        )

    def _network_arguments(self) -> dict[str, Any]:
        network = self.network.model_dump()
        routing, encapsulation, preset = _MEANT_FOR[self.transport.kind]
        network["routing"] = network["routing"] or routing
        network["encapsulation"] = network["encapsulation"] or encapsulation
        network["switch"]["preset"] = network["switch"]["preset"] or preset
        pfc = network["switch"]["pfc"]
        network["switch"]["lossless"] = pfc if isinstance(pfc, bool) else True if pfc else None
        network["switch"]["pfc"] = pfc if isinstance(pfc, dict) else Pfc().model_dump()
        return network

    def _pattern_arguments(self, pattern: Any) -> dict[str, Any]:
        arguments: dict[str, Any] = pattern.model_dump()
        if isinstance(pattern, Flows):
            arguments["flows"] = self.flows_of(pattern)
        return arguments

    def flows_of(self, pattern: Flows) -> list[flowfile.Flow]:
        """The flows of a pattern, those of its file included.

        Raises:
            FormatError: if the file cannot be read or is no list of flows, naming file and line.
        """
        if pattern.file is None:
            return list(pattern.flows)
        path = self.beside / pattern.file
        try:
            return [*pattern.flows, *flowfile.read(path, self.topology.hosts)]
        except OSError as error:
            place = self.place("traffic", self.traffic.index(pattern), "file")
            raise FormatError(f"{place}: {path}: {error.strerror}") from None

    def self_contained(self) -> "Scenario":
        """The same with the flows of its files in it, for a machine that has no such files.

        Raises:
            FormatError: as :meth:`flows_of`.
        """
        traffic = [
            pattern.model_copy(update={"flows": self.flows_of(pattern), "file": None})
            if isinstance(pattern, Flows)
            else pattern
            for pattern in self.traffic
        ]
        return self.model_copy(update={"traffic": traffic})


def _record_arguments(record: Record) -> dict[str, Any]:
    arguments = record.model_dump(include={"series", "interval_us", "events", "ports", "evs"})
    arguments["links"] = None if record.links == "all" else record.links
    arguments["capture"] = record.capture.links if record.capture else []
    arguments["capture_packets"] = record.capture.packets if record.capture else 0
    return arguments


def _fault_arguments(fault: Any, limit_us: float) -> dict[str, Any]:
    arguments: dict[str, Any] = fault.model_dump()
    arguments.setdefault("until_us", None)
    if isinstance(fault, Flap | Transceiver):
        arguments["times"] = fault.times_until(limit_us)
    named = ("probability", "share", "amount")
    arguments["value"] = next((arguments[name] for name in named if name in arguments), 0.0)
    return arguments


def load(path: Path | str) -> Scenario:
    """Reads a scenario from a YAML file.

    Raises:
        FormatError: if it is no scenario, naming file, line and field.
        OSError: if it cannot be read.
    """
    return yamlfile.read(Path(path), Scenario)
