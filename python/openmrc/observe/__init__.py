"""What devices do, from outside their process: one schema of events and counters, any number of readers.

A process publishes its open devices at a socket that only its own user can use. :func:`devices` finds them,
:class:`Observer` reads counters and follows events. ``openmrc devices`` is this for people.
"""

from openmrc.observe.observer import Observer, devices
from openmrc.observe.publication import Publication, directory, publish
from openmrc.observe.schema import (
    ContextStats,
    DevicePaths,
    DeviceState,
    Event,
    NodeStats,
    PathStats,
    PortStats,
    QueuePairPaths,
)

__all__ = [
    "ContextStats",
    "DevicePaths",
    "DeviceState",
    "Event",
    "NodeStats",
    "Observer",
    "PathStats",
    "PortStats",
    "Publication",
    "QueuePairPaths",
    "devices",
    "directory",
    "publish",
]
