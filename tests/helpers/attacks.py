"""Two hosts and an attacker on two planes, each plane a bridge, in network namespaces of their own.

The attacker can send to every address with any source address. As on a real switch, it does not receive what
the hosts send to each other.
"""

import itertools
import os
import random
import socket
import struct
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from openmrc.lab.system import entered, remove, run
from openmrc.verbs import Context, Device, Port
from openmrc.wire import (
    DSCP,
    Ack,
    Cnp,
    EndpointOp,
    EndpointRequest,
    EndpointResponse,
    Mark,
    Nack,
    NackReason,
    Packet,
    Position,
    Probe,
    RcAck,
    Sack,
    Timestamp,
    Write,
)
from tests.helpers.labs import unique

PLANES = 2
ENDPOINT_QP = 2
LONG = "OPENMRC_LONG" in os.environ
COUNT = 1_000_000 if LONG else 3000
"""Packets of each kind that the attacker sends."""


@dataclass
class Stage:
    """The hosts' devices, and what the attacker needs."""

    names: dict[str, str]
    a: Context
    b: Context
    attacker: socket.socket
    stack: ExitStack

    def address(self, host, plane):
        return f"10.{200 + plane}.0.{'abm'.index(host) + 1}"

    def cut(self, host, up=False):
        """Takes a host off all planes, or puts it back; it does not notice."""
        for plane in range(PLANES):
            bridge = ["master", f"p{plane}"] if up else ["nomaster"]
            run(["ip", "-n", self.names["switch"], "link", "set", f"{host}{plane}", *bridge])

    def narrow(self, host, planes, mtu):
        """The switch drops what is longer than this on its way to a host, and tells nobody."""
        for plane in planes:
            run(["ip", "-n", self.names["switch"], "link", "set", f"{host}{plane}", "mtu", str(mtu)])

    def forge(self, packet, source, target, plane=0, *, dscp=46, ev=50_000, times=1):
        """Sends a packet with the address of host ``source`` so many times; returns its length."""
        src = source if "." in source else self.address(source, plane)
        data = packet.to_bytes(src=src, dst=self.address(target, plane), ev=ev, dscp=dscp)
        for _ in range(times):
            self.attacker.sendto(data, (self.address(target, plane), 0))
        return len(data)

    def listen_as_stranger(self):
        """A socket at the MRC port of the attacker's own address on plane 0."""
        with entered(self.names["m"]):
            answers = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.stack.callback(answers.close)
        answers.bind((self.address("m", 0), 4791))
        answers.settimeout(20)
        return answers

    def forge_icmp(self, target, peer, plane, mtu, source_port):
        """Fragmentation needed, for a packet from ``target`` to ``peer``, as if from a router."""
        a, b = self.address(target, plane), self.address(peer, plane)
        quoted = _ip(a, b, 17, 4096) + struct.pack("!HHHH", source_port, 4791, 4076, 0)
        icmp = struct.pack("!BBHHH", 3, 4, 0, 0, mtu) + quoted
        icmp = icmp[:2] + struct.pack("!H", _checksum(icmp)) + icmp[4:]
        router = f"10.{200 + plane}.0.254"
        self.attacker.sendto(_ip(router, a, 1, 20 + len(icmp)) + icmp, (a, 0))


def _checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def _ip(src, dst, protocol, length):
    addresses = socket.inet_aton(src) + socket.inet_aton(dst)
    header = struct.pack("!BBHHHBBH", 0x45, 0, length, 0, 0x4000, 64, protocol, 0) + addresses
    return header[:10] + struct.pack("!H", _checksum(header)) + header[12:]


@contextmanager
def stage(**options):
    """Builds the planes and opens a device on each host."""
    names = {host: unique(f"attack-{host}") for host in ("switch", "a", "b", "m")}
    with ExitStack() as stack:
        stack.callback(lambda: remove(list(names.values())))
        for name in names.values():
            run(["ip", "netns", "add", name])
            run(["ip", "-n", name, "link", "set", "lo", "up"])
        switch = names["switch"]
        for plane in range(PLANES):
            run(["ip", "-n", switch, "link", "add", f"p{plane}", "type", "bridge"])
            run(["ip", "-n", switch, "link", "set", f"p{plane}", "up"])
            for number, host in enumerate("abm", start=1):
                port, nic = f"{host}{plane}", f"n{plane}"
                peer = ["peer", "name", nic, "netns", names[host]]
                run(["ip", "-n", switch, "link", "add", port, "mtu", "9000", "type", "veth", *peer])
                run(["ip", "-n", switch, "link", "set", port, "master", f"p{plane}", "up"])
                address = f"10.{200 + plane}.0.{number}/24"
                run(["ip", "-n", names[host], "address", "add", address, "dev", nic])
                run(["ip", "-n", names[host], "link", "set", nic, "mtu", "9000", "up"])
        contexts = []
        for number, host in enumerate("ab", start=1):
            ports = [Port(f"10.{200 + plane}.0.{number}") for plane in range(PLANES)]
            with entered(names[host]):
                contexts.append(stack.enter_context(Device(ports=ports, name=host, **options).open()))
        with entered(names["m"]):
            raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
        stack.enter_context(raw)
        yield Stage(names, *contexts, raw, stack)


