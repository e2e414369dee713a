"""What the controller's API carries: reports of agents, links, faults, decisions. Checked where it arrives.

A report is from another machine and is not trusted: every list and text has a limit, and fields of a newer
agent are ignored.
"""

import enum
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

API = "/api/v1"
MOST_BODY = 1 << 20
"""Bytes of a request."""
MOST_PATHS = 4096
"""Paths of a kind in a report."""
MOST_CHANGES = 1 << 16
"""Paths of a host whose changes are counted: those that changed last."""
MOST_NAMES = 4096
"""Names of links in an answer."""
MOST_JOBS = 64
"""Jobs in a report."""
MOST_JOB_NAME = 64
"""Characters of a job's name; longer ones are cut."""

Uint32 = Annotated[int, Field(ge=0, lt=1 << 32)]
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Name = Annotated[str, Field(min_length=1, max_length=128)]
HostName = Annotated[str, Field(pattern=r"^h[0-9]{1,9}$")]
JobName = Annotated[str, Field(min_length=1, max_length=MOST_JOB_NAME)]


class Evidence(enum.IntEnum):
    """What is known about a link."""

    UNKNOWN = 0
    """Nothing has used it."""
    GOOD = 1
    SUSPECT = 2
    """One of several that explain a fault."""
    LOSSY = 3
    """It loses some packets."""
    BROKEN = 4
    """It loses at least half."""


class Decision(enum.IntEnum):
    """What has been decided about a link."""

    NONE = 0
    DENIED = 1
    """Hosts do not use it."""
    DRAINED = 2
    """The same, for maintenance."""


class Action(enum.StrEnum):
    """What an operator can do."""

    DENY = "deny"
    ALLOW = "allow"
    DRAIN = "drain"
    UNDRAIN = "undrain"


