"""An attacker off the path: a host that can send anything to our ports and sees nothing of our traffic.

`make long` sends a million packets of each kind. docs/security.md says what else an attacker can and cannot
do.
"""

import contextlib
import socket
import threading
from pathlib import Path

import pytest

from openmrc.connect import PROTOCOL
from openmrc.control import Limits, Listener
from openmrc.errors import ArgumentError, DeadlineError
from openmrc.verbs import AsyncEventType, WcStatus
from openmrc.wire import EndpointRequest, Packet
from tests.helpers.attacks import COUNT, KINDS, LONG, PLANES, Forger, code_point, stage
from tests.helpers.ends import bring_up, eventually, make_end
from tests.helpers.labs import needs_root

pytestmark = [needs_root, pytest.mark.timeout(0 if LONG else 300)]

SIZE = 200_000
IPV4_UDP = 28
"""Bytes of the IPv4 and UDP headers."""
MEMORY_KB = 8192
"""What a test may grow by, whatever the number of packets: completions, events, Python's own."""


def connected(hosts):
    a, b = make_end(hosts.a), make_end(hosts.b)
    bring_up(a, b, psns=(0x6789AB, 0xCDEF01), rts={"exp_cnt": 25})
    return a, b


def resident_kb():
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))


class Writer(threading.Thread):
    """Writes from one end to the other, one message after the other, and checks each of them."""

    def __init__(self, a, b):
        super().__init__(daemon=True)
        self._a = a
        self._source, self._target = bytearray(SIZE), bytearray(SIZE)
        self._mr, self._remote = a.region(self._source), b.region(self._target).remote()
        self._over = threading.Event()
        self.written = 0
        self.error = None

    def run(self):
        try:
            while not self._over.is_set():
                self._source[:] = bytes([self.written % 251]) * SIZE
                self._a.qp.write(self._mr, self._remote, wr_id=self.written)
                (done,) = self._a.send_cq.take(1, timeout=20)
                assert (done.wr_id, done.status) == (self.written, WcStatus.SUCCESS)
                assert self._target == self._source, "other bytes have arrived"
                self.written += 1
        except BaseException as error:
            self.error = error

    def stop(self):
        self._over.set()
        self.join(30)
        assert not self.is_alive(), "stalled"
        if self.error is not None:
            raise self.error


def untouched(hosts):
    """Nothing was told about ports or queue pairs."""
    for context in (hosts.a, hosts.b):
        assert context.async_events.poll() is None
        assert context.ports_up() == list(range(PLANES))


