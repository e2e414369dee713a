"""Jobs of a fabric: their goodput on each plane over time, and what named faults cost them.

Pure: times are arguments, monotonic unless they say otherwise. The rule for costs is in docs/operations.md.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from openmrc.errors import ArgumentError
from openmrc.localise import Component, Kind
from openmrc.operate.linkmap import HostView, Topology
from openmrc.operate.model import FaultCost, JobInfo, JobSeen, JobSeries, NamedFault, Report
from openmrc.operate.series import KEPT_S, LEAST_COVERED_S, STEP_S, Level, Series

MOST_JOBS = 128
"""Jobs that are kept; further ones wait until one has been silent for :data:`LIVES_S`."""
LIVES_S = 60.0
"""A host whose agent has not reported a job for so long has no part in it."""
FORGET_S = 86_400.0
"""A job that has been silent for so long is forgotten."""
MOST_COSTS = 64
"""Faults whose cost is kept for a job."""
BEFORE_S = 60.0
"""Goodput before a fault is that of so long."""
GUARD_S = 5.0
"""So long before a fault is named it may have begun."""
LEAST_STEPS = 5
"""Fewer steps before a fault say nothing."""
LEAST_SHARE = 0.01
"""A smaller difference is none."""
WINDOW_S = 10.0
"""Goodput of now is that of so long."""
LAG_S = 4.0
"""Reports of the last seconds are not in yet."""
_LONGEST_S = 60.0
"""Bytes of a report that comes longer after the one before are not counted: nobody knows when they came."""
_SLACK_S = 5.0
"""A report may have been under way for so long."""
_MOST_OF_PORT = 1.1
"""A host that reports more bytes than its port can carry is believed up to this share of it."""


@dataclass(slots=True)
class _Cost:
    """A fault that concerns a job."""

    fault: NamedFault
    opened: float
    before: Level | None
    hosts: int
    """Of the job when the fault was named."""
    closed: float | None = None
    together: bool = False
    received: float = 0.0
    """Bytes during it, in :attr:`steps` whose reports are in."""
    host_seconds: float = 0.0
    steps: int = 0
    counted: float = 0.0
    """Steps up to this time are counted; each is counted once, so that asking costs nothing."""
    over: bool = False
    """Nothing more is counted."""

    def count(self, series: Series, now: float) -> None:
        """Counts the steps whose reports are in."""
        end = now - LAG_S if self.closed is None else min(now - LAG_S, self.closed)
        for step in series.between(max(self.counted, self.opened), end):
            self.counted = step.begin + STEP_S
            if step.host_seconds >= LEAST_COVERED_S:
                self.received += sum(step.received)
                self.host_seconds += step.host_seconds
                self.steps += 1
        self.over = self.closed is not None and now - LAG_S >= self.closed


@dataclass(slots=True)
class _Job:
    since: float
    """Seconds since 1970."""
    heard: float
    series: Series
    totals: list[float]
    """Bytes by plane since it was first heard."""
    hosts: dict[str, tuple[float, int]] = field(default_factory=dict)
    """When each host was heard last, and its processes."""
    costs: list[_Cost] = field(default_factory=list)
    """The oldest first."""

    def present(self, now: float) -> list[str]:
        """The hosts that have a part in it."""
        self.hosts = {host: each for host, each in self.hosts.items() if now - each[0] <= LIVES_S}
        return list(self.hosts)

    def running(self) -> list[_Cost]:
        """Of the faults that are open."""
        return [cost for cost in self.costs if cost.closed is None]


class Jobs:
    """The jobs of a fabric."""

    def __init__(self, topology: Topology) -> None:
        """Knows none yet.

        Args:
            topology: The links.
        """
        self._topology = topology
        self._fabric = topology.fabric
        self._jobs: dict[str, _Job] = {}
        self._open: dict[int, NamedFault] = {}

    # --- reports --------------------------------------------------------------------------------------------

    def check(self, report: Report) -> None:
        """Refuses a report with bytes of planes that the fabric does not have.

        Raises:
            ArgumentError: for such a report.
        """
        planes = self._fabric.planes
        for each in report.goodput:
            if len(each.received) != planes:
                raise ArgumentError(f"goodput has {len(each.received)} planes; the fabric has {planes}")

    def take(self, report: Report, before: HostView | None, now: float, time: float) -> None:
        """Takes a report of an agent.

        Args:
            report: The report.
            before: The host as its report before described it.
            now: When it came.
            time: The same, seconds since 1970.
        """
        known: dict[str, JobSeen] = {}
        elapsed = 0.0
        if before is not None and before.report.boot == report.boot:
            known = {each.job: each for each in before.report.goodput}
            elapsed = min(report.counted_s - before.report.counted_s, now - before.heard + _SLACK_S)
        most = self._fabric.port_rate / 8 * elapsed * _MOST_OF_PORT
        for each in report.goodput:
            job = self._job(each.job, now, time)
            if job is None:
                continue
            job.heard = now
            job.hosts[report.host] = now, each.processes
            was = known.get(each.job)
            if was is None or not 0 < elapsed <= _LONGEST_S:
                continue
            gained = [count - earlier for count, earlier in zip(each.received, was.received, strict=True)]
            if min(gained) < 0:
                continue  # The job has ended and begun again in between.
            counted = [min(float(count), most) for count in gained]
            job.series.add(now - elapsed, now, counted)
            job.totals = [total + count for total, count in zip(job.totals, counted, strict=True)]

    def _job(self, name: str, now: float, time: float) -> _Job | None:
        found = self._jobs.get(name)
        if found is None:
            if len(self._jobs) >= MOST_JOBS:
                oldest = min(self._jobs, key=lambda each: self._jobs[each].heard)
                if now - self._jobs[oldest].heard <= LIVES_S:
                    return None
                del self._jobs[oldest]
            planes = self._fabric.planes
            found = self._jobs[name] = _Job(time, now, Series(planes), [0.0] * planes)
        return found

    # --- faults ---------------------------------------------------------------------------------------------

    def see(self, faults: Iterable[NamedFault], now: float, time: float) -> None:
        """Takes the faults that are open now; the others are over.

        Args:
            faults: Open faults.
            now: When.
            time: The same, seconds since 1970.
        """
        found = {fault.id: fault for fault in faults}
        for number in self._open.keys() - found.keys():
            self._close(number, now, time)
        for number in sorted(found.keys() - self._open.keys()):
            self._begin(found[number], now)
        self._open = found
        for name, job in list(self._jobs.items()):
            if now - job.heard > FORGET_S:
                del self._jobs[name]
            for cost in job.costs:
                if not cost.over:
                    cost.count(job.series, now)

    def _begin(self, fault: NamedFault, now: float) -> None:
        for job in self._jobs.values():
            hosts = job.present(now)
            if not hosts or not self._concerns(fault, hosts):
                continue
            before, is_clean = _before(job, now)
            named = [cost for cost in job.running() if "unknown" not in (cost.fault.kind, fault.kind)]
            for cost in named:
                cost.together = True
            made = _Cost(fault, now, before, len(hosts), together=bool(named) or not is_clean)
            job.costs = [*job.costs, made][-MOST_COSTS:]

    def _close(self, number: int, now: float, time: float) -> None:
        for job in self._jobs.values():
            for cost in job.costs:
                if cost.fault.id == number and cost.closed is None:
                    cost.closed = now
                    cost.fault = self._open[number].model_copy(update={"until": time})

    def _concerns(self, fault: NamedFault, hosts: Iterable[str]) -> bool:
        """Whether packets of these hosts may need what has failed."""
        own = set(hosts)
        below = self._fabric.core.hosts_per_t0
        t0s = {self._fabric.host(host) // below for host in own}
        suspects = [Component(Kind(each.kind), each.name) for each in fault.suspects]
        if fault.kind != "unknown":
            suspects = [Component(Kind(fault.kind), fault.name)]

        def used(link: str) -> bool:
            lower = self._topology.links[link].lower.partition(":")[0]
            tier, _, number = lower.rpartition("/t")[2].partition("-")
            # Above the T0s every host may need it.
            return lower in own if "/" not in lower else tier != "0" or int(number) in t0s

        return any(
            each.name in own if each.kind is Kind.HOST else any(map(used, self._topology.parts(each)))
            for each in suspects
        )

    # --- what is asked --------------------------------------------------------------------------------------

    def info(self, now: float) -> list[JobInfo]:
        """All jobs by name, those that are silent last."""
        found = [self._info(name, job, now) for name, job in self._jobs.items()]
        return sorted(found, key=lambda each: (not each.hosts, each.job))

    def _info(self, name: str, job: _Job, now: float) -> JobInfo:
        hosts = job.present(now)
        steps = list(job.series.between(now - LAG_S - WINDOW_S, now - LAG_S))
        planes = [
            sum(step.received[plane] for step in steps) * 8 / (len(steps) * STEP_S)
            for plane in range(self._fabric.planes)
        ]
        return JobInfo(
            job=name,
            since=job.since,
            heard_s=now - job.heard,
            hosts=len(hosts),
            processes=sum(job.hosts[host][1] for host in hosts),
            goodput_bps=sum(planes),
            planes_bps=planes,
            costs=[_compared(cost) for cost in reversed(job.costs) if cost.fault.kind != "unknown"],
        )

    def series(self, name: str, seconds: float, now: float, time: float) -> JobSeries:
        """The goodput of a job in the last seconds.

        Raises:
            ArgumentError: if there is no such job.
        """
        job = self._jobs.get(name)
        if job is None:
            raise ArgumentError(f"{name[:64]!r} is no job that has been heard")
        end = now - LAG_S
        steps = list(job.series.between(end - min(seconds, KEPT_S), end))
        return JobSeries(
            job=name,
            begin=time - (now - (steps[0].begin if steps else end)),
            step_s=STEP_S,
            planes_bps=[
                [step.received[plane] * 8 / STEP_S if step.host_seconds else None for step in steps]
                for plane in range(self._fabric.planes)
            ],
        )

    def totals(self) -> list[tuple[str, list[float]]]:
        """Bytes by plane that each job has received since it was first heard."""
        return [(name, job.totals) for name, job in self._jobs.items()]


def _before(job: _Job, now: float) -> tuple[Level | None, bool]:
    """The goodput before a fault that is named now, and whether no other fault has changed it meanwhile."""
    begin, end = now - GUARD_S - BEFORE_S, now - GUARD_S
    # A fault that has been open all the time is part of how things were.
    others = [cost for cost in job.costs if cost.closed is not None or cost.opened >= begin]
    disturbed = [(cost.opened - GUARD_S, math.inf if cost.closed is None else cost.closed) for cost in others]
    clean = job.series.level(begin, end, disturbed)
    if clean is not None and clean.steps >= LEAST_STEPS:
        return clean, True
    earlier = next((cost.before for cost in job.running() if cost.before is not None), None)
    if earlier is not None:
        return earlier, True
    return job.series.level(begin, end), False


def _compared(cost: _Cost) -> FaultCost:
    """What a fault has cost a job until now."""
    before, fault = cost.before, cost.fault
    during = cost.received / cost.host_seconds if cost.steps else None
    outcome: Literal["cost", "none", "unknown"] = "unknown"
    lost = 0.0
    if before is not None and during is not None and before.steps >= LEAST_STEPS and cost.steps >= 2:
        missing = before.mean - during
        noise = 2 * before.deviation * math.sqrt(1 / before.steps + 1 / cost.steps)
        outcome = "cost" if missing > max(noise, LEAST_SHARE * before.mean) else "none"
        lost = missing * cost.host_seconds if outcome == "cost" else 0.0
    return FaultCost(
        fault=fault.id,
        kind=fault.kind,
        name=fault.name,
        since=fault.since,
        until=fault.until,
        outcome=outcome,
        before_bps=before.mean * cost.hosts * 8 if before else None,
        during_bps=None if during is None else during * cost.hosts * 8,
        lost_bytes=lost,
        together=cost.together,
    )
