"""What a half of the demo has measured, as plain columns."""

from dataclasses import dataclass, field
from typing import Literal

from openmrc.lab.demo.scene import Fault

Transport = Literal["mrc", "tcp", "udp"]


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
    """When data were posted and how long they took until they had arrived, checked; a row for each piece."""

    flow: list[int] = field(default_factory=list)
    posted_ns: list[int] = field(default_factory=list)
    wait_ns: list[int] = field(default_factory=list)


Event = tuple[int, str, str, int, bool]
"""When, source, destination, entropy value, whether the path was given up (or came back)."""


@dataclass
class Broken:
    """A fault as it took place; monotonic clock."""

    fault: Fault
    began_ns: int
    """Just before; nothing was broken earlier."""
    repaired_ns: int
    """When repair began."""
    over_ns: int
    """When the next fault is due, or the end."""
    dead_data_ns: list[int] | None = None
    """When data packets were sent on paths that were dead."""
    dead_feedback_ns: list[int] | None = None
    """The same for what receivers answer."""
    own_port_last_ns: int | None = None
    """The same for the host that has lost its port."""
    events: list[Event] = field(default_factory=list)
    """EV events meanwhile."""
    named: list[str] = field(default_factory=list)
    """The links that the hosts' events name."""
    named_by: list[str] = field(default_factory=list)
    """Hosts whose events that are."""
    named_ns: int | None = None
    """When the events there were until then first named what was broken, and from then on."""
    right: bool | None = None
    """Whether it is the truth; ``None``: nobody was asked."""


@dataclass
class Half:
    """One way, from its first byte to its last."""

    began_ns: int
    flows: list[Flow]
    faults: list[Broken] = field(default_factory=list)
    time_ns: list[int] = field(default_factory=list)
    """Of each sample."""
    received: list[tuple[int, ...]] = field(default_factory=list)
    """Payload bytes of each flow that have arrived, duplicates not counted; a row for each sample."""
    waits: Waits = field(default_factory=Waits)
    lost: dict[int, list[int]] = field(default_factory=dict)
    """Moments when datagrams were sent that never arrived, by flow."""
    wrong: int = 0
    """Pieces whose content was not what was sent."""
    pieces: int = 0
    """Pieces that arrived."""
    ended_ns: int = 0

    def flows_of(self, transport: Transport) -> list[int]:
        """Numbers of the flows of a kind."""
        return [number for number, flow in enumerate(self.flows) if flow.transport == transport]
