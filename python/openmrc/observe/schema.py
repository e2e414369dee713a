"""The schema of counters and events. Counters only grow; names are those of the core and do not change."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NotRequired, Self, TypedDict


class PortStats(TypedDict):
    """Counters of a port of a device."""

    tx_packets: int
    tx_bytes: int
    """UDP payload bytes sent."""
    tx_calls: int
    """Runs of packets handed to the kernel; several of one device may share a system call."""
    rx_packets: int
    """Packets received, including bad ones."""
    rx_bytes: int
    """UDP payload bytes received."""
    rx_datagrams: int
    """Messages that the kernel delivered, of one or several packets each."""
    rx_ecn_marked: int
    """Packets received with ECN "congestion experienced"."""
    rx_overflow: int
    """Packets lost because the socket's receive buffer was full."""


class NodeStats(TypedDict):
    """Counters of what a device does beside queue pairs: port status, probes, endpoint requests."""

    port_updates_sent: int
    port_updates_applied: int
    ports_contradicted: int
    ports_asked: int
    requests_answered: int
    requests_limited: int
    probes_unanswered: int
    endpoint_invalid: int
    overflows: int


class ContextStats(TypedDict):
    """Counters of an open device."""

    ports: list[PortStats]
    causes: dict[str, int]
    """Drops and refusals by cause."""
    peers: dict[str, int]
    """Packets whose values differ from those of this device though MRC allows them, by ``peer_*`` counter
    (docs/interop.md)."""
    node: NodeStats
    iterations: int
    """Turns of the engine."""
    sleeps: int
    """How often the engine slept."""
    send_descriptors: int
    """Descriptors of what sends: one where an io_uring has the sockets, else one for each socket."""


class PathStats(TypedDict):
    """Counters of a path: one entropy value on one port."""

    port: int
    ev: int
    tx_packets: int
    tx_bytes: int
    last_tx_ns: int
    """Time of the last data packet or probe on it by the monotonic clock, nanoseconds; 0 if there was none.
    Feedback and answers do not count: nothing tells whether they arrive."""
    address: NotRequired[str]
    """SRv6 mode: the outer destination."""
    segment: NotRequired[str | None]
    """SRv6 mode: the segment of the SRH, if there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """An open device at a moment."""

    device: str
    """Name of the device."""
    job: str | None
    """Name of the job, from ``OPENMRC_JOB``."""
    pid: int
    program: str
    """What the process runs."""
    time_ns: int
    """Time by the monotonic clock, nanoseconds."""
    addresses: list[str]
    """By port."""
    ports_up: list[int]
    """Numbers of the ports that are up."""
    stats: ContextStats
    condemned: int
    """Paths that queue pairs have condemned and not taken back since the device was published."""


ProbedPath = tuple[int, int, int, int]
"""Port and entropy value of a path that was probed, EV probes in a row that no answer followed, and when the
first of these was sent, or else the last one that was answered: monotonic clock, nanoseconds; 0: none was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePairPaths:
    """The paths of a queue pair, by what it believes of them."""

    qp_num: int
    remote: list[str]
    """The peer's addresses by port."""
    good: list[tuple[int, int]]
    """Port and entropy value of the paths in rotation or in reserve."""
    bad: list[tuple[int, int, int]]
    """Port and entropy value of the condemned ones, and when: monotonic clock, nanoseconds; 0 if the device
    was published later."""
    denied: list[tuple[int, int]]
    """Port and entropy value of those that a controller has disabled."""
    changes: list[tuple[int, int, int]] = field(default_factory=list)
    """Port and entropy value of paths that were condemned or taken back since the device was published, and
    how often."""
    probed: list[ProbedPath] = field(default_factory=list)
    """Paths that were probed at the request of an agent. Those to a peer are with its first queue pair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePaths:
    """What an open device knows about its paths."""

    device: str
    pid: int
    job: str | None
    time_ns: int
    """Time by the monotonic clock, nanoseconds."""
    srv6: bool
    """Whether it builds SRv6 frames; else an entropy value is a UDP source port."""
    addresses: list[str]
    """By port."""
    ports_up: list[int]
    queue_pairs: list[QueuePairPaths]
    left_out: int
    """Queue pairs that are not in the list because the answer would be too long."""
    counters: list[PathStats]
    """Of all queue pairs together."""

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Self:
        """From the answer of a process, whose tuples are lists."""
        pairs = [
            QueuePairPaths(
                qp_num=pair["qp_num"],
                remote=pair["remote"],
                good=[(port, ev) for port, ev in pair["good"]],
                bad=[(port, ev, since) for port, ev, since in pair["bad"]],
                denied=[(port, ev) for port, ev in pair["denied"]],
                changes=[(port, ev, times) for port, ev, times in pair.get("changes", ())],
                probed=[
                    (port, ev, unanswered, since) for port, ev, unanswered, since in pair.get("probed", ())
                ],
            )
            for pair in answer["queue_pairs"]
        ]
        return cls(**{**answer, "queue_pairs": pairs})


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to a device."""

    kind: str
    """``port_active``, ``port_err``, ``peer_ports``, ``peer_silent``, ``peer_heard``, ``qp_fatal``,
    ``cq_err``; of paths ``assumed_bad`` and ``good``; ``lost`` for events that were dropped."""
    time_ns: int
    """Monotonic clock, nanoseconds: of the event for paths, else of its publication."""
    device: str
    fields: dict[str, Any] = field(default_factory=dict)
    """Port, queue pair, entropy value, reason: as the event has them."""

    def __str__(self) -> str:
        return " ".join([self.device, self.kind, *(f"{name} {value}" for name, value in self.fields.items())])
