"""TCP and UDP around the same ring, from the hosts' kernels, at the same pace as the writes over MRC.

Each pair of hosts has four TCP connections and four sequences of datagrams. Source ports are tried until all
paths carry the same number of flows, which is more even than a random choice.
"""

import errno
import socket
import struct
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from openmrc.demos.lab import frr
from openmrc.demos.lab.recording import Flow, Recording, Transport
from openmrc.demos.lab.ring import PATH_MTU
from openmrc.demos.lab.scene import RING, pairs
from openmrc.demos.lab.sender import Sender, catch_up
from openmrc.errors import Error
from openmrc.lab import Lab, entered

FLOWS = 4
"""TCP connections of a pair of hosts, and sequences of datagrams."""

_PORTS: dict[Transport, int] = {"tcp": 5001, "udp": 5002}
_FIRST_SOURCE_PORT = 20_000
_CANDIDATES = 48
"""Most source ports tried for one kind of flow of a pair; 17 are enough on average."""
_TEST_PACKETS, _TEST_BYTES = 40, 8000
"""They show the path of a flow: more packets than BGP and BFD send in that time, one packet each also over
TCP."""
_HEADER = struct.Struct("<IIQ")
_CHUNK = PATH_MTU
_SEND_BUFFER = 4 << 20
"""Holds what is offered in some seconds: a TCP connection that stalls is offered the same load."""
_READ = 1 << 16
_LAST_WAIT_S = 1.0


class _Tcp:
    """A connection, sender and receiver."""

    def __init__(self, number: int, sending: socket.socket, receiving: socket.socket) -> None:
        self.number = number
        self.sending, self.receiving = sending, receiving
        self.received = 0
        self.unsent = b""
        self.posted = 0
        self.outstanding: deque[tuple[int, int]] = deque()
        """For each chunk that has not arrived: where it ends in the stream, and when it was offered."""
        self.due = 0.0


class _Udp:
    """A sequence of datagrams, sender and receiver."""

    def __init__(self, number: int, sending: socket.socket) -> None:
        self.number = number
        self.sending = sending
        self.received = 0
        self.sent_ns: list[int] = []
        self.arrived = bytearray()
        self.due = 0.0


