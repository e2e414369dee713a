"""Congestion control profiles: the algorithm of queue pairs, and its parameters."""

import dataclasses
import enum
from dataclasses import dataclass

from openmrc import _core
from openmrc.controller.state import Profile, ProfileState, member
from openmrc.errors import StateError


class CcAlgorithm(enum.StrEnum):
    """Congestion control algorithms, with their names in the interface."""

    NSCC = "uet-1.0-nscc"
    """NSCC of UET 1.0, section 3.6.13, which MRC uses."""
    NONE = "none"
    """A window that never changes."""


@dataclass(frozen=True, kw_only=True)
class CcProfileAttr:
    """Attributes of a congestion control profile (docs/spec/congestion.md, "Numbers").

    ``None``: the value follows from the device's network. Below, a is the ratio of its bandwidth-delay
    product to that of 100 Gb/s and 12 us, and b the ratio of its target delay to 12 us.
    """

    algorithm: CcAlgorithm | None = None
    base_rtt_us: float | None = None
    """Round-trip time of a full packet on the longest idle path, microseconds. Loss detection uses it too."""
    path_mtu: int | None = None
    """Payload bytes per packet."""
    link_rate_bps: int | None = None
    """Rate of all planes of the sender together, bits per second."""
    trimming: bool | None = None
    """Whether switches trim packets."""
    window: int | None = None
    """NONE: the window, bytes. Of the others it has ``base_rtt_us`` and ``trimming``."""
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


class CcProfile(Profile):
    """A congestion control profile of :class:`CcProfileAttr`; made by :meth:`Controller.cc_profile`.

    OFFLINE needs the algorithm; ONLINE needs, for NSCC, any other attribute to be given as well. Another
    algorithm forgets the other attributes.
    """

    _what = "a congestion control profile"
    _attributes = CcProfileAttr

    def __init__(self, core: _core.Profiles) -> None:
        super().__init__(core)
        self._attr = CcProfileAttr()

    @property
    def state(self) -> ProfileState:
        """Its state."""
        return ProfileState(self._core.cc(self._key)[0])

    @property
    def profile_id(self) -> int:
        """Its number, for ``QpAttr.cc_profile_id``.

        Raises:
            StateError: if it is not ONLINE.
        """
        return self._online(self._core.cc_number(self._key))

    def query(self) -> CcProfileAttr:
        """Its attributes, as they were set.

        Raises:
            StateError: in INIT.
        """
        if self.state is ProfileState.INIT:
            raise StateError(
                "query needs a congestion control profile in OFFLINE or ONLINE, this one is in INIT"
            )
        return self._attr

    def _change(self, state: ProfileState | None, given: CcProfileAttr) -> None:
        algorithm = None
        if given.algorithm is not None:
            algorithm = member(CcAlgorithm, given.algorithm, "algorithm")
        parameters = {name: value for name, value in vars(given).items() if value is not None}
        parameters.pop("algorithm", None)
        before = self._attr
        if algorithm is not None and algorithm is not before.algorithm:
            before = CcProfileAttr(algorithm=algorithm)
        after = dataclasses.replace(before, **parameters)
        self._core.modify_cc(self._key, state, algorithm, after if parameters else None)
        self._attr = CcProfileAttr() if self.state is ProfileState.INIT else after
