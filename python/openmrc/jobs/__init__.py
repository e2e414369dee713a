"""Jobs over days: what failures cost a training job on different networks, in time, GPU-hours and money.

A :class:`Job` says how many GPUs train for how long, how often parts fail and which networks are compared;
:func:`study` draws the failures and adds up what they cost. Drawing needs NumPy; describing a job does not.
"""

from typing import TYPE_CHECKING, Any

from openmrc.jobs.job import Checkpoint, Job, Rates, Step, load
from openmrc.jobs.network import PRESETS, Network, Shape

if TYPE_CHECKING:
    from openmrc.jobs.effect import Cause as Cause
    from openmrc.jobs.flows import Flows as Flows
    from openmrc.jobs.log import Log as Log
    from openmrc.jobs.log import read_log as read_log
    from openmrc.jobs.log import write_log as write_log
    from openmrc.jobs.outcome import Loss as Loss
    from openmrc.jobs.outcome import Outcome as Outcome
    from openmrc.jobs.outcome import run as run
    from openmrc.jobs.studies import Study as Study
    from openmrc.jobs.studies import Summary as Summary
    from openmrc.jobs.studies import compare as compare
    from openmrc.jobs.studies import sensitivity as sensitivity
    from openmrc.jobs.studies import study as study
    from openmrc.jobs.studies import table as table
    from openmrc.jobs.studies import what_if as what_if

_DRAWING = (
    *("Cause", "Flows", "Log", "Loss", "Outcome", "Study", "Summary"),
    *("compare", "read_log", "run", "sensitivity", "study", "table", "what_if", "write_log"),
)

__all__ = ["PRESETS", "Checkpoint", "Job", "Network", "Rates", "Shape", "Step", "load", *_DRAWING]


def __getattr__(name: str) -> Any:
    if name not in _DRAWING:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from openmrc.extras import import_optional

    import_optional("numpy", "a job over days", "openmrc[sim]")
    from openmrc.jobs import studies

    return getattr(studies, name)
