"""The live map: every link with what is known and what is decided about it, from the reports of agents. Pure.

Nothing here reads a clock or a file: times are arguments.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

from openmrc.errors import ArgumentError
from openmrc.fabric import Fabric, SwitchId
from openmrc.fabric.topology import SwitchPort
from openmrc.localise import (
    Component,
    Kind,
    Observation,
    Verdict,
    localise,
    loops_of_host,
)
from openmrc.localise.components import components_of, crossing
from openmrc.localise.likelihood import Model, evidence_against
from openmrc.localise.loops import PROBERS
from openmrc.localise.paths import PACKETS
from openmrc.operate.model import MOST_CHANGES, Decision, Evidence, FabricInfo, HostInfo, Panel, Report
from openmrc.switchconf.devices import breakout

MOST_LINKS = 1 << 22
"""A map of more would take more than 2 GB: half a kilobyte each. The reference fabric has half of it."""
_BROKEN_FROM = 0.5
"""Share lost from which a link is broken and not lossy."""
_ENOUGH = Model().least_evidence
"""Nats from which loops alone would name a part."""
_LINKS = (Kind.LINK, Kind.UPWARD, Kind.DOWNWARD)


class Link(NamedTuple):
    """A cable."""

    number: int
    name: str
    plane: int
    lower: str
    """``h3:p0`` or ``p0/t0-1:up2``."""
    upper: str


class Topology:
    """The links of a fabric by number, in rectangles that a page can draw.

    Raises:
        ArgumentError: if the fabric has too many.
    """

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.panels: list[Panel] = []
        self.links: dict[str, Link] = {}
        self.names: list[str | None] = []
        self.of_node: dict[str, list[str]] = {}
        """Links of each switch and host."""
        self.groups: dict[str, list[str]] = {}
        """By switch or host: the links that lead away from the hosts. Some of each must stay in use."""
        self.optics: dict[str, list[str]] = {}
        """By cage of a switch: the links of its optic, where it has several."""
        self.links_of_plane: Counter[int] = Counter()
        """How many there are."""
        expected = fabric.hosts * fabric.planes
        if expected > MOST_LINKS:
            raise ArgumentError(
                f"{fabric.spec.name} has more than {expected:,} links;"
                f" a controller keeps at most {MOST_LINKS:,}"
            )
        for plane in range(fabric.planes):
            lower = [each for each in fabric.switches(plane) if each.tier < max(1, fabric.tiers - 1)]
            ports = {switch: fabric.ports(switch) for switch in lower}
            for tier in range(-1, fabric.tiers - 1):
                self._add_panel(plane, tier, {s: each for s, each in ports.items() if s.tier == max(tier, 0)})
        self.optic_of = {link: optic for optic, links in self.optics.items() for link in links}
        """The optic of a link at its lower switch; of a host's cable at the T0."""

    def _add_panel(self, plane: int, tier: int, ports_of: Mapping[SwitchId, Iterable[SwitchPort]]) -> None:
        fabric, first = self.fabric, len(self.names)
        rows = [[port for port in ports if port.is_uplink != (tier < 0)] for ports in ports_of.values()]
        columns = max(map(len, rows), default=0)
        per_cage = breakout(fabric)
        for switch, ports in zip(ports_of, rows, strict=True):
            for place in range(columns):
                if place >= len(ports):
                    self.names.append(None)
                    continue
                port = ports[place]
                own, peer = f"{switch}:{port.name}", f"{port.peer}:{port.peer_port}"
                lower, upper = (own, peer) if port.is_uplink else (peer, own)
                self._add(Link(len(self.names), port.link, plane, lower, upper))
                if len(self.links) > MOST_LINKS:
                    raise ArgumentError(
                        f"{fabric.spec.name} has too many links; a controller keeps at most {MOST_LINKS:,}"
                    )
            for cage in _cages(ports, per_cage):
                name = f"{switch}:{cage[0].name}-{cage[-1].name}"
                self.optics[name] = [port.link for port in cage]
        self.panels.append(
            Panel(
                plane=plane,
                tier=tier,
                rows=len(rows),
                columns=columns,
                first=first,
                row_name=f"t{max(tier, 0)}",
                column_name="host" if tier < 0 else "uplink",
            )
        )

    def _add(self, link: Link) -> None:
        self.links[link.name] = link
        self.names.append(link.name)
        self.links_of_plane[link.plane] += 1
        lower, upper = (end.partition(":")[0] for end in (link.lower, link.upper))
        for node in (lower, upper):
            self.of_node.setdefault(node, []).append(link.name)
        self.groups.setdefault(lower, []).append(link.name)

    def link(self, what: str) -> Link:
        """The link of this name, or of this port.

        Raises:
            ArgumentError: if there is none.
        """
        found = self.links.get(what)
        if found is None:
            of_node = (self.links[name] for name in self.of_node.get(what.partition(":")[0], ()))
            found = next((link for link in of_node if what in (link.lower, link.upper)), None)
        if found is None:
            raise ArgumentError(f"{what[:128]!r} is no link and no port of fabric {self.fabric.spec.name}")
        return found

    def links_of(self, what: str) -> list[str]:
        """The names of the links of a switch, or the one link of this name or port.

        Raises:
            ArgumentError: if there is neither.
        """
        if what in self.of_node and "/" in what:
            return self.of_node[what]
        return [self.link(what).name]

    def info(self) -> FabricInfo:
        """The links by number, for a page."""
        return FabricInfo(
            name=self.fabric.spec.name,
            hosts=self.fabric.hosts,
            planes=self.fabric.planes,
            port_rate_bps=self.fabric.port_rate,
            panels=self.panels,
            cells=len(self.names),
        )

    def parts(self, component: Component) -> list[str]:
        """The names of the links that a component's failure takes."""
        if component.kind in _LINKS:
            return [component.name] if component.name in self.links else []
        if component.kind is Kind.GROUP:
            return self.optics.get(component.name, [])
        return self.of_node.get(component.name, [])


