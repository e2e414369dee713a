"""Alert rules for Prometheus and a dashboard for Grafana, over the metrics of controller and agents."""

import json
import re
from dataclasses import dataclass
from typing import Any

import yaml

RULES_FILE = "openmrc-rules.yaml"
DASHBOARD_FILE = "openmrc-dashboard.json"
SCRAPE_FILE = "prometheus.yaml"
CONTROLLER_JOB = "openmrc-controller"
AGENT_JOB = "openmrc-agent"
_FAILED = 'kind=~"link|upward|downward|switch|group"'


def _probes(*outcomes: str) -> str:
    """Probes a second with one of these outcomes, of each agent."""
    chosen = f'openmrc_agent_probes_total{{outcome=~"{"|".join(outcomes)}"}}'
    return f"sum without (outcome) (rate({chosen}[5m]))"


_LOST = (
    f"clamp_min({_probes('sent')} - {_probes('received', 'late', 'unknown')}, 0) / ({_probes('sent')} > 0)"
)
"""Share of an agent's probes that never came back, though it looked."""
_NOT_COUNTED = f"{_probes('late', 'unsent', 'unknown')} / ({_probes('sent', 'unsent')} > 0)"
"""Share of an agent's probes that say nothing about links, because its host was too busy."""


@dataclass(frozen=True, slots=True)
class Alert:
    """A rule of Prometheus."""

    name: str
    expression: str
    lasts: str
    """How long it must be true, as Prometheus writes durations."""
    severity: str
    """``critical``: somebody is called; ``warning``: somebody looks today."""
    summary: str


ALERTS = (
    Alert(
        "OpenmrcControllerDown",
        f'up{{job="{CONTROLLER_JOB}"}} == 0',
        "1m",
        "warning",
        "The controller {{ $labels.instance }} does not answer; jobs go on, nobody names faults.",
    ),
    Alert(
        "OpenmrcFabricFault",
        f"sum without (kind) (openmrc_fabric_faults{{{_FAILED}}}) > 0",
        "30s",
        "warning",
        "{{ $value }} links or switches have failed: `openmrc fabric faults` names them.",
    ),
    Alert(
        "OpenmrcHostFault",
        'openmrc_fabric_faults{kind="host"} > 0',
        "1m",
        "warning",
        "{{ $value }} hosts lose packets on all paths.",
    ),
    Alert(
        "OpenmrcUnknownFault",
        'openmrc_fabric_faults{kind="unknown"} > 0',
        "5m",
        "warning",
        "Packets are lost, and what loses them is not known after five minutes.",
    ),
    Alert(
        "OpenmrcUplinksLow",
        "openmrc_fabric_least_usable_uplinks_ratio < 0.75",
        "1m",
        "warning",
        "A switch of plane {{ $labels.plane }} has {{ $value | humanizePercentage }} of its uplinks left.",
    ),
    Alert(
        "OpenmrcUplinksCritical",
        "openmrc_fabric_least_usable_uplinks_ratio < 0.5",
        "1m",
        "critical",
        "A switch of plane {{ $labels.plane }} has {{ $value | humanizePercentage }} of its uplinks left:"
        " drain it.",
    ),
    Alert(
        "OpenmrcPlanesDiffer",
        "max without (plane) (openmrc_fabric_plane_usable_ratio)"
        " - min without (plane) (openmrc_fabric_plane_usable_ratio) > 0.1",
        "5m",
        "warning",
        "One plane has {{ $value | humanizePercentage }} fewer usable links than another.",
    ),
    Alert(
        "OpenmrcAgentsSilent",
        "openmrc_fabric_hosts_heard < openmrc_fabric_hosts and openmrc_fabric_hosts_heard > 0",
        "5m",
        "warning",
        "Only {{ $value }} hosts have an agent that reports.",
    ),
    Alert(
        "OpenmrcLinksFlap",
        "sum without (kind) (increase(openmrc_fabric_faults_opened_total[10m])) > 10",
        "1m",
        "warning",
        "{{ $value | humanize }} faults in ten minutes: links flap, or somebody repairs beside them.",
    ),
    Alert(
        "OpenmrcStoreDown",
        "openmrc_controller_store_up == 0",
        "1m",
        "critical",
        "The controller's database fails: decisions are refused, history waits in memory.",
    ),
    Alert(
        "OpenmrcReportsRefused",
        'rate(openmrc_controller_reports_total{outcome="refused"}[5m]) > 0.1',
        "5m",
        "warning",
        "Reports are malformed or have a wrong token: an old agent, a changed fabric, or an attacker.",
    ),
    Alert(
        "OpenmrcAlertsNotDelivered",
        "openmrc_controller_alertmanager_up == 0",
        "2m",
        "warning",
        "Alertmanager does not take the controller's alerts.",
    ),
    Alert(
        "OpenmrcAgentDisconnected",
        "openmrc_agent_connected == 0",
        "2m",
        "warning",
        "The agent at {{ $labels.instance }} cannot reach the controller; its deny list stays as it is.",
    ),
    Alert(
        "OpenmrcProbesUnanswered",
        f"{_probes('sent')} > 0 unless {_probes('received')} > 0",
        "5m",
        "warning",
        "No probe of the agent at {{ $labels.instance }} comes back: do its T0s forward SRv6?",
    ),
    Alert(
        "OpenmrcProbesLost",
        f"{_LOST} > 0.001 and {_probes('received')} > 0 unless on () (sum(openmrc_fabric_faults) > 0)",
        "10m",
        "warning",
        "{{ $value | humanizePercentage }} of the probes of the agent at {{ $labels.instance }} are lost,"
        " and no fault is named.",
    ),
    Alert(
        "OpenmrcProbesNotCounted",
        f"{_NOT_COUNTED} > 0.05",
        "10m",
        "warning",
        "{{ $value | humanizePercentage }} of the probes of the agent at {{ $labels.instance }} are late,"
        " unsent or unknown: its host is busy, and its links are known less well.",
    ),
    Alert(
        "OpenmrcProbesForeign",
        f"{_probes('foreign')} > 1",
        "5m",
        "warning",
        "{{ $value | humanize }} packets a second to the prober at {{ $labels.instance }} are not its own:"
        " a stranger sends them, or a switch damages probes.",
    ),
)


