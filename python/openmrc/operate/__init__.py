"""Operating a fabric: which cable is broken, an agent for each host, and a controller for all of them.

:mod:`openmrc.operate.locate` needs nothing but processes that publish their devices. The agent and the
controller need the packages of ``openmrc[operate]``.
"""
