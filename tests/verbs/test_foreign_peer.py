"""A peer that reads MRC 1.0 otherwise than openmrc does: a program that answers with packets of its own."""

import contextlib
import socket
import struct
import time
from ipaddress import ip_address

import pytest

from openmrc import wire
from openmrc.verbs import Capabilities, Device, EvState, Port, QpState, RemoteBuffer, WcStatus
from tests.helpers.ends import eventually, make_end

IPV6_FLOWINFO = 11  # linux/in6.h
PEER_QP = 0x0ABCDE


class ForeignPeer:
    """A UDP socket that answers a write of one packet with a SACK and an ACK."""

    def __init__(self, address, port):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.address, self.port = address, port
        self.socket = socket.socket(family, socket.SOCK_DGRAM)
        self.socket.settimeout(20)
        if family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, IPV6_FLOWINFO, 1)
        self.socket.bind((address, port))

    def receive(self, kind=wire.Write):
        """The next packet of a kind, and the flow label and UDP source port that it came with."""
        while True:
            found = self._receive()
            if isinstance(found[0].body, kind):
                return found

    def _receive(self):
        data, control, _, source = self.socket.recvmsg(2048, 128)
        label = 0
        for _, what, value in control:
            if what == IPV6_FLOWINFO:
                label = struct.unpack("!I", value)[0] & 0xFFFFF
        ends = {"src": source[0], "dst": self.address}
        # The socket has removed the headers; the decoder wants them.
        whole = wrap(data, **ends, sport=source[1], dport=self.port, label=label)
        frame = wire.decode(whole, wire.LinkType.RAW, ports=[self.port])
        assert frame.error is None, frame.error
        return frame.packet, label, source[1]

    def send(self, packet, to, *, change=()):
        """Sends a packet with some bytes behind the UDP header replaced: (offset, value)."""
        whole = bytearray(packet.to_bytes(src=self.address, dst=to[0], ev=self.port, dport=to[1]))
        start = 48 if ip_address(self.address).version == 6 else 28
        for at, value in change:
            whole[start + at] = value
        found = wire.decode(bytes(whole), wire.LinkType.RAW, ports=[to[1]]).error
        if found is not None and found.counter == "rx_bad_icrc":
            whole[-4:] = bytes.fromhex(found.message.rsplit(" ", 1)[1])
        self.socket.sendto(whole[start:], to)


def wrap(datagram, *, src, dst, sport, dport, label):
    """A datagram with IP and UDP headers."""
    udp = struct.pack("!HHHH", sport, dport, 8 + len(datagram), 0)
    source, destination = ip_address(src).packed, ip_address(dst).packed
    if len(source) == 16:
        ip = struct.pack("!IHBB", 6 << 28 | label, 8 + len(datagram), 17, 64) + source + destination
    else:
        ip = (
            struct.pack("!BBHHHBBH", 0x45, 0, 28 + len(datagram), 0, 0x4000, 64, 17, 0) + source + destination
        )
    return ip + udp + datagram


