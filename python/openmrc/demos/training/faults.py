"""Which faults occur while the model trains, in steps: on loopback planes and in the lab."""

from openmrc.demos.director import Fault
from openmrc.errors import ArgumentError
from openmrc.testing import Impairment

_FIRST, _SLOT, _LENGTH = 0.12, 0.22, 0.11
"""Shares of all steps: when the first fault begins, from one to the next, how long one lasts."""
MIN_STEPS = 40
"""Fewer steps leave no time between faults."""
MIN_PLANES = 2


def _times(number: int, steps: int) -> tuple[int, int]:
    if steps < MIN_STEPS:
        raise ArgumentError(f"{steps} steps are too few for four faults one after the other: {MIN_STEPS}")
    begin = round(steps * (_FIRST + number * _SLOT))
    return begin, begin + round(steps * _LENGTH)


def on_loopback(steps: int, planes: int, ranks: int) -> list[Fault]:
    """The faults as impairments of planes on loopback.

    There are no links and switches on loopback. A switch carries some paths of a plane, and so these paths
    are lost; a rank's port carries what the rank sends on the plane.

    Raises:
        ArgumentError: if there are too few steps or planes.
    """
    if planes < MIN_PLANES:
        raise ArgumentError(f"planes fail in this demo: it needs at least {MIN_PLANES}")

    def plane(number: int) -> int:
        return number % planes

    flapping, lost = 1 % ranks, 2 % ranks
    return [
        Fault(
            "flap",
            f"port of rank {flapping} in plane {plane(0)} flaps",
            *_times(0, steps),
            ranks=[flapping],
            rules=[Impairment.drop(ports=[plane(0)])],
        ),
        Fault(
            "silent",
            f"a quarter of plane {plane(1)}'s paths silently dead",
            *_times(1, steps),
            rules=[Impairment.drop(ports=[plane(1)], ev_fraction=0.25)],
        ),
        Fault(
            "switch",
            f"half of plane {plane(2)}'s paths stopped",
            *_times(2, steps),
            rules=[Impairment.drop(ports=[plane(2)], ev_fraction=0.5)],
        ),
        Fault(
            "port",
            f"rank {lost} loses its port in plane {plane(3)}",
            *_times(3, steps),
            ranks=[lost],
            rules=[Impairment.drop(ports=[plane(3)])],
        ),
    ]


def in_lab(steps: int) -> list[Fault]:
    """The faults as those of links, a switch and a port of the demos' fabric.

    Raises:
        ArgumentError: if there are too few steps.
    """
    return [
        Fault("flap", "T0-T1 link flaps", *_times(0, steps), what="p0/t0-0:up1"),
        Fault("silent", "T0-T1 link silently dead", *_times(1, steps), what="p1/t0-1:up2", loss=1.0),
        Fault("switch", "T1 switch stopped", *_times(2, steps), what="p0/t1-3"),
        Fault("port", "NIC port of rank 1 lost", *_times(3, steps), what="h2:p1"),
    ]
