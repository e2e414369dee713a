"""Fabrics in virtual time: the transport that real endpoints run, packet by packet, at any size.

>>> from openmrc import sim
>>> scenario = sim.Scenario(
...     topology=sim.Topology(hosts=64, planes=4, radix=16),
...     traffic=[sim.Permutation(bytes=1 << 20)],
... )
>>> results = sim.run(scenario)
>>> results.totals["losses_seen"]
0

A scenario is data: it can be written in YAML (:func:`load`), changed with ``model_copy`` and swept in a loop.
The same scenario with the same seed gives the same results, bit for bit, on every machine.
"""

from openmrc.sim.compare import Comparison, compare
from openmrc.sim.results import Entry, Results, Series, Step, Summary
from openmrc.sim.run import Progress, run
from openmrc.sim.scenario import (
    AllToAll,
    BitErrors,
    Capture,
    Collective,
    Down,
    Flap,
    Flows,
    Incast,
    Loss,
    Mrc,
    Network,
    Permutation,
    RandomFailures,
    RandomTraffic,
    Record,
    Rocev2,
    Scenario,
    Slow,
    Switch,
    Topology,
    Training,
    load,
)

__all__ = [
    "AllToAll",
    "BitErrors",
    "Capture",
    "Collective",
    "Comparison",
    "Down",
    "Entry",
    "Flap",
    "Flows",
    "Incast",
    "Loss",
    "Mrc",
    "Network",
    "Permutation",
    "Progress",
    "RandomFailures",
    "RandomTraffic",
    "Record",
    "Results",
    "Rocev2",
    "Scenario",
    "Series",
    "Slow",
    "Step",
    "Summary",
    "Switch",
    "Topology",
    "Training",
    "compare",
    "load",
    "run",
]
