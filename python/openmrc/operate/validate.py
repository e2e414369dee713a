"""Whether a job should start on some hosts, by what the map knows. Pure."""

from collections.abc import Iterable
from typing import Literal

from openmrc.fabric import SwitchId
from openmrc.operate.linkmap import Map
from openmrc.operate.model import Decision, Evidence, Fault, HostVerdict, Validation

Verdict = Literal["pass", "degraded", "fail", "unknown"]
EXIT_CODES: dict[Verdict, int] = {"pass": 0, "degraded": 3, "fail": 4, "unknown": 5}
"""For a scheduler's prolog."""
_BAD = (Evidence.BROKEN, Evidence.LOSSY)
_ORDER: list[Verdict] = ["pass", "degraded", "unknown", "fail"]


def validate(
    fabric_map: Map, hosts: Iterable[str], faults: Iterable[Fault], now: float, patience: float
) -> Validation:
    """Verdicts for hosts: their agent, every port, every uplink of their T0s, and faults that name them.

    Nothing is measured for it: a link that nobody has used is unknown, and not held against a host whose
    other links are good.

    Raises:
        openmrc.ArgumentError: if there is no such host.
    """
    named = {fault.name: fault for fault in faults if fault.kind == "host"}
    heard = {view.report.host: view for view in fabric_map.heard(now, patience)}
    found = []
    for host in dict.fromkeys(hosts):
        number = fabric_map.fabric.host(host)
        verdict: Verdict = "pass"
        reasons: list[str] = []
        view = heard.get(host)
        if view is None:
            found.append(HostVerdict(host=host, verdict="unknown", reasons=["its agent is not heard"]))
            continue
        cables = fabric_map.topology.groups[host]
        bad = [link for link in cables if _unusable(fabric_map, link)]
        down = sorted(view.report.ports_down)
        if down:
            reasons.append("no carrier on " + ", ".join(f"p{plane}" for plane in down))
        reasons += [f"{link} is {fabric_map.evidence[link].name.lower()}" for link in bad]
        lost = {fabric_map.topology.links[link].plane for link in bad} | set(down)
        if host in named or len(lost) * 2 > len(cables):
            verdict = "fail"
            if host in named:
                reasons.append(f"the host itself loses {named[host].loss:.2%}")
        elif lost:
            verdict = "degraded"
        for plane in range(fabric_map.fabric.planes):
            t0 = str(SwitchId(plane, 0, number // fabric_map.fabric.core.hosts_per_t0))
            uplinks = fabric_map.topology.groups.get(t0, [])
            out = [link for link in uplinks if _unusable(fabric_map, link)]
            if out:
                reasons.append(f"{len(out)} of {len(uplinks)} uplinks of {t0} are out")
                verdict = max(verdict, "degraded", key=_ORDER.index)
        used = any(fabric_map.evidence[link] is Evidence.GOOD for link in cables)
        if verdict == "pass" and not used:
            verdict = "unknown"
            reasons.append("none of its links is in use or probed")
        found.append(HostVerdict(host=host, verdict=verdict, reasons=reasons))
    worst: Verdict = max((each.verdict for each in found), key=_ORDER.index, default="unknown")
    return Validation(verdict=worst, hosts=found)


def _unusable(fabric_map: Map, link: str) -> bool:
    return fabric_map.evidence[link] in _BAD or fabric_map.decision.get(link, Decision.NONE) != Decision.NONE
