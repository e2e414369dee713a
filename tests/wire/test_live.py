"""What leaves a device, captured below its sockets: the iCRC is right with the kernel's headers."""

import os
import socket
from contextlib import ExitStack, closing

import pytest

from openmrc import wire
from openmrc.lab.system import entered, remove, run
from openmrc.verbs import Device, Port
from tests.helpers.ends import bring_up, make_end
from tests.helpers.labs import needs_root

ALL_FRAMES = 3
ARRIVING = 0
"""Loopback's frames are captured twice, as they leave and as they arrive."""
WRITES = 200
SO_RCVBUFFORCE = 33
"""Python has no name for it."""


def packets(capture, udp_ports):
    """MRC packets to these ports that have been captured."""
    while True:
        try:
            data, (_, _, direction, *_) = capture.recvfrom(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        for port in udp_ports if direction == ARRIVING else ():
            frame = wire.decode(data, wire.LinkType.ETHERNET, ports=[port])
            if frame.udp is not None and frame.udp.dport == port:
                yield frame


@needs_root
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_every_icrc_is_right(loopback, address):
    first = 20_000
    # On loopback nobody cuts what the kernel was to cut into packets.
    devices = [Device(ports=[Port(address, first + end)], segmentation=False) for end in range(2)]
    with ExitStack() as stack:
        with entered(loopback):
            capture = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_FRAMES))
            capture.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
            capture.bind(("lo", 0))
            stack.enter_context(closing(capture))
            one, two = (stack.enter_context(device.open()) for device in devices)
        a, b = make_end(one), make_end(two)
        bring_up(a, b)
        with a.region(bytearray(9_000)) as local, b.region(bytearray(9_000)) as remote:
            for _ in range(WRITES):
                a.qp.write(local, remote.remote())
                assert a.send_cq.take(1, 20)[0].ok
        seen = list(packets(capture, (first, first + 1)))
    assert [frame.error for frame in seen if not frame.ok] == []
    assert {frame.icrc for frame in seen} == {wire.IcrcVerdict.GOOD}
    assert len(seen) >= 3 * WRITES


@pytest.fixture
def cable():
    """Two namespaces and a veth; the kernel cuts a message into packets before it leaves."""
    names = [f"test-cable-{os.getpid()}-{end}" for end in range(2)]
    try:
        for name in names:
            run(["ip", "netns", "add", name])
        run(["ip", "-n", names[0], "link", "add", "p0", "type", "veth", "peer", "p0", "netns", names[1]])
        for end, name in enumerate(names):
            for address in (f"192.0.2.{end + 1}/24", f"2001:db8::{end + 1}/64"):
                run(["ip", "-n", name, "address", "add", address, "dev", "p0", *["nodad"][: ":" in address]])
            run(["ip", "-n", name, "link", "set", "p0", "up", "mtu", "9000", "gso_max_segs", "1"])
        yield names
    finally:
        remove(names)


@needs_root
@pytest.mark.parametrize("addresses", [("192.0.2.1", "192.0.2.2"), ("2001:db8::1", "2001:db8::2")])
def test_every_icrc_is_right_where_the_kernel_cuts_messages(cable, addresses):
    with ExitStack() as stack:
        captures, devices = [], []
        for name, address in zip(cable, addresses, strict=True):
            with entered(name):
                capture = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_FRAMES))
                capture.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
                capture.bind(("p0", 0))
                captures.append(stack.enter_context(closing(capture)))
                # As a user has it: messages are cut by the kernel.
                devices.append(stack.enter_context(Device(ports=[Port(address)]).open()))
        a, b = map(make_end, devices)
        bring_up(a, b)
        with a.region(bytearray(300_000)) as local, b.region(bytearray(300_000)) as remote:
            for _ in range(WRITES // 10):
                a.qp.write(local, remote.remote())
                assert a.send_cq.take(1, 20)[0].ok
        seen = [frame for capture in captures for frame in packets(capture, (4791,))]
    assert [frame.error for frame in seen if not frame.ok] == []
    assert {frame.icrc for frame in seen} == {wire.IcrcVerdict.GOOD}
    if ":" not in addresses[0]:
        assert len({frame.ip.identification for frame in seen}) > 3, "the kernel numbers what it cuts"
