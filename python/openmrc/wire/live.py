"""Live packets of an interface: an ``AF_PACKET`` socket behind the same iterator of frames as a file.

The kernel hands large sends and merged receives to a capture in one piece, before they are cut into packets
or after they were merged. They are cut here as the kernel cuts them (``Documentation/networking``,
segmentation offloads), so that what is shown is what travels.
"""

import errno
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Iterator, Sequence

from openmrc.closing import Closable
from openmrc.errors import ArgumentError, DeviceError, PrivilegeError
from openmrc.printable import printable
from openmrc.wire.frame import Frame, LinkType, decode
from openmrc.wire.layers import DSCP, UDP_PORTS, DscpMap

# linux/if_ether.h, linux/if_packet.h, asm-generic/socket.h
_ETH_P_ALL = 3
_SOL_PACKET, _PACKET_STATISTICS, _PACKET_AUXDATA, _PACKET_VNET_HDR = 263, 6, 8, 15
# tpacket_auxdata: status, lengths and offsets, the 802.1Q tag that the kernel took out, and its type.
_AUXDATA = struct.Struct("=I4x4x2x2xHH")
_VLAN_VALID, _VLAN_TPID_VALID = 1 << 4, 1 << 6
_PACKET_OUTGOING = 4
_SO_RCVBUFFORCE, _SO_TIMESTAMPNS = 33, 35
# linux/virtio_net.h: flags, type, header length, segment size, start and offset of the checksum.
_VNET_HDR = struct.Struct("=BBHHHH")
_NEEDS_CSUM, _GSO_UDP_L4, _GSO_ECN = 1, 5, 0x80
# linux/if_arp.h
_ARPHRD_LOOPBACK = 772
_LINKTYPES = {
    1: LinkType.ETHERNET,
    _ARPHRD_LOOPBACK: LinkType.ETHERNET,
    768: LinkType.RAW,
    769: LinkType.RAW,
    776: LinkType.RAW,
    65534: LinkType.RAW,
}
"""By hardware type; tunnels have no header of a link."""
_VLAN = (b"\x81\x00", b"\x88\xa8")
_ETH_P_8021Q = 0x8100
_ADDRESSES = 12
"""Bytes of an Ethernet header before the tag."""
_BUFFER = 64 << 20
"""Bytes that may wait in the kernel: about 10,000 packets of 4 KiB with the kernel's share."""
_MOST = 1 << 18
"""Bytes of a piece, the limit of tcpdump."""
_LOOK_MS = 1000
"""The kernel says that an interface goes down, and not always that it is removed after that."""
ANY = "any"
"""All interfaces."""


