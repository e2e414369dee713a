"""Open faults and those that are over, from one evaluation to the next. Pure: times are arguments."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable

from openmrc.localise import Component, Kind, Verdict
from openmrc.operate.linkmap import Topology
from openmrc.operate.model import NamedFault, Suspect

CLEARS_AFTER_S = 2.0
"""A fault is over when no evaluation has named it for so long."""
_REMEMBERED_S = 10.0
"""What is named again after longer begins anew. A link that flaps is named now and then."""
_MOST_KEPT = 1000


class Faults:
    """The faults of a fabric."""

    def __init__(
        self,
        topology: Topology,
        known: Iterable[NamedFault],
        next_number: int,
        *,
        confirmed_after_s: float = 0.0,
    ) -> None:
        """Takes over.

        Args:
            topology: The links.
            known: Faults of an earlier run; open ones stay open until evaluations say otherwise.
            next_number: Number of the next fault.
            confirmed_after_s: What is named becomes a fault when it is named again after so long. Hosts
                report at different times, so the first evaluation after a switch has failed sees losses of
                some of its links only.
        """
        self._confirmed_after_s = confirmed_after_s
        self._waiting: dict[str, tuple[float, float]] = {}
        """What was named and is no fault yet: when it was named first, and last."""
        self._topology = topology
        self._next = next_number
        self._seen: dict[str, float] = {}
        self._unsaved: dict[int, NamedFault] = {}
        self.open: dict[str, NamedFault] = {}
        """By what has failed."""
        self.over: list[NamedFault] = []
        """The newest last."""
        self.opened: Counter[str] = Counter()
        """Faults that this run has opened, by kind."""
        for fault in reversed(list(known)):
            if fault.until is None:
                self.open[_key_of(fault)] = fault
            else:
                self.over.append(fault)

    def see(
        self, verdicts: Iterable[Verdict], now: float, good: Callable[[str], bool]
    ) -> tuple[list[NamedFault], list[NamedFault]]:
        """Takes an evaluation's verdicts.

        A fault is over when packets arrive where it was, or when another one explains it. That nobody uses
        its links any more, because they are denied or a host is silent, ends no fault.

        Args:
            verdicts: Of the evaluation.
            now: Seconds since 1970.
            good: Whether packets arrive over a link, by its name.

        Returns:
            The faults that are new, and those that are over.
        """
        opened, closed = [], []
        verdicts = list(verdicts)
        for verdict in verdicts:
            key = _key(verdict)
            before = self.open.get(key)
            if before is None and not self._is_confirmed(key, now):
                continue
            self._seen[key] = now
            fault = self._fault(verdict, before, now)
            if before is None:
                opened.append(fault)
                self.opened[fault.kind] += 1
            if before is None or fault.kind != before.kind:
                self._unsaved[fault.id] = fault
            self.open[key] = fault
        explained = self._within(verdicts)
        self._waiting = {
            key: times
            for key, times in self._waiting.items()
            if now - times[1] <= _REMEMBERED_S and key not in explained
        }
        for key, fault in list(self.open.items()):
            if now - self._seen.setdefault(key, now) > CLEARS_AFTER_S and (
                any(map(good, self._links(fault))) or self._explained(fault, verdicts)
            ):
                ended = fault.model_copy(update={"until": now})
                del self.open[key], self._seen[key]
                self.over = [*self.over, ended][-_MOST_KEPT:]
                self._unsaved[ended.id] = ended
                closed.append(ended)
        return opened, closed

    def _within(self, verdicts: Collection[Verdict]) -> set[str]:
        """Links that were named for what their switch or host has lost, when a part of that was known."""
        links = {
            f"{Kind.LINK} {link}"
            for verdict in verdicts
            if verdict.component is not None and verdict.component.part[0] != Kind.LINK
            for link in self._topology.parts(verdict.component)
        }
        return links.difference(map(_key, verdicts))

    def _is_confirmed(self, key: str, now: float) -> bool:
        """Whether what is named now was named before, long enough ago."""
        first, last = self._waiting.pop(key, (now, now))
        if now - last > _REMEMBERED_S:
            first = now
        if now - first >= self._confirmed_after_s:
            return True
        self._waiting[key] = first, now
        return False

    def confirms_at(self, now: float) -> float | None:
        """When something that waits becomes a fault if it is named then, seconds since 1970; ``None``: never.

        Args:
            now: Seconds since 1970. What could have been confirmed before was not named any more.
        """
        times = (first + self._confirmed_after_s for first, _ in self._waiting.values())
        return min((time for time in times if time > now), default=None)

    def ranked(self) -> list[NamedFault]:
        """The open faults, the one that costs most first."""
        return sorted(self.open.values(), key=lambda fault: (-fault.cost_bps, -fault.evidence_nats))

    def unsaved(self) -> list[NamedFault]:
        """Faults that the store does not have as they are."""
        return list(self._unsaved.values())

    def saved(self, faults: Iterable[NamedFault]) -> None:
        """The store has these."""
        for fault in faults:
            if self._unsaved.get(fault.id) == fault:
                del self._unsaved[fault.id]

    def _links(self, fault: NamedFault) -> list[str]:
        """The links whose use shows that a fault is over."""
        found = [Component(Kind(each.kind), each.name) for each in fault.suspects]
        if fault.kind != "unknown":
            found = [Component(Kind(fault.kind), fault.name)]
        return [link for each in found for link in self._topology.parts(each)]

    def _explained(self, fault: NamedFault, verdicts: Iterable[Verdict]) -> bool:
        """Whether a verdict of now accuses what an unknown fault suspected."""
        accused = {suspect for verdict in verdicts for suspect, _ in verdict.suspects}
        return fault.kind == "unknown" and any((each.kind, each.name) in accused for each in fault.suspects)

    def _fault(self, verdict: Verdict, before: NamedFault | None, now: float) -> NamedFault:
        if before is None:
            number, self._next = self._next, self._next + 1
        first = verdict.component
        suspects = [suspect for suspect, _ in verdict.suspects]
        costs = [self._cost(each) for each in ([first] if first else suspects)]
        return NamedFault(
            id=before.id if before else number,
            kind=str(first.kind) if first else "unknown",
            name=first.name if first else suspects[0].name,
            since=before.since if before else now,
            confidence=verdict.confidence,
            loss=verdict.loss,
            evidence_nats=verdict.evidence,
            paths=verdict.paths,
            suspects=[
                Suspect(kind=str(each.kind), name=each.name, probability=share)
                for each, share in verdict.suspects[:16]
            ],
            cost_bps=max(costs),
        )

    def _cost(self, component: Component) -> float:
        """Capacity that a failed component takes: a link that loses is left by its senders, whole."""
        rate = self._topology.fabric.port_rate
        if component.kind in (Kind.UPWARD, Kind.DOWNWARD):
            return rate / 2
        return float(rate * len(self._topology.parts(component)))


def _key(verdict: Verdict) -> str:
    if verdict.component is not None:
        return " ".join(verdict.component.part)
    # The order of suspects changes with every packet.
    return "unknown " + " ".join(sorted(name for (_, name), _ in verdict.suspects[:16]))


def _key_of(fault: NamedFault) -> str:
    if fault.kind == "unknown":
        return "unknown " + " ".join(sorted(each.name for each in fault.suspects))
    return " ".join(Component(Kind(fault.kind), fault.name).part)
