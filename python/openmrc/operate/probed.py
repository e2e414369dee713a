"""A fabric in the packet simulator whose agents probe it, and what a controller makes of their reports.

Probes are packets: they cross the simulator's links, queues and faults. The agents' loops, counts, windows
and reports, and the controller's map, localiser and list of faults are those that run for real. Left out are
HTTP, the database, and queue pairs' beliefs of their paths: everything is known by probes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from openmrc import _core
from openmrc.fabric import Fabric
from openmrc.localise import Observation, loops_of_host
from openmrc.operate.agent import PERIOD_S, Told
from openmrc.operate.faults import Faults
from openmrc.operate.linkmap import Map, Topology
from openmrc.operate.model import Evidence, LoopSeen, NamedFault, Report
from openmrc.operate.probing import GRACE_MS, INTERVAL_MS, RATE, LoopCounts
from openmrc.operate.service import Settings
from openmrc.sim.check import check
from openmrc.sim.scenario import Scenario
from openmrc.sim.scenario.network import topology_of

EVALUATION_S = 0.25
"""What an evaluation of a fabric with a fault takes a controller: the next one begins three times as long
after its end."""
_PARTS = 8
"""Agents take their turns at different times of their period, in so many parts. In each of them they look at
their loops, which may be news."""
_BOOT = "0" * 16
_CONTENT: Mapping[str, Any] = {"deny_version": 0}
"""Of a report, beside its loops."""
_LONG_US = 1e9
_A_MESSAGE: Mapping[str, Any] = {"kind": "flows", "flows": [(0, 1, 1, 0.0)]}
"""The traffic where there is none: a scenario has some."""


class Stall(NamedTuple):
    """A host that is scheduled away: its prober sends and counts nothing, and what comes waits."""

    host: int
    begins_s: float
    ends_s: float


class Cost(NamedTuple):
    """What probes cost."""

    probes: int
    """Sent by all hosts."""
    lost: int
    """Of these, not back, or not yet."""
    bits_per_second: float
    """Of each host, on its cables, in one direction."""
    share: float
    """Of the rate of a host, 0 to 1."""


@dataclass(slots=True)
class _Agent:
    """A host's agent."""

    counts: LoopCounts
    told: Told = field(default_factory=Told)
    sequence: int = 0


class ProbedFabric:
    """A fabric, its agents and its controller, in virtual time."""

    def __init__(
        self,
        fabric: Fabric,
        *,
        faults: Sequence[Mapping[str, Any]] = (),
        traffic: Sequence[Mapping[str, Any]] = (),
        stalls: Iterable[Stall] = (),
        seed: int = 1,
        rate: int = RATE,
        evaluation_s: float = EVALUATION_S,
    ) -> None:
        """Begins as if there had been no loss for as long as counts reach back.

        Args:
            fabric: The fabric.
            faults: What breaks when, as a scenario has it.
            traffic: What hosts send, as a scenario has it.
            stalls: Hosts that are scheduled away, in the order of time.
            seed: Of everything left to chance in the network and in the phases of hosts.
            rate: Probes a second of each host.
            evaluation_s: Seconds that an evaluation takes the controller.

        Raises:
            ArgumentError: if the simulator refuses it.
        """
        self.fabric = fabric
        self.time = 0.0
        """Seconds of virtual time."""
        self.map = Map(Topology(fabric))
        self.faults = Faults(self.map.topology, [], 1, confirmed_after_s=Settings().confirmed_after_s)
        self.evaluations = 0
        self._rate = rate
        self._evaluation_s, self._every_s = evaluation_s, evaluation_s + max(0.25, 3 * evaluation_s)
        self._next_evaluation = self._every_s
        self._step = 0
        loops = [list(loops_of_host(fabric, host)) for host in range(fabric.hosts)]
        an_interval = rate * INTERVAL_MS // 1000
        self._agents = [_Agent(LoopCounts(each, quiet=max(1, an_interval // len(each)))) for each in loops]
        scenario = Scenario.model_validate(
            {
                "topology": topology_of(fabric),
                "traffic": list(traffic) or [_A_MESSAGE],
                "faults": list(faults),
                "seed": seed,
                "limit_us": _LONG_US,
            }
        )
        self._simulation = _core.ProbedSimulation(
            check(scenario),
            [[(loop.plane, loop.uplink) for loop in each] for each in loops],
            rate=rate,
            interval_ms=INTERVAL_MS,
            grace_ms=GRACE_MS,
            stalls=[(stall.host, round(stall.begins_s * 1e6), round(stall.ends_s * 1e6)) for stall in stalls],
        )
        for host in range(fabric.hosts):
            # Heartbeats of different hosts do not come together.
            self._report(host, self._agents[host].counts.seen(), -PERIOD_S * (host // _PARTS % 4))

    def run_until(self, time: float) -> None:
        """Runs to the first turn of agents that is not before this time, seconds."""
        while self.time < time:
            self._step += 1
            self.time = self._step * PERIOD_S / _PARTS
            self._simulation.run_until(round(self.time * 1e6))
            for host, agent in enumerate(self._agents):
                agent.counts.take(self._simulation.take(host))
                if agent.counts.is_news or host % _PARTS == self._step % _PARTS:
                    self._turn(host)
            if self.time >= self._next_evaluation:
                self._next_evaluation += self._every_s
                self._evaluate()

    @property
    def named(self) -> list[NamedFault]:
        """All faults that the controller has named or suspected, open and over."""
        return [*self.faults.over, *self.faults.open.values()]

    def observations(self) -> list[Observation]:
        """What the controller knows now."""
        return [each for view in self.map.hosts.values() for each in view.observations if each.sent]

    def cost(self) -> Cost:
        """What probes have cost so far."""
        totals = [dict(self._simulation.totals(host)) for host in range(self.fabric.hosts)]
        sent, received = (sum(each[name] for each in totals) for name in ("sent", "received"))
        network = dict(self._simulation.network_totals())
        if network["data_packets"] > 1:
            # Packets of messages are part of what hosts have sent.
            return Cost(sent, sent - received, float("nan"), float("nan"))
        bits = 8 * network["launched_bytes"] / self.time / self.fabric.hosts
        return Cost(sent, sent - received, bits, bits / (self.fabric.port_rate * self.fabric.planes))

    def network_totals(self) -> dict[str, int]:
        """Counters of the simulator, by name."""
        return dict(self._simulation.network_totals())

    def _turn(self, host: int) -> None:
        agent = self._agents[host]
        loops = agent.counts.seen()
        if agent.told.is_due(dict(_CONTENT), loops, self.time):
            self._report(host, loops, self.time)

    def _report(self, host: int, loops: list[LoopSeen], time: float) -> None:
        agent = self._agents[host]
        agent.told.told(dict(_CONTENT), loops, time)
        agent.counts.told()
        agent.sequence += 1
        report = Report(**_CONTENT, host=f"h{host}", boot=_BOOT, sequence=agent.sequence, loops=loops)
        self.map.take(report, time, time)

    def _evaluate(self) -> None:
        """The verdicts of now, which are there when the evaluation has ended."""
        self.evaluations += 1
        verdicts, evidence = self.map.evaluate(self.map.collect(self.time, Settings().patience_s))
        self.map.evidence = evidence
        self.faults.see(
            verdicts, self.time + self._evaluation_s, lambda link: evidence[link] is Evidence.GOOD
        )