def free_ports(address, count):
    """UDP ports that nothing uses."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket(family, socket.SOCK_DGRAM)) for _ in range(count)]
        for each in sockets:
            each.bind((address, 0))
        return [each.getsockname()[1] for each in sockets]


@contextlib.contextmanager
def against(address="::1", **options):
    """A queue pair of ours that is connected to a foreign peer, and the address of its port."""
    own, theirs = free_ports(address, 2)
    peer = ForeignPeer(address, theirs)
    with peer.socket, Device(ports=[Port(address, own)], evs_per_port=4, **options).open() as context:
        end = make_end(context)
        end.qp.modify(QpState.INIT)
        caps = Capabilities.TRIM_NACK | Capabilities.DYNAMIC_MPR  # no service time in reflected timestamps
        remote = [(peer.address, theirs)]
        end.qp.modify(QpState.RTR, dest_qp_num=PEER_QP, rq_psn=0, remote=remote, caps=caps)
        end.qp.modify(QpState.RTS, sq_psn=0)
        yield end, peer, (address, own)


def ids(end):
    """The low halves of the queue pair numbers: of the sender of feedback, and of its receiver."""
    return {"spdcid": PEER_QP & 0xFFFF, "dpdcid": end.qp.qp_num & 0xFFFF}


def sack(end, packet, entropy):
    body = wire.Sack(cack_psn=packet.psn, entropy=entropy, cc=wire.CcState(rcvd_bytes=1), **ids(end))
    return wire.Packet(dest_qp=end.qp.qp_num, psn=packet.psn, body=body)


def write_and_answer(end, peer, to, reflect, change=()):
    """Writes four bytes. The peer answers with a SACK, whose entropy it makes of flow label and port."""
    end.qp.write(end.region(bytearray(4)), RemoteBuffer(0x1000, 4, 7))
    packet, label, sport = peer.receive()
    peer.send(sack(end, packet, reflect(label & 0xFFFF, sport)), to, change=change)
    ack = wire.Packet(
        dest_qp=end.qp.qp_num, psn=packet.psn, body=wire.Ack(syndrome=0x00, msn=packet.body.msn + 1)
    )
    peer.send(ack, to)
    assert end.send_cq.take(timeout=20)[0].status is WcStatus.SUCCESS
    return end.qp.stats(), label, sport


AS_SENT = {"ipv4": "127.0.0.1", "ipv6": "::1"}


@pytest.mark.parametrize("address", AS_SENT.values(), ids=AS_SENT)
def test_feedback_in_our_order_is_understood(address):
    with against(address) as (end, peer, to):
        stats, label, _ = write_and_answer(end, peer, to, lambda label, sport: label << 16 | sport)
        assert label == 0, "the high half of a 16-bit value is 0"
        assert (stats["sacks_in"], stats["peer_swapped_entropy"], stats["peer_unknown_entropy"]) == (1, 0, 0)


def test_feedback_of_a_host_that_added_a_flow_label_is_understood():
    with against() as (end, peer, to):
        stats, *_ = write_and_answer(end, peer, to, lambda label, sport: 0xBEEF << 16 | sport)
        assert (stats["peer_swapped_entropy"], stats["peer_unknown_entropy"]) == (0, 0)


@pytest.mark.parametrize("address", AS_SENT.values(), ids=AS_SENT)
def test_feedback_with_the_halves_exchanged_is_understood_and_counted(address):
    with against(address) as (end, peer, to):
        for count in (1, 2):
            stats, *_ = write_and_answer(end, peer, to, lambda label, sport: sport << 16 | label)
            assert (stats["peer_swapped_entropy"], stats["peer_unknown_entropy"]) == (count, 0)


def test_feedback_of_no_path_completes_writes_and_changes_no_path():
    with against() as (end, peer, to):
        always_skip = [(13, 2 << 5)]
        stats, *_ = write_and_answer(end, peer, to, lambda label, sport: 0x12345678, always_skip)
        assert (stats["peer_swapped_entropy"], stats["peer_unknown_entropy"]) == (0, 1)
        assert {state for *_, state in end.qp.ev_states()} == {EvState.GOOD}


def test_automatic_values_of_32_bits_are_carried_and_reflected_whole():
    with against(auto_bits=32) as (end, peer, to):
        evs = {row["ev"] for row in end.context.path_stats()}
        assert all(ev >> 16 for ev in evs)
        stats, label, sport = write_and_answer(end, peer, to, lambda label, sport: label << 16 | sport)
        assert label << 16 | sport in evs
        assert (stats["peer_swapped_entropy"], stats["peer_unknown_entropy"]) == (0, 0)
        stats, *_ = write_and_answer(end, peer, to, lambda label, sport: sport)
        assert stats["peer_unknown_entropy"] == 1, "all 32 bits are compared"


CHANGES = {
    # Offsets from the BTH on; 12 is the first byte of SETH.
    "peer_bth_m": (1, 0x80),
    "peer_bth_reserved": (8, 0x40),
    "peer_control_ts": (8, 0x10),
    "peer_sack_mark": (13, 3 << 5),
    "peer_sack_cc_type": (28, 0x10),
    "peer_cc_flags": (28, 0x01),
}


@pytest.mark.parametrize("counter", CHANGES)
def test_a_sack_of_another_reading_is_accepted_and_counted(counter):
    with against() as (end, peer, to):
        stats, *_ = write_and_answer(end, peer, to, lambda label, sport: sport, [CHANGES[counter]])
        assert stats["sacks_in"] == 1
        assert eventually(lambda: end.context.stats()["peers"][counter] == 1)
        assert sum(end.context.stats()["peers"].values()) == 1
        assert not any(end.context.stats()["causes"].values())


def test_a_nack_as_a_tester_builds_it_brings_a_retransmission():
    """The defaults of Keysight's template (cc_type 0, vendor_info 0xFF), then a reason that is unknown."""
    with against() as (end, peer, to):
        end.qp.write(end.region(bytearray(4)), RemoteBuffer(0x1000, 4, 7))
        counted = {"peer_nack_cc_type": 1, "peer_vendor_info": 1}
        for changes, more in (([(15, 0xFF), (28, 0)], {}), ([(14, 0x44)], {"peer_nack_reason": 1})):
            packet, _, sport = peer.receive()
            body = wire.Nack(
                reason=wire.NackReason.NO_PKT_BUFFER, nack_psn=packet.psn, entropy=sport, **ids(end)
            )
            nack = wire.Packet(dest_qp=end.qp.qp_num, psn=packet.psn, body=body)
            peer.send(nack, to, change=changes)
            counted |= more
        packet, _, sport = peer.receive()
        assert packet.rtx
        peer.send(sack(end, packet, sport), to)
        peer.send(
            wire.Packet(dest_qp=end.qp.qp_num, psn=packet.psn, body=wire.Ack(msn=packet.body.msn + 1)), to
        )
        assert end.send_cq.take(timeout=20)[0].status is WcStatus.SUCCESS
        seen = {name: count for name, count in end.context.stats()["peers"].items() if count}
        assert seen == counted


