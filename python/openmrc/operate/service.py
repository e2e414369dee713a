"""The controller without HTTP: takes reports, names faults, decides, and tells whoever listens.

One asyncio task owns all state. What is stored, and how, is the subject of :mod:`openmrc.operate.records`.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import openmrc
from openmrc.errors import ArgumentError, StateError
from openmrc.fabric import Fabric
from openmrc.localise import Kind, Verdict
from openmrc.operate.alerts import Alerts
from openmrc.operate.events import MOST_CHANGED, Events, packed
from openmrc.operate.faults import Faults
from openmrc.operate.jobs import Jobs
from openmrc.operate.linkmap import Map, Topology, differing
from openmrc.operate.model import (
    Action,
    Change,
    Decision,
    Drain,
    Evidence,
    FabricInfo,
    HostInfo,
    LinkInfo,
    Outcome,
    Reply,
    Report,
    Request,
    Status,
)
from openmrc.operate.policy import Hysteresis, Rules, below_floor
from openmrc.operate.records import Records
from openmrc.operate.store import Denied, Store

_LEAST_PERIOD_S = 0.01
"""Between two evaluations at any time."""
_log = logging.getLogger("openmrc.controller")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a controller works."""

    automatic: str = "dry-run"
    """What is done about broken links: ``off``, ``dry-run`` (say what would be) or ``on``."""
    rules: Rules = field(default_factory=Rules)
    patience_s: float = 5.0
    """A host whose last report is older is silent, and its report is no evidence any more."""
    period_s: float = 0.25
    """Between two evaluations, at least, unless there is news of losses."""
    confirmed_after_s: float = 0.4
    """What is named is a fault when it is named again after so long: agents report at different times, so the
    first evaluation after a switch has failed sees the losses of some of its links only."""
    read_only: bool = False
    simulated: bool = False
    history: int = 200
    """Changes of a link, faults and decisions that are shown."""


