"""The switches, links and addresses of a multi-plane fabric, its cost, and the paths through it.

>>> from openmrc.fabric import Fabric, plan
>>> fabric = Fabric.load("examples/fabrics/reference.yaml")
>>> fabric.paths("h0", "h131071")
<2048 paths from h0 to h131071>
>>> plan(fabric).asked.switches
6144
"""

from openmrc.fabric.catalogue import Catalogue
from openmrc.fabric.ev_set import EvEntry, EvSet
from openmrc.fabric.plan import Plan, plan
from openmrc.fabric.spec import Specification
from openmrc.fabric.topology import EvFields, Fabric, Hop, Path, Paths, SwitchId, SwitchPort, Table, Trace

__all__ = [
    "Catalogue",
    "EvEntry",
    "EvFields",
    "EvSet",
    "Fabric",
    "Hop",
    "Path",
    "Paths",
    "Plan",
    "Specification",
    "SwitchId",
    "SwitchPort",
    "Table",
    "Trace",
    "plan",
]