def write_to(end, peer, to, *, psn, change=(), timestamp=None):
    """A foreign write of four bytes to a region of ours; returns the SACK that answers it."""
    buffer = bytearray(4)
    remote = end.region(buffer).remote()
    body = wire.Write(va=remote.addr, rkey=remote.rkey, dma_len=4, msn=psn, timestamp=timestamp)
    packet = wire.Packet(dest_qp=end.qp.qp_num, psn=psn, body=body, payload=b"mrc!", ack_req=True)
    peer.send(packet, to, change=change)
    answer = peer.receive(wire.Sack)[0].body
    assert bytes(buffer) == b"mrc!"
    return answer


@pytest.mark.parametrize("address", AS_SENT.values(), ids=AS_SENT)
def test_a_responder_in_udp_mode_reflects_flow_label_and_source_port(address):
    with against(address) as (end, peer, to):
        if address == "::1":
            peer.socket.setsockopt(socket.IPPROTO_IPV6, 33, 1)  # IPV6_FLOWINFO_SEND
            to = (*to, 0xABCD, 0)
        seen = write_to(end, peer, to, psn=0)
        assert seen.entropy == (0xABCD << 16 if address == "::1" else 0) | peer.port


def test_a_timestamp_of_any_resolution_and_type_is_reflected():
    with against() as (end, peer, to):
        # TSR and ftype are bytes 2 and 3 of TSETH, which follows BTH and METH.
        for psn, tsr, ftype in ((0, 0x00, 1), (1, 0x80, 1), (2, 0x00, 0x0F)):
            stamp = wire.Timestamp(ticks=0x1000 + psn)
            begin = time.monotonic_ns()
            seen = write_to(end, peer, to, psn=psn, change=[(18, tsr), (19, ftype)], timestamp=stamp)
            # A delayed SACK moves timestamps of 128 ns on by the time for which it was held.
            held = seen.cc.timestamp - stamp.ticks
            most = (time.monotonic_ns() - begin) // 128 + 1
            assert held == 0 if tsr else 0 <= held <= most
        peers = end.context.stats()["peers"]
        assert (peers["peer_tsr"], peers["peer_ftype"]) == (1, 1)


def test_a_device_may_listen_on_a_second_port():
    (second,) = free_ports("::1", 1)
    with against(udp_ports=[second]) as (end, peer, (address, own)):
        for psn, port in enumerate((own, second, second)):
            write_to(end, peer, (address, port), psn=psn)
        assert not any(end.context.stats()["causes"].values())
