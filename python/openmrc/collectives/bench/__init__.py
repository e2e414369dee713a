"""Measures collective operations as nccl-tests do."""

from openmrc.collectives.bench.measure import run
from openmrc.collectives.bench.settings import OPERATIONS, Line, Settings, Timing, line_from
from openmrc.collectives.bench.spawn import Place, spawn

__all__ = ["OPERATIONS", "Line", "Place", "Settings", "Timing", "line_from", "run", "spawn"]
