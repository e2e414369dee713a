"""Verbs over a software NIC: devices, memory, completion queues, queue pairs. Modelled on ibverbs.

    Device -> Context -> ProtectionDomain -> MemoryRegion, QueuePair
                      -> CompletionQueue

Objects, names and numbers are those of ibverbs without the prefixes. Python's means replace C's: ``with``
blocks for destroy calls, exceptions for errno, buffers for pointers. MRC has RDMA WRITE and RDMA WRITE WITH
IMMEDIATE only.
"""

from openmrc.verbs.attr import QpAttr, QpCap, QpHint, QpInfo, SocketAddress
from openmrc.verbs.comp_channel import CompletionChannel
from openmrc.verbs.context import Context
from openmrc.verbs.cq import CompletionQueue
from openmrc.verbs.device import Device, Port, Srv6Path, Srv6Paths
from openmrc.verbs.device_options import DeviceOptions
from openmrc.verbs.enums import (
    AccessFlags,
    AsyncEventType,
    Capabilities,
    EvState,
    QpState,
    SendFlags,
    WcOpcode,
    WcStatus,
    WrOpcode,
)
from openmrc.verbs.events import AsyncEvent, EventQueue, EvEvent
from openmrc.verbs.hint import SharedQpHint
from openmrc.verbs.limits import DeviceAttr
from openmrc.verbs.memory import MemoryRegion
from openmrc.verbs.pd import ProtectionDomain
from openmrc.verbs.qp import QueuePair
from openmrc.verbs.work import Completion, RecvWR, RemoteBuffer, SendWR, Sge

__all__ = [
    "AccessFlags",
    "AsyncEvent",
    "AsyncEventType",
    "Capabilities",
    "Completion",
    "CompletionChannel",
    "CompletionQueue",
    "Context",
    "Device",
    "DeviceAttr",
    "DeviceOptions",
    "EvEvent",
    "EvState",
    "EventQueue",
    "MemoryRegion",
    "Port",
    "ProtectionDomain",
    "QpAttr",
    "QpCap",
    "QpHint",
    "QpInfo",
    "QpState",
    "QueuePair",
    "RecvWR",
    "RemoteBuffer",
    "SendFlags",
    "SendWR",
    "Sge",
    "SharedQpHint",
    "SocketAddress",
    "Srv6Path",
    "Srv6Paths",
    "WcOpcode",
    "WcStatus",
    "WrOpcode",
]
