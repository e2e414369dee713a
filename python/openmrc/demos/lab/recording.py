"""What one transport's run of the demo has measured, as plain columns."""

from dataclasses import dataclass, field
from typing import Literal

from openmrc.demos.director import Fault
from openmrc.demos.series import Series, Window

Transport = Literal["mrc", "tcp", "udp"]

NAMES: dict[Transport, str] = {"mrc": "MRC", "tcp": "TCP", "udp": "UDP"}


@dataclass
class Flow:
    """One queue pair, TCP connection or sequence of datagrams."""

    transport: Transport
    src: str
    dst: str
    offered_bps: float
    """What its sender posts, bits of payload per second."""


@dataclass
class Waits:
    """When pieces of data were posted, and how long until they had arrived and been checked; a row each."""

    flow: list[int] = field(default_factory=list)
    posted_ns: list[int] = field(default_factory=list)
    wait_ns: list[int] = field(default_factory=list)

    def add(self, flow: int, posted_ns: int, arrived_ns: int) -> None:
        """Adds a piece."""
        self.flow.append(flow)
        self.posted_ns.append(posted_ns)
        self.wait_ns.append(arrived_ns - posted_ns)


Event = tuple[int, str, str, int, bool]
"""An EV event: time, source, destination, entropy value, whether the path was condemned (or came back)."""


@dataclass
class Dead:
    """What was sent on dead paths, seen at the first switch; times by the monotonic clock."""

    data_ns: list[int]
    feedback_ns: list[int]


@dataclass
class Verdict:
    """Which links the hosts' EV events name as broken."""

    links: list[str]
    hosts: list[str]
    """Hosts whose events name them."""
    since_ns: int | None
    """From when on the events named what was broken."""
    right: bool
    """Whether that was broken, and nothing else."""


@dataclass
class FaultRecord:
    """A fault as it took place; times by the monotonic clock."""

    fault: Fault
    began_ns: int
    """Just before; nothing was broken earlier."""
    repaired_ns: int
    """When repair began."""
    over_ns: int
    """When the next fault is due, or the end."""
    dead: Dead | None = None
    """MRC: what was sent on dead paths; ``None``: no path was dead, or nobody looked."""
    own_port_last_ns: int | None = None
    """MRC: when the host that lost a port last sent on it."""
    events: list[Event] = field(default_factory=list)
    """MRC: EV events during the fault."""
    verdict: Verdict | None = None
    """MRC: what the events say; ``None``: the fault is none that they locate."""


@dataclass
class Recording:
    """One run, from its first byte to its last. Column n of the series is the payload received by flow n."""

    began_ns: int
    flows: list[Flow]
    faults: list[FaultRecord] = field(default_factory=list)
    series: Series = field(default_factory=Series)
    """Duplicates are not counted."""
    waits: Waits = field(default_factory=Waits)
    lost: dict[int, list[int]] = field(default_factory=dict)
    """By flow: when the datagrams were sent that never arrived."""
    wrong: int = 0
    """Pieces whose content was not what was sent."""
    pieces: int = 0
    """Pieces that arrived."""
    ended_ns: int = 0

    @property
    def transports(self) -> list[Transport]:
        """What the flows are."""
        return list(dict.fromkeys(flow.transport for flow in self.flows))

    def flows_of(self, transport: Transport) -> list[int]:
        """Numbers of the flows of a transport."""
        return [number for number, flow in enumerate(self.flows) if flow.transport == transport]

    def windows(self) -> list[Window]:
        """The flows' rates, from the first byte to the last that was posted."""
        return [window for window in self.series.windows() if window.end_ns <= self.ended_ns]
