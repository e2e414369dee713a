"""Soft switches in a lab: they forward as the kernel does, and have rates, queues, marking and trimming."""

import json
import socket
import struct
import threading

import pytest

from openmrc.errors import ArgumentError, DeviceError, StateError
from openmrc.lab.system import entered
from tests.helpers.labs import Srv6Sender, needs_root, one_by_one, running

pytest.importorskip("scapy", reason="scapy is not installed")
pytestmark = needs_root

DATA, TRIMMED, TRIMMED_LAST_HOP = 4, 12, 16
ECT0, CE = 0b10, 0b11
HEADERS = 12 + 4 + 16
"""BTH, METH, RETH."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with running(tmp_path_factory.mktemp("lab"), "soft") as lab:
        yield lab


@pytest.fixture(autouse=True)
def hard(lab):
    yield
    lab.repair()
    for switch in list(lab.state.soft):
        lab.stop_soft_switch(switch)


def mrc_write(psn, payload=b"\xa5" * 1024):
    """A hand-made RDMA WRITE Middle."""
    bth = struct.pack(">BBHBBHBBH", 0xC7, 0, 0xFFFF, 0, 0, 3, 0, psn >> 16, psn & 0xFFFF)
    icrc = bytes(4)
    return bth + struct.pack(">HH", 0, 1) + struct.pack(">QII", 0x1000, 5, 1 << 20) + payload + icrc


def psn_of(payload):
    return int.from_bytes(payload[9:12], "big")


def test_soft_switches_forward_over_the_same_paths_as_the_kernel(lab):
    paths = list(lab.fabric.paths("h0", "h15"))
    everything = set(range(len(paths)))
    with Srv6Sender(lab, "h0", "h15") as sender:
        for switch in lab.layout.switches:
            lab.start_soft_switch(switch)
        assert one_by_one(sender, paths) == everything
        assert sender.silent_for(0.5), "each packet arrived once: the kernel does not forward as well"
        cut = lab.layout.link("p0/t0-0:up2").name
        lab.fail(cut)
        assert one_by_one(sender, paths) == {n for n in everything if cut not in paths[n].links}
        lab.repair(cut)
        assert one_by_one(sender, paths) == everything
        # A packet whose path has every switch is counted at each of them.
        used = {hop.switch for path in paths for hop in path.hops}
        for switch in list(lab.state.soft):
            counted = lab.stop_soft_switch(switch)
            assert (counted["forwarded"] > 0) == (switch in used)
            assert counted["dropped_no_route"] == counted["dropped_end_of_path"] == 0
        assert one_by_one(sender, paths) == everything


def test_tcp_passes_soft_switches_whole(lab):
    # The kernel leaves checksums to the network card; here the soft switch takes the place of the card.
    for switch in ("p0/t0-0", "p0/t0-3", "p0/t1-0", "p0/t1-1", "p0/t1-2", "p0/t1-3"):
        lab.start_soft_switch(switch)
    sent = bytes(range(256)) * 4096
    with entered(lab.namespace("h15")):
        listener = socket.create_server((lab.addresses("h15")[0], 5001), family=socket.AF_INET6)
    with entered(lab.namespace("h0")):
        client = socket.socket(socket.AF_INET6)
    with listener, client:
        client.connect((lab.addresses("h15")[0], 5001))
        server, _ = listener.accept()

        def send():
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        received = bytearray()
        with server:
            while piece := server.recv(65536):
                received += piece
        sender.join()
    assert received == sent


@pytest.mark.parametrize(
    ("switch", "code"),
    [("p0/t1-0", TRIMMED), ("p0/t0-3", TRIMMED_LAST_HOP)],
    ids=["at a T1", "on the last hop"],
)
def test_a_full_queue_trims_to_headers_that_say_where(lab, switch, code):
    path = lab.fabric.paths("h0", "h15")[0]
    assert switch in [hop.switch for hop in path.hops]
    # 10 Mb/s x 10 ms: a queue of 12,500 bytes, some ten packets, 18,750 on the last hop.
    lab.start_soft_switch(switch, rate=10_000_000, base_rtt_us=10_000)
    count = 60
    packets = [mrc_write(psn) for psn in range(count)]
    with Srv6Sender(lab, "h0", "h15") as sender:
        sender.send(path, b"neighbours found")
        assert sender.received(1)
        sender.send_burst(path, packets, DATA << 2)
        arrived = sender.received_with_class(count)
    counted = lab.stop_soft_switch(switch)
    whole = [payload for payload, octet in arrived if octet >> 2 == DATA]
    cut = [payload for payload, octet in arrived if octet >> 2 == code]
    assert len(whole) + len(cut) == len(arrived) == count
    assert len(cut) == counted["trimmed"] > count // 4
    assert all(payload == packets[psn_of(payload)] for payload in whole)
    assert all(payload == packets[psn_of(payload)][:HEADERS] for payload in cut)
    assert {psn_of(payload) for payload in whole + cut} == set(range(count))
    # Headers overtake: the first one arrives before the last complete packet that was sent earlier.
    order = [psn_of(payload) for payload, _ in arrived]
    assert order.index(psn_of(cut[0])) < order.index(
        max(psn_of(p) for p in whole if psn_of(p) < psn_of(cut[0]))
    )


@pytest.mark.parametrize(("switch", "marks"), [("p0/t1-0", True), ("p0/t0-3", False)])
def test_queues_mark_congestion_where_another_path_can_help(lab, switch, marks):
    path = lab.fabric.paths("h0", "h15")[0]
    # 10 Mb/s x 100 ms: 125,000 bytes; sixty packets of about 1,150 bytes stay below the trim threshold.
    lab.start_soft_switch(switch, rate=10_000_000, base_rtt_us=100_000)
    count = 60
    packets = [mrc_write(psn) for psn in range(count)]
    with Srv6Sender(lab, "h0", "h15") as sender:
        sender.send(path, b"neighbours found")
        assert sender.received(1)
        sender.send_burst(path, packets, DATA << 2 | ECT0)
        capable = [octet & 0b11 for _, octet in sender.received_with_class(count)]
        sender.send_burst(path, packets, DATA << 2)
        others = [octet & 0b11 for _, octet in sender.received_with_class(count)]
    counted = lab.stop_soft_switch(switch)
    assert len(capable) == len(others) == count
    assert set(others) == {0}, "what does not understand ECN is never marked"
    assert (CE in capable) == marks
    assert capable.count(CE) == counted["marked"]
    assert counted["trimmed"] == 0


def test_what_is_wrong_is_said(lab):
    with pytest.raises(ArgumentError, match="h0 is no switch"):
        lab.start_soft_switch("h0")
    with pytest.raises(StateError, match="p0/t0-0 is no soft switch"):
        lab.stop_soft_switch("p0/t0-0")
    with pytest.raises(DeviceError, match=r"did not start: .*ecn_min must be below ecn_max"):
        lab.start_soft_switch("p0/t0-0", rate=1_000_000, base_rtt_us=1)
    # After it has failed, the kernel forwards.
    paths = lab.fabric.paths("h0", "h15")[:1]
    with Srv6Sender(lab, "h0", "h15") as sender:
        assert one_by_one(sender, paths) == {0}
    lab.start_soft_switch("p0/t0-0")
    with pytest.raises(StateError, match="soft switch already"):
        lab.start_soft_switch("p0/t0-0")
    pid = lab.state.soft["p0/t0-0"]
    assert json.loads((lab.state.directory / "state.json").read_text())["soft"] == {"p0/t0-0": pid}