@dataclass(frozen=True, slots=True)
class Panel:
    """A diagram of the dashboard."""

    title: str
    expression: str
    legend: str
    unit: str = "short"
    """Of Grafana's."""
    kind: str = "timeseries"


PANELS = (
    Panel("Open faults", "sum(openmrc_fabric_faults)", "faults", kind="stat"),
    Panel("Capacity that faults take", "openmrc_fabric_faults_cost_bytes_per_second", "cost", "Bps", "stat"),
    Panel(
        "Hosts without an agent", "openmrc_fabric_hosts - openmrc_fabric_hosts_heard", "silent", kind="stat"
    ),
    Panel("Decisions can be stored", "min(openmrc_controller_store_up)", "store", kind="stat"),
    Panel("Faults by what has failed", "openmrc_fabric_faults", "{{kind}}"),
    Panel("New faults", "rate(openmrc_fabric_faults_opened_total[5m])", "{{kind}}", "cps"),
    Panel("Paths condemned or taken back", "rate(openmrc_fabric_path_changes_total[5m])", "paths", "cps"),
    Panel("Links by what is known", "openmrc_fabric_links", "{{state}}"),
    Panel("Links denied or drained", "openmrc_fabric_links_out", "{{decision}}"),
    Panel(
        "Usable links of each plane", "openmrc_fabric_plane_usable_ratio", "plane {{plane}}", "percentunit"
    ),
    Panel(
        "Usable uplinks of the worst switch",
        "openmrc_fabric_least_usable_uplinks_ratio",
        "plane {{plane}}",
        "percentunit",
    ),
    Panel(
        "Goodput of each job",
        "sum by (job_name) (rate(openmrc_job_goodput_bytes_total[1m]))",
        "{{job_name}}",
        "Bps",
    ),
    Panel(
        "Goodput of each plane, all jobs",
        "sum by (plane) (rate(openmrc_job_goodput_bytes_total[1m]))",
        "plane {{plane}}",
        "Bps",
    ),
    Panel("Reports to the controller", "rate(openmrc_controller_reports_total[1m])", "{{outcome}}", "reqps"),
    Panel("Listeners", "openmrc_controller_listeners", "{{instance}}"),
    Panel("Agents: paths in use", "sum(openmrc_agent_alive_paths)", "in use"),
    Panel("Agents: condemned paths", "openmrc_agent_dead_paths > 0", "{{instance}}"),
    Panel(
        "Agents: paths denied and allowed",
        "sum by (action) (rate(openmrc_agent_path_changes_total[5m]))",
        "{{action}}",
        "cps",
    ),
    Panel(
        "Agents: reports", "sum by (outcome) (rate(openmrc_agent_reports_total[1m]))", "{{outcome}}", "reqps"
    ),
    Panel(
        "Agents: probes",
        "sum by (outcome) (rate(openmrc_agent_probes_total[1m]))",
        "{{outcome}}",
        "cps",
    ),
    Panel("Agents: probes lost", f"{_LOST} > 0", "{{instance}}", "percentunit"),
    Panel("Agents: open devices", "sum(openmrc_agent_devices)", "devices"),
    Panel("Agents: denied links", "max(openmrc_agent_denied_links)", "links"),
)
_COLUMNS, _WIDTH, _HEIGHT = 24, {"stat": 6, "timeseries": 12}, {"stat": 4, "timeseries": 8}