def _cages(ports: Iterable[SwitchPort], size: int) -> Iterator[list[SwitchPort]]:
    """Ports that share a cage, where there are several."""
    for _, group in itertools.groupby(ports, key=lambda port: port.number // size):
        cage = list(group)
        if len(cage) > 1:
            yield cage


class _Way(NamedTuple):
    """A path of a report."""

    dead: Observation
    """What it says if it is condemned."""
    alive: Observation
    links: frozenset[str]


@dataclass(slots=True)
class HostView:
    """A host as its agent describes it."""

    report: Report
    heard: float
    """Monotonic time of the report."""
    received: float
    """Time of the report since 1970, by this machine's clock."""
    observations: list[Observation] = field(default_factory=list)
    paths: list[Observation] = field(default_factory=list)
    """Those of the observations that are paths of queue pairs."""
    good: frozenset[str] = frozenset()
    """Links over which packets or probes of the host arrive."""
    losing: int = 0
    """Observations of which a packet or probe was lost."""
    loops: dict[frozenset[Component], Observation] = field(default_factory=dict)
    """Those of the observations that are probes of loops."""
    unseen: dict[frozenset[Component], Observation] = field(default_factory=dict)
    """Losses of loops in earlier reports that no evaluation has had, and that say more against a loop than
    this report: a link that flaps is good again before the next evaluation."""
    collected: bool = False
    """Whether an evaluation has had the report."""
    used: frozenset[str] = frozenset()
    """Links on paths that its queue pairs use."""
    changes: dict[tuple[int, int], int] = field(default_factory=dict)
    """By peer and entropy value: how often a path was condemned or taken back, as the agent counts."""
    counts_from_0: bool = False
    """Whether every report of this boot of the agent was heard."""

    def differs(self, before: "HostView", patience: float) -> bool:
        """Whether an evaluation would find something else than with the report before.

        Where nothing is lost, counts of loops that grow are no news.

        Args:
            before: The host at its report before.
            patience: Seconds after which a report does not count any more.
        """
        return bool(
            self.losing
            or self.unseen
            or before.losing
            or self.heard - before.heard > patience
            or (self.good, self.used) != (before.good, before.used)
            or (self.report.deny_version, self.report.devices)
            != (before.report.deny_version, before.report.devices)
        )


class Known(dict[str, Evidence]):
    """What is known of links, by name; nothing of the others."""

    def __missing__(self, link: str) -> Evidence:
        return Evidence.UNKNOWN


class Map:
    """What hosts report, and what follows from it for each link."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.fabric = topology.fabric
        self.hosts: dict[str, HostView] = {}
        self.evidence = Known()
        """Of each link, from the last evaluation."""
        self.decision: dict[str, Decision] = {}
        """Links that are denied or drained."""
        self.path_changes: Counter[str] = Counter()
        """How often paths over each link were condemned or taken back."""
        self.changes = 0
        """How often paths were condemned or taken back."""
        self._cells = bytearray(255 if name is None else 0 for name in topology.names)
        self._way = lru_cache(1 << 17)(self._way_of)
        self._loops = lru_cache(1 << 14)(self._loops_of)
        self._more_loops = lru_cache(1 << 4)(self._loops_of)

    def take(self, report: Report, heard: float, received: float) -> bool:
        """Takes a report; whether it is newer than what was known.

        Raises:
            ArgumentError: if it names hosts, planes or paths that the fabric does not have.
        """
        source = self.fabric.host(report.host)
        before = self.hosts.get(report.host)
        if before and before.report.boot == report.boot and before.report.sequence >= report.sequence:
            return False
        view = HostView(report, heard, received)
        if before and (report.dead, report.alive) == (before.report.dead, before.report.alive):
            view.paths, view.used = before.paths, before.used
        else:
            ways = [self._way(source, peer, ev) for peer, ev in report.alive]
            view.used = frozenset().union(*(way.links for way in ways))
            view.paths = [self._way(source, peer, ev).dead for peer, ev in report.dead]
            view.paths += [way.alive for way in ways]
        view.observations = view.paths.copy()
        good: set[str] = set()
        for plane in report.ports_down:
            if plane >= self.fabric.planes:
                raise ArgumentError(f"plane {plane}: the fabric has {self.fabric.planes}")
            view.observations.append(Observation(self._cable(source, plane), PACKETS, PACKETS))
        for each in report.loops:
            components = self._loop(source, each.plane, each.uplink)
            view.loops[components] = Observation(components, each.sent, each.lost)
            if each.lost < each.sent:
                good.update(c.name for c in components if c.kind is Kind.LINK)
        view.good = view.used | good
        view.observations += view.loops.values()
        view.losing = sum(observation.lost > 0 for observation in view.observations)
        if before is not None:
            view.unseen = _worse(before, view)
        self._count(source, before, view)
        self.hosts[report.host] = view
        return True

    def _count(self, source: int, before: HostView | None, view: HostView) -> None:
        """Adds what paths have changed since the report before."""
        report = view.report
        view.counts_from_0 = report.sequence == 1
        if before is not None and before.report.boot == report.boot:
            view.changes, view.counts_from_0 = before.changes, before.counts_from_0
        ways = [self._way(source, peer, ev) for peer, ev, _ in report.changes]
        for (peer, ev, times), way in zip(report.changes, ways, strict=True):
            # What an agent had counted before this controller heard of it is no change of now.
            more = times - view.changes.pop((peer, ev), 0 if view.counts_from_0 else times)
            view.changes[peer, ev] = times
            if more > 0:
                self.changes += more
                for link in way.links:
                    self.path_changes[link] += more
        while len(view.changes) > MOST_CHANGES:
            del view.changes[next(iter(view.changes))]

    def _way_of(self, src: int, dst: int, ev: int) -> _Way:
        self.fabric.host(dst)
        switches, links = self.fabric.crossed(src, dst, ev)
        needed = components_of(f"h{src}", f"h{dst}", switches, links, self.topology.optic_of)
        dead, alive = Observation(needed, PACKETS, PACKETS), Observation(needed, PACKETS, 0)
        return _Way(dead, alive, frozenset(links))

    def _cable(self, host: int, plane: int) -> frozenset[Component]:
        t0 = SwitchId(plane, 0, host // self.fabric.core.hosts_per_t0)
        link = next(
            name for name in self.topology.groups[f"h{host}"] if self.topology.links[name].plane == plane
        )
        both = {*crossing(link, upward=True), *crossing(link, upward=False)}
        return frozenset({*both, Component(Kind.SWITCH, str(t0))})

    def _loop(self, host: int, plane: int, uplink: int | None) -> frozenset[Component]:
        key = plane, uplink
        found = self._loops(host, PROBERS).get(key)
        if found is None:
            # Of another share than agents have by themselves.
            found = self._more_loops(host, self.fabric.core.hosts_per_t0).get(key)
        if found is None:
            raise ArgumentError(f"h{host} has no loop over plane {plane}, uplink {uplink}")
        return found

    def _loops_of(self, host: int, probers: int) -> dict[tuple[int, int | None], frozenset[Component]]:
        found = loops_of_host(self.fabric, host, probers=probers, groups=self.topology.optic_of)
        return {(loop.plane, loop.uplink): loop.components for loop in found}

    def heard(self, now: float, patience: float) -> list[HostView]:
        """Hosts with a report that is not older than ``patience``, seconds."""
        return [view for view in self.hosts.values() if now - view.heard <= patience]

    def host_infos(self, now: float, patience: float) -> list[HostInfo]:
        """Hosts that have ever been heard, in their order, as of ``now``."""
        views = sorted(self.hosts.values(), key=lambda view: self.fabric.host(view.report.host))
        return [
            HostInfo(
                host=view.report.host,
                heard_s=now - view.heard,
                silent=now - view.heard > patience,
                clock_off_s=view.report.time - view.received if view.report.time else None,
                devices=view.report.devices,
                jobs=view.report.jobs,
                dead_paths=len(view.report.dead),
                alive_paths=len(view.report.alive),
                ports_down=view.report.ports_down,
                deny_version=view.report.deny_version,
            )
            for view in views
        ]

    def collect(self, now: float, patience: float) -> list[HostView]:
        """What an evaluation is to have: reports not older than ``patience``, seconds.

        Losses of reports that were replaced since the last evaluation are among them.
        """
        found = []
        for view in self.heard(now, patience):
            view.collected = True
            if not view.unseen:
                found.append(view)
                continue
            others = [each for each in view.observations if each.components not in view.unseen]
            found.append(
                replace(view, observations=[*others, *view.unseen.values()], losing=len(view.unseen))
            )
            view.unseen = {}
        return found

    def evaluate(self, views: list[HostView]) -> tuple[list[Verdict], Known]:
        """What has failed, and what is known of links.

        It changes nothing, so that it may run in another thread.

        Args:
            views: From :meth:`collect`.
        """
        # Nearly always nothing is lost, and then there is nothing to explain.
        verdicts = []
        if any(view.losing for view in views):
            explained = localise(o for view in views for o in view.observations if o.sent)
            verdicts = [verdict for verdict in explained if not _is_refuted(verdict, explained, views)]
        evidence = Known()
        for view in views:
            evidence.update(dict.fromkeys(view.good, Evidence.GOOD))
        for verdict in verdicts:
            for link, found in self._accused(verdict):
                evidence[link] = max(evidence[link], found)
        return verdicts, evidence

    def _accused(self, verdict: Verdict) -> Iterator[tuple[str, Evidence]]:
        if verdict.component is None:
            for suspect, _ in verdict.suspects:
                if suspect.kind in _LINKS:
                    yield suspect.name, Evidence.SUSPECT
            return
        # The cables of a host that fails as a whole are not accused.
        if verdict.component.kind is Kind.HOST:
            return
        found = Evidence.BROKEN if verdict.loss >= _BROKEN_FROM else Evidence.LOSSY
        for link in self.topology.parts(verdict.component):
            yield link, found

    def users(self, links: Iterable[str], now: float, patience: float) -> list[str]:
        """Hosts with a path in use over one of these links."""
        wanted = set(links)
        return sorted(v.report.host for v in self.heard(now, patience) if v.used & wanted)

    def refresh(self, links: Iterable[str]) -> list[tuple[int, int]]:
        """Brings the bytes of links that have changed up to date; number and byte of each.

        A byte is evidence and decision, as the page has it: the decision in the upper half.
        """
        found = []
        for link in links:
            number = self.topology.links[link].number
            byte = self.evidence[link] | self.decision.get(link, Decision.NONE) << 4
            self._cells[number] = byte
            found.append((number, byte))
        return found

    def snapshot(self) -> bytes:
        """A byte for each number; 255 where there is no link."""
        return bytes(self._cells)

    def counts(self) -> tuple[dict[str, int], dict[str, int]]:
        """Links by evidence and by decision."""
        by_evidence, by_decision = Counter(self.evidence.values()), Counter(self.decision.values())
        by_evidence[Evidence.UNKNOWN] += len(self.topology.links) - len(self.evidence)
        return (
            {each.name.lower(): by_evidence[each] for each in Evidence},
            {each.name.lower(): by_decision[each] for each in Decision if each},
        )


def differing(before: Known, after: Known) -> list[str]:
    """Links of which something else is known than before."""
    found = [link for link, known in after.items() if before[link] != known]
    return found + [link for link in before if link not in after]


def _is_refuted(verdict: Verdict, explained: Iterable[Verdict], views: Iterable[HostView]) -> bool:
    """Whether loops cross a part that dead paths accuse, and do not accuse it enough themselves.

    A part that kills paths loses nearly everything; a few of many packets is what is left of a path that a
    queue pair has condemned though it works, as where answers to it are lost. What loops lose that also
    cross what another verdict accuses counts if all loops over the part lose.
    """
    if verdict.loss >= _BROKEN_FROM:
        return False
    first = verdict.suspects[0][0]
    firsts = (each.suspects[0][0] for each in explained)
    others = {each for each in firsts if each.part != first.part}
    loops = [
        each
        for view in views
        for each in view.observations
        if first in each.components and each.components in view.loops
    ]
    own = [each for each in loops if others.isdisjoint(each.components)]
    enough = _against(loops) >= _ENOUGH and (_against(own) >= _ENOUGH or all(each.lost for each in loops))
    return bool(loops) and not enough


def _against(loops: Iterable[Observation]) -> float:
    """What loops say against what they cross, nats."""
    return sum(evidence_against(each.sent, each.lost) for each in loops)


def _worse(before: HostView, view: HostView) -> dict[frozenset[Component], Observation]:
    """Losses of loops that no evaluation has had, and that say more against a loop than the new report."""
    unseen = before.unseen
    if not before.collected:
        unseen = {key: each for key, each in before.loops.items() if each.lost} | unseen
    return {
        components: each
        for components, each in unseen.items()
        if (now := view.loops.get(components)) is None
        or evidence_against(now.sent, now.lost) < evidence_against(each.sent, each.lost)
    }
