"""Workloads: what each rank of a training job computes and sends, from a model's description or from files.

>>> from openmrc import workload
>>> layout = workload.Layout(gpus=16, tensor=8, pipeline=2, microbatches=4)
>>> step = workload.generate(workload.preset("llama3-8b"), layout)
>>> len(step.ranks), list(workload.problems(step))
(16, [])
>>> figures = workload.volume(step)
>>> figures.ranks
16
"""

from openmrc.workload.check import Problem, problems, require
from openmrc.workload.compare import StepComparison, Variant, compare, variants
from openmrc.workload.file import save
from openmrc.workload.formats import FORMATS, convert, load
from openmrc.workload.generate import generate
from openmrc.workload.layout import Layout
from openmrc.workload.models import GPUS, PRESETS, Experts, Gpu, Latent, Model, preset
from openmrc.workload.node_times import NodeTimes
from openmrc.workload.placement import PLACEMENTS, place, place_all
from openmrc.workload.program import Node, Rank, Workload, bytes_sent
from openmrc.workload.run import StepResults, run, run_jobs
from openmrc.workload.timeline import write_timeline
from openmrc.workload.volume import Class, Row, Volume, volume
from openmrc.workload.waits import OperationRow, Stretch, Waited, critical_path, operations, waited_for

__all__ = [
    "FORMATS",
    "GPUS",
    "PLACEMENTS",
    "PRESETS",
    "Class",
    "Experts",
    "Gpu",
    "Latent",
    "Layout",
    "Model",
    "Node",
    "NodeTimes",
    "OperationRow",
    "Problem",
    "Rank",
    "Row",
    "StepComparison",
    "StepResults",
    "Stretch",
    "Variant",
    "Volume",
    "Waited",
    "Workload",
    "bytes_sent",
    "compare",
    "convert",
    "critical_path",
    "generate",
    "load",
    "operations",
    "place",
    "place_all",
    "preset",
    "problems",
    "require",
    "run",
    "run_jobs",
    "save",
    "variants",
    "volume",
    "waited_for",
    "write_timeline",
]
