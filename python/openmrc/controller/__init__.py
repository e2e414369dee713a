"""The controller's interface: EV and congestion control profiles, EV events, EV probes, ports.

Names and meanings are those of OCP's ``mrc_ctl.h``.
"""

from openmrc.controller.cc import CcAlgorithm, CcProfile, CcProfileAttr
from openmrc.controller.control import (
    Controller,
    DeviceLimits,
    EvProbe,
    EvProbeResult,
    Peer,
    PortState,
    PortStatusResult,
    PortStatusUpdate,
)
from openmrc.controller.ev import EvProfile
from openmrc.controller.ev_format import EvField, EvFormatAttr, EvFormatProfile, expand_ev
from openmrc.controller.ev_op import EvOp, EvOpEntry
from openmrc.controller.ev_values import Ev, EvEventMask, EvMode, EvProfileAttr
from openmrc.controller.state import Profile, ProfileState

__all__ = [
    "CcAlgorithm",
    "CcProfile",
    "CcProfileAttr",
    "Controller",
    "DeviceLimits",
    "Ev",
    "EvEventMask",
    "EvField",
    "EvFormatAttr",
    "EvFormatProfile",
    "EvMode",
    "EvOp",
    "EvOpEntry",
    "EvProbe",
    "EvProbeResult",
    "EvProfile",
    "EvProfileAttr",
    "Peer",
    "PortState",
    "PortStatusResult",
    "PortStatusUpdate",
    "Profile",
    "ProfileState",
    "expand_ev",
]
