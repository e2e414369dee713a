"""What may be denied: floors of capacity, and hysteresis for links that flap. Pure."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from openmrc.operate.linkmap import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What limits decisions.

    The floor is half, as a T0 with less is worth draining; holds follow the published deployments only in
    that a link must prove itself before it is used again.
    """

    floor: float = 0.5
    """Share of the uplinks of each switch, and of the ports of each host, that stays in use."""
    least_confidence: float = 0.95
    """Of a verdict that denies by itself."""
    persists_s: float = 1.0
    """How long a fault must be there before its link is denied."""
    hold_s: float = 30.0
    """How long a denied link must be without evidence against it to be used again; doubled each time."""
    most_hold_s: float = 3600.0
    forget_s: float = 3600.0
    """A link without a fault for so long starts again with the first hold."""


def below_floor(
    topology: Topology, denied: Collection[str], more: Collection[str], floor: float, *, drained: str = ""
) -> str | None:
    """Which switch or host would have too little left, in words; ``None`` if none.

    Args:
        topology: The links.
        denied: Names of links that are denied already.
        more: Names of those that are to be denied.
        floor: Share that must stay, 0 to 1; one link always stays.
        drained: The switch that is taken out as a whole: its own uplinks need not stay.
    """
    out = {*denied, *more}
    for node in sorted({topology.links[name].lower.partition(":")[0] for name in more} - {drained}):
        group = topology.groups[node]
        left = sum(name not in out for name in group)
        least = max(1, math.ceil(floor * len(group)))
        if left < least:
            kind = "uplinks" if "/" in node else "ports"
            return f"{node} would have {left} of {len(group)} {kind} left; the floor is {least}"
    return None


@dataclass(slots=True)
class _Flaps:
    times: int = 0
    last_bad: float = -math.inf


@dataclass(slots=True)
class Hysteresis:
    """How long a link stays out: longer each time."""

    rules: Rules
    _links: dict[str, _Flaps] = field(default_factory=dict)

    def denied(self, link: str, now: float) -> None:
        """A link is denied for a fault."""
        flaps = self._links.setdefault(link, _Flaps())
        if now - flaps.last_bad > self.rules.forget_s:
            flaps.times = 0
        flaps.times += 1
        flaps.last_bad = now

    def bad(self, link: str, now: float) -> None:
        """There is evidence against a denied link still."""
        if link in self._links:
            self._links[link].last_bad = now

    def hold(self, link: str) -> float:
        """Seconds without evidence that a link must have before it is used again."""
        times = self._links[link].times if link in self._links else 1
        return min(self.rules.hold_s * 2.0 ** min(times - 1, 30), self.rules.most_hold_s)

    def may_return(self, link: str, now: float) -> bool:
        """Whether a denied link may be used again."""
        return link not in self._links or now - self._links[link].last_bad >= self.hold(link)

    def times(self) -> Mapping[str, int]:
        """How often each link was denied."""
        return {link: flaps.times for link, flaps in self._links.items()}
