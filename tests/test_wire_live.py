"""What leaves a device, captured below its sockets: the iCRC is right with the kernel's headers."""

import os
import socket
from contextlib import closing

import pytest

from openmrc import wire
from openmrc.verbs import Device, Port
from verbs_helpers import bring_up, make_end

ALL_FRAMES = 3
ARRIVING = 0
"""Loopback's frames are captured twice, as they leave and as they arrive."""
WRITES = 200


def packets(capture, udp_ports):
    """MRC packets to these ports that have been captured."""
    while True:
        try:
            data, (_, _, direction, *_) = capture.recvfrom(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        for port in udp_ports if direction == ARRIVING else ():
            frame = wire.decode(data, wire.LinkType.ETHERNET, port=port)
            if frame.udp is not None and frame.udp.dport == port:
                yield frame


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_every_icrc_is_right(address):
    try:
        capture = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_FRAMES))
    except PermissionError:
        pytest.skip("is not root")
    first = 20_000 + os.getpid() % 10_000
    # On loopback nobody cuts what the kernel was to cut into packets.
    devices = [Device(ports=[Port(address, first + end)], segmentation=False) for end in range(2)]
    with closing(capture), devices[0].open() as one, devices[1].open() as two:
        capture.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
        capture.bind(("lo", 0))
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
