"""Fabrics in virtual time, packet by packet, with the transport that real endpoints run.

>>> from openmrc import sim
>>> scenario = sim.Scenario(
...     topology=sim.Topology(hosts=64, planes=4, radix=16),
...     traffic=[sim.Permutation(bytes=1 << 20)],
... )
>>> results = sim.run(scenario)
>>> results.totals["losses_seen"]
0

A scenario is data: it can be read from YAML (:func:`load`) and changed with ``model_copy``.
The same scenario with the same seed gives the same results, bit for bit, on every machine.
"""

from openmrc.sim.collectives import CollectiveStep, CollectiveTime
from openmrc.sim.compare import Comparison, compare
from openmrc.sim.custom import Congestion, PathSelector
from openmrc.sim.results import LogEvent, Results, Series, Step, Summary
from openmrc.sim.run import PlaneNow, Progress, run
from openmrc.sim.scenario import (
    Adaptive,
    AllToAll,
    BitErrors,
    Broken,
    Cables,
    Capture,
    Collective,
    Dcqcn,
    Down,
    Flap,
    Flows,
    Incast,
    Loss,
    Mrc,
    Network,
    Nic,
    NicPort,
    Permutation,
    Pfc,
    RandomFailures,
    RandomTraffic,
    Reboot,
    Receives,
    Record,
    Recorded,
    Rocev2,
    Scenario,
    Slow,
    SmallMtu,
    Software,
    Switch,
    Topology,
    Training,
    Transceiver,
    Uet,
    load,
)

__all__ = [
    "Adaptive",
    "AllToAll",
    "BitErrors",
    "Broken",
    "Cables",
    "Capture",
    "Collective",
    "CollectiveStep",
    "CollectiveTime",
    "Comparison",
    "Congestion",
    "Dcqcn",
    "Down",
    "Flap",
    "Flows",
    "Incast",
    "LogEvent",
    "Loss",
    "Mrc",
    "Network",
    "Nic",
    "NicPort",
    "PathSelector",
    "Permutation",
    "Pfc",
    "PlaneNow",
    "Progress",
    "RandomFailures",
    "RandomTraffic",
    "Reboot",
    "Receives",
    "Record",
    "Recorded",
    "Results",
    "Rocev2",
    "Scenario",
    "Series",
    "Slow",
    "SmallMtu",
    "Software",
    "Step",
    "Summary",
    "Switch",
    "Topology",
    "Training",
    "Transceiver",
    "Uet",
    "compare",
    "load",
    "run",
]
