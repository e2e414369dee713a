"""A second simulator, for comparison: small, slow, obvious, and sharing no line with the one under test.

Output-queued switches that store and forward, one heap of events, integer picoseconds. A packet is one Python
object, a queue is a deque, a port has an event when a packet has left it. Senders send at line rate, hosts
with several flows take turns packet by packet; no feedback, no congestion control. Header sizes come from the
wire format's tables (docs/spec/wire.md), not from the code.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

PREAMBLE, ETHERNET, FCS, GAP, SHORTEST_FRAME = 8, 14, 4, 12, 64
IPV6, UDP = 40, 8
BTH, METH, TSETH, RETH, ICRC = 12, 4, 4, 16, 4
SETH, CC_STATE = 28, 8


def on_cable(udp_payload: int, *, srv6: bool = True) -> int:
    """Bytes of time that a packet takes on a cable."""
    frame = ETHERNET + IPV6 * (2 if srv6 else 1) + UDP + udp_payload + FCS
    return PREAMBLE + max(frame, SHORTEST_FRAME) + GAP


def data_bytes(payload: int, *, srv6: bool = True) -> int:
    """A data packet: padded to four bytes, with timestamp and RETH."""
    return on_cable(BTH + METH + TSETH + RETH + -(-payload // 4) * 4 + ICRC, srv6=srv6)


SACK = on_cable(BTH + SETH + CC_STATE + ICRC)
TRIMMED = on_cable(BTH + METH + TSETH + RETH)


def cut(message: int, mtu: int) -> list[int]:
    """Payloads of a message's packets."""
    return [min(mtu, message - at) for at in range(0, message, mtu)]


@dataclass(eq=False)
class Packet:
    flow: "Flow"
    size: int
    route: Sequence["Port"]
    hop: int = 0
    control: bool = False
    marked: bool = False
    queued: int = 0
    """When it came to the last port it came to."""
    left: int = 0
    """When it began to leave that."""


@dataclass(eq=False)
class Port:
    """An output port and the cable behind it, up to the packet being in the next node's hands."""

    ps_per_byte: int
    latency: int
    room: int | None = None
    """Data that would have to wait behind more bytes than this is trimmed, or dropped."""
    trims: bool = True
    mark: Callable[[int], float] | None = None
    """Probability of a mark by the bytes left behind a packet as it begins to leave."""
    data: deque[Packet] = field(default_factory=deque)
    control: deque[Packet] = field(default_factory=deque)
    busy_until: int = 0
    busy: bool = False
    sent: int = 0
    trimmed: int = 0
    dropped: int = 0
    expected_marks: float = 0.0
    """Sum of the marking probabilities, and of their variances."""
    variance: float = 0.0
    longest: int = 0
    overtaking: list[tuple[int, int]] = field(default_factory=list)
    """When control came, and how much."""

    def waiting(self, now: int) -> int:
        in_service = max(0, self.busy_until - now) // self.ps_per_byte
        return in_service + sum(p.size for p in self.data) + sum(p.size for p in self.control)


@dataclass(eq=False)
class Flow:
    """A message: when it may start, and over which ports its packets go, in turn."""

    size: int
    routes: Sequence[Sequence[Port]]
    start: int = 0
    after: Sequence["Flow"] = ()
    mtu: int = 4096
    srv6: bool = True
    connection: object = None
    """Messages of one connection leave one after the other."""
    packets: dict[Port, deque[Packet]] = field(default_factory=dict)
    left: int = 0
    first: int | None = None
    """When the first packet was delivered."""
    delivered: int | None = None
    last: Packet | None = None
    waits_for: int = 0
    followers: list["Flow"] = field(default_factory=list)


class Reference:
    """The network and its run."""

    def __init__(self) -> None:
        self.now = 0
        self.events: list[tuple[int, int, Callable[[], None]]] = []
        self.count = 0
        self.nics: dict[Port, dict[object, deque[Flow]]] = {}

    def at(self, time: int, act: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.events, (time, self.count, act))

    def run(self, flows: Sequence[Flow], until: int | None = None) -> None:
        for flow in flows:
            payloads = cut(flow.size, flow.mtu)
            flow.left = len(payloads)
            for i, payload in enumerate(payloads):
                route = flow.routes[i % len(flow.routes)]
                packet = Packet(flow, data_bytes(payload, srv6=flow.srv6), route)
                flow.packets.setdefault(route[0], deque()).append(packet)
            flow.waits_for = len(flow.after)
            for before in flow.after:
                before.followers.append(flow)
            if not flow.after:
                self.at(flow.start, lambda flow=flow: self.begin(flow))  # type: ignore[misc]
        while self.events and (until is None or self.events[0][0] <= until):
            self.now, _, act = heapq.heappop(self.events)
            act()

    def begin(self, flow: Flow) -> None:
        for port in flow.packets:
            lines = self.nics.setdefault(port, {})
            lines.setdefault(flow.connection or flow, deque()).append(flow)
            if not port.busy:
                self.send_next(port)

    def from_nic(self, port: Port) -> Packet | None:
        """Connections of a host take turns, a packet each; messages of one leave one after the other."""
        lines = self.nics.get(port, {})
        while lines:
            connection, messages = next(iter(lines.items()))
            del lines[connection]
            while messages:
                packets = messages[0].packets[port]
                if packets:
                    lines[connection] = messages
                    return packets.popleft()
                messages.popleft()
        return None

    def arrive(self, packet: Packet) -> None:
        if packet.hop == len(packet.route):
            self.deliver(packet)
            return
        port = packet.route[packet.hop]
        if not packet.control and port.room is not None and port.waiting(self.now) > port.room:
            if not port.trims:
                port.dropped += 1
                return
            port.trimmed += 1
            packet.control, packet.size = True, TRIMMED
        (port.control if packet.control else port.data).append(packet)
        packet.queued = self.now
        if packet.control:
            port.overtaking.append((self.now, packet.size))
        port.longest = max(port.longest, port.waiting(self.now))
        if not port.busy:
            self.send_next(port)

    def send_next(self, port: Port) -> None:
        """Control first."""
        if port.control:
            packet = port.control.popleft()
        elif port.data:
            packet = port.data.popleft()
        else:
            found = self.from_nic(port)
            if found is None:
                port.busy = False
                return
            packet = found
        if port.mark is not None and not packet.control and not packet.marked:
            chance = port.mark(sum(p.size for p in port.data))
            port.expected_marks += chance
            port.variance += chance * (1 - chance)
            packet.marked = chance == 1.0
        port.busy = True
        port.sent += packet.size
        port.busy_until = self.now + packet.size * port.ps_per_byte
        self.at(port.busy_until, lambda: self.send_next(port))
        packet.hop += 1
        packet.left = self.now
        self.at(port.busy_until + port.latency, lambda: self.arrive(packet))

    def deliver(self, packet: Packet) -> None:
        flow = packet.flow
        if packet.control:
            return
        flow.first = self.now if flow.first is None else flow.first
        flow.left -= 1
        flow.last = packet
        if flow.left > 0:
            return
        flow.delivered = self.now
        for follower in flow.followers:
            follower.waits_for -= 1
            if follower.waits_for == 0:
                self.begin(follower)