@pytest.mark.parametrize("kind", KINDS)
def test_packets_of_an_attacker_who_sees_nothing_change_nothing(kind):
    forger = Forger(kind)
    with stage() as hosts:
        a, b = connected(hosts)
        writer = Writer(a, b)
        writer.start()
        assert eventually(lambda: writer.written >= 20)
        memory, written = resident_kb(), writer.written
        for i in range(COUNT):
            packet = KINDS[kind](forger)
            # To the sender as if from the receiver, and the other way round.
            source, target = (("b", "a"), ("a", "b"))[i % 2]
            hosts.forge(packet, source, target, plane=i // 2 % PLANES, dscp=code_point(kind, i))
        assert eventually(lambda: writer.written >= written + 20), "stalled"
        writer.stop()
        assert resident_kb() - memory < MEMORY_KB
        untouched(hosts)
        assert sorted(a.qp.ports_up()) == sorted(b.qp.ports_up()) == list(range(PLANES))
        assert len(a.recv_cq) == len(b.recv_cq) == 0


@pytest.mark.parametrize("kind", ["ACKs", "SACKs", "NAKs", "NACKs", "port status", "trimmed packets"])
def test_a_write_that_has_not_arrived_neither_completes_nor_fails(kind):
    forger = Forger(kind)
    with stage() as hosts:
        a, b = connected(hosts)
        target = bytearray(SIZE)
        mr, remote = a.region(bytearray(b"x" * SIZE)), b.region(target).remote()
        hosts.cut("b")
        a.qp.write(mr, remote)
        for i in range(COUNT):
            hosts.forge(KINDS[kind](forger), "b", "a", plane=i % PLANES, dscp=code_point(kind, i))
        assert not a.send_cq.wait(0.3)
        assert not any(target)
        hosts.cut("b", up=True)
        assert a.send_cq.take(1, timeout=30)[0].status is WcStatus.SUCCESS
        assert target == b"x" * SIZE
        # On a busy machine the cut lasts long enough to be noticed, and nothing else is.
        for context in (hosts.a, hosts.b):
            assert eventually(lambda context=context: context.ports_up() == list(range(PLANES)))
            told = iter(context.async_events.poll, None)
            assert {event.type for event in told} <= {AsyncEventType.PORT_ERR, AsyncEventType.PORT_ACTIVE}


def test_forged_fragmentation_needed_does_not_shorten_packets():
    with stage() as hosts:
        a, b = connected(hosts)
        writer = Writer(a, b)
        writer.start()
        assert eventually(lambda: writer.written >= 20)
        ports = [path["ev"] for path in hosts.a.path_stats()]
        for i in range(min(COUNT, 20_000)):
            hosts.forge_icmp("a", "b", i % PLANES, 600 + i % 900, ports[i // PLANES % len(ports)])
        before = writer.written
        assert eventually(lambda: writer.written >= before + 50), "stalled"
        writer.stop()
        causes = hosts.a.stats()["causes"]
        assert not [name for name, n in causes.items() if n and name.startswith("tx_")], causes
        untouched(hosts)


@pytest.mark.parametrize("narrow", [(0,), (1,), (0, 1)])
def test_a_path_mtu_that_does_not_pass_is_named_when_connecting(narrow):
    with stage() as hosts:
        hosts.narrow("b", narrow, 1500)
        a, _b = connected(hosts)
        with pytest.raises(ArgumentError, match="path_mtu 4096") as caught:
            a.qp.prove_path_mtu()
        named = [hosts.address("b", plane) in str(caught.value) for plane in range(PLANES)]
        assert named == [plane in narrow for plane in range(PLANES)], caught.value


def test_a_path_mtu_that_passes_is_proven_whatever_the_planes_do():
    with stage() as hosts:
        hosts.narrow("b", (0, 1), 1500)
        a, b = make_end(hosts.a), make_end(hosts.b)
        bring_up(a, b, rtr={"path_mtu": 1024})
        a.qp.prove_path_mtu()
        assert (
            a.qp.stats()["data_packets"]
            == b.qp.stats()["data_packets_in"] - b.qp.stats()["duplicates_in"]
            == 0
        )
    with stage() as hosts:
        a, b = connected(hosts)
        hosts.cut("b")
        a.qp.prove_path_mtu()
        hosts.cut("b", up=True)
        # What the proof has sent is no part of the connection.
        writer = Writer(a, b)
        writer.start()
        assert eventually(lambda: writer.written >= 20)
        writer.stop()


def test_strangers_are_answered_at_the_mrc_port_with_less_than_twice_what_they_sent():
    with stage() as hosts:
        answers = hosts.listen_as_stranger()
        request = Packet(dest_qp=2, psn=0x1234, body=EndpointRequest())
        hosts.forge(request, hosts.address("m", 0), "a", ev=4000)
        data, (address, _) = answers.recvfrom(4096)
        asked = len(request.to_bytes(src="1.1.1.1", dst="1.1.1.1")) - 20
        assert address == hosts.address("a", 0)
        assert len(data) + 8 <= 2 * asked

        def limited():
            # More than the rate in one burst: some are answered, most are not.
            hosts.forge(request, hosts.address("m", 0), "a", times=1000)
            return hosts.a.stats()["node"]["requests_limited"] > 0

        assert eventually(limited)


@pytest.mark.parametrize("kind", KINDS)
def test_no_packet_brings_a_stranger_more_than_twice_its_bytes(kind):
    forger = Forger(kind)

    def sent():
        return sum(port["tx_bytes"] for port in hosts.a.stats()["ports"])

    with stage() as hosts:
        connected(hosts)
        before, asked = sent(), 0
        # Few at a time, so that the rates for strangers do not hide anything.
        for _ in range(50):
            packet = KINDS[kind](forger)
            asked += hosts.forge(packet, hosts.address("m", 0), "a") - IPV4_UDP
        assert eventually(lambda: hosts.a.stats()["ports"][0]["rx_packets"] >= 50)
        assert sent() - before <= 2 * asked
        answers = kind in ("port status", "EV probes")
        assert (sent() > before) == answers


@pytest.mark.parametrize("said", [b"", b"\0\0\0\1x", b"GET / HTTP/1.0\r\n\r\n"])
def test_a_tcp_stranger_is_told_nothing_before_it_greets(said):
    # TCP itself proves addresses: a forged one never completes its handshake. Even so:
    heard = b""
    with (
        Listener(PROTOCOL, "127.0.0.1", 0, limits=Limits(greeting=0.3)) as listener,
        socket.create_connection(listener.address) as stranger,
    ):
        stranger.sendall(said)
        with pytest.raises(DeadlineError):
            listener.accept(1)
        stranger.settimeout(5)
        with contextlib.suppress(ConnectionResetError):
            while data := stranger.recv(4096):
                heard += data
    assert len(heard) <= 2 * len(said)


def test_ep_ops_decides_who_is_answered():
    for ep_ops, expected in (("peers", 0), ("off", 0), (["10.200.0.0/16"], 1), (["10.7.0.0/16"], 0)):
        with stage(ep_ops=ep_ops) as hosts:
            answers = hosts.listen_as_stranger()
            answers.settimeout(0.3)
            hosts.forge(Packet(dest_qp=2, psn=5, body=EndpointRequest()), hosts.address("m", 0), "a")
            try:
                received = len(answers.recvfrom(4096)[0]) > 0
            except TimeoutError:
                received = 0
            assert received == expected, ep_ops
