"""A fabric on one machine: switches and hosts are network namespaces, links are veth pairs.

The kernel forwards. Switches run the configuration of ``openmrc config --platform linux``. Hosts remove the
outer header and pass the inner packet to its UDP socket. Needs root, Linux 6.1 and iproute2 6.1.

>>> from openmrc.fabric import Fabric
>>> from openmrc.lab import Lab
>>> lab = Lab.up(Fabric.load("examples/fabrics/lab.yaml"))  # doctest: +SKIP
>>> lab.fail("p0/t0-0:up1")  # doctest: +SKIP
>>> lab.down()  # doctest: +SKIP
"""

from openmrc.lab.counters import PortCounters
from openmrc.lab.lab import Lab
from openmrc.lab.layout import End, Layout, Link
from openmrc.lab.system import entered

__all__ = ["End", "Lab", "Layout", "Link", "PortCounters", "entered"]
