"""The whole of a scenario, read from a file and handed over to the core."""

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import StrictInt, ValidationInfo, field_validator, model_validator

from openmrc import notebook
from openmrc.fabric import yamlfile
from openmrc.sim.scenario.faults import Fault
from openmrc.sim.scenario.network import Network, Topology, planned
from openmrc.sim.scenario.part import OPEN, Part
from openmrc.sim.scenario.record import Record
from openmrc.sim.scenario.traffic import Flows, Recorded, Traffic
from openmrc.sim.scenario.transport import Transport, fields_of


class Scenario(Part, yamlfile.Sourced):
    """A run."""

    topology: Topology
    network: Network = Network()
    transport: Transport = OPEN
    traffic: list[Traffic]
    """Patterns that run beside each other."""
    faults: list[Fault] = OPEN
    limit_us: float = OPEN
    """Virtual time at which the run ends at the latest."""
    seed: StrictInt = OPEN
    """Of everything left to chance in the network and in queue pairs; patterns and faults have their own."""
    record: Record = Record()
    """What the run records."""
    threads: StrictInt = OPEN
    """Threads that simulate it, each a part of the network. The results are the same for every number."""
    engine: Literal["packets", "auto", "flow"] = OPEN
    """What executes it: every packet, packets only where something changes, or shares of links."""

    @field_validator("transport", mode="before")
    @classmethod
    def _short_transport(cls, value: Any) -> Any:
        """``mrc`` and ``rocev2:qps=8`` are transports too."""
        if not isinstance(value, str):
            return value
        fields = fields_of(value)
        if "planes" in fields:
            raise ValueError(f"{value}: planes are the topology's here: topology.planes")
        return fields

    @field_validator("traffic", "faults", mode="before")
    @classmethod
    def _only_one(cls, value: Any) -> Any:
        """One pattern or fault needs no list."""
        return [value] if isinstance(value, dict | Part) else value

    @model_validator(mode="before")
    @classmethod
    def _mtu_of_fabric(cls, value: Any, info: ValidationInfo) -> Any:
        """A fabric file has a path MTU, which is the network's here."""
        topology = value.get("topology") if isinstance(value, dict) else None
        if not isinstance(topology, dict) or topology.get("fabric") is None:
            return value
        path = (info.context or {}).get("beside", Path()) / topology["fabric"]
        network = value.get("network", {})
        if not isinstance(network, dict) or "mtu" in network:
            return value
        try:
            mtu = planned(path).spec.mtu
        except ValueError:
            # The check of the topology reports it, with its line.
            return value
        return {**value, "network": {**network, "mtu": mtu}}

    def _repr_html_(self) -> str:
        return notebook.preformatted(self.to_yaml())

    def to_yaml(self) -> str:
        """The scenario as it was written, without the fields that were left open. It can be read again."""
        value = self.model_dump(mode="json", exclude_unset=True)
        text: str = yaml.safe_dump(value, sort_keys=False, default_flow_style=None, width=110)
        return text

    def to_json(self) -> str:
        """What is handed over to the core: only fields that are set, and files with their full names."""
        traffic = [
            pattern.model_copy(update={"file": str(self.beside / pattern.file)})
            if isinstance(pattern, Flows | Recorded) and pattern.file is not None
            else pattern
            for pattern in self.traffic
        ]
        return self.model_copy(update={"traffic": traffic}).model_dump_json(exclude_unset=True)


def load(path: Path | str) -> Scenario:
    """Reads a scenario from a YAML file.

    Raises:
        FormatError: if it is no scenario, naming file, line and field.
        OSError: if it cannot be read.
    """
    return yamlfile.read(Path(path), Scenario)
