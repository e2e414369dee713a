"""Metrics of controller and agent in Prometheus' text format: few labels, base units."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from openmrc.operate.agent import Agent
from openmrc.operate.model import Evidence

if TYPE_CHECKING:
    # An agent has no database.
    from openmrc.operate.service import Service

_OUTCOMES = ("sent", "received", "late", "repeated", "foreign", "unsent", "unknown")
_KINDS = ("link", "upward", "downward", "switch", "host", "group", "unknown")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class _Collector:
    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterable[Metric]:
        return self._collect()


def text(collect: Callable[[], Iterable[Metric]]) -> bytes:
    """These metrics as Prometheus reads them."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(collect))
    return generate_latest(registry)


def gauge(name: str, help: str, value: float) -> Metric:
    """A figure that goes up and down."""
    return GaugeMetricFamily(name, help, value=value)


def labelled(name: str, help: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
    """Figures that go up and down, by a label."""
    family = GaugeMetricFamily(name, help, labels=[label])
    for value, figure in values:
        family.add_metric([value], figure)
    return family


def counter(name: str, help: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
    """Figures that only grow, by a label."""
    family = CounterMetricFamily(name, help, labels=[label])
    for value, figure in values:
        family.add_metric([value], figure)
    return family


def of_controller(service: "Service") -> Iterator[Metric]:
    """Yields the metrics of a controller."""
    status = service.status()
    yield labelled(
        "openmrc_fabric_links", "Links by what is known about them.", "state", status.links.items()
    )
    yield labelled(
        "openmrc_fabric_links_out", "Links that are denied or drained.", "decision", status.decisions.items()
    )
    yield gauge("openmrc_fabric_hosts", "Hosts of the fabric.", status.hosts)
    yield gauge("openmrc_fabric_hosts_heard", "Hosts whose agent has reported lately.", status.hosts_heard)
    faults = service.faults.ranked()
    yield labelled(
        "openmrc_fabric_faults",
        "Open faults by what has failed.",
        "kind",
        ((kind, sum(fault.kind == kind for fault in faults)) for kind in _KINDS),
    )
    yield counter(
        "openmrc_fabric_faults_opened",
        "Faults that were named, by what had failed then.",
        "kind",
        ((kind, service.faults.opened[kind]) for kind in _KINDS),
    )
    yield gauge(
        "openmrc_fabric_faults_cost_bytes_per_second",
        "Capacity that open faults take.",
        sum(fault.cost_bps for fault in faults) / 8,
    )
    topology, evidence = service.topology, service.map.evidence
    bad = {name for name, known in evidence.items() if known >= Evidence.LOSSY} | service.map.decision.keys()
    lost = Counter(topology.links[name].plane for name in bad)
    least = dict.fromkeys(topology.links_of_plane, 1.0) if service.fabric.tiers > 1 else {}
    below = Counter(topology.links[name].lower.partition(":")[0] for name in bad)
    for node, number in below.items():
        if "/" in node:
            group = topology.groups[node]
            plane = topology.links[group[0]].plane
            least[plane] = min(least[plane], 1 - number / len(group))
    yield labelled(
        "openmrc_fabric_plane_usable_ratio",
        "Share of a plane's links that are neither broken, lossy, denied nor drained.",
        "plane",
        ((str(plane), 1 - lost[plane] / number) for plane, number in topology.links_of_plane.items()),
    )
    yield labelled(
        "openmrc_fabric_least_usable_uplinks_ratio",
        "Share of usable uplinks of the switch that has least.",
        "plane",
        ((str(plane), share) for plane, share in sorted(least.items())),
    )
    yield CounterMetricFamily(
        "openmrc_fabric_path_changes",
        "Paths that queue pairs have condemned or taken back.",
        value=service.map.changes,
    )
    goodput = CounterMetricFamily(
        "openmrc_job_goodput_bytes",
        "Bytes that the processes of a job have received.",
        # Prometheus has a label "job" of its own.
        labels=["job_name", "plane"],
    )
    for job, planes in service.jobs.totals():
        for plane, count in enumerate(planes):
            goodput.add_metric([job, str(plane)], count)
    yield goodput
    yield counter("openmrc_controller_reports", "Reports of agents.", "outcome", service.reports.items())
    yield gauge("openmrc_controller_listeners", "Pages and commands that follow events.", len(service.events))
    yield gauge(
        "openmrc_controller_store_up", "Whether decisions can be stored.", float(status.store_error is None)
    )
    targets = service.alerts.targets if service.alerts else ()
    yield labelled(
        "openmrc_controller_alertmanager_up",
        "Whether an Alertmanager has taken the last alerts.",
        "target",
        ((target.shown, float(target.error is None)) for target in targets),
    )
    yield counter(
        "openmrc_controller_alerts_sent",
        "Alerts that an Alertmanager has taken; an open one is sent again and again.",
        "target",
        ((target.shown, target.sent) for target in targets),
    )


def of_agent(agent: Agent) -> Iterator[Metric]:
    """Yields the metrics of an agent."""
    counts = agent.counts
    yield counter("openmrc_agent_reports", "Reports to the controller.", "outcome", counts.reports.items())
    yield gauge("openmrc_agent_connected", "Whether the last report was taken.", float(counts.connected))
    yield gauge("openmrc_agent_devices", "Open devices of the host's processes.", counts.devices)
    yield gauge("openmrc_agent_dead_paths", "Paths that queue pairs have condemned.", counts.dead_paths)
    yield gauge("openmrc_agent_alive_paths", "Paths in use.", counts.alive_paths)
    yield gauge("openmrc_agent_denied_links", "Links of the deny list.", len(agent.deny))
    yield counter(
        "openmrc_agent_path_changes",
        "Paths of queue pairs that were denied or allowed.",
        "action",
        (("deny", counts.paths_denied), ("allow", counts.paths_allowed)),
    )
    yield CounterMetricFamily(
        "openmrc_agent_ev_probed_paths",
        "Paths on which devices of the agent's user have sent EV probes for it.",
        value=counts.paths_probed,
    )
    if agent.announced is not None:
        yield counter(
            "openmrc_agent_announced_ended",
            "Connections of processes that announce themselves, by why they were refused or have ended.",
            "reason",
            agent.announced.refused.items(),
        )
    yield counter(
        "openmrc_agent_probes",
        "Probes of the agent's hosts by outcome; foreign packets are those that it has not sent.",
        "outcome",
        {**dict.fromkeys(_OUTCOMES, 0), **agent.probing.totals}.items(),
    )
