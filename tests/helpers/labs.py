"""Helpers for the tests of the lab: a fabric in namespaces, and hand-made SRv6 packets."""

import itertools
import os
import shutil
import socket
import struct
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager

import pytest

from openmrc.control.tcp import wait_readable
from openmrc.fabric import Fabric
from openmrc.lab import Lab
from openmrc.lab.system import entered

UDP_PORT = 4791
RING = ["h0", "h4", "h8", "h12", "h1", "h5", "h9", "h13"]
"""Each host writes to the next, and the last to the first; neighbours are under different T0s."""


def why_not():
    """Why a lab cannot run here, or None."""
    if os.geteuid() != 0:
        return "needs root"
    for tool in ("ip", "tc", "sysctl"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed (Debian: apt install iproute2 procps)"
    return None


needs_root = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


def specification(directory, name, *, hosts=16, planes=2, radix=8):
    file = directory / f"{name}.yaml"
    file.write_text(
        f"name: {name}\nhosts: {hosts}\nnic: {{rate: {planes * 100}G}}\nplanes: {planes}\n"
        f"switch: {{radix: {radix}}}\ntiers: 2\nparallel_links: 1\n"
    )
    return file


def unique(name):
    """A name that no other test run uses at the same time."""
    return f"test-{name}-{os.getpid()}"


@contextmanager
def running(directory, name, **shape):
    lab = Lab.up(Fabric.load(specification(directory, unique(name), **shape)))
    try:
        yield lab
    finally:
        lab.down()


def counted(lab):
    """The counters of every port of every node."""
    return {node: lab.counters(node) for node in lab.layout.nodes}


def carried(lab, before, after):
    """Packets that each link carried upwards and downwards, by its name."""

    def sent(end):
        return after[end.node][end.port].tx_packets - before[end.node][end.port].tx_packets

    return {link.name: (sent(link.lower), sent(link.upper)) for link in lab.layout.links.values()}


def observe(lab, end):
    """Starts tshark at a port; it prints the outer destination address of the first incoming packet."""
    options = ["-i", end.port, "-c", "1", "-n", "-f", "inbound and ip6 proto 41"]
    fields = ["-T", "fields", "-e", "ipv6.dst", "-E", "occurrence=f"]
    return subprocess.Popen(
        lab.command(end.node, ["tshark", *options, *fields]),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


class Srv6Sender:
    """Sends SRv6 packets over chosen paths of a pair of hosts and counts what arrives at the UDP socket.

    Scapy builds both headers: neither comes from openmrc.
    """

    def __init__(self, lab, src, dst):
        from scapy.layers.inet import UDP
        from scapy.layers.inet6 import IPv6

        self._ipv6, self._udp = IPv6, UDP
        self._from, self._to = lab.addresses(src), lab.addresses(dst)
        with ExitStack() as stack:
            with entered(lab.namespace(src)):
                self._raw = stack.enter_context(
                    socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_RAW)
                )
            with entered(lab.namespace(dst)):
                self._udp_socket = stack.enter_context(socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))
                self._udp_socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVTCLASS, 1)
                self._udp_socket.bind(("::", UDP_PORT))
            self._close = stack.pop_all()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._close.close()

    def packet(self, path, payload, traffic_class=0):
        inner = self._ipv6(src=self._from[path.plane], dst=self._to[path.plane], tc=traffic_class)
        outer = self._ipv6(src=self._from[path.plane], dst=str(path.address), tc=traffic_class)
        return bytes(outer / inner / self._udp(sport=50000, dport=UDP_PORT) / payload)

    def send(self, path, payload, count=1, traffic_class=0):
        packet = self.packet(path, payload, traffic_class)
        for _ in range(count):
            self._raw.sendto(packet, (str(path.address), 0))

    def send_burst(self, path, payloads, traffic_class=0):
        """Sends many packets as fast as possible: they are built first."""
        packets = [self.packet(path, payload, traffic_class) for payload in payloads]
        for packet in packets:
            self._raw.sendto(packet, (str(path.address), 0))

    def received(self, expected, patience_s=5.0):
        """Payloads that have arrived, until ``expected`` of them are there or time is up."""
        return [payload for payload, _ in self.received_with_class(expected, patience_s)]

    def received_with_class(self, expected, patience_s=5.0):
        """The same, each with its traffic class octet."""
        found = []
        deadline = time.monotonic() + patience_s
        while len(found) < expected and (left := deadline - time.monotonic()) > 0:
            if wait_readable(self._udp_socket, timeout=left):
                payload, [(_, _, octet)], *_ = self._udp_socket.recvmsg(65536, socket.CMSG_SPACE(4))
                found.append((payload, int.from_bytes(octet, sys.byteorder)))
        return found

    def silent_for(self, seconds):
        """Whether nothing arrives during this time."""
        return not wait_readable(self._udp_socket, timeout=seconds)


_rounds = itertools.count()


def one_by_one(sender, paths):
    """Numbers of the paths on which their own packet arrived."""
    # A switch may hold a packet while it resolves a neighbour behind a cut link, and send it after the
    # repair.
    this_round = next(_rounds)
    for number, path in enumerate(paths):
        sender.send(path, struct.pack(">IH", this_round, number))
    arrived = set()
    while len(arrived) < len(paths) and (payloads := sender.received(1, patience_s=2.0)):
        sent_in, number = struct.unpack(">IH", payloads[0])
        if sent_in == this_round:
            arrived.add(number)
    return arrived