def is_target(text: str) -> bool:
    """Whether a text is ``HOST:PORT`` as Prometheus takes it."""
    host, _, port = text.rpartition(":")
    named = re.fullmatch(r"[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]", host)
    return named is not None and re.fullmatch(r"\d{1,5}", port) is not None and 0 < int(port) < 1 << 16


def rules() -> str:
    """The alert rules, YAML as Prometheus reads it."""
    group = {
        "name": "openmrc",
        "rules": [
            {
                "alert": each.name,
                "expr": each.expression,
                "for": each.lasts,
                "labels": {"severity": each.severity},
                "annotations": {"summary": each.summary},
            }
            for each in ALERTS
        ],
    }
    return yaml.safe_dump({"groups": [group]}, sort_keys=False, width=110)


def scrape(controllers: list[str], agents: list[str], rules_file: str = RULES_FILE) -> str:
    """A configuration of Prometheus that scrapes these and evaluates the rules, YAML.

    Args:
        controllers: ``HOST:PORT`` of controllers.
        agents: The same of agents that were started with ``--metrics``.
        rules_file: Where the rules are, from the configuration's directory.
    """
    jobs = [(CONTROLLER_JOB, controllers), (AGENT_JOB, agents)]
    return yaml.safe_dump(
        {
            "global": {"scrape_interval": "5s", "evaluation_interval": "5s"},
            "rule_files": [rules_file],
            "scrape_configs": [
                {"job_name": name, "static_configs": [{"targets": targets}]}
                for name, targets in jobs
                if targets
            ],
        },
        sort_keys=False,
    )


def dashboard() -> str:
    """The dashboard, JSON as Grafana imports it; the data source is chosen when it is imported."""
    panels: list[dict[str, Any]] = []
    x = y = 0
    for number, each in enumerate(PANELS, 1):
        width, height = _WIDTH[each.kind], _HEIGHT[each.kind]
        panels.append(
            {
                "id": number,
                "type": each.kind,
                "title": each.title,
                "datasource": _SOURCE,
                "gridPos": {"x": x, "y": y, "w": width, "h": height},
                "fieldConfig": {"defaults": {"unit": each.unit, "min": 0}, "overrides": []},
                "targets": [
                    {
                        "refId": "A",
                        "datasource": _SOURCE,
                        "expr": each.expression,
                        "legendFormat": each.legend,
                    }
                ],
            }
        )
        x += width
        if x >= _COLUMNS:
            x, y = 0, y + height
    content = {
        "uid": "openmrc-fabric",
        "title": "openmrc: fabric",
        "tags": ["openmrc"],
        "schemaVersion": 39,
        "timezone": "browser",
        "refresh": "5s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [{"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"}]
        },
        "annotations": {
            "list": [
                {
                    "name": "Alerts",
                    "datasource": _SOURCE,
                    "enable": True,
                    "expr": 'ALERTS{alertname=~"Openmrc.*",alertstate="firing"}',
                    "titleFormat": "{{alertname}}",
                    "iconColor": "red",
                }
            ]
        },
        "panels": panels,
    }
    return json.dumps(content, indent=2) + "\n"


_SOURCE = {"type": "prometheus", "uid": "${source}"}