class Forger:
    """Packets that an attacker makes up who knows addresses and the protocol, but has seen nothing."""

    def __init__(self, seed):
        self._random = random.Random(seed)
        self._first_numbers = itertools.cycle(range(1 << 14, 1 << 24, 1 << 14))

    def qp(self):
        """Half are any number. The others are those of a device that counts its queue pairs."""
        return self._random.choice((self._random.randrange(1 << 24), next(self._first_numbers)))

    def _bits(self, bits):
        return self._random.getrandbits(bits)

    def port_status(self):
        mask = self._random.choice((0, 0, 1, 2))
        body = EndpointRequest(
            op=EndpointOp.PORT_STATUS_UPDATE, port_status_mask=mask, timestamp=Timestamp(ticks=self._bits(16))
        )
        return Packet(dest_qp=ENDPOINT_QP, psn=self._bits(16), body=body)

    def endpoint_response(self):
        body = EndpointResponse(op=EndpointOp.PORT_STATUS_UPDATE, timestamp=self._bits(16))
        return Packet(dest_qp=ENDPOINT_QP, psn=self._bits(16), body=body)

    def probe(self):
        return Packet(dest_qp=ENDPOINT_QP, psn=self._bits(16), body=EndpointRequest())

    def reliability_probe(self):
        return Packet(dest_qp=self.qp(), psn=0, body=Probe(probe_id=self._bits(16)))

    def roce_ack(self):
        body = RcAck(syndrome=0x1F, msn=self._bits(24))
        return Packet(dest_qp=self.qp(), psn=self._bits(24), body=body)

    def congestion_notification(self):
        return Packet(dest_qp=self.qp(), psn=0, body=Cnp())

    def ack(self):
        return self._aeth(0x1F, 1)

    def nak(self):
        return self._aeth(self._random.choice((0x61, 0x62, 0x63)), 0)

    def _aeth(self, syndrome, msn):
        return Packet(dest_qp=self.qp(), psn=self._bits(24), body=Ack(syndrome=syndrome, msn=msn))

    def nack(self):
        reason = self._random.choice((NackReason.UNEXPECTED_EVENT, NackReason.TRIMMED))
        psn = self._bits(24)
        body = Nack(reason=reason, nack_psn=psn, entropy=50_000)
        return Packet(dest_qp=self.qp(), psn=psn, body=body)

    def sack(self):
        psn = self._bits(24)
        body = Sack(mark=Mark.ALWAYS_SKIP, cack_psn=psn, sack_offset=1, bitmap=self._bits(64))
        return Packet(dest_qp=self.qp(), psn=psn, body=body)

    def write(self):
        position = self._random.choice((Position.ONLY, Position.MIDDLE))
        body = Write(position=position, va=self._bits(47), rkey=self._bits(32), dma_len=4)
        return Packet(dest_qp=self.qp(), psn=self._bits(24), body=body, payload=b"evil")

    def trimmed(self):
        """The headers of a write. Nothing protects them: a switch cuts off the iCRC with the payload."""
        body = Write(position=Position.ONLY, va=self._bits(47), rkey=self._bits(32), dma_len=4096)
        return Packet(dest_qp=self.qp(), psn=self._bits(24), body=body)


KINDS = {
    "port status": Forger.port_status,
    "endpoint responses": Forger.endpoint_response,
    "EV probes": Forger.probe,
    "reliability probes": Forger.reliability_probe,
    "ACKs of RoCEv2": Forger.roce_ack,
    "CNPs of RoCEv2": Forger.congestion_notification,
    "ACKs": Forger.ack,
    "NAKs": Forger.nak,
    "NACKs": Forger.nack,
    "SACKs": Forger.sack,
    "writes": Forger.write,
    "trimmed packets": Forger.trimmed,
}
CODE_POINTS = {"trimmed packets": (DSCP.trimmed, DSCP.trimmed_last_hop)}
"""Of the kinds that are told by their DSCP."""


def code_point(kind, number):
    """The DSCP of the ``number``-th packet of a kind."""
    known = CODE_POINTS.get(kind, (46,))
    return known[number % len(known)]