class Flows(Sender):
    """All flows; one thread sends, receives and samples.

    Args:
        lab: Where; BGP must have converged.
        rate_bps: What each host offers, half of it over TCP.
    """

    def __init__(self, lab: Lab, rate_bps: float) -> None:
        self._lab = lab
        super().__init__("openmrc-lab-flows", [])
        self._tcp: list[_Tcp] = []
        self._udp: list[_Udp] = []
        self._udp_of: dict[int, _Udp] = {}
        self._inboxes: list[socket.socket] = []
        one = rate_bps / (2 * FLOWS)
        self._chunk_s, self._datagram_s = _CHUNK * 8 / one, PATH_MTU * 8 / one
        try:
            self._open(one)
        except BaseException:
            self._stack.close()
            raise

    def _open(self, rate_bps: float) -> None:
        inboxes = {}
        for dst in RING:
            inboxes[dst] = self._socket(dst, socket.SOCK_DGRAM, _PORTS["udp"])
            inboxes[dst].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SEND_BUFFER)
        self._inboxes = list(inboxes.values())
        for number, (src, dst) in enumerate(pairs(RING)):
            # TCP and UDP change sides from one host to the next, also between the two under one T0.
            turn = number + number // (len(RING) // 2)
            listener = self._socket(dst, socket.SOCK_STREAM, _PORTS["tcp"])
            listener.listen()
            for sending, receiving in self._spread(turn, src, self._connections(src, dst, listener)):
                self._tcp.append(_Tcp(self._number("tcp", src, dst, rate_bps), sending, receiving))
            datagrams = (
                (self._socket(src, socket.SOCK_DGRAM, _FIRST_SOURCE_PORT + n, dst), inboxes[dst])
                for n in range(_CANDIDATES)
            )
            for sending, _ in self._spread(turn + 1, src, datagrams):
                self._udp.append(_Udp(self._number("udp", src, dst, rate_bps), sending))
            listener.close()
        self._udp_of = {udp.number: udp for udp in self._udp}

    def _number(self, transport: Transport, src: str, dst: str, rate_bps: float) -> int:
        self.recording.flows.append(Flow(transport, src, dst, rate_bps))
        return len(self.recording.flows) - 1

    def _connections(
        self, src: str, dst: str, listener: socket.socket
    ) -> Iterator[tuple[socket.socket, socket.socket]]:
        for n in range(_CANDIDATES):
            sending = self._socket(src, socket.SOCK_STREAM, _FIRST_SOURCE_PORT + n, dst)
            yield sending, self._stack.enter_context(listener.accept()[0])

    def _spread(
        self, turn: int, src: str, candidates: Iterable[tuple[socket.socket, socket.socket]]
    ) -> list[tuple[socket.socket, socket.socket]]:
        """Chooses flows on different paths; ``turn`` selects one half of the pair's paths.

        As a result one TCP and one UDP flow cross every link between switches in each direction.
        """
        uplinks = sorted(
            (link.lower.port, above.lower.port)
            for link in self._lab.layout.links_of(src)
            for above in self._lab.layout.links_of(link.upper.node)
            if above.lower.node == link.upper.node
        )
        wanted = set(uplinks[turn % 2 :: 2][:FLOWS])
        chosen: list[tuple[socket.socket, socket.socket]] = []
        spare: list[tuple[socket.socket, socket.socket]] = []
        for sending, receiving in candidates:
            sending.setblocking(False)
            receiving.setblocking(False)
            path = self._path_taken(src, sending, receiving)
            (chosen if path in wanted else spare).append((sending, receiving))
            wanted.discard(path)
            if not wanted:
                break
        while len(chosen) < FLOWS:
            chosen.append(spare.pop())
        for sending, receiving in spare:
            sending.close()
            if receiving not in self._inboxes:
                receiving.close()
        return chosen

    def _path_taken(self, src: str, sending: socket.socket, receiving: socket.socket) -> tuple[str, str]:
        """Plane and T0 uplink of a flow, found by counting test packets."""
        t0s = {link.lower.port: link.upper.node for link in self._lab.layout.links_of(src)}
        before = {plane: self._lab.counters(node) for plane, node in t0s.items()}
        self._exchange(sending, receiving)
        sent = {
            (plane, port): counted.tx_packets - before[plane][port].tx_packets
            for plane, node in t0s.items()
            for port, counted in self._lab.counters(node).items()
            if port.startswith("up")
        }
        return max(sent, key=lambda at: sent[at])

    def _exchange(self, sending: socket.socket, receiving: socket.socket) -> None:
        total = _TEST_PACKETS * _TEST_BYTES
        sent = received = 0
        deadline = time.monotonic() + 5
        while received < total:
            if time.monotonic() > deadline:
                raise Error(f"test packets from {sending.getsockname()[0]} do not arrive")
            with suppress(BlockingIOError):
                if sent < total:
                    sent += sending.send(bytes(_TEST_BYTES))
            with suppress(BlockingIOError):
                while received < total:
                    received += len(receiving.recv(_READ))

    def _socket(self, host: str, kind: socket.SocketKind, port: int, to: str | None = None) -> socket.socket:
        with entered(self._lab.namespace(host)):
            made = self._stack.enter_context(socket.socket(socket.AF_INET6, kind))
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if kind is socket.SOCK_STREAM:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        made.bind((frr.loopback(host), port))
        if to is not None:
            made.settimeout(10)
            made.connect((frr.loopback(to), _PORTS["tcp" if kind is socket.SOCK_STREAM else "udp"]))
        return made

    def stop(self) -> Recording:
        """Ends a second after the last piece was sent, and returns what was measured.

        Raises:
            Error: if a connection broke.
        """
        super().stop()
        for udp in self._udp:
            self.recording.lost[udp.number] = [
                sent for sent, arrived in zip(udp.sent_ns, udp.arrived, strict=True) if not arrived
            ]
        return self.recording

    # --- the thread -----------------------------------------------------------------------------------------

    def _stagger(self, now: float) -> None:
        for turn, tcp in enumerate(self._tcp):
            tcp.due = now + self._chunk_s * turn / len(self._tcp)
        for turn, udp in enumerate(self._udp):
            udp.due = now + self._datagram_s * turn / len(self._udp)

    def _outstanding(self, waited_s: float) -> bool:
        # Datagrams in flight may still arrive. Which ones are lost is not known.
        return waited_s < _LAST_WAIT_S

    def _tick(self, *, posting: bool) -> None:
        if posting:
            now = time.monotonic()
            for tcp in self._tcp:
                tcp.due = catch_up(tcp.due, now)
                while tcp.due <= now:
                    self._offer(tcp)
            for udp in self._udp:
                udp.due = catch_up(udp.due, now)
                while udp.due <= now:
                    self._send(udp)
        for tcp in self._tcp:
            self._flush(tcp)
            self._receive(tcp)
        for inbox in self._inboxes:
            self._take(inbox)
        self.recording.series.take(flow.received for flow in self._by_number())

    def _by_number(self) -> Iterable[_Tcp | _Udp]:
        # Pair after pair: four TCP connections, four sequences of datagrams.
        for first in range(0, len(self._tcp), FLOWS):
            yield from self._tcp[first : first + FLOWS]
            yield from self._udp[first : first + FLOWS]

    def _offer(self, tcp: _Tcp) -> None:
        tcp.unsent += bytes(_CHUNK)
        tcp.posted += _CHUNK
        tcp.outstanding.append((tcp.posted, time.monotonic_ns()))
        tcp.due += self._chunk_s

    def _flush(self, tcp: _Tcp) -> None:
        if tcp.unsent:
            try:
                tcp.unsent = tcp.unsent[tcp.sending.send(tcp.unsent) :]
            except BlockingIOError:
                return

    def _receive(self, tcp: _Tcp) -> None:
        try:
            tcp.received += len(tcp.receiving.recv(_READ))
        except BlockingIOError:
            return
        now = time.monotonic_ns()
        while tcp.outstanding and tcp.outstanding[0][0] <= tcp.received:
            _, posted_ns = tcp.outstanding.popleft()
            self.recording.pieces += 1
            self.recording.waits.add(tcp.number, posted_ns, now)

    def _send(self, udp: _Udp) -> None:
        now = time.monotonic_ns()
        header = _HEADER.pack(udp.number, len(udp.sent_ns), now)
        udp.sent_ns.append(now)
        udp.arrived.append(0)
        udp.due += self._datagram_s
        try:
            udp.sending.send(header + bytes(PATH_MTU - _HEADER.size))
        except OSError as error:
            # Without a route the datagram is lost, as on a dead link.
            if error.errno not in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EAGAIN, errno.ECONNREFUSED):
                raise

    def _take(self, inbox: socket.socket) -> None:
        while True:
            try:
                datagram = inbox.recv(PATH_MTU)
            except BlockingIOError:
                return
            number, sequence, _ = _HEADER.unpack_from(datagram)
            udp = self._udp_of[number]
            if udp.arrived[sequence]:
                continue
            udp.arrived[sequence] = 1
            udp.received += len(datagram)
            self.recording.pieces += 1


def congestion_control() -> str:
    """The kernel's default, which the connections use."""
    return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