class Service:
    """The controller of a fabric."""

    def __init__(self, fabric: Fabric, store: Store, settings: Settings | None = None) -> None:
        """Takes over what the store has.

        Raises:
            ArgumentError: if the fabric has too many links.
            openmrc.Error: if the store fails.
        """
        self.fabric = fabric
        self.settings = settings or Settings()
        self.topology = Topology(fabric)
        self.map = Map(self.topology)
        self.jobs = Jobs(self.topology)
        self.events = Events()
        self.started = time.time()
        self.reports = {"taken": 0, "old": 0, "refused": 0}
        self.denied: dict[str, Denied] = {}
        self.drains: dict[str, Drain] = {}
        self.alerts: Alerts | None = None
        """Alertmanagers that are told of faults."""
        self._records = Records(store, fabric.spec.name, lambda: self.faults)
        self._hysteresis = Hysteresis(self.settings.rules)
        self._would: set[str] = set()
        """Links that would be denied but for the dry run or the floor."""
        self._bad_since: dict[str, float] = {}
        self._dirty = True
        self._urgent = asyncio.Event()
        self._acting = asyncio.Lock()
        self._adopt()
        # A version that no earlier run has given out: agents compare for equality.
        self.deny_version = time.time_ns() // 1_000_000

    def _adopt(self) -> None:
        """Takes over what the store has: all of it, as another controller may have written since."""
        store = self._records.store
        self.faults = Faults(
            self.topology,
            store.faults(self.settings.history),
            store.next_fault(),
            confirmed_after_s=self.settings.confirmed_after_s,
        )
        self.denied.clear()
        self.drains.clear()
        for each in store.denied():
            if each.link in self.topology.links:  # The fabric file may have changed since.
                self.denied[each.link] = each
        for drain in store.drains():
            with contextlib.suppress(ArgumentError):
                self.topology.links_of(drain.what)
                self.drains[drain.what] = drain
        self._apply_decisions()

    # --- life -----------------------------------------------------------------------------------------------

    async def take_lease(self, *, waiting: Callable[[str], object] | None = None) -> None:
        """Takes the lease of the fabric, so that two controllers do not fight.

        Args:
            waiting: Called with the name of the other controller before it waits; ``None``: it does not.

        Raises:
            StateError: if another controller has it and ``waiting`` is not given.
        """
        if await self._records.take_lease(waiting=waiting):
            self._adopt()

    async def run(self) -> None:
        """Evaluates, decides and stores until it is cancelled.

        Raises:
            LeaseLostError: if another controller has taken over.
        """
        parts = (self._evaluations, self._records.keep_lease, self._records.keep_history)
        tasks = [asyncio.create_task(each()) for each in parts]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Stores what is left and gives the lease back."""
        await self._records.close()

    # --- reports --------------------------------------------------------------------------------------------

    def take(self, report: Report) -> Reply:
        """Takes a report of an agent.

        Raises:
            ArgumentError: if it names what the fabric does not have.
        """
        before, heard, received = self.map.hosts.get(report.host), time.monotonic(), time.time()
        try:
            self.jobs.check(report)
            newer = self.map.take(report, heard, received)
        except ArgumentError:
            self.reports["refused"] += 1
            raise
        if newer:
            self.jobs.take(report, before, heard, received)
        self.reports["taken" if newer else "old"] += 1
        if newer:
            view = self.map.hosts[report.host]
            self._dirty |= before is None or view.differs(before, self.settings.patience_s)
            if view.losing > (before.losing if before else 0):
                self._urgent.set()
        known = report.deny_version == self.deny_version
        return Reply(deny_version=self.deny_version, deny=None if known else sorted(self.map.decision))

    # --- evaluation -----------------------------------------------------------------------------------------

    async def _evaluations(self) -> None:
        checked = took = 0.0
        while True:
            await self._until_due(took)
            now = time.monotonic()
            # Silence and holds change without a report.
            if self._dirty or now - checked > 1.0:
                self._dirty, checked = False, now
                await self.evaluate()
                took = time.monotonic() - now

    async def _until_due(self, took: float) -> None:
        """Waits for the next evaluation: three times what one takes, so that agents are heard meanwhile.

        Then it begins at once if a host loses more than before, or if what was named may be confirmed.
        """
        ended, confirms = time.monotonic(), self.faults.confirms_at(time.time())
        await asyncio.sleep(max(_LEAST_PERIOD_S, 3 * took))
        left = ended + self.settings.period_s - time.monotonic()
        if confirms is not None and confirms - time.time() < left:
            left, self._dirty = confirms - time.time(), True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._urgent.wait(), max(left, 0.0))
        self._urgent.clear()

    async def evaluate(self) -> None:
        """Names faults from the reports of now, changes the map, and decides what is to be denied."""
        now, patience = time.monotonic(), self.settings.patience_s
        verdicts, evidence = await asyncio.to_thread(self.map.evaluate, self.map.collect(now, patience))
        # Of a large fabric it takes a while, in which requests are answered.
        changed = await asyncio.to_thread(differing, self.map.evidence, evidence)
        self.map.evidence = evidence
        self._see(changed, verdicts)
        opened, closed = self.faults.see(
            verdicts, time.time(), lambda link: self.map.evidence[link] is Evidence.GOOD
        )
        self.jobs.see(self.faults.open.values(), now, time.time())
        for fault in (*opened, *closed):
            self.events.publish("fault", fault.model_dump())
        await self._decide(verdicts, now)
        self._look_at_drains(now)

    def _see(self, changed: Collection[str], verdicts: Iterable[Verdict]) -> None:
        told = {
            link: _said(verdict)
            for verdict in verdicts
            if verdict.component is not None
            for link in self.topology.parts(verdict.component)
        }
        for link in changed:
            self._changed(link, told.get(link, ""))
        self._publish(changed)

    def _changed(self, link: str, detail: str) -> None:
        self._records.add(
            Change(
                time=time.time(),
                link=link,
                evidence=self.map.evidence[link].name.lower(),
                decision=self.map.decision.get(link, Decision.NONE).name.lower(),
                detail=detail,
            )
        )

    def _publish(self, links: Iterable[str]) -> None:
        changed = self.map.refresh(links)
        if len(changed) > MOST_CHANGED:
            self.events.publish("resync", {})
        elif changed:
            self.events.publish("map", {"cells": packed(changed)})

    # --- decisions ------------------------------------------------------------------------------------------

    async def _decide(self, verdicts: Iterable[Verdict], now: float) -> None:
        if self.settings.automatic == "off":
            return
        accused = {
            verdict.component.name: verdict
            for verdict in verdicts
            if verdict.component is not None
            and verdict.component.kind in (Kind.LINK, Kind.UPWARD, Kind.DOWNWARD)
            and verdict.confidence >= self.settings.rules.least_confidence
            and verdict.component.name in self.topology.links
        }
        for link in accused:
            self._hysteresis.bad(link, now)
        self._bad_since = {link: self._bad_since.get(link, now) for link in accused}
        dry_run = self.settings.automatic == "dry-run"
        for link, verdict in accused.items():
            if link in self.map.decision or now - self._bad_since[link] < self.settings.rules.persists_s:
                continue
            if link in self._would:
                continue
            await self._automatic(Action.DENY, link, _said(verdict), now, dry_run=dry_run)
        for link in [each for each in self._would if each not in accused]:
            if self._hysteresis.may_return(link, now):
                self._would.discard(link)
        for link, denied in list(self.denied.items()):
            if denied.automatic and link not in accused and self._hysteresis.may_return(link, now):
                hold = self._hysteresis.hold(link)
                await self._automatic(Action.ALLOW, link, f"{hold:.0f} s without evidence against it", now)

    async def _automatic(
        self, action: Action, link: str, why: str, now: float, *, dry_run: bool = False
    ) -> None:
        request = Request(action=action, what=link, why=why, who="controller", dry_run=dry_run)
        try:
            outcome = await self.act(request, automatic=True)
        except StateError:
            return  # Nothing can be stored: it is tried again.
        if action is Action.DENY:
            self._hysteresis.denied(link, now)
            if not outcome.done:
                self._would.add(link)  # It is said once, not at every evaluation.

    async def act(self, request: Request, *, automatic: bool = False) -> Outcome:
        """Does what an operator, or the controller itself, wants; or says why not.

        Raises:
            ArgumentError: if there is no such link or switch.
            StateError: if the decision cannot be stored; then nothing has changed.
        """
        links = self.topology.links_of(request.what)
        if request.action in (Action.DENY, Action.ALLOW) and request.what in self.topology.of_node:
            raise ArgumentError(f"{request.what} is a switch: drain and undrain are for switches")
        what = request.what if request.what in self.topology.of_node else links[0]
        async with self._acting:
            refusal = self._refusal(request, what, links)
            outcome = Outcome(
                id=0,
                time=time.time(),
                who=request.who,
                action=str(request.action),
                what=what,
                why=request.why,
                dry_run=request.dry_run,
                done=refusal is None and not request.dry_run,
                reason=refusal or "",
                links=links[:512],
            )
            changes: dict[str, Any] = {}
            if outcome.done:
                match request.action:
                    case Action.DENY:
                        changes["deny"] = [
                            Denied(link, request.who, request.why, outcome.time, automatic) for link in links
                        ]
                    case Action.ALLOW:
                        changes["allow"] = links
                    case Action.DRAIN:
                        changes["drain"] = Drain(
                            what=what, who=request.who, why=request.why, since=outcome.time, state="draining"
                        )
                    case Action.UNDRAIN:
                        changes["undrain"] = what
            outcome = await self._records.decide(outcome, changes)
            self._do(changes)
        result = "done" if outcome.done else outcome.reason or "dry run"
        _log.info("%s %s %s: %s (%s)", outcome.who, outcome.action, what, result, outcome.why)
        self.events.publish("decision", outcome.model_dump())
        return outcome

    def _refusal(self, request: Request, what: str, links: list[str]) -> str | None:
        match request.action:
            case Action.DENY if what in self.denied:
                return f"{what} is denied already"
            case Action.ALLOW if what not in self.denied:
                return f"{what} is not denied"
            case Action.DRAIN if what in self.drains:
                return f"{what} is drained already"
            case Action.UNDRAIN if what not in self.drains:
                return f"{what} is not drained"
            case Action.ALLOW | Action.UNDRAIN:
                return None
        if request.force:
            return None
        return below_floor(self.topology, self.map.decision, links, self.settings.rules.floor, drained=what)

    def _do(self, changes: dict[str, Any]) -> None:
        for each in changes.get("deny", ()):
            self.denied[each.link] = each
        for link in changes.get("allow", ()):
            self.denied.pop(link, None)
        if drain := changes.get("drain"):
            self.drains[drain.what] = drain
        if "undrain" in changes:
            self.drains.pop(changes["undrain"], None)
        if changes:
            self._apply_decisions()
            self.deny_version += 1

    def _apply_decisions(self) -> None:
        before = self.map.decision
        now = dict.fromkeys(self.denied, Decision.DENIED)
        for what in self.drains:
            now |= dict.fromkeys(self.topology.links_of(what), Decision.DRAINED)
        self.map.decision = now
        changed = [link for link in {*before, *now} if before.get(link) != now.get(link)]
        for link in changed:
            self._changed(link, self.denied[link].why if link in self.denied else "")
        self._publish(changed)

    def _look_at_drains(self, now: float) -> None:
        patience = self.settings.patience_s
        for what, drain in self.drains.items():
            links = self.topology.links_of(what)
            using = set(self.map.users(links, now, patience))
            behind = {
                view.report.host
                for view in self.map.heard(now, patience)
                if view.report.devices and view.report.deny_version != self.deny_version
            }
            users = sorted(using | behind)
            state = "draining" if users or not self.map.heard(now, patience) else "empty"
            found = drain.model_copy(update={"state": state, "users": users[:16]})
            if found != drain:
                self.drains[what] = found
                self.events.publish("drain", found.model_dump())

    # --- what is asked --------------------------------------------------------------------------------------

    def status(self) -> Status:
        """The fabric in a few figures."""
        evidence, decisions = self.map.counts()
        return Status(
            fabric=self.fabric.spec.name,
            version=openmrc.__version__,
            started=self.started,
            simulated=self.settings.simulated,
            read_only=self.settings.read_only,
            automatic=self.settings.automatic,
            links=evidence,
            decisions=decisions,
            hosts=self.fabric.hosts,
            hosts_heard=len(self.map.heard(time.monotonic(), self.settings.patience_s)),
            faults=len(self.faults.open),
            drains=list(self.drains.values()),
            deny_version=self.deny_version,
            store_error=self._records.error,
        )

    def fabric_info(self) -> FabricInfo:
        """The links by number."""
        return self.topology.info()

    def names(self, first: int, count: int) -> list[str | None]:
        """Names of links from a number on; ``None``: there is none."""
        return self.topology.names[first : first + count]

    async def link(self, what: str) -> LinkInfo:
        """A link with its history.

        Raises:
            ArgumentError: if there is none.
        """
        link = self.topology.link(what)
        history = await self._records.changes(link.name, self.settings.history)
        denied = self.denied.get(link.name)
        return LinkInfo(
            name=link.name,
            number=link.number,
            lower=link.lower,
            upper=link.upper,
            plane=link.plane,
            evidence=self.map.evidence[link.name].name.lower(),
            decision=self.map.decision.get(link.name, Decision.NONE).name.lower(),
            path_changes=self.map.path_changes[link.name],
            denied_by=denied.who if denied else None,
            denied_why=denied.why if denied else None,
            history=history,
        )

    async def decisions(self) -> list[Outcome]:
        """The last decisions, the newest first.

        Raises:
            StateError: if the store fails.
        """
        return await self._records.decisions(self.settings.history)

    def hosts(self) -> list[HostInfo]:
        """Hosts that have ever been heard, in their order."""
        return self.map.host_infos(time.monotonic(), self.settings.patience_s)


def _said(verdict: Verdict) -> str:
    """The evidence of a verdict in a line."""
    return f"{verdict.loss:.2%} lost, confidence {verdict.confidence:.2f}, {verdict.evidence:.0f} nats"