class _Model(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore", frozen=True)


class LoopSeen(_Model):
    """Probes of a host to itself (:class:`openmrc.localise.Loop`)."""

    plane: Annotated[int, Field(ge=0, lt=64)]
    uplink: Annotated[int, Field(ge=0, lt=4096)] | None = None
    """Uplink of the T0; ``None``: the loop turns there."""
    sent: Count
    lost: Count


class JobSeen(_Model):
    """What the processes of a job on a host have received since the agent saw the first of them."""

    job: JobName
    processes: Count
    received: Annotated[list[Count], Field(max_length=64)]
    """Bytes by plane: UDP payloads, with the headers of the transport."""


class Report(_Model):
    """What an agent has seen since its last report."""

    host: HostName
    boot: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    """Drawn when the agent starts."""
    sequence: Count
    """Of this boot; older ones than the newest are ignored."""
    time: float = 0.0
    """The host's clock, seconds since 1970. It is shown and decides nothing."""
    ports_down: Annotated[list[Annotated[int, Field(ge=0, lt=64)]], Field(max_length=64)] = []
    """Planes whose port has no carrier."""
    dead: Annotated[list[tuple[Uint32, Uint32]], Field(max_length=MOST_PATHS)] = []
    """Number of the peer and entropy value of the fabric, of condemned paths."""
    alive: Annotated[list[tuple[Uint32, Uint32]], Field(max_length=MOST_PATHS)] = []
    """The same of paths in use."""
    changes: Annotated[list[tuple[Uint32, Uint32, Count]], Field(max_length=MOST_PATHS)] = []
    """Number of the peer and entropy value of paths that were condemned or taken back since the last report
    that was taken, and how often since the agent started."""
    loops: Annotated[list[LoopSeen], Field(max_length=MOST_PATHS)] = []
    deny_version: Count = 0
    """The deny list that the agent has handed to its processes."""
    devices: Count = 0
    """Open devices of the host's processes."""
    jobs: Annotated[list[Annotated[str, Field(max_length=MOST_JOB_NAME)]], Field(max_length=MOST_JOBS)] = []
    counted_s: Annotated[float, Field(ge=0, lt=1 << 40, allow_inf_nan=False)] = 0.0
    """When :attr:`goodput` was counted, seconds since the agent started."""
    goodput: Annotated[list[JobSeen], Field(max_length=MOST_JOBS)] = []


class Reply(_Model):
    """The controller's answer to a report."""

    deny_version: int
    deny: list[str] | None = None
    """Names of links that must not be used; ``None``: the agent has this version."""


class Request(_Model):
    """What an operator wants."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    action: Action
    what: Name
    """A link, one of its ports, or a switch (drain and undrain)."""
    why: Annotated[str, Field(min_length=1, max_length=500)]
    who: Annotated[str, Field(max_length=64)] = "operator"
    dry_run: bool = False
    force: bool = False
    """Also below the floor of capacity."""


class Outcome(_Model):
    """What became of a request or of a decision of the controller itself."""

    id: int
    time: float
    """Seconds since 1970."""
    who: str
    action: str
    what: str
    why: str
    dry_run: bool
    done: bool
    reason: str = ""
    """Why it was not done."""
    links: list[str] = []
    """The links that are concerned."""


class Suspect(_Model):
    """A component that explains a fault."""

    kind: str
    name: str
    probability: float


class NamedFault(_Model):
    """A fault, open or over."""

    id: int
    kind: str
    """``link``, ``upward``, ``downward``, ``switch``, ``host``, ``group``, or ``unknown``: a suspect."""
    name: str
    since: float
    until: float | None = None
    confidence: float
    loss: float
    evidence_nats: float
    paths: int
    suspects: list[Suspect]
    cost_bps: float
    """Capacity that it takes, bit/s; of an unknown fault, the most of all suspects."""


class Change(_Model):
    """A change of a link."""

    time: float
    link: str
    evidence: str
    decision: str
    detail: str = ""


class LinkInfo(_Model):
    """A link, with its history."""

    name: str
    number: int
    lower: str
    upper: str
    plane: int
    evidence: str
    decision: str
    path_changes: int = 0
    """How often paths over it were condemned or taken back since the controller started."""
    denied_by: str | None = None
    denied_why: str | None = None
    history: list[Change] = []


class HostInfo(_Model):
    """A host as its agent describes it."""

    host: str
    heard_s: float | None
    """Seconds since its last report; ``None``: never."""
    silent: bool
    clock_off_s: float | None
    """Its clock minus the controller's."""
    devices: int = 0
    jobs: list[str] = []
    dead_paths: int = 0
    alive_paths: int = 0
    ports_down: list[int] = []
    deny_version: int = 0


class FaultCost(_Model):
    """What a fault has cost a job: its goodput during the fault against that before."""

    fault: int
    """The fault's id."""
    kind: str
    name: str
    since: float
    until: float | None = None
    outcome: Literal["cost", "none", "unknown"]
    """``none``: the difference is within the job's own variation; ``unknown``: too little to compare."""
    before_bps: float | None = None
    during_bps: float | None = None
    lost_bytes: float = 0.0
    """What the job would have received more at the rate of before; 0 unless ``outcome`` is ``cost``."""
    together: bool = False
    """Other faults concerned the job at the same time, and have a share in the difference."""


class JobInfo(_Model):
    """A job, by what the agents of its hosts report."""

    job: str
    since: float
    """First heard, seconds since 1970."""
    heard_s: float
    """Seconds since it was last heard."""
    hosts: int
    processes: int
    goodput_bps: float
    """Received by all of its processes in the last ten seconds."""
    planes_bps: list[float]
    """The same by plane."""
    costs: list[FaultCost]
    """Of named faults, the newest first."""


class JobSeries(_Model):
    """The goodput of a job over time."""

    job: str
    begin: float
    """Of the first step, seconds since 1970."""
    step_s: float
    planes_bps: list[list[float | None]]
    """By plane and step; ``None``: no agent has reported it."""


class Drain(_Model):
    """A switch or link that is taken out."""

    what: str
    who: str
    why: str
    since: float
    state: Literal["draining", "empty"]
    """``empty``: every host that is heard has the deny list, and none uses it."""
    users: list[str] = []
    """Hosts that use it still, or have not taken the deny list; at most 16."""


class Panel(_Model):
    """A rectangle of links: rows are switches, columns their ports."""

    plane: int
    tier: int
    """Tier of the lower end; -1: hosts' cables."""
    rows: int
    columns: int
    first: int
    """Number of the first link; row by row."""
    row_name: str
    """``t0`` or ``t1``."""
    column_name: str
    """``host`` or ``uplink``."""


class FabricInfo(_Model):
    """The links of the fabric, by number."""

    name: str
    hosts: int
    planes: int
    port_rate_bps: float
    panels: list[Panel]
    cells: int
    """Numbers that the panels have: links, and places where there is none."""


class Status(_Model):
    """The fabric in a few figures."""

    fabric: str
    version: str
    started: float
    simulated: bool
    read_only: bool
    """No token was given: nothing can be changed."""
    automatic: str
    """``off``, ``dry-run`` or ``on``: what is done about broken links."""
    links: dict[str, int]
    """Links by evidence."""
    decisions: dict[str, int]
    """Links by decision."""
    hosts: int
    hosts_heard: int
    faults: int
    drains: list[Drain]
    deny_version: int
    store_error: str | None = None
    """Why nothing can be stored; decisions are refused meanwhile."""


class HostVerdict(_Model):
    """Whether a job should start on a host."""

    host: str
    verdict: Literal["pass", "degraded", "fail", "unknown"]
    reasons: list[str]


class LinkVerdict(_Model):
    """What a job must expect of a link."""

    link: str
    verdict: Literal["pass", "degraded", "fail", "unknown"]
    evidence: str
    decision: str
    loss: float | None = None
    """Share of packets that it loses, where a fault names it."""


class Validation(_Model):
    """Verdicts for the hosts of a job."""

    verdict: Literal["pass", "degraded", "fail", "unknown"]
    """The worst of all hosts."""
    hosts: list[HostVerdict]
    links: list[LinkVerdict] = []
    """Cables of the hosts and uplinks of their T0s that are bad or out, the worst first; at most 512."""
    link_counts: dict[str, int] = {}
    """All of those links by verdict."""
