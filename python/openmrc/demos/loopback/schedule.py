"""Which faults occur when."""

from collections.abc import Sequence
from dataclasses import dataclass

from openmrc.demos.director import Fault
from openmrc.errors import ArgumentError
from openmrc.testing import Impairment, PacketClass


@dataclass(frozen=True)
class Schedule:
    """The faults of a run."""

    duration: float
    """Seconds; what is being sent then is completed."""
    faults: Sequence[Fault]
    dead_plane: int


def standard(duration: float, planes: int) -> Schedule:
    """A plane goes silent; meanwhile some paths lose packets, then some are congested; the plane returns.

    Raises:
        ArgumentError: if there are fewer than two planes.
    """
    if planes < 2:
        raise ArgumentError("the demo makes a plane fail: it needs at least 2")
    dead = min(3, planes - 1)
    data = PacketClass.DATA
    faults = [
        Fault(
            "plane_dead",
            f"plane {dead} silent",
            0.20 * duration,
            0.80 * duration,
            # Two rules, so that data packets are counted apart.
            [
                Impairment.drop(ports=[dead], packet_class=data),
                Impairment.drop(ports=[dead], packet_class=PacketClass.CONTROL),
            ],
        ),
        Fault(
            "paths_lossy",
            "10 % of paths lose 5 %",
            0.36 * duration,
            0.50 * duration,
            [Impairment.drop(ev_fraction=0.1, probability=0.05, packet_class=data)],
        ),
        Fault(
            "paths_congested",
            "10 % of paths trim 5 %, mark 20 %",
            0.58 * duration,
            0.72 * duration,
            [
                Impairment.trim(ev_fraction=0.1, probability=0.05),
                Impairment.ecn_mark(ev_fraction=0.1, probability=0.2, packet_class=data),
            ],
        ),
    ]
    return Schedule(duration, faults, dead)
