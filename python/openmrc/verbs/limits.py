"""What a device offers an application."""

from dataclasses import dataclass

from openmrc import _core
from openmrc.verbs.enums import Capabilities

PROTOCOL_VERSION = 1
"""The MRC version that this NIC speaks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAttr:
    """What a device offers (``mrc_query_device``, and ``ibv_query_device`` as far as MRC has it).

    The limits are those of the NIC and the same for every configuration, except ``max_qp`` and ``num_ports``.
    """

    protocol_version: int = PROTOCOL_VERSION
    """Newest MRC version."""
    capabilities: Capabilities = Capabilities.ALL
    """What a responder of this device can do, and dynamic MPR."""
    max_wimm: int = _core.DEVICE_LIMITS["max_wimm"]
    """Most writes with immediate in flight as requestor."""
    max_wimm_dest: int = _core.DEVICE_LIMITS["max_wimm"]
    """The same as responder."""
    max_mpr: int = _core.DEVICE_LIMITS["max_mpr"]
    """Largest in-flight window, units of 128 PSNs."""
    mpr_resolution: int = _core.DEVICE_LIMITS["mpr_resolution"]
    """The window is a multiple of this."""
    max_qp_hint: int = _core.DEVICE_LIMITS["max_qp_hints"]
    """Most hints of a context."""
    max_qp: int = _core.DEVICE_LIMITS["max_qps"]
    """Most queue pairs; :attr:`Device.max_qps`."""
    max_send_wr: int = _core.DEVICE_LIMITS["max_send_wr"]
    max_recv_wr: int = _core.DEVICE_LIMITS["max_recv_wr"]
    max_send_sge: int = _core.DEVICE_LIMITS["max_send_sge"]
    max_inline_data: int = _core.DEVICE_LIMITS["max_inline_data"]
    """Largest capacities of a queue pair: see :class:`QpCap`."""
    max_cqe: int = _core.DEVICE_LIMITS["max_cqe"]
    """Largest completion queue."""
    num_comp_vectors: int = _core.DEVICE_LIMITS["comp_vectors"]
    """Completion vectors: one engine serves all completion queues."""
    num_ports: int
    """Ports (planes)."""
