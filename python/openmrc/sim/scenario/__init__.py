"""What a run is given: topology, network, transport, traffic, faults, as checked data.

Bytes are payload bytes; times end in their unit.
"""

from openmrc.sim.scenario.faults import (
    BitErrors,
    Broken,
    Down,
    Fault,
    Flap,
    Loss,
    NicPort,
    RandomFailures,
    Reboot,
    Slow,
    SmallMtu,
    Transceiver,
)
from openmrc.sim.scenario.network import Cables, Network, Nic, Pfc, Software, Switch, Topology
from openmrc.sim.scenario.part import Part
from openmrc.sim.scenario.record import Capture, Record
from openmrc.sim.scenario.traffic import (
    AllToAll,
    Collective,
    Flows,
    Incast,
    Permutation,
    RandomTraffic,
    Recorded,
    Traffic,
    Training,
)
from openmrc.sim.scenario.transport import Adaptive, Dcqcn, Mrc, Receives, Rocev2, Transport, Uet
from openmrc.sim.scenario.whole import Scenario, load

__all__ = [
    "Adaptive",
    "AllToAll",
    "BitErrors",
    "Broken",
    "Cables",
    "Capture",
    "Collective",
    "Dcqcn",
    "Down",
    "Fault",
    "Flap",
    "Flows",
    "Incast",
    "Loss",
    "Mrc",
    "Network",
    "Nic",
    "NicPort",
    "Part",
    "Permutation",
    "Pfc",
    "RandomFailures",
    "RandomTraffic",
    "Reboot",
    "Receives",
    "Record",
    "Recorded",
    "Rocev2",
    "Scenario",
    "Slow",
    "SmallMtu",
    "Software",
    "Switch",
    "Topology",
    "Traffic",
    "Training",
    "Transceiver",
    "Transport",
    "Uet",
    "load",
]
