"""Watches what a host sends on given paths, at the port of its T0, no matter who has built the packet.

The kernel copies only packets whose outer destination is the address of one of the paths, so watching a few
paths costs almost nothing.
"""

import ctypes
import socket
import struct
import time
from collections.abc import Iterable, Sequence
from ipaddress import IPv6Address
from typing import NamedTuple

from openmrc.closing import Closable
from openmrc.errors import ArgumentError
from openmrc.fabric import Path
from openmrc.lab.layout import Layout, namespace
from openmrc.lab.system import entered

_ETH_P_ALL = 0x0003
"""Packets are copied before the kernel's own handlers, which change the destination address."""
_SOL_PACKET, _PACKET_IGNORE_OUTGOING = 263, 23
_SO_ATTACH_FILTER = 26
_SO_RCVBUFFORCE = 33
_SO_TIMESTAMPNS = 35
_BUFFER = 4 << 20
_ETHERNET, _IPV6, _UDP = 14, 40, 8
_DESTINATION = _ETHERNET + 24
_OPCODE = _ETHERNET + 2 * _IPV6 + _UDP
_RETH = slice(_OPCODE + 20, _OPCODE + 32)
"""Virtual address and R_Key of a data packet with a timestamp, behind BTH, METH and TSETH."""
_KEPT = _RETH.stop
_LOAD_WORD, _JUMP_EQUAL, _RETURN = 0x20, 0x15, 0x06
_MOST_PATHS = 400
"""A classic BPF program has at most 4096 instructions; an address needs nine."""

_DATA = range(0xC6, 0xCC)
_FEEDBACK = (0xD1, 0xDC, 0xDD)
"""Opcodes (docs/spec/wire.md): writes; ACK, SACK, NACK. Probes are neither: condemned paths get them too."""
_NOWHERE = bytes(12)
"""Address and key of a duplicate of full size that probes a path (docs/spec/paths.md)."""


class Seen(NamedTuple):
    """A packet on one of the paths."""

    time_ns: int
    """Time by the monotonic clock, nanoseconds."""
    opcode: int
    """Opcode of MRC (docs/spec/wire.md)."""
    probes: bool
    """Whether it is a duplicate that probes its path: it names no memory."""

    @classmethod
    def of(cls, time_ns: int, frame: bytes) -> "Seen":
        """What an Ethernet frame with a path as its outer destination carries."""
        return cls(time_ns, frame[_OPCODE], probes=frame[_RETH] == _NOWHERE)

    @property
    def is_data(self) -> bool:
        """Whether it is a data packet that carries something to its place."""
        return self.opcode in _DATA and not self.probes

    @property
    def is_feedback(self) -> bool:
        """Whether it is feedback to data."""
        return self.opcode in _FEEDBACK


class Tap(Closable):
    """Watches paths that begin at one port of a host."""

    def __init__(self, layout: Layout, lab: str, paths: Sequence[Path]) -> None:
        """Starts to watch.

        Raises:
            ArgumentError: for paths of several ports, or too many paths.
        """
        first = {path.links[0] for path in paths}
        if len(first) != 1:
            raise ArgumentError(f"a tap watches one port of a host, not {sorted(first)}")
        t0 = layout.links[first.pop()].upper
        with entered(namespace(lab, t0.node)):
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0))
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._filter([str(path.address) for path in paths])
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
        self._socket.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
        self._socket.bind((t0.port, _ETH_P_ALL))
        self._socket.setblocking(False)

    def _filter(self, addresses: Iterable[str]) -> None:
        program = address_filter(addresses)
        code = b"".join(struct.pack("HBBI", *each) for each in program)
        buffer = ctypes.create_string_buffer(code)
        self._socket.setsockopt(
            socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HL", len(program), ctypes.addressof(buffer))
        )

    def seen(self) -> list[Seen]:
        """The packets since the last call."""
        # Packets have wall-clock times; both clocks are read together for the conversion.
        offset = time.time_ns() - time.monotonic_ns()
        found: list[Seen] = []
        while True:
            try:
                data, ancillary, _, _ = self._socket.recvmsg(_KEPT, socket.CMSG_SPACE(16))
            except BlockingIOError:
                return found
            [(_, _, stamp)] = ancillary
            seconds, nanoseconds = struct.unpack("qq", stamp)
            found.append(Seen.of(seconds * 1_000_000_000 + nanoseconds - offset, data))

    def close(self) -> None:
        """Stops to watch."""
        self._socket.close()


def address_filter(addresses: Iterable[str]) -> list[tuple[int, int, int, int]]:
    """A classic BPF program (code, jump if true, jump if false, operand) that passes these destinations.

    Raises:
        ArgumentError: for too many addresses.
    """
    wanted = sorted({IPv6Address(address).packed for address in addresses})
    if len(wanted) > _MOST_PATHS:
        raise ArgumentError(f"a tap watches at most {_MOST_PATHS} paths, not {len(wanted)}")
    program: list[tuple[int, int, int, int]] = []
    for packed in wanted:
        words = struct.unpack(">4I", packed)
        for number, word in enumerate(words):
            program.append((_LOAD_WORD, 0, 0, _DESTINATION + 4 * number))
            # On a difference, skip the rest of this address: two instructions per word, and the return.
            program.append((_JUMP_EQUAL, 0, 2 * (3 - number) + 1, word))
        program.append((_RETURN, 0, 0, _KEPT))
    program.append((_RETURN, 0, 0, 0))
    return program