class LiveCapture(Closable):
    """An iterator over the decoded packets of an interface, until it is stopped.

    No packet ends it, whatever its bytes are. While the interface is down it waits.
    """

    def __init__(self, interface: str, *, ports: Sequence[int] = UDP_PORTS, dscp: DscpMap = DSCP) -> None:
        """Begins to capture.

        Args:
            interface: Its name; ``any``: all of them.
            ports: UDP destination ports of MRC.
            dscp: Code points, by which trimmed packets are recognised.

        Raises:
            ArgumentError: if there is no such interface.
            PrivilegeError: without root and ``CAP_NET_RAW``.
            DeviceError: if the system has no packet sockets.
        """
        self.interface = interface
        self.received = 0
        """Packets of all kinds, after cutting."""
        self.unknown = 0
        """Pieces that the kernel could not describe, or of a link that is not decoded."""
        self._dropped = 0
        self._ports = ports
        self._dscp = dscp
        self._waiting: deque[tuple[int | None, int, bytes]] = deque()
        self._ended = False
        self._until_ns: int | None = None
        if not hasattr(socket, "AF_PACKET"):
            raise DeviceError("live packets need AF_PACKET sockets, which Linux has")
        known = {name: index for index, name in socket.if_nameindex()}
        if interface not in (*known, ANY):
            raise ArgumentError(
                f"there is no interface {printable(interface)[:64]!r}; there are {', '.join(known)} and {ANY}"
            )
        self._index = known.get(interface)
        try:
            # Protocol 0 until it is bound: nothing of other interfaces comes in before.
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
        except PermissionError:
            raise PrivilegeError("live packets need root or CAP_NET_RAW") from None
        except OSError as error:
            raise DeviceError(error.errno, f"no packet socket: {error.strerror}") from None
        self._ancillary = socket.CMSG_SPACE(16) + socket.CMSG_SPACE(_AUXDATA.size)
        self._wake, self._woken = socket.socketpair()
        try:
            self._prepare()
        except OSError as error:
            self.close()
            raise DeviceError(error.errno, f"{interface}: {error.strerror}") from None

    def _prepare(self) -> None:
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
        except PermissionError:  # It needs CAP_NET_ADMIN.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._socket.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
        self._socket.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
        self._socket.bind(("" if self.interface == ANY else self.interface, _ETH_P_ALL))
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._poll.register(self._woken, select.POLLIN)

    @property
    def dropped(self) -> int:
        """Pieces that the kernel has dropped because the reader was too slow."""
        if self._socket.fileno() >= 0:
            # Reading resets it.
            counted = self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)
            self._dropped += struct.unpack("=II", counted)[1]
        return self._dropped

    def stop(self) -> None:
        """Ends the iteration after what has arrived by now, also from a signal's handler or a thread."""
        self._until_ns = time.time_ns()
        if self._wake.fileno() >= 0:
            self._wake.send(b"\0")

    def close(self) -> None:
        """Ends the capture."""
        if self._socket.fileno() >= 0 and hasattr(self, "_poll"):
            _ = self.dropped  # It can be asked afterwards.
        self._ended = True
        for each in (self._socket, self._wake, self._woken):
            each.close()

    def __iter__(self) -> Iterator[Frame]:
        return self

    def __next__(self) -> Frame:
        """The next packet; waits for it.

        Raises:
            DeviceError: if the interface is gone.
        """
        while not self._ended:
            if self._waiting:
                time_ns, linktype, data = self._waiting.popleft()
                if self._until_ns is not None and (time_ns is None or time_ns > self._until_ns):
                    break
                self.received += 1
                return decode(data, linktype, time_ns=time_ns, ports=self._ports, dscp=self._dscp)
            self._receive()
        raise StopIteration

    def _receive(self) -> None:
        """Takes one piece from the kernel, or waits for one."""
        try:
            piece, ancillary, _, address = self._socket.recvmsg(_MOST, self._ancillary)
        except BlockingIOError:
            if self._until_ns is not None:
                self._ended = True
            elif not self._poll.poll(_LOOK_MS):
                self._check()
            return
        except OSError as error:
            if error.errno == errno.ENETDOWN:
                self._check()
            elif error.errno == errno.EINVAL:
                self.unknown += 1
            else:
                raise DeviceError(error.errno, f"{self.interface}: {error.strerror}") from None
            return
        _, _, direction, hardware, *_ = address
        # Loopback hands a packet to captures twice, as it leaves and as it arrives.
        if hardware == _ARPHRD_LOOPBACK and direction == _PACKET_OUTGOING:
            return
        linktype = _LINKTYPES.get(hardware)
        if linktype is None or len(piece) < _VNET_HDR.size:
            self.unknown += 1
            return
        time_ns = _time(ancillary)
        tag = _tag(ancillary) if linktype == LinkType.ETHERNET else b""
        self._waiting.extend(
            (time_ns, linktype, data[:_ADDRESSES] + tag + data[_ADDRESSES:]) for data in cut(piece, linktype)
        )

    def _check(self) -> None:
        """Looks whether a silent interface, which may be down, is still there."""
        if self._index is not None and (self._index, self.interface) not in socket.if_nameindex():
            raise DeviceError(errno.ENODEV, f"interface {self.interface} is gone")


def _time(ancillary: Sequence[tuple[int, int, bytes]]) -> int | None:
    for level, kind, data in ancillary:
        if (level, kind, len(data)) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS, 16):
            seconds, nanoseconds = struct.unpack("@qq", data)
            return int(seconds * 1_000_000_000 + nanoseconds)
    return None


def _tag(ancillary: Sequence[tuple[int, int, bytes]]) -> bytes:
    """The 802.1Q tag, which the kernel keeps beside the packet."""
    for level, kind, data in ancillary:
        if (level, kind, len(data)) == (_SOL_PACKET, _PACKET_AUXDATA, _AUXDATA.size):
            status, control, protocol = _AUXDATA.unpack(data)
            if status & _VLAN_VALID:
                protocol = protocol if status & _VLAN_TPID_VALID else _ETH_P_8021Q
                return struct.pack("!HH", protocol, control)
    return b""


def cut(piece: bytes, linktype: int) -> list[bytes]:
    """The packets of a piece that begins with the kernel's description of it.

    A piece that is a packet, or that is not understood, stays whole.

    Args:
        piece: A ``virtio_net_hdr``, and what follows it.
        linktype: The first header after it.
    """
    flags, kind, _, size, start, _ = _VNET_HDR.unpack_from(piece)
    data = piece[_VNET_HDR.size :]
    if kind & ~_GSO_ECN != _GSO_UDP_L4 or not flags & _NEEDS_CSUM or not size:
        return [data]
    head = 0
    if linktype == LinkType.ETHERNET:
        head = 12
        while data[head : head + 2] in _VLAN:
            head += 4
        head += 2
    version = data[head] >> 4 if head < len(data) else 0
    length = {4: 20, 6: 40}.get(version)
    if length is None or head + length != start or len(data) < start + 8:
        return [data]
    headers, payload = data[: start + 8], data[start + 8 :]
    found = []
    for number in range(max(1, -(-len(payload) // size))):
        part = payload[number * size : (number + 1) * size]
        own = bytearray(headers)
        struct.pack_into("!H", own, start + 4, 8 + len(part))
        if version == 4:
            struct.pack_into("!H", own, head + 2, length + 8 + len(part))
            [identification] = struct.unpack_from("!H", own, head + 4)
            struct.pack_into("!H", own, head + 4, (identification + number) & 0xFFFF)
        else:
            struct.pack_into("!H", own, head + 4, 8 + len(part))
        found.append(bytes(own) + part)
    return found
