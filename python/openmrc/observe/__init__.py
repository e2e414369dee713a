"""What devices do, from outside their process: one schema of events and counters, any number of readers.

A process publishes its open devices at a socket that only its own user can use. :func:`devices` finds them,
:class:`Observer` reads counters and follows events. ``openmrc devices`` is this for people.
"""

from openmrc.observe.observer import Observer, devices
from openmrc.observe.publication import Publication, directory, publish
from openmrc.observe.schema import (
    ContextStats,
    DeviceState,
    Event,
    NodeStats,
    PathStats,
    PortStats,
)

__all__ = [
    "ContextStats",
    "DeviceState",
    "Event",
    "NodeStats",
    "Observer",
    "PathStats",
    "PortStats",
    "Publication",
    "devices",
    "directory",
    "publish",
]
