"""Whether a job should start on some hosts, by what the map knows. Pure."""

from collections import Counter
from collections.abc import Iterable
from typing import Literal

from openmrc.fabric import SwitchId
from openmrc.operate.linkmap import Map
from openmrc.operate.model import Decision, Evidence, HostVerdict, LinkVerdict, NamedFault, Validation

Verdict = Literal["pass", "degraded", "fail", "unknown"]
EXIT_CODES: dict[Verdict, int] = {"pass": 0, "degraded": 3, "fail": 4, "unknown": 5}
"""For a scheduler's prolog."""
_BAD = (Evidence.BROKEN, Evidence.LOSSY)
_ORDER: list[Verdict] = ["pass", "degraded", "unknown", "fail"]
_MOST_LINKS = 512


def validate(
    fabric_map: Map, hosts: Iterable[str], faults: Iterable[NamedFault], now: float, patience: float
) -> Validation:
    """Verdicts for hosts: their agent, every port, every uplink of their T0s, and faults that name them.

    And for their links: a broken one fails, one that loses packets or is denied is degraded; one of several
    suspects is unknown, and so is its host.

    Nothing is measured for it: a link that nobody has used is unknown, and not held against a host whose
    other links are good.

    Raises:
        openmrc.ArgumentError: if there is no such host.
    """
    faults = list(faults)
    named = {fault.name: fault for fault in faults if fault.kind == "host"}
    concerned: dict[str, None] = {}
    heard = {view.report.host: view for view in fabric_map.heard(now, patience)}
    found = []
    for host in dict.fromkeys(hosts):
        number = fabric_map.fabric.host(host)
        t0s = [
            str(SwitchId(plane, 0, number // fabric_map.fabric.core.hosts_per_t0))
            for plane in range(fabric_map.fabric.planes)
        ]
        concerned |= dict.fromkeys(fabric_map.topology.groups[host])
        for t0 in t0s:
            concerned |= dict.fromkeys(fabric_map.topology.groups.get(t0, []))
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
        for t0 in t0s:
            uplinks = fabric_map.topology.groups.get(t0, [])
            out = [link for link in uplinks if _unusable(fabric_map, link)]
            if out:
                reasons.append(f"{len(out)} of {len(uplinks)} uplinks of {t0} are out")
                verdict = max(verdict, "degraded", key=_ORDER.index)
        suspects = [link for link in cables if fabric_map.evidence[link] is Evidence.SUSPECT]
        if suspects:
            reasons.append("packets are lost, perhaps by " + ", ".join(suspects))
            verdict = max(verdict, "unknown", key=_ORDER.index)
        used = any(fabric_map.evidence[link] is Evidence.GOOD for link in cables)
        if verdict == "pass" and not used:
            verdict = "unknown"
            reasons.append("none of its links is in use or probed")
        found.append(HostVerdict(host=host, verdict=verdict, reasons=reasons))
    worst: Verdict = max((each.verdict for each in found), key=_ORDER.index, default="unknown")
    judged = [_of_link(fabric_map, link, faults) for link in concerned]
    shown = [each for each in judged if each.evidence not in ("good", "unknown") or each.decision != "none"]
    shown.sort(key=lambda each: _ORDER.index(each.verdict), reverse=True)
    return Validation(
        verdict=worst,
        hosts=found,
        links=shown[:_MOST_LINKS],
        link_counts=dict(Counter(each.verdict for each in judged)),
    )


def _of_link(fabric_map: Map, link: str, faults: Iterable[NamedFault]) -> LinkVerdict:
    evidence, decision = fabric_map.evidence[link], fabric_map.decision.get(link, Decision.NONE)
    verdict: Verdict = "pass"
    if evidence is Evidence.BROKEN:
        verdict = "fail"
    elif evidence is Evidence.SUSPECT:
        verdict = "unknown"
    elif evidence is Evidence.LOSSY or decision is not Decision.NONE:
        verdict = "degraded"
    elif evidence is Evidence.UNKNOWN:
        verdict = "unknown"
    return LinkVerdict(
        link=link,
        verdict=verdict,
        evidence=evidence.name.lower(),
        decision=decision.name.lower(),
        loss=next((fault.loss for fault in faults if fault.name == link and fault.kind != "unknown"), None),
    )


def _unusable(fabric_map: Map, link: str) -> bool:
    return fabric_map.evidence[link] in _BAD or fabric_map.decision.get(link, Decision.NONE) != Decision.NONE
