"""The controller's interface: EV and congestion control profiles, EV events, EV probes, ports.

Names and meanings are those of OCP's ``mrc_ctl.h``.
"""

from openmrc.controller.cc import CcAlgorithm, CcProfile, CcProfileAttr
from openmrc.controller.control import Controller, DeviceLimits, EvProbe, EvProbeResult, Peer, PortState
from openmrc.controller.ev import (
    Ev,
    EvEventMask,
    EvField,
    EvFormatProfile,
    EvMode,
    EvProfile,
    EvProfileAttr,
    expand_ev,
)
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
    "EvFormatProfile",
    "EvMode",
    "EvProbe",
    "EvProbeResult",
    "EvProfile",
    "EvProfileAttr",
    "Peer",
    "PortState",
    "Profile",
    "ProfileState",
    "expand_ev",
]
