"""Which cable, switch or host is it? Observations in, ranked verdicts with evidence out; pure functions.

An :class:`Observation` says how many packets took a path and how many of them were lost. :func:`localise`
finds the fewest failed components that explain all of them, :class:`Cusum` tells when a stream of probes has
begun to lose, and :func:`smallest_cover` needs no counts, only paths that are dead and alive.
"""

from openmrc.localise.components import Component, Kind, components_of_path
from openmrc.localise.cover import smallest_cover
from openmrc.localise.likelihood import Model, Observation, Verdict, localise
from openmrc.localise.loops import Loop, loops_of_host
from openmrc.localise.paths import localise_paths
from openmrc.localise.recent import Recent
from openmrc.localise.sequential import Cusum, alarm_threshold, expected_probes

__all__ = [
    "Component",
    "Cusum",
    "Kind",
    "Loop",
    "Model",
    "Observation",
    "Recent",
    "Verdict",
    "alarm_threshold",
    "components_of_path",
    "expected_probes",
    "localise",
    "localise_paths",
    "loops_of_host",
    "smallest_cover",
]
