"""Congestion control profiles: the algorithm of queue pairs, and its parameters."""

import dataclasses
import enum
from dataclasses import dataclass
from typing import Any

from openmrc import _core
from openmrc.controller.state import Profile, ProfileState, member
from openmrc.errors import ArgumentError, StateError


class CcAlgorithm(enum.StrEnum):
    """Congestion control algorithms, with their names in the interface."""

    NSCC = "uet-1.0-nscc"
    """NSCC of UET 1.0, section 3.6.13, which MRC uses."""
    NONE = "none"
    """A window that never changes."""


@dataclass(frozen=True, kw_only=True)
class CcProfileAttr:
    """Attributes of a congestion control profile (spec: congestion, Numbers).

    ``None``: the value follows from the network. Below, a is the ratio of its bandwidth-delay product to that
    of 100 Gb/s and 12 us, and b the ratio of its target delay to 12 us.
    """

    algorithm: CcAlgorithm | None = None
    base_rtt_us: float | None = None
    """Round-trip time of a full packet on the longest idle path, microseconds. Loss detection uses it too."""
    path_mtu: int | None = None
    """Payload bytes per packet; default the NIC's."""
    link_rate_bps: int | None = None
    """Rate of all planes of the sender together, bits per second; NSCC needs it."""
    trimming: bool = False
    """Whether switches trim packets."""
    window: int | None = None
    """NONE: the window, bytes."""
    max_wnd: int | None = None
    """Largest and initial window, bytes: 1.5 x rate x base_rtt. The largest window falls in proportion when
    a shorter RTT is measured."""
    target_qdelay_us: float | None = None
    """Target of the queueing delay, microseconds: base_rtt, with trimming 0.75 of it."""
    alpha_per_us: float | None = None
    """Proportional increase, bytes per byte acknowledged and microsecond below target: 4 a b MTU /
    target_qdelay."""
    fi: float | None = None
    """Fair increase, bytes: 5 MTU a."""
    eta: float | None = None
    """Increase once per adjust period, bytes: 0.15 MTU a."""
    fi_scale: float | None = None
    """Fast increase per byte acknowledged: 0.25 a."""
    gamma: float | None = None
    """Gain of multiplicative decrease: 0.8."""
    max_md_jump: float | None = None
    """Least factor of one decrease: 0.5."""
    qa_gate: int | None = None
    """Quick adapt acts if less than max_wnd / 2^qa_gate was achieved: 3."""
    qa_threshold_us: float | None = None
    """Quick adapt acts above this delay, microseconds: 4 x target_qdelay; with trimming never."""
    disable_qa: bool | None = None
    """Quick adapt never acts: no."""
    adjust_period_us: float | None = None
    """The window is adjusted after this time, microseconds (base_rtt) ..."""
    adjust_bytes: int | None = None
    """... or after more than this many bytes (8 MTU)."""

    def check(self) -> None:
        """Raises a StateError if a number is missing, an ArgumentError if one contradicts the algorithm."""
        needed = {"base_rtt_us", "window" if self.algorithm is CcAlgorithm.NONE else "link_rate_bps"}
        missing = sorted(name for name in needed if getattr(self, name) is None)
        if missing:
            raise StateError(
                f"a congestion control profile of {self.algorithm} needs {', '.join(missing)} as well"
            )
        if self.algorithm is not CcAlgorithm.NONE and self.window is not None:
            raise ArgumentError("window is the fixed window of algorithm NONE; NSCC has max_wnd")


class CcProfile(Profile):
    """A congestion control profile of :class:`CcProfileAttr`; made by :meth:`Controller.cc_profile`.

    Queue pairs that use it keep it after it has gone OFFLINE; no other queue pair can take it then.
    """

    _what = "congestion control profile"
    _needed = frozenset({"algorithm"})
    _optional = frozenset(field.name for field in dataclasses.fields(CcProfileAttr)) - _needed

    def __init__(self, core: _core.Controller) -> None:
        super().__init__()
        self._core = core
        self._attr = CcProfileAttr()
        self._id: int | None = None

    @property
    def profile_id(self) -> int:
        """Its number, for ``QpAttr.cc_profile_id``.

        Raises:
            StateError: if it is not ONLINE.
        """
        self._require("profile_id", ProfileState.ONLINE)
        assert self._id is not None
        return self._id

    def query(self) -> CcProfileAttr:
        """Its attributes, as they were set."""
        return self._attr

    def _apply(self, target: ProfileState, attributes: dict[str, Any]) -> None:
        match target:
            case ProfileState.ONLINE:
                self._id = self._core.create_cc_profile(self._attr)
            case ProfileState.INIT:
                self._attr = CcProfileAttr()
            case ProfileState.OFFLINE if self._state is ProfileState.ONLINE:
                self._core.destroy_cc_profile(self.profile_id)
                self._id = None
            case _:
                attr = dataclasses.replace(self._attr, **attributes)
                attr = dataclasses.replace(attr, algorithm=member(CcAlgorithm, attr.algorithm, "algorithm"))
                attr.check()
                self._attr = attr
